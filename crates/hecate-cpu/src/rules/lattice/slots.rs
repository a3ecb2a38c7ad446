//! Passes over all slots `[K,V]`, in blocks of columns that stay in registers.
//!
//! What belongs to a slot, a sum along its row or a factor of it, is an element of a row `[K]`.
//! Sums are added to what is there: a pass meets each slot once for every block of columns.
//! A sum must be complete before a factor that depends on it is used, hence several passes.

use crate::simd::{ColumnKernel, load_part, store_part};
use pulp::Simd;

/// The move before the norm: `X_i = a s_i + w_i (h − b_i r_i)`, and `|X_i|²`. Equations (62), (63).
pub(super) struct SlotUpdate<'a> {
    /// Retention, above its floor.
    pub(super) a: f32,
    /// `w = θ g [K]`.
    pub(super) weights: &'a [f32],
    /// `[K]`.
    pub(super) b: &'a [f32],
    /// Target `[V]`.
    pub(super) h: &'a [f32],
    /// Slots `s` before the token, `[K,V]`.
    pub(super) old: &'a [f32],
    /// Slots `r` at the gradient point, `[K,V]`.
    pub(super) point: &'a [f32],
    /// Becomes `X`.
    pub(super) new: &'a mut [f32],
    /// Added to: `[K]`.
    pub(super) squares: &'a mut [f32],
}

impl ColumnKernel for SlotUpdate<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.h.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let SlotUpdate { a, weights, b, h, old, point, new, squares } = self;
        let (width, a, h) = (h.len(), simd.splat_f32s(*a), load_part::<S, N>(simd, &h[column..]));
        let rows = new.chunks_exact_mut(width).zip(old.chunks_exact(width)).zip(point.chunks_exact(width));
        let slots = weights.iter().zip(*b).zip(squares.iter_mut());
        for (((new, old), point), ((&weight, &b), square)) in rows.zip(slots) {
            let (weight, away) = (simd.splat_f32s(weight), simd.splat_f32s(-b));
            let (mut x, mut sum) = (load_part::<S, N>(simd, &old[column..]), simd.splat_f32s(0.0));
            let point = load_part::<S, N>(simd, &point[column..]);
            for n in 0..N {
                let across = simd.mul_add_e_f32s(away, point[n], h[n]);
                x[n] = simd.mul_add_e_f32s(weight, across, simd.mul_f32s(a, x[n]));
                sum = simd.mul_add_e_f32s(x[n], x[n], sum);
            }
            store_part(simd, &mut new[column..], x);
            *square += simd.reduce_sum_f32s(sum);
        }
    }
}

/// `s′_i·ds_i`, added to `along [K]`: the part of the gradient that the norm takes away.
pub(super) struct SlotDots<'a> {
    /// Slots after the token, `[K,V]`.
    pub(super) new: &'a [f32],
    /// Their gradient, `[K,V]`.
    pub(super) ds: &'a [f32],
    /// `V`.
    pub(super) width: usize,
    pub(super) along: &'a mut [f32],
}

impl ColumnKernel for SlotDots<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.width
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let rows = self.new.chunks_exact(self.width).zip(self.ds.chunks_exact(self.width));
        for ((new, ds), along) in rows.zip(self.along.iter_mut()) {
            let (new, ds) = (load_part::<S, N>(simd, &new[column..]), load_part::<S, N>(simd, &ds[column..]));
            let mut sum = simd.splat_f32s(0.0);
            (0..N).for_each(|n| sum = simd.mul_add_e_f32s(new[n], ds[n], sum));
            *along += simd.reduce_sum_f32s(sum);
        }
    }
}

/// Back through the norm and to the move's factors: equations (66), (67).
///
/// `dX_i = (ds_i − s′_i (s′_i·ds_i)) / n_i`, `U_i·dX_i` with `U_i = h − b_i r_i`, and `r_i·dX_i`.
pub(super) struct SlotGrads<'a> {
    /// Becomes `dX`.
    pub(super) ds: &'a mut [f32],
    /// Slots after the token, `[K,V]`.
    pub(super) new: &'a [f32],
    /// Slots at the gradient point, `[K,V]`.
    pub(super) point: &'a [f32],
    /// `[V]`.
    pub(super) h: &'a [f32],
    /// `[K]`.
    pub(super) b: &'a [f32],
    /// Norms before the norming, `[K]`.
    pub(super) n: &'a [f32],
    /// From [`SlotDots`], `[K]`.
    pub(super) along: &'a [f32],
    /// Added to: `U_i·dX_i`, `[K]`.
    pub(super) gain: &'a mut [f32],
    /// Added to: `r_i·dX_i`, `[K]`.
    pub(super) back: &'a mut [f32],
}

impl ColumnKernel for SlotGrads<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.h.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let SlotGrads { ds, new, point, h, b, n: norms, along, gain, back } = self;
        let (width, h) = (h.len(), load_part::<S, N>(simd, &h[column..]));
        let rows = ds.chunks_exact_mut(width).zip(new.chunks_exact(width)).zip(point.chunks_exact(width));
        let slots = b.iter().zip(*norms).zip(*along).zip(gain.iter_mut().zip(back.iter_mut()));
        for (((ds, new), point), (((&b, &norm), &along), (gain, back))) in rows.zip(slots) {
            let [away, off, inverse] = [-b, -along, norm.recip()].map(|x| simd.splat_f32s(x));
            let (new, point) = (load_part::<S, N>(simd, &new[column..]), load_part::<S, N>(simd, &point[column..]));
            let mut dx = load_part::<S, N>(simd, &ds[column..]);
            let [mut to_u, mut to_r] = [simd.splat_f32s(0.0); 2];
            for n in 0..N {
                dx[n] = simd.mul_f32s(inverse, simd.mul_add_e_f32s(off, new[n], dx[n]));
                to_u = simd.mul_add_e_f32s(simd.mul_add_e_f32s(away, point[n], h[n]), dx[n], to_u);
                to_r = simd.mul_add_e_f32s(point[n], dx[n], to_r);
            }
            store_part(simd, &mut ds[column..], dx);
            *gain += simd.reduce_sum_f32s(to_u);
            *back += simd.reduce_sum_f32s(to_r);
        }
    }
}

/// Back to the target and the slots: equations (66), (68).
///
/// With `u_i = θ g_i` and `β_i = db_i`: `dh += Σ_i u_i dX_i + β_i r_i`, `ds_i = a dX_i`,
/// `dr_i += β_i h − b_i u_i dX_i`. Without a `dpoint` of its own, `dr` is part of `ds`.
pub(super) struct SlotPullback<'a> {
    /// Retention, above its floor.
    pub(super) a: f32,
    /// From `dX` to `ds`.
    pub(super) ds: &'a mut [f32],
    /// `[K,V]`, or empty where the point is the state before the token.
    pub(super) dpoint: &'a mut [f32],
    /// Slots at the gradient point, `[K,V]`.
    pub(super) point: &'a [f32],
    /// `[V]`.
    pub(super) h: &'a [f32],
    /// `[K]`.
    pub(super) b: &'a [f32],
    /// `[K]`.
    pub(super) u: &'a [f32],
    /// `[K]`.
    pub(super) beta: &'a [f32],
    /// Added to: `[V]`.
    pub(super) dh: &'a mut [f32],
}

impl ColumnKernel for SlotPullback<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.h.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let SlotPullback { a, ds, dpoint, point, h, b, u, beta, dh } = self;
        let (width, a, h) = (h.len(), simd.splat_f32s(*a), load_part::<S, N>(simd, &h[column..]));
        let mut sums = load_part::<S, N>(simd, &dh[column..]);
        let mut apart = dpoint.chunks_exact_mut(width);
        let rows = ds.chunks_exact_mut(width).zip(point.chunks_exact(width));
        for ((ds, point), ((&b, &u), &beta)) in rows.zip(b.iter().zip(*u).zip(*beta)) {
            let [pulled, u, beta] = [-b * u, u, beta].map(|x| simd.splat_f32s(x));
            let (dx, point) = (load_part::<S, N>(simd, &ds[column..]), load_part::<S, N>(simd, &point[column..]));
            let (mut own, mut dr) = (dx, dx);
            for n in 0..N {
                sums[n] = simd.mul_add_e_f32s(u, dx[n], simd.mul_add_e_f32s(beta, point[n], sums[n]));
                own[n] = simd.mul_f32s(a, dx[n]);
                dr[n] = simd.mul_add_e_f32s(beta, h[n], simd.mul_f32s(pulled, dx[n]));
            }
            let place = match apart.next() {
                Some(dpoint) => {
                    store_part(simd, &mut ds[column..], own);
                    own = load_part::<S, N>(simd, &dpoint[column..]);
                    dpoint
                }
                None => ds,
            };
            (0..N).for_each(|n| own[n] = simd.add_f32s(own[n], dr[n]));
            store_part(simd, &mut place[column..], own);
        }
        store_part(simd, &mut dh[column..], sums);
    }
}
