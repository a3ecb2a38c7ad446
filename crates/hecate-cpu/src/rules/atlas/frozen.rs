//! Frozen groups of Atlas without Newton-Schulz as matrix products.
//!
//! All windows of a group see the memory at its start, `M_c`, so a row has one error whichever windows it is in.
//! A chunk of `n` tokens from `M_0`, `S_0` has `u = c − 1 + n` rows, those before it included, and with `E = V − K M_c`
//!
//! ```text
//! S_t = e_t S_0 + Σ_r s[t,r] k_rᵀ E_r,   M_t = a_t M_0 + b_t S_0 + Σ_r m[t,r] k_rᵀ E_r
//! ```
//!
//! The scalars are recurrences over tokens, (81) and (83) of one element ([`Shares`]):
//!
//! ```text
//! s[t,·] = η_t s[t−1,·] + γ_t,   m[t,·] = a_t m[t−1,·] + θ_t s[t,·]        γ_t at the rows of the window
//! e_t = η_t e_{t−1},   b_t = a_t b_{t−1} + θ_t e_t,   a_t the product of the retentions
//! ```
//!
//! All else is products: reads are `Q M_0` and `Q S_0` by row, and `(m ∘ Q Kᵀ) E`.
//!
//! # Backward
//!
//! With `G = dY Eᵀ` and `P = Q Kᵀ`, `[n,u]` each:
//!
//! ```text
//! dm = G ∘ P,  dE = (m ∘ P)ᵀ dY,  dK = (m ∘ G)ᵀ Q,  dQ = (m ∘ G) K + a∗(dY M_0ᵀ) + b∗(dY S_0ᵀ)
//! dE += m_n∗(K dM) + s_n∗(K dS),  dK += m_n∗(E dMᵀ) + s_n∗(E dSᵀ)         from the state after the chunk
//! dV = dE,  dK −= dE M_cᵀ,  dM_c −= Kᵀ dE                                  through the errors, last
//! ```
//!
//! The scalars go back through their recurrences, which gives gradients of gates. Windows of any length are served: a longer one
//! has more rows in front, each of which is multiplied once a chunk.

use super::{AtlasCell, Parts, Scratch};
use crate::{
    linear::CHUNK,
    product::{Mat, MatMut, product},
    recurrent::{GroupBackward, GroupForward, TokenGrads, TokenRows},
    rows::{add_scaled_rows, axpy, dot, scale, set_scaled_rows},
    simd::wide,
};
use hecate_core::Read;
use std::ops::Range;

/// Tokens whose reads go together. They multiply what the last of them sees, zeros for the others.
const BLOCK: usize = 16;

/// A chunk: its rows, with the window before it in front, and their errors.
struct Chunk<'a> {
    /// `n`, `u`.
    tokens: usize,
    all: usize,
    /// `[n,K]`.
    q: Mat<'a>,
    /// `[u,K]`.
    keys: Vec<f32>,
    /// `E [u,V]`.
    errors: Vec<f32>,
    /// `a`, `η`, `θ` of every token, `[n,3]`.
    factors: Vec<[f32; 3]>,
    /// `[n,c]`, weights of a window's rows, oldest first.
    gamma: Vec<f32>,
}

/// What states before the first token and after each of them have of the start and of the rows.
struct Shares {
    /// `a`, `b`, `e`, `[n+1]` each.
    /// The first and the last begin at 1.
    start: [Vec<f32>; 3],
    /// `m`, `s`, `[n+1,u]` each.
    rows: [Vec<f32>; 2],
}

impl Shares {
    /// For `n` tokens and `u` rows: of a chunk before its pass, or gradients that nothing has been added to.
    fn zeros(tokens: usize, all: usize) -> Self {
        let (start, rows) = (|| vec![0.0; tokens + 1], || vec![0.0; (tokens + 1) * all]);
        Self { start: [start(), start(), start()], rows: [rows(), rows()] }
    }

    /// Those of a chunk.
    /// One pass over tokens, each with rows `[u]`.
    fn new(chunk: &Chunk<'_>) -> Self {
        let (window, all) = (chunk.window(), chunk.all);
        let mut shares = Self::zeros(chunk.tokens, all);
        let Self { start: [a, b, e], rows } = &mut shares;
        (a[0], e[0]) = (1.0, 1.0);
        wide(
            (a, b, e, rows),
            #[inline(always)]
            |(a, b, e, [m, s])| {
                let weights = chunk.gamma.chunks_exact(window);
                for (t, (&[retained, eta, theta], gamma)) in chunk.factors.iter().zip(weights).enumerate() {
                    e[t + 1] = eta * e[t];
                    (a[t + 1], b[t + 1]) = (retained * a[t], retained * b[t] + theta * e[t + 1]);
                    // The momentum keeps a part of its rows, and takes those of the window.
                    let (old, new) = s[t * all..][..2 * all].split_at_mut(all);
                    new.iter_mut().zip(&*old).for_each(|(new, old)| *new = eta * old);
                    axpy(&mut new[t..t + window], 1.0, gamma);
                    // The memory takes of the momentum what it is now.
                    let (old, next) = m[t * all..][..2 * all].split_at_mut(all);
                    let elements = next.iter_mut().zip(&*old).zip(&*new);
                    elements.for_each(|((next, old), s)| *next = retained * old + theta * s);
                }
            },
        );
        shares
    }

    /// From gradients of these, which `grads` holds and which change, to those of the gates `[n, all gates]`.
    fn back(&self, chunk: &Chunk<'_>, grads: &mut Self, dgates: &mut [f32]) {
        let (window, all) = (chunk.window(), chunk.all);
        wide(
            (grads, dgates),
            #[inline(always)]
            |(grads, dgates)| {
                let (Self { start: [a, b, e], rows: [m, s] }, Self { start: [da, db, de], rows: [dm, ds] }) =
                    (self, grads);
                let tokens = dgates.chunks_exact_mut(3 + window).zip(&chunk.factors).enumerate();
                for (t, (dgates, &[retained, eta, theta])) in tokens.rev() {
                    let ((dm, dm_next), (ds, ds_next)) = (pair(dm, t, all), pair(ds, t, all));
                    let (m, s) = (&m[t * all..][..all], &s[t * all..][..2 * all]);
                    // First what the memory took of the momentum, with the momentum after the token.
                    dgates[2] = dot(dm_next, &s[all..]) + db[t + 1] * e[t + 1];
                    axpy(ds_next, theta, dm_next);
                    de[t + 1] += theta * db[t + 1];
                    // Gates come as logarithms, hence their own value as a factor.
                    dgates[0] = retained * (dot(dm_next, m) + da[t + 1] * a[t] + db[t + 1] * b[t]);
                    dgates[1] = eta * (dot(ds_next, &s[..all]) + de[t + 1] * e[t]);
                    // Gates have the newest row first.
                    dgates[3..].iter_mut().rev().zip(&ds_next[t..]).for_each(|(to, x)| *to = *x);
                    // What was there before the token keeps these parts.
                    axpy(dm, retained, dm_next);
                    axpy(ds, eta, ds_next);
                    da[t] += retained * da[t + 1];
                    db[t] += retained * db[t + 1];
                    de[t] += eta * de[t + 1];
                }
            },
        );
    }
}

/// Rows `t` and `t + 1` of a matrix of this width.
#[inline(always)]
fn pair(x: &mut [f32], t: usize, width: usize) -> (&mut [f32], &mut [f32]) {
    x[t * width..][..2 * width].split_at_mut(width)
}

impl Chunk<'_> {
    /// `c`: every token has as many weights.
    fn window(&self) -> usize {
        self.gamma.len() / self.tokens
    }

    /// Blocks of tokens, and how many rows each of them may read.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> + use<> {
        let (tokens, before) = (self.tokens, self.all - self.tokens);
        (0..tokens).step_by(BLOCK).map(move |start| {
            let end = (start + BLOCK).min(tokens);
            (start..end, before + end)
        })
    }

    /// `out[t,r] = x_t·y_r [n,u]` for the rows that blocks read, with `x [n,width]` and `y [u,width]`.
    fn pairs(&self, x: Mat<'_>, y: Mat<'_>) -> Vec<f32> {
        // Rows that a block does not see stay zeros, and so do their products.
        let mut out = vec![0.0; self.tokens * self.all];
        for (own, seen) in self.blocks() {
            let to = MatMut::with_stride(&mut out[own.start * self.all..], own.len(), seen, self.all);
            product(to, 0.0, 1.0, x.block(own, 0..x.columns), y.block(0..seen, 0..y.columns).t());
        }
        out
    }

    /// `out += x y`, with `x [n,u]` of the rows that blocks read, and `y [u,width]`.
    /// Each block multiplies the rows that it sees.
    fn add_rows(&self, out: &mut [f32], x: &[f32], y: Mat<'_>) {
        let (x, width) = (Mat::new(x, self.tokens, self.all), y.columns);
        for (own, seen) in self.blocks() {
            let to = MatMut::new(&mut out[own.start * width..own.end * width], own.len(), width);
            product(to, 1.0, 1.0, x.block(own, 0..seen), y.block(0..seen, 0..width));
        }
    }

    /// `out += xᵀ y`, with `x [n,u]` of the rows that blocks read, and `y [n,width]`.
    /// Each block adds to the rows that it sees.
    fn add_columns(&self, out: &mut [f32], x: &[f32], y: Mat<'_>) {
        let (x, width) = (Mat::new(x, self.tokens, self.all), y.columns);
        for (own, seen) in self.blocks() {
            let to = MatMut::new(&mut out[..seen * width], seen, width);
            product(to, 1.0, 1.0, x.block(own.clone(), 0..seen).t(), y.block(own, 0..width));
        }
    }
}

/// `x ∘ y`: as long as the shorter one.
fn times(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}

/// Row `t` of `x` times `factors[t]`; `x [n,width]`.
fn scaled(factors: &[f32], x: &[f32], width: usize) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    wide(
        &mut out,
        #[inline(always)]
        |out| set_scaled_rows(out, factors, x, width),
    );
    out
}

impl AtlasCell {
    /// Elements that a chunk of a frozen group takes: rows, shares, products of tokens and rows, two states.
    pub(super) fn frozen_elements(&self) -> usize {
        let Self { key, value, window, .. } = *self;
        let (n, u) = (CHUNK, CHUNK + window - 1);
        let rows = u * (5 * key + 6 * value) + n * (5 * key + 2 * value + window + 16);
        rows + 10 * (n + 1) * u + 4 * key * value
    }

    /// The chunk of these rows after the window of `state`.
    fn frozen_chunk<'a>(&self, rows: TokenRows<'a>, state: &[f32], point: &[f32]) -> Chunk<'a> {
        let (n, key, value, window) = (rows.tokens, self.key, self.value, self.window);
        let (before, gates, all) = (self.parts(state), || rows.gates.chunks_exact(3 + window), n + window - 1);
        // Rows of the state come first: they are older.
        let (keys, mut errors) = ([before.kbuf, rows.k].concat(), [before.vbuf, rows.v].concat());
        let point = Mat::new(self.parts(point).m, key, value);
        product(MatMut::new(&mut errors, all, value), 1.0, -1.0, Mat::new(&keys, all, key), point);
        Chunk {
            tokens: n,
            all,
            q: Mat::new(rows.q, n, key),
            keys,
            errors,
            factors: gates().map(|gates| [gates[0].exp(), gates[1].exp(), gates[2]]).collect(),
            gamma: gates().flat_map(|gates| gates[3..].iter().rev()).copied().collect(),
        }
    }

    /// First state that reads: that before the first token, or that after it.
    fn first_read(&self) -> usize {
        usize::from(self.rule.read == Read::After)
    }

    /// `out [n,V]` if there is one, and `state` moves past the chunk.
    pub(super) fn frozen_forward(&self, chunk: GroupForward<'_, Scratch>, reads: bool) {
        let GroupForward { rows, old, new: state, point, out, .. } = chunk;
        state.copy_from_slice(old);
        let (n, key, value, first) = (rows.tokens, self.key, self.value, self.first_read());
        let chunk = self.frozen_chunk(rows, state, point);
        let (shares, all) = (Shares::new(&chunk), chunk.all);
        let [a, b, e] = &shares.start;
        let (keys, errors) = (Mat::new(&chunk.keys, all, key), Mat::new(&chunk.errors, all, value));
        let parts = self.parts_mut(state);
        // Each query reads the start, decayed, and the rows written so far.
        if reads {
            for (beta, factors, start) in [(0.0, a, &*parts.m), (1.0, b, &*parts.s)] {
                let q = scaled(&factors[first..], rows.q, key);
                let start = Mat::new(start, key, value);
                product(MatMut::new(out, n, value), beta, 1.0, Mat::new(&q, n, key), start);
            }
            let read = times(&shares.rows[0][first * all..], &chunk.pairs(chunk.q, keys));
            chunk.add_rows(out, &read, errors);
        }
        // The momentum last: the memory has its share of it.
        wide(
            (&mut *parts.m, &mut *parts.s),
            #[inline(always)]
            |(m, s)| {
                for (m, s) in m.iter_mut().zip(s) {
                    *m = a[n] * *m + b[n] * *s;
                    *s *= e[n];
                }
            },
        );
        // Every row enters both matrices with what is left of it at the end.
        for (share, to) in shares.rows.iter().zip([parts.m, parts.s]) {
            let written = scaled(&share[n * all..], &chunk.errors, value);
            product(MatMut::new(to, key, value), 1.0, 1.0, keys.t(), Mat::new(&written, all, value));
        }
        // The window after the chunk is the last of its rows; there may be fewer tokens than it has.
        let vbuf = [&*parts.vbuf, rows.v].concat();
        parts.kbuf.copy_from_slice(&chunk.keys[n * key..]);
        parts.vbuf.copy_from_slice(&vbuf[n * value..]);
    }

    /// Gradients of the chunk's arguments and of the state before it.
    pub(super) fn frozen_backward(&self, chunk: GroupBackward<'_, Scratch>) {
        let GroupBackward { rows, start, point, dout, adjoint, grads, .. } = chunk;
        let (n, key, value) = (rows.tokens, self.key, self.value);
        let chunk = self.frozen_chunk(rows, start, point);
        let (shares, all) = (Shares::new(&chunk), chunk.all);
        let (replay, mut dshares) = (Replay { chunk, shares, start: self.parts(start) }, Shares::zeros(n, all));
        let (mut dkeys, mut derrors) = (vec![0.0; all * key], vec![0.0; all * value]);
        // Rows are read by queries, and written into the state after the chunk.
        let to = RowGrads { keys: &mut dkeys, errors: &mut derrors };
        let d = self.parts_mut(adjoint.state);
        self.reads_vjp(&replay, dout, grads.q, &mut dshares, to);
        let to = RowGrads { keys: &mut dkeys, errors: &mut derrors };
        self.states_vjp(&replay, (&mut *d.m, &mut *d.s), dout, &mut dshares, to);
        replay.shares.back(&replay.chunk, &mut dshares, grads.gates);
        // Errors: `E = V − K M_c`.
        let (keys, errors) = (Mat::new(&replay.chunk.keys, all, key), Mat::new(&derrors, all, value));
        let point = Mat::new(self.parts(point).m, key, value);
        product(MatMut::new(&mut dkeys, all, key), 1.0, -1.0, errors, point.t());
        product(MatMut::new(self.parts_mut(adjoint.point).m, key, value), 1.0, -1.0, keys.t(), errors);
        // Values enter by errors alone; windows after the chunk have their own part of the last rows.
        let TokenGrads { k, v, .. } = grads;
        for (mut rows, buffer, own, width) in [(dkeys, d.kbuf, k, key), (derrors, d.vbuf, v, value)] {
            axpy(&mut rows[n * width..], 1.0, buffer);
            let (before, after) = rows.split_at((self.window - 1) * width);
            buffer.copy_from_slice(before);
            own.copy_from_slice(after);
        }
    }

    /// Back through the reads (84), from `dout [n,V]`: sets `dq`, adds to the others. States come in [`Self::states_vjp`].
    fn reads_vjp(
        &self,
        Replay { chunk, shares, start }: &Replay<'_>,
        dout: &[f32],
        dq: &mut [f32],
        dshares: &mut Shares,
        to: RowGrads<'_>,
    ) {
        let (n, all, key, value, first) = (chunk.tokens, chunk.all, self.key, self.value, self.first_read());
        let (keys, errors) = (Mat::new(&chunk.keys, all, key), Mat::new(&chunk.errors, all, value));
        let dout = Mat::new(dout, n, value);
        // The product is made again: it is dearer to keep.
        let (weights, read) = (&shares.rows[0][first * all..], chunk.pairs(chunk.q, keys));
        let mut dread = chunk.pairs(dout, errors);
        dshares.rows[0][first * all..].iter_mut().zip(dread.iter().zip(&read)).for_each(|(to, (d, x))| *to = d * x);
        dread.iter_mut().zip(weights).for_each(|(d, weight)| *d *= weight);
        chunk.add_columns(to.errors, &times(weights, &read), dout);
        chunk.add_columns(to.keys, &dread, chunk.q);
        dq.fill(0.0);
        chunk.add_rows(dq, &dread, keys);
        // What the start gave.
        let mut back = vec![0.0; n * key];
        for (i, x) in [start.m, start.s].into_iter().enumerate() {
            product(MatMut::new(&mut back, n, key), 0.0, 1.0, dout, Mat::new(x, key, value).t());
            let (factors, dfactors) = (&shares.start[i][first..], &mut dshares.start[i][first..]);
            wide(
                (&mut *dq, dfactors),
                #[inline(always)]
                |(dq, dfactors)| {
                    add_scaled_rows(dq, factors, &back, key);
                    let rows = chunk.q.data.chunks_exact(key).zip(back.chunks_exact(key));
                    dfactors.iter_mut().zip(rows).for_each(|(to, (q, x))| *to += dot(q, x));
                },
            );
        }
    }

    /// Back through the state after the chunk, whose gradients `dm`, `ds` become those of the state before it, reads included.
    fn states_vjp(
        &self,
        Replay { chunk, shares, start }: &Replay<'_>,
        (dm, ds): (&mut [f32], &mut [f32]),
        dout: &[f32],
        dshares: &mut Shares,
        to: RowGrads<'_>,
    ) {
        let (n, all, key, value, first) = (chunk.tokens, chunk.all, self.key, self.value, self.first_read());
        let (keys, errors) = (Mat::new(&chunk.keys, all, key), Mat::new(&chunk.errors, all, value));
        let (mut of_errors, mut of_keys) = (vec![0.0; all * value], vec![0.0; all * key]);
        // Both matrices have the same rows, with other weights.
        for (i, d) in [&*dm, &*ds].into_iter().enumerate() {
            let d = Mat::new(d, key, value);
            product(MatMut::new(&mut of_errors, all, value), 0.0, 1.0, keys, d);
            product(MatMut::new(&mut of_keys, all, key), 0.0, 1.0, errors, d.t());
            let (weights, dweights) = (&shares.rows[i][n * all..], &mut dshares.rows[i][n * all..]);
            wide(
                (&mut *to.errors, &mut *to.keys, dweights),
                #[inline(always)]
                |(derrors, dkeys, dweights)| {
                    add_scaled_rows(derrors, weights, &of_errors, value);
                    add_scaled_rows(dkeys, weights, &of_keys, key);
                    let rows = of_errors.chunks_exact(value).zip(chunk.errors.chunks_exact(value));
                    dweights.iter_mut().zip(rows).for_each(|(to, (x, e))| *to += dot(x, e));
                },
            );
        }
        // The start enters both with a scalar each, and the momentum's enters the memory too.
        let [a, b, e] = &shares.start;
        wide(
            (&mut *dm, &mut *ds, &mut dshares.start),
            #[inline(always)]
            |(dm, ds, [da, db, de])| {
                da[n] += dot(dm, start.m);
                db[n] += dot(dm, start.s);
                de[n] += dot(ds, start.s);
                scale(ds, e[n]);
                axpy(ds, b[n], dm);
                scale(dm, a[n]);
            },
        );
        // And queries have read it.
        for (factors, d) in [(a, dm), (b, ds)] {
            let dout = scaled(&factors[first..], dout, value);
            product(MatMut::new(d, key, value), 1.0, 1.0, chunk.q.t(), Mat::new(&dout, n, value));
        }
    }
}

/// A chunk on its way back.
/// Its forward but for the reads is made again.
struct Replay<'a> {
    chunk: Chunk<'a>,
    shares: Shares,
    /// The state before the chunk.
    start: Parts<&'a [f32]>,
}

/// Gradients of a chunk's keys `[u,K]` and errors `[u,V]`, to be added to.
struct RowGrads<'a> {
    keys: &'a mut [f32],
    errors: &'a mut [f32],
}
