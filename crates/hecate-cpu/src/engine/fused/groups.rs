//! The fused form without momentum: four tokens in one pass over `M`.

#![expect(clippy::needless_range_loop, reason = "tokens and vectors are counted as in the equations")]

use super::{AHEAD, Call, GROUP, State, interleave};
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

/// What a lane is given in a chunk.
#[derive(Default)]
pub(super) struct Inputs {
    /// Keys and queries of the groups of a chunk and of the one behind it: `[groups + 1, K, GROUP]`.
    k: Lines,
    q: Lines,
    groups: Vec<Group>,
}

/// Factors of a group's tokens, from its gates and the products of its keys and queries. Index `i` is the token.
#[derive(Clone, Copy, Default)]
struct Group {
    /// `z_i = w_i v_i − erase_i k_i M₀ − Σ_{j<i} overlap_ij z_j`: (18), (19).
    w: [f32; GROUP],
    erase: [f32; GROUP],
    overlap: [[f32; GROUP]; GROUP],
    /// `y_i = read_i q_i M₀ + Σ_j seen_ij z_j`: (20).
    read: [f32; GROUP],
    seen: [[f32; GROUP]; GROUP],
    /// `M ← decay M₀ + Σ_j k_jᵀ last_j z_j`: (21).
    decay: f32,
    last: [f32; GROUP],
}

impl Group {
    /// The group of tokens from `first` on; tokens behind the last do nothing.
    #[inline(always)]
    fn new(spec: Spec, view: &View<'_>, first: usize) -> Self {
        let here = |x: &[f32], i: usize, none: f32| x.get(first + i).copied().unwrap_or(none);
        let count = GROUP.min(view.tokens - first);
        let mut group = Self { w: std::array::from_fn(|i| here(view.w, i, 0.0)), ..Self::default() };
        // c[i,j] of (17), rows 0 to GROUP, writes in columns: influence of write j after token i − 1.
        let mut c = [[0.0; GROUP]; GROUP + 1];
        let mut a = [1.0; GROUP + 1];
        for i in 0..GROUP {
            let retained = here(view.a, i, 1.0);
            a[i + 1] = retained * a[i];
            for j in 0..i {
                c[i + 1][j] = retained * c[i][j];
            }
            c[i + 1][i] = 1.0;
        }
        let at = usize::from(spec.read == Read::After);
        for i in 0..count {
            let (q, k, r) = (row(&view.q, first + i), row(&view.k, first + i), here(view.r, i, 0.0));
            group.erase[i] = r * a[i];
            group.read[i] = a[i + at];
            for j in 0..i {
                if spec.erase {
                    group.overlap[i][j] = r * c[i][j] * dot(k, row(&view.k, first + j));
                }
            }
            for j in 0..i + at {
                group.seen[i][j] = c[i + at][j] * dot(q, row(&view.k, first + j));
            }
        }
        (group.decay, group.last) = (a[GROUP], c[GROUP]);
        group
    }
}

impl Inputs {
    /// Keys and queries side by side: number `i` of row `r` of a group is that of its token `i`.
    #[inline(always)]
    pub(super) fn pack(&mut self, spec: Spec, view: &View<'_>) {
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

impl Call<'_, '_> {
    /// Groups of tokens through one block of columns, without momentum.
    #[inline(always)]
    pub(super) fn groups<S: Simd, const N: usize, const ERASE: bool>(&mut self, simd: S, block: usize) {
        let Self { view, state, chunk, out, .. } = self;
        let Inputs { k, q, groups } = &chunk.groups;
        let State { key, width, m, ahead, ready, .. } = &mut **state;
        let (size, column) = (*key * GROUP, block * *width);
        let m = &mut m.get_mut()[block * *key * *width..][..*key * *width];
        let ahead = &mut ahead.get_mut()[block * AHEAD * *width..][..AHEAD * *width];
        let mut pass = Pass::<S, N> { p: [[simd.splat_f32s(0.0); N]; GROUP], y: [[simd.splat_f32s(0.0); N]; GROUP] };
        match *ready {
            true => pass.load(simd, ahead),
            false => pass.look::<ERASE>(simd, m, &k.get()[..size], &q.get()[..size]),
        }
        for (g, group) in groups.iter().enumerate() {
            let first = g * GROUP;
            let z = pass.writes::<ERASE>(simd, group, &view.v, first, column);
            for i in 0..GROUP.min(view.tokens - first) {
                store_part(simd, &mut out[first + i][column..], pass.read(simd, group, i, &z));
            }
            let keys = &k.get()[g * size..][..2 * size];
            pass.write::<ERASE>(simd, group, z, m, keys, &q.get()[(g + 1) * size..][..size]);
        }
        pass.store(simd, ahead);
    }
}

/// What the keys and queries of a group find in the memory before it: `K M₀`, `Q M₀`.
struct Pass<S: Simd, const N: usize> {
    p: [[S::f32s; N]; GROUP],
    y: [[S::f32s; N]; GROUP],
}

impl<S: Simd, const N: usize> Pass<S, N> {
    #[inline(always)]
    fn load(&mut self, simd: S, from: &[f32]) {
        let rows = from.chunks_exact(N * S::F32_LANES);
        self.p.iter_mut().chain(&mut self.y).zip(rows).for_each(|(own, from)| *own = load(simd, from));
    }

    #[inline(always)]
    fn store(self, simd: S, to: &mut [f32]) {
        let rows = to.chunks_exact_mut(N * S::F32_LANES);
        self.p.into_iter().chain(self.y).zip(rows).for_each(|(own, to)| store(simd, to, own));
    }

    /// `z` of all tokens of the group.
    #[inline(always)]
    fn writes<const ERASE: bool>(
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
            let mut own = load_part::<S, N>(simd, &row(v, first + i)[column..]).map(|v| simd.mul_f32s(w, v));
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

    /// What token `i` of the group reads.
    #[inline(always)]
    fn read(&self, simd: S, group: &Group, i: usize, z: &[[S::f32s; N]; GROUP]) -> [S::f32s; N] {
        let read = simd.splat_f32s(group.read[i]);
        let mut y = self.y[i].map(|y| simd.mul_f32s(read, y));
        for j in 0..=i {
            let seen = simd.splat_f32s(group.seen[i][j]);
            (0..N).for_each(|n| y[n] = simd.mul_add_e_f32s(seen, z[j][n], y[n]));
        }
        y
    }

    /// Takes in what the first group finds in the memory `[K, width]`.
    #[inline(always)]
    fn look<const ERASE: bool>(&mut self, simd: S, m: &[f32], k: &[f32], q: &[f32]) {
        let (k, q) = (k.as_chunks::<GROUP>().0, q.as_chunks::<GROUP>().0);
        for ((m, k), q) in m.chunks_exact(N * S::F32_LANES).zip(k).zip(q) {
            self.find::<ERASE>(simd, load(simd, m), k, q);
        }
    }

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

    /// Writes the group into the memory, and takes in what the next one finds there; `keys` are those of both.
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
        for (z, last) in z.iter_mut().zip(group.last) {
            *z = z.map(|z| simd.mul_f32s(simd.splat_f32s(last), z));
        }
        let zero = [[simd.splat_f32s(0.0); N]; GROUP];
        let mut next = Self { p: zero, y: zero };
        let (keys, ahead) = keys.split_at(keys.len() / 2);
        let (keys, ahead) = (keys.as_chunks::<GROUP>().0, ahead.as_chunks::<GROUP>().0);
        let rows = m.chunks_exact_mut(N * S::F32_LANES).zip(keys).zip(ahead).zip(q.as_chunks::<GROUP>().0);
        for (((m, k), ahead), q) in rows {
            let mut x = load::<S, N>(simd, m).map(|x| simd.mul_f32s(decay, x));
            for j in 0..GROUP {
                let k = simd.splat_f32s(k[j]);
                (0..N).for_each(|n| x[n] = simd.mul_add_e_f32s(k, z[j][n], x[n]));
            }
            store(simd, m, x);
            next.find::<ERASE>(simd, x, ahead, q);
        }
        *self = next;
    }
}
