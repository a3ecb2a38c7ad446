//! Passes over all slots `[K,V]`, in blocks of columns that stay in registers.
//!
//! What belongs to a slot, a sum along its row or a factor of it, is an element of a row `[K]`.
//! Sums are added to what is there: a pass meets each slot once for every block of columns.
//! A sum must be complete before a factor that depends on it is used, hence several passes.

use crate::{
    deep::found::{Found, add_given, load_found},
    simd::{ColumnKernel, Panel, dispatch, load_part, panels, store_part},
};
use pulp::{Simd, WithSimd};

/// The move before the norm: `X_i = w_i (h − b_i r_i)` added to what is found of `s_i`, and `|X_i|²`. Equations (62), (63).
pub(super) struct SlotUpdate<'a> {
    /// Slots `s` before the token, `[K,V]`.
    pub(super) found: Found<'a>,
    /// `w = θ g [K]`.
    pub(super) weights: &'a [f32],
    /// `[K]`.
    pub(super) b: &'a [f32],
    /// Target `[V]`.
    pub(super) h: &'a [f32],
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
        let SlotUpdate { found, weights, b, h, point, new, squares } = self;
        let (width, a, h) = (h.len(), simd.splat_f32s(found.decay.a), load_part::<S, N>(simd, &h[column..]));
        // Rows of the anchor run beside those of the slots, where there is one.
        let [olds, mut anchors] = found.rows(width);
        let rows = new.chunks_exact_mut(width).zip(olds).zip(point.chunks_exact(width));
        let slots = weights.iter().zip(*b).zip(squares.iter_mut());
        for (((new, old), point), ((&weight, &b), square)) in rows.zip(slots) {
            let (weight, away) = (simd.splat_f32s(weight), simd.splat_f32s(-b));
            let ([mut x, anchor], mut sum) =
                (load_found::<S, N>(simd, old, anchors.next(), column), simd.splat_f32s(0.0));
            let point = load_part::<S, N>(simd, &point[column..]);
            for n in 0..N {
                let across = simd.mul_add_e_f32s(away, point[n], h[n]);
                x[n] = simd.mul_add_e_f32s(weight, across, simd.mul_add_e_f32s(a, x[n], anchor[n]));
                sum = simd.mul_add_e_f32s(x[n], x[n], sum);
            }
            store_part(simd, &mut new[column..], x);
            *square += simd.reduce_sum_f32s(sum);
        }
    }
}

/// The norm and a read after it: `s′_i = X_i/n_i`, `out = q S′`. Equations (63), (64).
pub(super) struct SlotNorm<'a> {
    /// From `X` to the slots after the token, `[K,V]`.
    pub(super) new: &'a mut [f32],
    /// `[K]`.
    pub(super) n: &'a [f32],
    /// `[K]`.
    pub(super) q: &'a [f32],
    /// Set: `[V]`.
    pub(super) out: &'a mut [f32],
}

impl ColumnKernel for SlotNorm<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.out.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let SlotNorm { new, n: norms, q, out } = self;
        // What is read stays in registers while the slots go by.
        let (width, mut sums) = (out.len(), [simd.splat_f32s(0.0); N]);
        for (new, (n, q)) in new.chunks_exact_mut(width).zip(norms.iter().zip(*q)) {
            let [inverse, q] = [n.recip(), *q].map(|x| simd.splat_f32s(x));
            let mut x = load_part::<S, N>(simd, &new[column..]);
            for n in 0..N {
                x[n] = simd.mul_f32s(inverse, x[n]);
                sums[n] = simd.mul_add_e_f32s(q, x[n], sums[n]);
            }
            store_part(simd, &mut new[column..], x);
        }
        store_part(simd, &mut out[column..], sums);
    }
}

/// Back through a read after the write, (65), and [`SlotDots`] of what it leaves.
pub(super) struct SlotReadBack<'a> {
    /// Slots after the token, `[K,V]`.
    pub(super) new: &'a [f32],
    /// Their gradient, `[K,V]`, added to.
    pub(super) ds: &'a mut [f32],
    /// `[K]`.
    pub(super) q: &'a [f32],
    /// `[V]`.
    pub(super) dout: &'a [f32],
    /// Added to: gradient of the query, `[K]`.
    pub(super) dq: &'a mut [f32],
    /// Added to, `[K]`.
    pub(super) along: &'a mut [f32],
}

impl ColumnKernel for SlotReadBack<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.dout.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let SlotReadBack { new, ds, q, dout, dq, along } = self;
        let (width, dout) = (dout.len(), load_part::<S, N>(simd, &dout[column..]));
        let slots = q.iter().zip(dq.iter_mut()).zip(along.iter_mut());
        for ((new, ds), ((q, dq), along)) in new.chunks_exact(width).zip(ds.chunks_exact_mut(width)).zip(slots) {
            let (new, q) = (load_part::<S, N>(simd, &new[column..]), simd.splat_f32s(*q));
            let mut own = load_part::<S, N>(simd, &ds[column..]);
            // Of the query's gradient and of the part along the slot, which has the read's own gradient in it.
            let [mut read, mut sum] = [simd.splat_f32s(0.0); 2];
            for n in 0..N {
                own[n] = simd.mul_add_e_f32s(q, dout[n], own[n]);
                read = simd.mul_add_e_f32s(new[n], dout[n], read);
                sum = simd.mul_add_e_f32s(new[n], own[n], sum);
            }
            store_part(simd, &mut ds[column..], own);
            *dq += simd.reduce_sum_f32s(read);
            *along += simd.reduce_sum_f32s(sum);
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

/// Back through the norm, the move and what is found of a slot, where the gradient point is another state: (66)–(68).
///
/// With `dX` of [`SlotGrads`] and `u_i = θ g_i`: `dh += Σ_i u_i dX_i`, `ds_i = a dX_i`, `dr_i −= b_i u_i dX_i`, and the
/// anchor's `(1 − a) dX_i`. What comes by `b` is left to products of a group.
pub(super) struct SlotMoveBack<'a> {
    /// Slots before the token, `[K,V]`.
    pub(super) found: Found<'a>,
    /// Slots after it, `[K,V]`.
    pub(super) new: &'a [f32],
    /// Slots at the gradient point, `[K,V]`.
    pub(super) point: &'a [f32],
    /// `[V]`.
    pub(super) h: &'a [f32],
    /// `[K]`.
    pub(super) b: &'a [f32],
    /// `[K]`.
    pub(super) u: &'a [f32],
    /// Norms before the norming, `[K]`.
    pub(super) n: &'a [f32],
    /// `s′_i·ds_i [K]`.
    pub(super) along: &'a [f32],
    /// From the gradient of `S′` to that of `S`, `[K,V]`.
    pub(super) ds: &'a mut [f32],
    /// Added to, `[K,V]`.
    pub(super) dpoint: &'a mut [f32],
    /// Added to: the gradient of the anchor, as long as that.
    pub(super) danchor: &'a mut [f32],
    /// Added to: `[V]`.
    pub(super) dh: &'a mut [f32],
    /// Added to: `U_i·dX_i`, `[K]`.
    pub(super) gain: &'a mut [f32],
    /// Added to: `r_i·dX_i`, `[K]`.
    pub(super) back: &'a mut [f32],
}

impl SlotMoveBack<'_> {
    /// The gradient of `a`.
    #[inline(always)]
    pub(super) fn run(self) -> f32 {
        dispatch(self)
    }
}

impl WithSimd for SlotMoveBack<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> f32 {
        let mut da = simd.splat_f32s(0.0);
        panels(simd, self.h.len(), MoveBackPanels { call: &mut self, da: &mut da });
        simd.reduce_sum_f32s(da)
    }
}

/// A [`SlotMoveBack`] under way, and its sum for `a`.
struct MoveBackPanels<'b, 'a, S: Simd> {
    call: &'b mut SlotMoveBack<'a>,
    da: &'b mut S::f32s,
}

impl<S: Simd> Panel<S> for MoveBackPanels<'_, '_, S> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let SlotMoveBack { found, new, point, h, b, u, n, along, ds, dpoint, danchor, dh, gain, back } =
            &mut *self.call;
        let (width, h) = (h.len(), load_part::<S, N>(simd, &h[column..]));
        // What is kept of a slot's distance from its anchor, and what the anchor gets.
        let [a, lost] = [found.decay.a, found.decay.lost].map(|x| simd.splat_f32s(x));
        // Sums over slots stay in registers, sums along a slot are added up panel by panel.
        let (mut sums, mut da) = (load_part::<S, N>(simd, &dh[column..]), *self.da);
        let ([olds, mut anchors], mut danchors) = (found.rows(width), danchor.chunks_exact_mut(width));
        let states = olds.zip(new.chunks_exact(width)).zip(point.chunks_exact(width));
        let grads = ds.chunks_exact_mut(width).zip(dpoint.chunks_exact_mut(width));
        let slots = b.iter().zip(*u).zip(n.iter().zip(*along)).zip(gain.iter_mut().zip(back.iter_mut()));
        for ((((old, new), point), (ds, dpoint)), (((&b, &u), (&norm, &along)), (gain, back))) in
            states.zip(grads).zip(slots)
        {
            let [away, off, inverse, u, pulled] = [-b, -along, norm.recip(), u, -b * u].map(|x| simd.splat_f32s(x));
            let (new, point) = (load_part::<S, N>(simd, &new[column..]), load_part::<S, N>(simd, &point[column..]));
            let (mut dx, mut dr) = (load_part::<S, N>(simd, &ds[column..]), load_part::<S, N>(simd, &dpoint[column..]));
            let [lag, mut given] = load_found::<S, N>(simd, old, anchors.next(), column);
            // `dX` is needed by all of these, and never stored.
            let [mut to_u, mut to_r] = [simd.splat_f32s(0.0); 2];
            for n in 0..N {
                dx[n] = simd.mul_f32s(inverse, simd.mul_add_e_f32s(off, new[n], dx[n]));
                to_u = simd.mul_add_e_f32s(simd.mul_add_e_f32s(away, point[n], h[n]), dx[n], to_u);
                to_r = simd.mul_add_e_f32s(point[n], dx[n], to_r);
                da = simd.mul_add_e_f32s(lag[n], dx[n], da);
                sums[n] = simd.mul_add_e_f32s(u, dx[n], sums[n]);
                dr[n] = simd.mul_add_e_f32s(pulled, dx[n], dr[n]);
                given[n] = simd.mul_f32s(lost, dx[n]);
                dx[n] = simd.mul_f32s(a, dx[n]);
            }
            store_part(simd, &mut ds[column..], dx);
            store_part(simd, &mut dpoint[column..], dr);
            add_given(simd, danchors.next(), column, given);
            *gain += simd.reduce_sum_f32s(to_u);
            *back += simd.reduce_sum_f32s(to_r);
        }
        *self.da = da;
        store_part(simd, &mut dh[column..], sums);
    }
}
