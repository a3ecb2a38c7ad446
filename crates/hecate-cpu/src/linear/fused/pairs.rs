//! The fused form with momentum: two tokens in one pass over `M` and `S`.
//!
//! For each element of the memory a token costs five multiplications or additions here.
//! A pass for one token alone waits longer for reading and writing both matrices than for those.
//! Two tokens in one pass halve that.
//!
//! All that is added is half of a product.
//! The second token of a pair predicts from `a M + η S` plus the first token's write.
//! The pass before takes `k₁ (a M + η S)` with keys that already carry the gates; the write enters as `k₀ · k₁`.
//!
//! Reads need no such trick: each token reads in the pass that writes it.

use super::{BlockedMemory, FusedChunk, LOOKAHEAD, interleave};
use crate::{
    linear::{chunk_view::ChunkView, padded_matrix::AlignedBuf},
    product::Mat,
    rows::dot,
    simd::{load, load_part, store, store_part},
};
use hecate_core::{Read, families::LinearSpec};
use pulp::Simd;

/// Tokens that are written in one pass, where there is momentum.
const PAIR: usize = 2;

/// Keys, queries and products of a chunk, in the order in which passes use them.
#[derive(Default)]
pub(super) struct PackedPairs {
    /// Keys of the chunk's pairs and of the one after it: `[pairs + 1, K, PAIR]`.
    k: AlignedBuf,
    /// Queries that read after each token: `[pairs, K, PAIR]`.
    /// Where tokens read before they write, these are the queries of the tokens after.
    q: AlignedBuf,
    /// `a k` and `η k` of each pair's second key, with the gates of its first token: `[pairs + 1, K, PAIR]`.
    second: AlignedBuf,
    /// `k₀ · k₁` of each pair.
    near: Vec<f32>,
}

impl PackedPairs {
    /// Takes what is in the view, whose `q`, `k`, `a` and `eta` may go on after its tokens.
    #[inline(always)]
    pub(super) fn pack(&mut self, spec: LinearSpec, view: &ChunkView<'_>) {
        let (pairs, size) = (view.tokens.div_ceil(PAIR), view.k.columns * PAIR);
        let Self { k, q, second, near } = self;
        [&mut *k, q, second].into_iter().for_each(|x| x.fit((pairs + 1) * size));
        near.clear();
        for pair in 0..=pairs {
            let (first, own) = (pair * PAIR, pair * size..(pair + 1) * size);
            interleave::<PAIR>(&view.k, first, &mut k.get_mut()[own.clone()]);
            interleave::<PAIR>(&view.q, first + usize::from(spec.read == Read::Before), &mut q.get_mut()[own.clone()]);
            let (second, _) = second.get_mut()[own].as_chunks_mut::<PAIR>();
            // A pair without a second token: its factors are 0.
            if first + 1 >= view.k.rows {
                second.fill([0.0; PAIR]);
                near.push(0.0);
                continue;
            }
            let (a, eta, key) = (view.a[first], view.eta[first], view.k.row(first + 1));
            second.iter_mut().zip(key).for_each(|(second, k)| *second = [a * k, eta * k]);
            near.push(dot(view.k.row(first), key));
        }
    }
}

/// What the next tokens find in the memory.
struct PairReads<S: Simd, const N: usize> {
    /// `K M` of the first key, and of the second in the memory after the first token's decay.
    p: [[S::f32s; N]; PAIR],
    /// `q M` of a token that reads before it writes.
    y: [S::f32s; N],
}

/// A pair on its way through a block of columns.
struct PairStep<'a> {
    /// Values and gates.
    view: &'a ChunkView<'a>,
    /// Whether tokens read before they write.
    before: bool,
    /// The pair's first token.
    first: usize,
    /// The block's first column.
    column: usize,
    /// `k₀ · k₁`.
    near: f32,
    /// Of the pair, then of the next one.
    keys: &'a [f32],
    /// Of the pair.
    queries: &'a [f32],
    /// Of the next pair.
    second: &'a [f32],
}

impl FusedChunk<'_, '_> {
    /// Pairs of tokens through one block of columns.
    #[inline(always)]
    pub(super) fn pairs<S: Simd, const N: usize>(&mut self, simd: S, block: usize) {
        let Self { spec, view, state, chunk, out } = self;
        let BlockedMemory { key, width, m, s, lookahead, ready, .. } = &mut **state;
        let (size, pair) = (*key * *width, *key * PAIR);
        let m = &mut m.get_mut()[block * size..][..size];
        let s = &mut s.get_mut()[block * size..][..size];
        let lookahead = &mut lookahead.get_mut()[block * LOOKAHEAD * *width..][..LOOKAHEAD * *width];
        let PackedPairs { k, q, second, near } = &chunk.pairs;
        let mut reads = match *ready {
            true => PairReads::load(simd, lookahead),
            false => PairReads::<S, N>::look(simd, (m, s), &k.get()[..pair], &second.get()[..pair], &view.q),
        };
        for (i, first) in (0..view.tokens).step_by(PAIR).enumerate() {
            let step = PairStep {
                view,
                before: spec.read == Read::Before,
                first,
                column: block * *width,
                near: near[i],
                keys: &k.get()[i * pair..][..2 * pair],
                queries: &q.get()[i * pair..][..pair],
                second: &second.get()[(i + 1) * pair..][..pair],
            };
            // The last pair of an odd chunk has one token.
            match view.tokens - first {
                1 => step.run::<S, N, 1>(simd, &mut reads, (m, s), out),
                _ => step.run::<S, N, PAIR>(simd, &mut reads, (m, s), out),
            }
        }
        reads.store(simd, lookahead);
    }
}

impl PairStep<'_> {
    /// Writes `G` tokens into the memory, hands out what they read, and takes in what the next pair finds.
    #[inline(always)]
    fn run<S: Simd, const N: usize, const G: usize>(
        &self,
        simd: S,
        reads: &mut PairReads<S, N>,
        (m, s): (&mut [f32], &mut [f32]),
        out: &mut [&mut [f32]],
    ) {
        let Self { view, first, column, .. } = *self;
        let z: [_; G] = self.pseudo_values(simd, reads);
        let a: [_; G] = std::array::from_fn(|i| simd.splat_f32s(view.a[first + i]));
        let eta: [_; G] = std::array::from_fn(|i| simd.splat_f32s(view.eta[first + i]));
        let zero = [simd.splat_f32s(0.0); N];
        // Both rows are loaded once; the tokens of the pair follow each other in registers.
        let (mut p, mut y) = ([zero; PAIR], [zero; G]);
        let (keys, lookahead) = self.keys.split_at(self.keys.len() / 2);
        let keys = keys.as_chunks::<PAIR>().0.iter().zip(self.queries.as_chunks::<PAIR>().0);
        let next = lookahead.as_chunks::<PAIR>().0.iter().zip(self.second.as_chunks::<PAIR>().0);
        let rows = m.chunks_exact_mut(N * S::F32_LANES).zip(s.chunks_exact_mut(N * S::F32_LANES));
        for ((m, s), ((k, q), (lookahead, second))) in rows.zip(keys.zip(next)) {
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
            find(simd, &mut p, (x, step), lookahead[0], second);
        }
        if self.before {
            store_part(simd, &mut out[first][column..], reads.y);
        }
        // What reads before its own write is read after the write before it, one place later.
        let late = usize::from(self.before);
        for i in late..G {
            store_part(simd, &mut out[first + i][column..], y[i - late]);
        }
        *reads = PairReads { p, y: y[G - 1] };
    }

    /// Pseudo-values `z` of the tokens: equations (1), (2).
    /// The first token's prediction is at hand; the second one's gets the first token's write.
    #[inline(always)]
    fn pseudo_values<S: Simd, const N: usize, const G: usize>(
        &self,
        simd: S,
        reads: &PairReads<S, N>,
    ) -> [[S::f32s; N]; G] {
        let Self { view, first, column, .. } = *self;
        let mut z = [[simd.splat_f32s(0.0); N]; G];
        for i in 0..G {
            let (w, r) = (view.w[first + i], view.r.get(first + i).copied().unwrap_or(0.0));
            let (w, r, near) = (simd.splat_f32s(w), simd.splat_f32s(-r), simd.splat_f32s(self.near));
            let v = load_part::<S, N>(simd, &view.v.row(first + i)[column..]);
            for n in 0..N {
                // The second prediction gets the first token's write through the product of their keys.
                let p = if i == 0 { reads.p[0][n] } else { simd.mul_add_e_f32s(near, z[0][n], reads.p[i][n]) };
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

impl<S: Simd, const N: usize> PairReads<S, N> {
    /// A pass that only reads: what the first pair finds in the memory.
    #[inline(always)]
    fn look(simd: S, (m, s): (&[f32], &[f32]), keys: &[f32], second: &[f32], q: &Mat<'_>) -> Self {
        let zero = [simd.splat_f32s(0.0); N];
        let mut reads = Self { p: [zero; PAIR], y: zero };
        let rows = m.chunks_exact(N * S::F32_LANES).zip(s.chunks_exact(N * S::F32_LANES));
        let keys = keys.as_chunks::<PAIR>().0.iter().zip(second.as_chunks::<PAIR>().0);
        for ((m, s), ((k, second), &q)) in rows.zip(keys.zip(q.row(0))) {
            let (m, q) = (load::<S, N>(simd, m), simd.splat_f32s(q));
            find(simd, &mut reads.p, (m, load(simd, s)), k[0], second);
            (0..N).for_each(|n| reads.y[n] = simd.mul_add_e_f32s(q, m[n], reads.y[n]));
        }
        reads
    }

    /// From the lookahead of the chunk before.
    #[inline(always)]
    fn load(simd: S, from: &[f32]) -> Self {
        let at = |i: usize| load::<S, N>(simd, &from[i * N * S::F32_LANES..]);
        Self { p: [at(0), at(1)], y: at(2) }
    }

    /// Into the lookahead, for the chunk after.
    #[inline(always)]
    fn store(self, simd: S, to: &mut [f32]) {
        let rows = to.chunks_exact_mut(N * S::F32_LANES);
        self.p.into_iter().chain([self.y]).zip(rows).for_each(|(own, to)| store(simd, to, own));
    }
}
