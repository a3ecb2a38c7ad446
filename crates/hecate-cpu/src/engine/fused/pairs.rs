//! The fused form with momentum: two tokens in one pass over `M` and `S`.
//!
//! For each number of the memory a token costs five multiplications or additions here, and a pass for one alone waits
//! longer for reading and writing both matrices than for those. Two tokens in one pass halve that. All that is added is
//! half of one: the second token of a pair predicts from `a M + η S`, of which the pass before takes either part.

use super::{AHEAD, Call, State, interleave};
use crate::{
    engine::{
        Spec,
        lane::{View, row},
        sheet::Lines,
    },
    product::Mat,
    rows::dot,
    simd::{load, load_part, store, store_part},
};
use hecate_core::Read;
use pulp::Simd;

/// Tokens that are written in one pass, where there is momentum.
const PAIR: usize = 2;

/// What a lane is given in a chunk.
#[derive(Default)]
pub(super) struct Inputs {
    /// Keys of the pairs of a chunk and of the one behind it: `[pairs + 1, K, PAIR]`.
    k: Lines,
    /// Queries that read behind each token, those of the next tokens where they read before: `[pairs, K, PAIR]`.
    q: Lines,
    /// `a k` and `η k` of each pair's second key with the gates of its first token: `[pairs + 1, K, PAIR]`.
    second: Lines,
    /// `k₀ · k₁` of each pair.
    near: Vec<f32>,
}

impl Inputs {
    /// Takes what is in the view, whose `q`, `k`, `a` and `eta` may go on behind its tokens.
    #[inline(always)]
    pub(super) fn pack(&mut self, spec: Spec, view: &View<'_>) {
        let (pairs, size) = (view.tokens.div_ceil(PAIR), view.k.columns * PAIR);
        let Self { k, q, second, near } = self;
        [&mut *k, q, second].into_iter().for_each(|x| x.fit((pairs + 1) * size));
        near.clear();
        for pair in 0..=pairs {
            let (first, own) = (pair * PAIR, pair * size..(pair + 1) * size);
            interleave::<PAIR>(&view.k, first, &mut k.get_mut()[own.clone()]);
            interleave::<PAIR>(&view.q, first + usize::from(spec.read == Read::Before), &mut q.get_mut()[own.clone()]);
            let (second, _) = second.get_mut()[own].as_chunks_mut::<PAIR>();
            if first + 1 >= view.k.rows {
                second.fill([0.0; PAIR]);
                near.push(0.0);
                continue;
            }
            let (a, eta, key) = (view.a[first], view.eta[first], row(&view.k, first + 1));
            second.iter_mut().zip(key).for_each(|(second, k)| *second = [a * k, eta * k]);
            near.push(dot(row(&view.k, first), key));
        }
    }
}

/// What the next tokens find in the memory: `K M` of a pair, of its second key in the memory behind the first token's
/// forgetting, and `q M` of the token that reads before it writes.
struct Found<S: Simd, const N: usize> {
    p: [[S::f32s; N]; PAIR],
    y: [S::f32s; N],
}

/// A pair on its way through a block of columns.
struct Pass<'a> {
    view: &'a View<'a>,
    before: bool,
    first: usize,
    column: usize,
    near: f32,
    /// Of the pair, then of the next one.
    keys: &'a [f32],
    queries: &'a [f32],
    second: &'a [f32],
}

impl Call<'_, '_> {
    /// Pairs of tokens through one block of columns.
    #[inline(always)]
    pub(super) fn pairs<S: Simd, const N: usize>(&mut self, simd: S, block: usize) {
        let Self { spec, view, state, chunk, out } = self;
        let State { key, width, m, s, ahead, ready, .. } = &mut **state;
        let (size, pair) = (*key * *width, *key * PAIR);
        let m = &mut m.get_mut()[block * size..][..size];
        let s = &mut s.get_mut()[block * size..][..size];
        let ahead = &mut ahead.get_mut()[block * AHEAD * *width..][..AHEAD * *width];
        let Inputs { k, q, second, near } = &chunk.pairs;
        let mut found = match *ready {
            true => Found::load(simd, ahead),
            false => Found::<S, N>::look(simd, (m, s), &k.get()[..pair], &second.get()[..pair], &view.q),
        };
        for (i, first) in (0..view.tokens).step_by(PAIR).enumerate() {
            let pass = Pass {
                view,
                before: spec.read == Read::Before,
                first,
                column: block * *width,
                near: near[i],
                keys: &k.get()[i * pair..][..2 * pair],
                queries: &q.get()[i * pair..][..pair],
                second: &second.get()[(i + 1) * pair..][..pair],
            };
            match view.tokens - first {
                1 => pass.run::<S, N, 1>(simd, &mut found, (m, s), out),
                _ => pass.run::<S, N, PAIR>(simd, &mut found, (m, s), out),
            }
        }
        found.store(simd, ahead);
    }
}

impl Pass<'_> {
    /// Writes `G` tokens into the memory, hands out what they read, and takes in what the next pair finds.
    #[inline(always)]
    fn run<S: Simd, const N: usize, const G: usize>(
        &self,
        simd: S,
        found: &mut Found<S, N>,
        (m, s): (&mut [f32], &mut [f32]),
        out: &mut [&mut [f32]],
    ) {
        let Self { view, first, column, .. } = *self;
        let z: [_; G] = self.writes(simd, found);
        let a: [_; G] = std::array::from_fn(|i| simd.splat_f32s(view.a[first + i]));
        let eta: [_; G] = std::array::from_fn(|i| simd.splat_f32s(view.eta[first + i]));
        let zero = [simd.splat_f32s(0.0); N];
        let (mut p, mut y) = ([zero; PAIR], [zero; G]);
        let (keys, ahead) = self.keys.split_at(self.keys.len() / 2);
        let keys = keys.as_chunks::<PAIR>().0.iter().zip(self.queries.as_chunks::<PAIR>().0);
        let next = ahead.as_chunks::<PAIR>().0.iter().zip(self.second.as_chunks::<PAIR>().0);
        let rows = m.chunks_exact_mut(N * S::F32_LANES).zip(s.chunks_exact_mut(N * S::F32_LANES));
        for ((m, s), ((k, q), (ahead, second))) in rows.zip(keys.zip(next)) {
            let (mut x, mut step) = (load::<S, N>(simd, m), load::<S, N>(simd, s));
            for i in 0..G {
                let (k, q) = (simd.splat_f32s(k[i]), simd.splat_f32s(q[i]));
                for n in 0..N {
                    step[n] = simd.mul_add_e_f32s(k, z[i][n], simd.mul_f32s(eta[i], step[n]));
                    x[n] = simd.mul_add_e_f32s(a[i], x[n], step[n]);
                    y[i][n] = simd.mul_add_e_f32s(q, x[n], y[i][n]);
                }
            }
            store(simd, m, x);
            store(simd, s, step);
            find(simd, &mut p, (x, step), ahead[0], second);
        }
        if self.before {
            store_part(simd, &mut out[first][column..], found.y);
        }
        // What reads before a write is read behind the write before.
        let late = usize::from(self.before);
        for i in late..G {
            store_part(simd, &mut out[first + i][column..], y[i - late]);
        }
        *found = Found { p, y: y[G - 1] };
    }

    /// `z` of the tokens: (1), (2).
    #[inline(always)]
    fn writes<S: Simd, const N: usize, const G: usize>(&self, simd: S, found: &Found<S, N>) -> [[S::f32s; N]; G] {
        let Self { view, first, column, .. } = *self;
        let mut z = [[simd.splat_f32s(0.0); N]; G];
        for i in 0..G {
            let (w, r) = (view.w[first + i], view.r.get(first + i).copied().unwrap_or(0.0));
            let (w, r, near) = (simd.splat_f32s(w), simd.splat_f32s(-r), simd.splat_f32s(self.near));
            let v = load_part::<S, N>(simd, &row(&view.v, first + i)[column..]);
            for n in 0..N {
                let p = if i == 0 { found.p[0][n] } else { simd.mul_add_e_f32s(near, z[0][n], found.p[i][n]) };
                z[i][n] = simd.mul_add_e_f32s(r, p, simd.mul_f32s(w, v[n]));
            }
        }
        z
    }
}

/// Adds to `p` what a pair's keys find in one row of `M` and `S`.
#[inline(always)]
fn find<S: Simd, const N: usize>(
    simd: S,
    p: &mut [[S::f32s; N]; PAIR],
    (m, s): ([S::f32s; N], [S::f32s; N]),
    first: f32,
    second: &[f32; PAIR],
) {
    let (first, of_m, of_s) = (simd.splat_f32s(first), simd.splat_f32s(second[0]), simd.splat_f32s(second[1]));
    for n in 0..N {
        p[0][n] = simd.mul_add_e_f32s(first, m[n], p[0][n]);
        p[1][n] = simd.mul_add_e_f32s(of_s, s[n], simd.mul_add_e_f32s(of_m, m[n], p[1][n]));
    }
}

impl<S: Simd, const N: usize> Found<S, N> {
    /// In the memory before the first pair.
    #[inline(always)]
    fn look(simd: S, (m, s): (&[f32], &[f32]), keys: &[f32], second: &[f32], q: &Mat<'_>) -> Self {
        let zero = [simd.splat_f32s(0.0); N];
        let mut found = Self { p: [zero; PAIR], y: zero };
        let rows = m.chunks_exact(N * S::F32_LANES).zip(s.chunks_exact(N * S::F32_LANES));
        let keys = keys.as_chunks::<PAIR>().0.iter().zip(second.as_chunks::<PAIR>().0);
        for ((m, s), ((k, second), &q)) in rows.zip(keys.zip(row(q, 0))) {
            let (m, q) = (load::<S, N>(simd, m), simd.splat_f32s(q));
            find(simd, &mut found.p, (m, load(simd, s)), k[0], second);
            (0..N).for_each(|n| found.y[n] = simd.mul_add_e_f32s(q, m[n], found.y[n]));
        }
        found
    }

    #[inline(always)]
    fn load(simd: S, from: &[f32]) -> Self {
        let at = |i: usize| load::<S, N>(simd, &from[i * N * S::F32_LANES..]);
        Self { p: [at(0), at(1)], y: at(2) }
    }

    #[inline(always)]
    fn store(self, simd: S, to: &mut [f32]) {
        let rows = to.chunks_exact_mut(N * S::F32_LANES);
        self.p.into_iter().chain([self.y]).zip(rows).for_each(|(own, to)| store(simd, to, own));
    }
}
