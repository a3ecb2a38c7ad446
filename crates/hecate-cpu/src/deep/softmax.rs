//! Weights that are a distribution down each column: the log-softmax of (55) with what a token does before and behind it,
//! so that states and weights are fetched and stored once.

use crate::{
    primitives::exp::{exp_falling, ln_rising},
    simd::{Panel, dispatch, load_part, panels, store_part},
};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// No processor's vectors have more numbers.
pub(super) const LANES: usize = 16;

/// Numbers of the tiles that [`Write`] needs for matrices of `rows` rows.
pub(super) fn tiles(rows: usize) -> usize {
    2 * LANES * rows
}

/// `w = c eˣ` of a log-softmax `x`.
#[inline(always)]
pub(super) fn expose(scale: f32, x: &[f32], w: &mut [f32]) {
    dispatch(Expose { scale, x, w });
}

struct Expose<'a> {
    scale: f32,
    x: &'a [f32],
    w: &'a mut [f32],
}

impl WithSimd for Expose<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = simd.splat_f32s(self.scale);
        let ((x, x_tail), (w, w_tail)) = (S::as_simd_f32s(self.x), S::as_mut_simd_f32s(self.w));
        for (w, x) in w.iter_mut().zip(x) {
            *w = simd.mul_f32s(scale, exp_falling(simd, *x));
        }
        let power = exp_falling(simd, simd.partial_load_f32s(x_tail));
        simd.partial_store_f32s(w_tail, simd.mul_f32s(scale, power));
    }
}

/// `x = log-softmax(a x₀ + step yᵀ z)` down each column, and `w = c eˣ`.
pub(super) struct Write<'a> {
    pub(super) a: f32,
    pub(super) step: f32,
    pub(super) y: &'a [f32],
    pub(super) z: &'a [f32],
    pub(super) old: &'a [f32],
    pub(super) x: &'a mut [f32],
    pub(super) w: &'a mut [f32],
    pub(super) scale: f32,
    /// Room for one vector's width of columns of `x` and `w`, row behind row: there they stay in the first cache, which
    /// rows a power of two apart would drive each other out of.
    pub(super) tiles: &'a mut [f32],
}

impl Write<'_> {
    #[inline(always)]
    pub(super) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for column in (0..self.z.len()).step_by(S::F32_LANES) {
            self.columns(simd, column);
        }
    }
}

impl Write<'_> {
    /// A vector's width of columns from `column` on.
    #[inline(always)]
    fn columns<S: Simd>(&mut self, simd: S, column: usize) {
        let Write { a, step, y, z, old, x, w, scale, tiles } = self;
        let (width, a) = (z.len(), simd.splat_f32s(*a));
        let part = column..(column + S::F32_LANES).min(width);
        let z = simd.mul_f32s(simd.splat_f32s(*step), simd.partial_load_f32s(&z[part.clone()]));
        let (low, high) = tiles.split_at_mut(LANES * y.len());
        let (low, high) = (S::as_mut_simd_f32s(low).0, S::as_mut_simd_f32s(high).0);
        // A NaN that the largest number hides is found by the sum.
        let mut top = simd.splat_f32s(f32::NEG_INFINITY);
        for ((tile, old), y) in low.iter_mut().zip(old.chunks_exact(width)).zip(*y) {
            let old = simd.mul_f32s(a, load_row(simd, old, &part));
            *tile = simd.mul_add_e_f32s(simd.splat_f32s(*y), z, old);
            top = simd.max_f32s(top, *tile);
        }
        let mut sum = simd.splat_f32s(0.0);
        for (power, tile) in high.iter_mut().zip(&*low).take(y.len()) {
            *power = exp_falling(simd, simd.sub_f32s(*tile, top));
            sum = simd.add_f32s(sum, *power);
        }
        let top = simd.add_f32s(top, logarithms(simd, sum));
        let factor = simd.div_f32s(simd.splat_f32s(*scale), sum);
        let rows = x.chunks_exact_mut(width).zip(w.chunks_exact_mut(width));
        for ((x, w), (tile, power)) in rows.zip(low.iter().zip(&*high)) {
            store_row(simd, x, &part, simd.sub_f32s(*tile, top));
            store_row(simd, w, &part, simd.mul_f32s(*power, factor));
        }
    }
}

/// A part of a row, at most a vector.
#[inline(always)]
fn load_row<S: Simd>(simd: S, row: &[f32], part: &Range<usize>) -> S::f32s {
    let part = &row[part.start..part.end];
    match S::as_simd_f32s(part).0 {
        [whole] => *whole,
        _ => simd.partial_load_f32s(part),
    }
}

/// The way back of [`load_row`].
#[inline(always)]
fn store_row<S: Simd>(simd: S, row: &mut [f32], part: &Range<usize>, values: S::f32s) {
    let part = &mut row[part.start..part.end];
    match S::as_mut_simd_f32s(part).0 {
        [whole] => *whole = values,
        _ => simd.partial_store_f32s(part, values),
    }
}

/// Logarithms of numbers of at least 1.
#[inline(always)]
fn logarithms<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let mut lanes = [1.0; LANES];
    simd.partial_store_f32s(&mut lanes[..S::F32_LANES], x);
    lanes.iter_mut().for_each(|x| *x = ln_rising(*x));
    simd.partial_load_f32s(&lanes[..S::F32_LANES])
}

/// The way back of [`Write`] with `step = 1`, and of a read `out = q W` behind it.
pub(super) struct Unwrite<'a> {
    pub(super) a: f32,
    pub(super) scale: f32,
    /// Gradient of the new state, becomes that of the old one.
    pub(super) dx: &'a mut [f32],
    pub(super) w: &'a [f32],
    pub(super) old: &'a [f32],
    pub(super) q: &'a [f32],
    pub(super) dout: &'a [f32],
    /// Added to: the gradient of `q`.
    pub(super) dq: &'a mut [f32],
    pub(super) y: &'a [f32],
    pub(super) z: &'a [f32],
    /// Become those of `y` and `z`.
    pub(super) dy: &'a mut [f32],
    pub(super) dz: &'a mut [f32],
}

impl Unwrite<'_> {
    /// The gradient of `a`.
    #[inline(always)]
    pub(super) fn run(self) -> f32 {
        self.dy.fill(0.0);
        dispatch(self)
    }
}

impl WithSimd for Unwrite<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> f32 {
        let mut da = simd.splat_f32s(0.0);
        panels(simd, self.z.len(), Back { call: &mut self, da: &mut da });
        simd.reduce_sum_f32s(da)
    }
}

/// An [`Unwrite`] under way, and its sum for `a`.
struct Back<'b, 'a, S: Simd> {
    call: &'b mut Unwrite<'a>,
    da: &'b mut S::f32s,
}

impl<S: Simd> Back<'_, '_, S> {
    /// Back through the read; column sums of the state's gradient and of the old state.
    #[inline(always)]
    fn unread<const N: usize>(&mut self, simd: S, column: usize) -> [[S::f32s; N]; 2] {
        let Unwrite { dx, w, old, q, dout, dq, .. } = &mut *self.call;
        let part = |x: &[f32]| load_part::<S, N>(simd, &x[column..]);
        let (width, dout) = (dout.len(), part(dout));
        let mut sums = [[simd.splat_f32s(0.0); N]; 2];
        let rows = dx.chunks_exact_mut(width).zip(w.chunks_exact(width)).zip(old.chunks_exact(width));
        for (((dx, w), old), (q, dq)) in rows.zip(q.iter().zip(dq.iter_mut())) {
            let (mut own, w, old) = (part(dx), part(w), part(old));
            let (q, mut along) = (simd.splat_f32s(*q), simd.splat_f32s(0.0));
            for n in 0..N {
                let seen = simd.mul_f32s(w[n], dout[n]);
                own[n] = simd.mul_add_e_f32s(q, seen, own[n]);
                along = simd.add_f32s(along, seen);
                sums[0][n] = simd.add_f32s(sums[0][n], own[n]);
                sums[1][n] = simd.add_f32s(sums[1][n], old[n]);
            }
            store_part(simd, &mut dx[column..], own);
            *dq += simd.reduce_sum_f32s(along);
        }
        sums
    }
}

impl<S: Simd> Panel<S> for Back<'_, '_, S> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let [mut shared, mut mean] = self.unread::<N>(simd, column);
        let Unwrite { a, scale, dx, w, old, y, z, dy, dz, .. } = &mut *self.call;
        let part = |x: &[f32]| load_part::<S, N>(simd, &x[column..]);
        let (width, a, z) = (z.len(), simd.splat_f32s(*a), part(z));
        let (share, count) = (simd.splat_f32s(-scale.recip()), simd.splat_f32s((y.len() as f32).recip()));
        for n in 0..N {
            shared[n] = simd.mul_f32s(share, shared[n]);
            mean[n] = simd.mul_f32s(count, mean[n]);
        }
        let (mut da, mut sums) = (*self.da, [simd.splat_f32s(0.0); N]);
        let rows = dx.chunks_exact_mut(width).zip(w.chunks_exact(width)).zip(old.chunks_exact(width));
        for (((dx, w), old), (y, dy)) in rows.zip(y.iter().zip(dy.iter_mut())) {
            let (mut own, w, old) = (part(dx), part(w), part(old));
            let (y, mut along) = (simd.splat_f32s(*y), simd.splat_f32s(0.0));
            for n in 0..N {
                own[n] = simd.mul_add_e_f32s(w[n], shared[n], own[n]);
                // Columns of the gradient sum to 0: what is common to a column of the old state, nearly all of it, is
                // taken off first, or it would leave its rounding behind.
                da = simd.mul_add_e_f32s(own[n], simd.sub_f32s(old[n], mean[n]), da);
                along = simd.mul_add_e_f32s(own[n], z[n], along);
                sums[n] = simd.mul_add_e_f32s(y, own[n], sums[n]);
            }
            store_part(simd, &mut dx[column..], own.map(|x| simd.mul_f32s(a, x)));
            *dy += simd.reduce_sum_f32s(along);
        }
        *self.da = da;
        store_part(simd, &mut dz[column..], sums);
    }
}
