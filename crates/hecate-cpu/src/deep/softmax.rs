//! Weights that are a distribution down each column: the log-softmax of (55), fused with what a token does around it.
//!
//! The state `X [K,V]` is the log-softmax of each column, and the weights are `c eˣ`. Inside of the engine `X` counts from equal
//! shares, as `X + ln K`: then weights are `c/K eˣ`, and columns that are near equal keep the digits in which they differ.
//! A write thus changes a column as a whole: maximum, sum and quotient run down `K`.
//! The passes here do the write, the softmax and the read together, so that states and weights are fetched once.

use super::found::{Found, add_given, load_found};
use crate::{
    primitives::exp::{exp_vector, ln},
    rows::sum,
    simd::{Panel, dispatch, load_part, panels, store_part},
};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// No processor's vectors have more elements.
pub(super) const LANES: usize = 16;

/// Elements of the tiles that [`KlWrite`] needs for matrices of `rows` rows: one column block of `x` and one of `w`.
pub(super) fn tiles(rows: usize) -> usize {
    2 * LANES * rows
}

/// `w = c eˣ` of a log-softmax `x`, element by element.
#[inline(always)]
pub(super) fn to_weights(scale: f32, x: &[f32], w: &mut [f32]) {
    dispatch(ToWeights { scale, x, w });
}

/// [`to_weights`] for the SIMD dispatch.
struct ToWeights<'a> {
    scale: f32,
    x: &'a [f32],
    w: &'a mut [f32],
}

impl WithSimd for ToWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = simd.splat_f32s(self.scale);
        let ((x, x_tail), (w, w_tail)) = (S::as_simd_f32s(self.x), S::as_mut_simd_f32s(self.w));
        for (w, x) in w.iter_mut().zip(x) {
            *w = simd.mul_f32s(scale, exp_vector(simd, *x));
        }
        let power = exp_vector(simd, simd.partial_load_f32s(x_tail));
        simd.partial_store_f32s(w_tail, simd.mul_f32s(scale, power));
    }
}

/// Largest and smallest maximum of a column whose powers are taken as they are. The logarithm of their sum is no larger than those
/// of a log-softmax itself, so that it rounds no more than they do.
pub(super) const MODERATE: f32 = 10.0;

/// Takes the mean off what goes into a layer of distributions behind which there is a norm, or off the gradient of that.
///
/// Columns have one sum, so all outputs have the same of the mean, and the norm takes it off. Rounded sums differ a little. That
/// may be all the norm can tell outputs apart by, where those are much the same. Gradients through the norm sum to 0, and so do
/// these.
#[inline(always)]
pub(super) fn centre(x: &mut [f32]) {
    let mean = (sum(x) / x.len() as f64) as f32;
    x.iter_mut().for_each(|x| *x -= mean);
}

/// A centred copy at the start of `to`.
#[inline(always)]
pub(super) fn centred<'t>(x: &[f32], to: &'t mut [f32]) -> &'t [f32] {
    let to = &mut to[..x.len()];
    to.copy_from_slice(x);
    centre(to);
    to
}

/// `x = log-softmax(x₀ + step yᵀ z)` of what was found, down each column, `w = c eˣ`, and the read `out = q w`.
pub(super) struct KlWrite<'a> {
    /// `x₀ [K,V]`.
    pub(super) found: Found<'a>,
    /// Minus the step size.
    pub(super) step: f32,
    /// `[K]`.
    pub(super) y: &'a [f32],
    /// `[V]`.
    pub(super) z: &'a [f32],
    /// `[K,V]`, set.
    pub(super) x: &'a mut [f32],
    /// `[K,V]`, set.
    pub(super) w: &'a mut [f32],
    /// `c`.
    pub(super) scale: f32,
    /// The query `[K]`; zeros where nothing is read.
    pub(super) q: &'a [f32],
    /// `[V]`, set.
    pub(super) out: &'a mut [f32],
    /// One vector's width of columns of `x` and `w`, row after row.
    /// There they stay in the first cache; rows a power of two apart would drive each other out of it.
    pub(super) tiles: &'a mut [f32],
}

impl KlWrite<'_> {
    /// All columns, a vector's width at a time, on the calling thread.
    #[inline(always)]
    pub(super) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for KlWrite<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for column in (0..self.z.len()).step_by(S::F32_LANES) {
            self.columns(simd, column);
        }
    }
}

impl KlWrite<'_> {
    /// A vector's width of columns from `column` on: write, powers and their sum, then the quotients and the read.
    #[inline(always)]
    fn columns<S: Simd>(&mut self, simd: S, column: usize) {
        let part = column..(column + S::F32_LANES).min(self.z.len());
        let [shift, sum] = self.powers(simd, &part);
        let KlWrite { y, z, x, w, scale, q, out, tiles, .. } = self;
        let (width, [low, high]) = (z.len(), halves::<S>(tiles, y.len()));
        // The log-softmax takes off the logarithm of the sum, after the largest element: their sum would round.
        let log = logarithms(simd, simd.mul_f32s(sum, simd.splat_f32s((y.len() as f32).recip())));
        // The softmax divides by the sum itself; `c` scales it.
        let (factor, mut read) = (simd.div_f32s(simd.splat_f32s(*scale), sum), simd.splat_f32s(0.0));
        let rows = x.chunks_exact_mut(width).zip(w.chunks_exact_mut(width)).zip(*q);
        for (((x, w), q), (tile, power)) in rows.zip(low.iter().zip(&*high)) {
            let weight = simd.mul_f32s(*power, factor);
            read = simd.mul_add_e_f32s(simd.splat_f32s(*q), weight, read);
            store_row(simd, x, &part, simd.sub_f32s(simd.sub_f32s(*tile, shift), log));
            store_row(simd, w, &part, weight);
        }
        store_row(simd, out, &part, read);
    }

    /// The written columns `part` and powers of them less a shift, both left in the tiles. Returns the shift and the powers' sum.
    ///
    /// A column that was a log-softmax before a small write needs no shift; others get their maximum.
    #[inline(always)]
    fn powers<S: Simd>(&mut self, simd: S, part: &Range<usize>) -> [S::f32s; 2] {
        let KlWrite { found, step, y, z, tiles, .. } = self;
        let (width, a, [low, high]) = (z.len(), simd.splat_f32s(found.decay.a), halves::<S>(tiles, y.len()));
        // The block's columns of the update's row side.
        let z = simd.mul_f32s(simd.splat_f32s(*step), simd.partial_load_f32s(&z[part.clone()]));
        // A maximum may lose a NaN. It reaches the sum, and from there the whole column.
        let (mut top, mut sum) = (simd.splat_f32s(f32::NEG_INFINITY), simd.splat_f32s(0.0));
        let [olds, mut anchors] = found.rows(width);
        for ((tile, power), (old, y)) in low.iter_mut().zip(&mut *high).zip(olds.zip(*y)) {
            let mut old = load_row(simd, old, part);
            // Rows of the anchor run beside those of the state, where there is one.
            old = match anchors.next() {
                None => simd.mul_f32s(a, old),
                Some(anchor) => {
                    let anchor = load_row(simd, anchor, part);
                    simd.mul_add_e_f32s(a, simd.sub_f32s(old, anchor), anchor)
                }
            };
            *tile = simd.mul_add_e_f32s(simd.splat_f32s(*y), z, old);
            top = simd.max_f32s(top, *tile);
            *power = exp_vector(simd, *tile);
            sum = simd.add_f32s(sum, *power);
        }
        // Each column for itself, so that no column depends on its neighbours or on the vectors' width.
        let outside = simd.less_than_f32s(simd.splat_f32s(MODERATE), simd.abs_f32s(top));
        let shift = simd.select_f32s(outside, top, simd.splat_f32s(0.0));
        if simd.first_true_m32s(outside) < S::F32_LANES {
            sum = simd.splat_f32s(0.0);
            for (tile, power) in low.iter().zip(high).take(y.len()) {
                *power = exp_vector(simd, simd.sub_f32s(*tile, shift));
                sum = simd.add_f32s(sum, *power);
            }
        }
        [shift, sum]
    }
}

/// Both [`tiles`] of a matrix of `rows` rows, as vectors.
#[inline(always)]
fn halves<S: Simd>(tiles: &mut [f32], rows: usize) -> [&mut [S::f32s]; 2] {
    let (low, high) = tiles.split_at_mut(LANES * rows);
    [S::as_mut_simd_f32s(low).0, S::as_mut_simd_f32s(high).0]
}

/// A part of a row, at most a vector. The last columns of an odd width are a partial one.
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

/// Logarithms of normal numbers: sums of powers.
#[inline(always)]
pub(super) fn logarithms<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let mut lanes = [1.0; LANES];
    simd.partial_store_f32s(&mut lanes[..S::F32_LANES], x);
    lanes.iter_mut().for_each(|x| *x = ln(*x));
    simd.partial_load_f32s(&lanes[..S::F32_LANES])
}

/// The way back of [`KlWrite`] with `step = 1`, and of a read `out = q W` after it.
pub(super) struct KlWriteBackward<'a> {
    /// The old state, `[K,V]`.
    pub(super) found: Found<'a>,
    /// `c`.
    pub(super) scale: f32,
    /// `[K,V]`: gradient of the new state, becomes that of the old one.
    pub(super) dx: &'a mut [f32],
    /// Added to: the gradient of the anchor, as long as that.
    pub(super) danchor: &'a mut [f32],
    /// Weights of the new state, `[K,V]`, once columns are multiplied by `factors [V]`; those are 1 where they are empty.
    pub(super) w: &'a [f32],
    pub(super) factors: &'a [f32],
    /// The query `[K]`; zeros where it read before the write.
    pub(super) q: &'a [f32],
    /// `[V]`.
    pub(super) dout: &'a [f32],
    /// Added to: the gradient of `q`.
    pub(super) dq: &'a mut [f32],
    /// `[K]`.
    pub(super) y: &'a [f32],
    /// `[V]`.
    pub(super) z: &'a [f32],
    /// `[K]` and `[V]`, set to the gradients of `y` and `z`.
    pub(super) dy: &'a mut [f32],
    pub(super) dz: &'a mut [f32],
}

impl KlWriteBackward<'_> {
    /// The gradient of `a`.
    #[inline(always)]
    pub(super) fn run(self) -> f32 {
        self.dy.fill(0.0);
        dispatch(self)
    }
}

impl WithSimd for KlWriteBackward<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> f32 {
        let mut da = simd.splat_f32s(0.0);
        panels(simd, self.z.len(), KlBackwardPanels { call: &mut self, da: &mut da });
        simd.reduce_sum_f32s(da)
    }
}

/// A [`KlWriteBackward`] under way, and its sum for `a`.
struct KlBackwardPanels<'b, 'a, S: Simd> {
    call: &'b mut KlWriteBackward<'a>,
    da: &'b mut S::f32s,
}

impl<S: Simd> KlBackwardPanels<'_, '_, S> {
    /// Columns times what their weights are to be multiplied by.
    #[inline(always)]
    fn weighed<const N: usize>(&self, simd: S, column: usize, mut x: [S::f32s; N]) -> [S::f32s; N] {
        // Without factors weights are whole as they are.
        if !self.call.factors.is_empty() {
            let factors = load_part::<S, N>(simd, &self.call.factors[column..]);
            (0..N).for_each(|n| x[n] = simd.mul_f32s(factors[n], x[n]));
        }
        x
    }

    /// Back through the read. Returns column sums of the state's gradient and of the old state less its anchor.
    #[inline(always)]
    fn read_vjp<const N: usize>(&mut self, simd: S, column: usize) -> [[S::f32s; N]; 2] {
        let dout = self.weighed(simd, column, load_part::<S, N>(simd, &self.call.dout[column..]));
        let KlWriteBackward { found, dx, w, q, dq, z, .. } = &mut *self.call;
        let width = z.len();
        // Two sums down each column: they must be complete before the second pass.
        let mut sums = [[simd.splat_f32s(0.0); N]; 2];
        let [olds, mut anchors] = found.rows(width);
        let rows = dx.chunks_exact_mut(width).zip(w.chunks_exact(width)).zip(olds);
        for (((dx, w), old), (q, dq)) in rows.zip(q.iter().zip(dq.iter_mut())) {
            let (mut own, w) = (load_part::<S, N>(simd, &dx[column..]), load_part::<S, N>(simd, &w[column..]));
            let [lag, _] = load_found::<S, N>(simd, old, anchors.next(), column);
            let (q, mut along) = (simd.splat_f32s(*q), simd.splat_f32s(0.0));
            for n in 0..N {
                let seen = simd.mul_f32s(w[n], dout[n]);
                own[n] = simd.mul_add_e_f32s(q, seen, own[n]);
                along = simd.add_f32s(along, seen);
                sums[0][n] = simd.add_f32s(sums[0][n], own[n]);
                sums[1][n] = simd.add_f32s(sums[1][n], lag[n]);
            }
            store_part(simd, &mut dx[column..], own);
            *dq += simd.reduce_sum_f32s(along);
        }
        sums
    }
}

impl<S: Simd> Panel<S> for KlBackwardPanels<'_, '_, S> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let [mut shared, mut mean] = self.read_vjp::<N>(simd, column);
        // Its factors are taken in with the column's sum.
        shared = self.weighed(simd, column, shared);
        let KlWriteBackward { found, scale, dx, danchor, w, y, z, dy, dz, .. } = &mut *self.call;
        let (width, z) = (z.len(), load_part::<S, N>(simd, &z[column..]));
        // What is kept of a state's distance from its anchor, and what the anchor gets.
        let [a, lost] = [found.decay.a, found.decay.lost].map(|x| simd.splat_f32s(x));
        // The softmax's gradient takes off the column's sum, weighed by the column itself.
        let (share, count) = (simd.splat_f32s(-scale.recip()), simd.splat_f32s((y.len() as f32).recip()));
        for n in 0..N {
            shared[n] = simd.mul_f32s(share, shared[n]);
            mean[n] = simd.mul_f32s(count, mean[n]);
        }
        let (mut da, mut sums) = (*self.da, [simd.splat_f32s(0.0); N]);
        let ([olds, mut anchors], mut danchors) = (found.rows(width), danchor.chunks_exact_mut(width));
        let rows = dx.chunks_exact_mut(width).zip(w.chunks_exact(width)).zip(olds);
        for (((dx, w), old), (y, dy)) in rows.zip(y.iter().zip(dy.iter_mut())) {
            let (mut own, w) = (load_part::<S, N>(simd, &dx[column..]), load_part::<S, N>(simd, &w[column..]));
            let [lag, mut given] = load_found::<S, N>(simd, old, anchors.next(), column);
            let (y, mut along) = (simd.splat_f32s(*y), simd.splat_f32s(0.0));
            for n in 0..N {
                own[n] = simd.mul_add_e_f32s(w[n], shared[n], own[n]);
                // Columns of the gradient sum to 0. What is common to a column of the old state, nearly all of it, is
                // taken off first: it would leave its rounding in the sum.
                da = simd.mul_add_e_f32s(own[n], simd.sub_f32s(lag[n], mean[n]), da);
                along = simd.mul_add_e_f32s(own[n], z[n], along);
                sums[n] = simd.mul_add_e_f32s(y, own[n], sums[n]);
                given[n] = simd.mul_f32s(lost, own[n]);
                own[n] = simd.mul_f32s(a, own[n]);
            }
            store_part(simd, &mut dx[column..], own);
            add_given(simd, danchors.next(), column, given);
            *dy += simd.reduce_sum_f32s(along);
        }
        *self.da = da;
        store_part(simd, &mut dz[column..], sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrent::Decay;

    #[test]
    fn columns_of_any_height_are_log_softmaxes() {
        let (rows, width) = (33, 37);
        // Column by column from where no shift is needed to where every power would be 0 or infinite.
        let height = |j: usize| (j as f32 - 18.0) * 12.0;
        let wave = |i: usize| (i as f32 * 0.7).sin();
        let old: Vec<f32> = (0..rows * width).map(|i| 2.0 * wave(i) + height(i % width)).collect();
        let [y, q] = [3, 5].map(|seed| (0..rows).map(|i| wave(i * seed + 1)).collect::<Vec<f32>>());
        let z: Vec<f32> = (0..width).map(|j| wave(j + 7)).collect();
        let (mut x, mut w, mut out) = (vec![0.0; rows * width], vec![0.0; rows * width], vec![0.0; width]);
        let (a, step, scale, mut tiles) = (0.9, -0.5, 3.0, vec![0.0; tiles(rows)]);
        let [x_mut, w_mut, out_mut, tiles] = [&mut x, &mut w, &mut out, &mut tiles].map(|x| &mut x[..]);
        let found = Found { decay: Decay { a, lost: 1.0 - a }, state: &old, anchor: &[] };
        let call = KlWrite { found, step, y: &y, z: &z, x: x_mut, w: w_mut, scale, q: &q, out: out_mut, tiles };
        call.run();
        for j in 0..width {
            let written = |i: usize| f64::from(a) * f64::from(old[i * width + j]) + f64::from(step * y[i] * z[j]);
            let top = (0..rows).map(written).fold(f64::NEG_INFINITY, f64::max);
            let log_sum = top + (0..rows).map(|i| (written(i) - top).exp()).sum::<f64>().ln();
            // A written element is rounded to its own size before anything is taken off it.
            let bound = 4.0 * f64::from(f32::EPSILON) * top.abs().max(8.0);
            let mut read = 0.0;
            for (i, q) in q.iter().enumerate() {
                let (expected, at) = (written(i) - log_sum, i * width + j);
                let weight = f64::from(scale) * expected.exp();
                read += f64::from(*q) * weight;
                // They count from equal shares.
                let expected = expected + (rows as f64).ln();
                assert!((f64::from(x[at]) - expected).abs() <= bound, "x[{i},{j}] = {}, not {expected}", x[at]);
                assert!((f64::from(w[at]) - weight).abs() <= bound * weight.max(1e-30), "w[{i},{j}] = {}", w[at]);
            }
            assert!((f64::from(out[j]) - read).abs() <= bound * f64::from(scale), "out[{j}] = {}, not {read}", out[j]);
        }
    }
}
