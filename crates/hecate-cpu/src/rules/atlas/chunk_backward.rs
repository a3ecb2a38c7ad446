//! The exact chunk form without Newton-Schulz, backward: equations (23)–(32) with (93).

use super::{
    AtlasCell, Parts,
    chunk::{Piece, Stretch, Workspace, gather, times},
};
use crate::{
    engine::{
        solve,
        tables::{FactorGrads, TableGrads, Tables, reset},
    },
    product::{Mat, MatMut, product},
    recurrent::{Rows, TokenGrads},
    rows::{add_scaled_rows, axpy, dot, scale, set_scaled_rows},
    simd::wide,
};

/// Scratch for pieces.
#[derive(Default)]
struct Back {
    forward: Workspace,
    dtables: TableGrads,
    /// `Λ [cn,V]`, then `γ∗Λ = −dP`.
    lambda: Vec<f32>,
    /// `−dP Zᵀ [cn,cn]` and `dO Zᵀ [n,cn]`.
    square: Vec<f32>,
    /// Gradient of [`Workspace::products`], `[u,u]`.
    dproducts: Vec<f32>,
    /// Gradient of [`Workspace::g`], `[n,u]`.
    dg: Vec<f32>,
    /// `keys dM_C`, then the gradient of `keys M₀`, `[u,V]`; the same of `S`.
    sums: [Vec<f32>; 2],
    /// `[n,K]`.
    queries: Vec<f32>,
    /// Gradients of `a`, `η`, `θ`, `[n]` each.
    dfactors: [Vec<f32>; 3],
}

/// Gradients that a piece adds to or sets.
struct Part<'a> {
    /// `[n,K]`, added to.
    dq: &'a mut [f32],
    /// `[u,K]`, added to.
    dkeys: &'a mut [f32],
    /// `[u,V]`, added to.
    dvalues: &'a mut [f32],
    /// `[n, 3 + c]`, set.
    dgates: &'a mut [f32],
}

/// Gradients of a stretch; `dstate` from behind it to before it.
pub(super) fn run(
    cell: &AtlasCell,
    rows: Rows<'_>,
    start: &[f32],
    dout: &[f32],
    dstate: &mut [f32],
    grads: TokenGrads<'_>,
) {
    let AtlasCell { key, value, window, .. } = *cell;
    let (stretch, mut work) = (Stretch::new(cell, rows, start), Back::default());
    let pieces: Vec<_> = stretch.pieces().collect();
    let size = 2 * key * value;
    let mut states = vec![0.0; pieces.len() * size];
    let mut state = start.to_vec();
    for (tokens, kept) in pieces.iter().zip(states.chunks_exact_mut(size)) {
        kept.copy_from_slice(&state[..size]);
        if tokens.end < rows.tokens {
            stretch.run(tokens, &mut state, &mut work.forward, None);
        }
    }
    let mut d = cell.parts_mut(dstate);
    let mut dkeys = behind(d.kbuf, grads.k.len());
    let mut dvalues = behind(d.vbuf, grads.v.len());
    for (tokens, start) in pieces.iter().zip(states.chunks_exact(size)).rev() {
        let piece = stretch.piece(tokens);
        let part = Part {
            dq: &mut grads.q[tokens.start * key..tokens.end * key],
            dkeys: &mut dkeys[tokens.start * key..(tokens.end + window - 1) * key],
            dvalues: &mut dvalues[tokens.start * value..(tokens.end + window - 1) * value],
            dgates: &mut grads.gates[tokens.start * (3 + window)..tokens.end * (3 + window)],
        };
        let dout = &dout[tokens.start * value..tokens.end * value];
        wide(
            (&mut work, &mut d, part),
            #[inline(always)]
            |(work, d, mut part)| work.run(&piece, start.split_at(size / 2), dout, d, &mut part),
        );
    }
    let (dk, dv) = (dkeys.split_at((window - 1) * key), dvalues.split_at((window - 1) * value));
    d.kbuf.copy_from_slice(dk.0);
    d.vbuf.copy_from_slice(dv.0);
    grads.k.copy_from_slice(dk.1);
    grads.v.copy_from_slice(dv.1);
}

/// Gradients of the rows of a stretch and before it: zeros, then those of the rows behind it.
fn behind(last: &[f32], own: usize) -> Vec<f32> {
    let mut all = vec![0.0; own];
    all.extend_from_slice(last);
    all
}

impl Back {
    /// One piece; `d` holds the gradients of `M` and `S` behind it, then before it.
    #[inline(always)]
    fn run(
        &mut self,
        piece: &Piece<'_>,
        (m, s): (&[f32], &[f32]),
        dout: &[f32],
        d: &mut Parts<&mut [f32]>,
        part: &mut Part<'_>,
    ) {
        self.forward.writes(piece, m, s);
        self.forward.reads(piece);
        self.dtables.clear(&self.forward.tables);
        self.adjoint_of_writes(piece, dout, d);
        self.written(piece, part);
        self.erases(piece);
        self.reads(piece, [m, s], dout, part);
        self.states(piece, [m, s], dout, d, part);
        self.factors(piece, part);
    }

    /// `Λ`: equations (23), (24); `dc[C,·]` and `dE[C,·]` of (31).
    #[inline(always)]
    fn adjoint_of_writes(&mut self, piece: &Piece<'_>, dout: &[f32], d: &Parts<&mut [f32]>) {
        let (n, rows, width, window) = (piece.tokens, piece.written(), piece.width(), piece.window);
        let Self { forward, dtables, lambda, sums, .. } = self;
        let tables = &forward.tables;
        reset(lambda, rows * width);
        let yg = Mat::new(&forward.yg, n, rows);
        product(MatMut::new(lambda, rows, width), 0.0, 1.0, yg.t(), Mat::new(dout, n, width));
        let [of_m, of_s] = sums;
        times(of_m, piece.keys, d.m, width);
        times(of_s, piece.keys, d.s, width);
        let (c, e) = (tables.last_m(), tables.last_s());
        for (row, (lambda, z)) in lambda.chunks_exact_mut(width).zip(forward.z.chunks_exact(width)).enumerate() {
            let (t, of) = (row / window, piece.of(row) * width);
            axpy(lambda, c[t], &of_m[of..][..width]);
            axpy(lambda, e[t], &of_s[of..][..width]);
            dtables.c_row(n)[1 + t] += dot(&of_m[of..][..width], z);
            dtables.e_row(n)[1 + t] += dot(&of_s[of..][..width], z);
        }
        solve::lower_transposed(&forward.triangle, rows, lambda, width);
    }

    /// `dγ = dw + dr`, `dV`, and `−dP` in place of `Λ`: equation (25).
    #[inline(always)]
    fn written(&mut self, piece: &Piece<'_>, part: &mut Part<'_>) {
        let (rows, width, window) = (piece.written(), piece.width(), piece.window);
        let Self { forward, lambda, .. } = self;
        // V − P: what the start left to learn, less what was written in between.
        let (ln, z) = (Mat::new(&forward.ln, rows, rows), Mat::new(&forward.z, rows, width));
        product(MatMut::new(&mut forward.errors, rows, width), 1.0, -1.0, ln, z);
        for (row, (lambda, e)) in lambda.chunks_exact_mut(width).zip(forward.errors.chunks_exact(width)).enumerate() {
            let (t, i) = (row / window, row % window);
            part.dgates[t * (3 + window) + 2 + window - i] = dot(lambda, e);
            scale(lambda, piece.gamma[row]);
            axpy(&mut part.dvalues[piece.of(row) * width..][..width], 1.0, lambda);
        }
    }

    /// What the erased predictions add to `dN`, `dL`, `da⁻`, `db⁻` and, in `sums`, to the gradients of `keys M₀` and
    /// `keys S₀`: equations (26), (28), (31).
    #[inline(always)]
    fn erases(&mut self, piece: &Piece<'_>) {
        let (rows, width, window, u) = (piece.written(), piece.width(), piece.window, piece.keys.rows);
        let Self { forward, dtables, lambda, square, dproducts, sums, .. } = self;
        reset(square, rows * rows);
        reset(dproducts, u * u);
        let z = Mat::new(&forward.z, rows, width);
        product(MatMut::new(square, rows, rows), 0.0, -1.0, Mat::new(lambda, rows, width), z.t());
        for (sums, factors) in sums.iter_mut().zip([&forward.tables.a, &forward.tables.b]) {
            sums.fill(0.0);
            gather(sums, factors, lambda, piece);
            scale(sums, -1.0);
        }
        for (row, (square, lambda)) in square.chunks_exact(rows).zip(lambda.chunks_exact(width)).enumerate() {
            let (t, of) = (row / window, piece.of(row));
            let (products, dproducts) = (&forward.products[of * u..][..u], &mut dproducts[of * u..][..u]);
            let dtable = &mut dtables.c_row(t)[..=t];
            scatter(&mut dtable[1..], dproducts, square, forward.tables.writes(t, t), products, window);
            dtable[0] -= dot(lambda, &forward.of_s[of * width..][..width]);
            dtables.a[t] -= dot(lambda, &forward.of_m[of * width..][..width]);
        }
    }

    /// What reading adds to `dQ`, `dG`, `dY`, `da⁺`, `db⁺`: equations (26), (27), (31).
    #[inline(always)]
    fn reads(&mut self, piece: &Piece<'_>, states: [&[f32]; 2], dout: &[f32], part: &mut Part<'_>) {
        let (n, rows, width, key, u) = (piece.tokens, piece.written(), piece.width(), piece.q.columns, piece.keys.rows);
        let Self { forward, dtables, square, dg, queries, .. } = self;
        let tables = &forward.tables;
        let first = Tables::first_read(piece.read);
        reset(square, n * rows);
        reset(dg, n * u);
        let dout = Mat::new(dout, n, width);
        product(MatMut::new(square, n, rows), 0.0, 1.0, dout, Mat::new(&forward.z, rows, width).t());
        for (t, (square, dg)) in square.chunks_exact(rows).zip(dg.chunks_exact_mut(u)).enumerate() {
            let seen = t + first;
            let (dtable, g) = (&mut dtables.c_row(seen)[1..=seen], &forward.g[t * u..][..u]);
            scatter(dtable, dg, square, tables.writes(seen, seen), g, piece.window);
        }
        reset(queries, n * key);
        for (slot, (state, factors)) in states.into_iter().zip([&tables.a, &tables.b]).enumerate() {
            product(MatMut::new(queries, n, key), 0.0, 1.0, dout, Mat::new(state, key, width).t());
            add_scaled_rows(part.dq, &factors[first..], queries, key);
            for (t, (x, q)) in queries.chunks_exact(key).zip(piece.q.data.chunks_exact(key)).enumerate() {
                *[&mut dtables.a[t + first], &mut dtables.c[(t + first) * (n + 1)]][slot] += dot(x, q);
            }
        }
        let dg = Mat::new(dg, n, u);
        product(MatMut::new(part.dq, n, key), 1.0, 1.0, dg, piece.keys);
        product(MatMut::new(part.dkeys, u, key), 1.0, 1.0, dg.t(), piece.q);
    }

    /// What products of keys and the states at both ends add to `dK`, and the states' own gradients: (28)–(31).
    #[inline(always)]
    fn states(
        &mut self,
        piece: &Piece<'_>,
        [m, s]: [&[f32]; 2],
        dout: &[f32],
        d: &mut Parts<&mut [f32]>,
        part: &mut Part<'_>,
    ) {
        let (n, width, key, u) = (piece.tokens, piece.width(), piece.q.columns, piece.keys.rows);
        let Self { forward, dtables, dproducts, sums, .. } = self;
        let tables = &forward.tables;
        let mut add = |rows: Mat<'_>, by: Mat<'_>| product(MatMut::new(part.dkeys, u, key), 1.0, 1.0, rows, by);
        add(Mat::new(dproducts, u, u), piece.keys);
        add(Mat::new(dproducts, u, u).t(), piece.keys);
        let ends = [(&*d.m, m, tables.last_m()), (&*d.s, s, tables.last_s())];
        for ((dstate, state, factors), sums) in ends.into_iter().zip(&*sums) {
            reset(&mut forward.scratch, u * width);
            gather(&mut forward.scratch, factors, &forward.z, piece);
            add(Mat::new(&forward.scratch, u, width), Mat::new(dstate, key, width).t());
            add(Mat::new(sums, u, width), Mat::new(state, key, width).t());
        }
        let (a, b, e) = tables.carried();
        dtables.a[n] += dot(d.m, m);
        dtables.c_row(n)[0] += dot(d.m, s);
        dtables.e_row(n)[0] += dot(d.s, s);
        scale(d.s, e);
        axpy(d.s, b, d.m);
        scale(d.m, a);
        let first = Tables::first_read(piece.read);
        reset(&mut forward.scratch, n * width);
        let pairs = [(&mut *d.m, &tables.a, &sums[0]), (&mut *d.s, &tables.b, &sums[1])];
        for (dstate, factors, sums) in pairs {
            let mut add = |rows: Mat<'_>, by: &[f32]| {
                let by = Mat::new(by, rows.rows, width);
                product(MatMut::new(dstate, key, width), 1.0, 1.0, rows.t(), by);
            };
            add(piece.keys, sums);
            set_scaled_rows(&mut forward.scratch, &factors[first..], dout, width);
            add(piece.q, &forward.scratch);
        }
    }

    /// Gradients of the gates that the tables are made of: equations (32), (93), (14).
    #[inline(always)]
    fn factors(&mut self, piece: &Piece<'_>, part: &mut Part<'_>) {
        self.dfactors.iter_mut().for_each(|x| reset(x, piece.tokens));
        let [a, eta, emission] = &mut self.dfactors;
        self.dtables.gates(&self.forward.tables, piece.factors, FactorGrads { a, eta, emission });
        for (t, gates) in part.dgates.chunks_exact_mut(3 + piece.window).enumerate() {
            gates[0] = piece.factors.a[t] * self.dfactors[0][t];
            gates[1] = piece.factors.eta[t] * self.dfactors[1][t];
            gates[2] = self.dfactors[2][t];
        }
    }
}

/// The adjoint of what written rows make of one row of a table and one of products of keys, for a row of `dX Zᵀ`:
/// `dtable[s] += Σ_j products[s+j] outer[(s,j)]`, `dproducts[s+j] += table[s] outer[(s,j)]`.
#[inline(always)]
fn scatter(dtable: &mut [f32], dproducts: &mut [f32], outer: &[f32], table: &[f32], products: &[f32], window: usize) {
    for (s, ((dtable, table), outer)) in dtable.iter_mut().zip(table).zip(outer.chunks_exact(window)).enumerate() {
        *dtable += dot(&products[s..][..window], outer);
        axpy(&mut dproducts[s..][..window], *table, outer);
    }
}
