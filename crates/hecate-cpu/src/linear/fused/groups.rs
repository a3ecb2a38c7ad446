//! The fused form without momentum: four tokens in one pass over `M`.
//!
//! A sub-chunk of four tokens is the chunk form of equations (15)–(21) at `n = 4`.
//! Its tables are a handful of scalars a token, made once for all columns ([`Group`]).
//! A pass over a block `[K, width]` of the memory then does three things for each of its `K` rows:
//!
//! - decays the row and adds four rank-1 updates;
//! - adds its share to the predictions `K M` of the next four keys;
//! - adds its share to the reads `Q M` of the next four queries.
//!
//! Pseudo-values, predictions and reads are `GROUP` rows of `N` vectors each, which live in registers.
//! Erase is a constant of the pass: without it, predictions are not computed at all.

#![expect(clippy::needless_range_loop, reason = "tokens and vectors are counted as in the equations")]

use super::{BlockedMemory, FusedChunk, GROUP, LOOKAHEAD, interleave};
use crate::{
    linear::{chunk_view::ChunkView, padded_matrix::AlignedBuf},
    product::Mat,
    rows::dot,
    simd::{load, load_part, store, store_part},
};
use hecate_core::{Read, families::LinearSpec};
use pulp::Simd;

/// Keys, queries and factors of a chunk, in the order in which passes use them.
#[derive(Default)]
pub(super) struct PackedGroups {
    /// Keys of the chunk's sub-chunks and of the one after it: `[groups + 1, K, GROUP]`.
    k: AlignedBuf,
    /// Queries likewise.
    q: AlignedBuf,
    /// Factors of each sub-chunk.
    groups: Vec<Group>,
}

/// Factors of a group's tokens, from its gates and the products of its keys and queries. Index `i` is the token.
#[derive(Clone, Copy, Default)]
struct Group {
    /// `z_i = w_i v_i − erase_i k_i M₀ − Σ_{j<i} overlap_ij z_j`: (18), (19).
    w: [f32; GROUP],
    /// Erase strength times the retention before the token.
    erase: [f32; GROUP],
    /// What earlier pseudo-values of the sub-chunk take off, with the keys' products.
    overlap: [[f32; GROUP]; GROUP],
    /// `y_i = read_i q_i M₀ + Σ_j seen_ij z_j`: (20).
    read: [f32; GROUP],
    /// What a read gets of the sub-chunk's own writes, with the products of query and keys.
    seen: [[f32; GROUP]; GROUP],
    /// `M ← decay M₀ + Σ_j k_jᵀ last_j z_j`: (21).
    decay: f32,
    /// Weight of each write at the sub-chunk's end.
    last: [f32; GROUP],
}

impl Group {
    /// The sub-chunk of tokens from `first` on. Tokens after the last one do nothing: their factors are 0 or 1.
    #[inline(always)]
    fn new(spec: LinearSpec, view: &ChunkView<'_>, first: usize) -> Self {
        let here = |x: &[f32], i: usize, none: f32| x.get(first + i).copied().unwrap_or(none);
        let count = GROUP.min(view.tokens - first);
        let mut group = Self { w: std::array::from_fn(|i| here(view.w, i, 0.0)), ..Self::default() };
        // c[i,j] of (17): weight of write j after token i − 1, for rows 0 to GROUP.
        let mut c = [[0.0; GROUP]; GROUP + 1];
        let mut a = [1.0; GROUP + 1];
        for i in 0..GROUP {
            // A token after the last one retains everything and writes nothing.
            let retained = here(view.a, i, 1.0);
            a[i + 1] = retained * a[i];
            for j in 0..i {
                c[i + 1][j] = retained * c[i][j];
            }
            c[i + 1][i] = 1.0;
        }
        // A read after its write sees one write more, and one retention more.
        let at = usize::from(spec.read == Read::After);
        // Products of keys and queries inside the sub-chunk: `n²` dot products of length `K`.
        for i in 0..count {
            let (q, k, r) = (view.q.row(first + i), view.k.row(first + i), here(view.r, i, 0.0));
            group.erase[i] = r * a[i];
            group.read[i] = a[i + at];
            for j in 0..i {
                if spec.erases() {
                    group.overlap[i][j] = r * c[i][j] * dot(k, view.k.row(first + j));
                }
            }
            for j in 0..i + at {
                group.seen[i][j] = c[i + at][j] * dot(q, view.k.row(first + j));
            }
        }
        (group.decay, group.last) = (a[GROUP], c[GROUP]);
        group
    }
}

impl PackedGroups {
    /// Keys and queries side by side: element `i` of row `r` of a sub-chunk is that of its token `i`.
    #[inline(always)]
    pub(super) fn pack(&mut self, spec: LinearSpec, view: &ChunkView<'_>) {
        let (groups, size) = (view.tokens.div_ceil(GROUP), view.k.columns * GROUP);
        let Self { k, q, groups: factors } = self;
        [&mut *k, q].into_iter().for_each(|x| x.fit((groups + 1) * size));
        for group in 0..=groups {
            interleave::<GROUP>(&view.k, group * GROUP, &mut k.get_mut()[group * size..][..size]);
            interleave::<GROUP>(&view.q, group * GROUP, &mut q.get_mut()[group * size..][..size]);
        }
        factors.resize(groups, Group::default());
        for (group, factors) in factors.iter_mut().enumerate() {
            *factors = Group::new(spec, view, group * GROUP);
        }
    }
}

impl FusedChunk<'_, '_> {
    /// All sub-chunks of the chunk through one block of columns.
    #[inline(always)]
    pub(super) fn groups<S: Simd, const N: usize, const ERASE: bool>(&mut self, simd: S, block: usize) {
        let Self { view, state, chunk, out, .. } = self;
        let PackedGroups { k, q, groups } = &chunk.groups;
        let BlockedMemory { key, width, m, lookahead, ready, .. } = &mut **state;
        let (size, column) = (*key * GROUP, block * *width);
        let m = &mut m.get_mut()[block * *key * *width..][..*key * *width];
        let lookahead = &mut lookahead.get_mut()[block * LOOKAHEAD * *width..][..LOOKAHEAD * *width];
        let mut reads =
            GroupReads::<S, N> { p: [[simd.splat_f32s(0.0); N]; GROUP], y: [[simd.splat_f32s(0.0); N]; GROUP] };
        match *ready {
            true => reads.load(simd, lookahead),
            false => reads.look::<ERASE>(simd, m, &k.get()[..size], &q.get()[..size]),
        }
        for (g, group) in groups.iter().enumerate() {
            let first = g * GROUP;
            let z = reads.pseudo_values::<ERASE>(simd, group, &view.v, first, column);
            for i in 0..GROUP.min(view.tokens - first) {
                store_part(simd, &mut out[first + i][column..], reads.read(simd, group, i, &z));
            }
            let keys = &k.get()[g * size..][..2 * size];
            reads.write::<ERASE>(simd, group, z, m, keys, &q.get()[(g + 1) * size..][..size]);
        }
        reads.store(simd, lookahead);
    }
}

/// What the keys and queries of a sub-chunk find in the memory before it.
struct GroupReads<S: Simd, const N: usize> {
    /// Predictions `K M₀`, a row for each token.
    p: [[S::f32s; N]; GROUP],
    /// Reads `Q M₀`, a row for each token.
    y: [[S::f32s; N]; GROUP],
}

impl<S: Simd, const N: usize> GroupReads<S, N> {
    /// From the lookahead of the chunk before, `[LOOKAHEAD, width]`.
    #[inline(always)]
    fn load(&mut self, simd: S, from: &[f32]) {
        let rows = from.chunks_exact(N * S::F32_LANES);
        self.p.iter_mut().chain(&mut self.y).zip(rows).for_each(|(own, from)| *own = load(simd, from));
    }

    /// Into the lookahead, for the chunk after.
    #[inline(always)]
    fn store(self, simd: S, to: &mut [f32]) {
        let rows = to.chunks_exact_mut(N * S::F32_LANES);
        self.p.into_iter().chain(self.y).zip(rows).for_each(|(own, to)| store(simd, to, own));
    }

    /// Pseudo-values `z` of all tokens of the sub-chunk: substitution in registers.
    #[inline(always)]
    fn pseudo_values<const ERASE: bool>(
        &self,
        simd: S,
        group: &Group,
        v: &Mat<'_>,
        first: usize,
        column: usize,
    ) -> [[S::f32s; N]; GROUP] {
        let mut z = [[simd.splat_f32s(0.0); N]; GROUP];
        for i in 0..GROUP.min(v.rows - first) {
            let w = simd.splat_f32s(group.w[i]);
            // The value's part, then what the memory before the sub-chunk predicts, then its own writes.
            let mut own = load_part::<S, N>(simd, &v.row(first + i)[column..]).map(|v| simd.mul_f32s(w, v));
            if ERASE {
                let erase = simd.splat_f32s(-group.erase[i]);
                (0..N).for_each(|n| own[n] = simd.mul_add_e_f32s(erase, self.p[i][n], own[n]));
                for j in 0..i {
                    let overlap = simd.splat_f32s(-group.overlap[i][j]);
                    (0..N).for_each(|n| own[n] = simd.mul_add_e_f32s(overlap, z[j][n], own[n]));
                }
            }
            z[i] = own;
        }
        z
    }

    /// What token `i` of the sub-chunk reads: of the memory before it, and of the writes up to its own.
    #[inline(always)]
    fn read(&self, simd: S, group: &Group, i: usize, z: &[[S::f32s; N]; GROUP]) -> [S::f32s; N] {
        let read = simd.splat_f32s(group.read[i]);
        // The memory before the sub-chunk, decayed, and the writes that the token sees.
        let mut y = self.y[i].map(|y| simd.mul_f32s(read, y));
        for j in 0..=i {
            let seen = simd.splat_f32s(group.seen[i][j]);
            (0..N).for_each(|n| y[n] = simd.mul_add_e_f32s(seen, z[j][n], y[n]));
        }
        y
    }

    /// A pass that only reads: what the first sub-chunk finds in the memory `[K, width]`.
    #[inline(always)]
    fn look<const ERASE: bool>(&mut self, simd: S, m: &[f32], k: &[f32], q: &[f32]) {
        let (k, q) = (k.as_chunks::<GROUP>().0, q.as_chunks::<GROUP>().0);
        for ((m, k), q) in m.chunks_exact(N * S::F32_LANES).zip(k).zip(q) {
            self.find::<ERASE>(simd, load(simd, m), k, q);
        }
    }

    /// Adds the share of one row of the memory to all predictions and reads.
    #[inline(always)]
    fn find<const ERASE: bool>(&mut self, simd: S, m: [S::f32s; N], k: &[f32; GROUP], q: &[f32; GROUP]) {
        for i in 0..GROUP {
            let (k, q) = (simd.splat_f32s(k[i]), simd.splat_f32s(q[i]));
            for n in 0..N {
                if ERASE {
                    self.p[i][n] = simd.mul_add_e_f32s(k, m[n], self.p[i][n]);
                }
                self.y[i][n] = simd.mul_add_e_f32s(q, m[n], self.y[i][n]);
            }
        }
    }

    /// Writes the sub-chunk into the memory, and takes in what the next one finds there.
    /// `keys` are those of both, `q` the next one's queries.
    #[inline(always)]
    fn write<const ERASE: bool>(
        &mut self,
        simd: S,
        group: &Group,
        mut z: [[S::f32s; N]; GROUP],
        m: &mut [f32],
        keys: &[f32],
        q: &[f32],
    ) {
        let decay = simd.splat_f32s(group.decay);
        // Weighed once, not once a row of the memory.
        for (z, last) in z.iter_mut().zip(group.last) {
            *z = z.map(|z| simd.mul_f32s(simd.splat_f32s(last), z));
        }
        let zero = [[simd.splat_f32s(0.0); N]; GROUP];
        let mut next = Self { p: zero, y: zero };
        let (keys, lookahead) = keys.split_at(keys.len() / 2);
        let (keys, lookahead) = (keys.as_chunks::<GROUP>().0, lookahead.as_chunks::<GROUP>().0);
        let rows = m.chunks_exact_mut(N * S::F32_LANES).zip(keys).zip(lookahead).zip(q.as_chunks::<GROUP>().0);
        // One row of the memory: load, decay, four updates, store, eight products for the tokens after.
        for (((m, k), lookahead), q) in rows {
            let mut x = load::<S, N>(simd, m).map(|x| simd.mul_f32s(decay, x));
            for j in 0..GROUP {
                let k = simd.splat_f32s(k[j]);
                (0..N).for_each(|n| x[n] = simd.mul_add_e_f32s(k, z[j][n], x[n]));
            }
            store(simd, m, x);
            next.find::<ERASE>(simd, x, lookahead, q);
        }
        *self = next;
    }
}
