//! Writes of a group's tokens to states whose columns are log-softmaxes, in one pass each.
//!
//! What a log-softmax takes off a column is known when the pass is at the column's end. The next token's pass takes it off as it
//! loads the column, so that no second pass has to. Weights are powers of the written column, times one factor of the column.
//! States of a group are thus log-softmaxes but for a shift of each column, which the way back does not see.

use super::{
    found::{Found, load_found},
    softmax::{MODERATE, logarithms},
};
use crate::{
    primitives::exp::exp_vector,
    simd::{dispatch, load_part, store_part},
};
use pulp::{Simd, WithSimd};

/// Vectors of columns that a pass takes at once: two lines side by side.
const WIDTH: usize = 2;

/// `X = X₀ + step yᵀ z` of what was found, and the read `out = q W` of its softmaxes `W`.
pub(super) struct LateWrite<'a> {
    /// `X₀ [K,V]`; its state is a log-softmax once `shift` is taken off.
    pub(super) found: Found<'a>,
    /// `[V]`: what columns of the state are too large by, and after the pass those of `X`.
    pub(super) shift: &'a mut [f32],
    /// Minus the step size.
    pub(super) step: f32,
    /// `[K]` and `[V]`.
    pub(super) y: &'a [f32],
    pub(super) z: &'a [f32],
    /// `X [K,V]`, set.
    pub(super) x: &'a mut [f32],
    /// Powers of `X`, `[K,V]`, set; empty where nobody asks for them.
    pub(super) w: &'a mut [f32],
    /// `[V]`, set: powers times these are weights.
    pub(super) factors: &'a mut [f32],
    /// `c`.
    pub(super) scale: f32,
    /// `[K]`.
    pub(super) q: &'a [f32],
    /// `[V]`, set.
    pub(super) out: &'a mut [f32],
}

impl LateWrite<'_> {
    /// All columns on the calling thread.
    #[inline(always)]
    pub(super) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for LateWrite<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for column in (0..self.z.len()).step_by(WIDTH * S::F32_LANES) {
            self.columns(simd, column);
        }
    }
}

impl LateWrite<'_> {
    /// Columns from `column` on: the write, powers with their sum, and the read of both.
    #[inline(always)]
    fn columns<S: Simd>(&mut self, simd: S, column: usize) {
        // Columns' own numbers stay in registers while the rows go by.
        let load = |x: &[f32]| load_part::<S, WIDTH>(simd, &x[column..]);
        let (lag, step) = (load(self.shift), simd.splat_f32s(self.step));
        let z = load(self.z).map(|z| simd.mul_f32s(step, z));
        let [mut sum, mut read, mut shift] = [[simd.splat_f32s(0.0); WIDTH]; 3];
        let top = self.written(simd, column, [lag, z], [&mut sum, &mut read]);
        // A column that was a log-softmax before a small write needs no shift of its powers; others get their maximum.
        let mut any = false;
        for n in 0..WIDTH {
            let outside = simd.less_than_f32s(simd.splat_f32s(MODERATE), simd.abs_f32s(top[n]));
            shift[n] = simd.select_f32s(outside, top[n], shift[n]);
            any |= simd.first_true_m32s(outside) < S::F32_LANES;
        }
        // Rare enough for a second pass, which takes the maximum off what was written: with it the logarithm would round.
        if any {
            [sum, read] = self.powers(simd, column, shift);
        }
        let Self { shift: to, factors, scale, y, out, .. } = self;
        let [scale, share] = [*scale, (y.len() as f32).recip()].map(|x| simd.splat_f32s(x));
        for n in 0..WIDTH {
            // The log-softmax takes off the logarithm of the sum, the softmax divides by the sum itself.
            shift[n] = logarithms(simd, simd.mul_f32s(share, sum[n]));
            sum[n] = simd.div_f32s(scale, sum[n]);
            read[n] = simd.mul_f32s(read[n], sum[n]);
        }
        store_part(simd, &mut to[column..], shift);
        store_part(simd, &mut factors[column..], sum);
        store_part(simd, &mut out[column..], read);
    }

    /// The pass down the columns. Adds to sums of powers and to what the query reads of them; returns the largest elements.
    #[inline(always)]
    fn written<S: Simd>(
        &mut self,
        simd: S,
        column: usize,
        [lag, z]: [[S::f32s; WIDTH]; 2],
        [sum, read]: [&mut [S::f32s; WIDTH]; 2],
    ) -> [S::f32s; WIDTH] {
        let Self { found, y, x, w, q, .. } = self;
        let (width, a) = (self.z.len(), simd.splat_f32s(found.decay.a));
        // A maximum may lose a NaN. It reaches the sum, and from there the whole column.
        let mut top = [simd.splat_f32s(f32::NEG_INFINITY); WIDTH];
        let ([olds, mut anchors], mut weights) = (found.rows(width), w.chunks_exact_mut(width));
        let rows = x.chunks_exact_mut(width).zip(olds);
        for ((x, old), (y, q)) in rows.zip(y.iter().zip(*q)) {
            // Rows of the anchor run beside those of the state, where there is one.
            let [mut next, anchor] = load_found::<S, WIDTH>(simd, old, anchors.next(), column);
            let ([y, q], mut power) = ([*y, *q].map(|x| simd.splat_f32s(x)), anchor);
            // What was found, the write, its power, and what both give, while they are in registers.
            for n in 0..WIDTH {
                let found = simd.mul_add_e_f32s(a, simd.sub_f32s(next[n], lag[n]), anchor[n]);
                next[n] = simd.mul_add_e_f32s(y, z[n], found);
                top[n] = simd.max_f32s(top[n], next[n]);
                power[n] = exp_vector(simd, next[n]);
                sum[n] = simd.add_f32s(sum[n], power[n]);
                read[n] = simd.mul_add_e_f32s(q, power[n], read[n]);
            }
            store_part(simd, &mut x[column..], next);
            // A forward alone needs no weights after the read.
            if let Some(weights) = weights.next() {
                store_part(simd, &mut weights[column..], power);
            }
        }
        top
    }

    /// Takes `shift` off the written columns. Returns sums of their powers, and what the query reads of them.
    ///
    /// Each column for itself, so that no column depends on its neighbours or on the vectors' width.
    #[inline(always)]
    fn powers<S: Simd>(&mut self, simd: S, column: usize, shift: [S::f32s; WIDTH]) -> [[S::f32s; WIDTH]; 2] {
        // The powers before these, which may have been 0 or infinite, are written over.
        let (width, mut weights) = (self.z.len(), self.w.chunks_exact_mut(self.z.len()));
        let [mut sum, mut read] = [[simd.splat_f32s(0.0); WIDTH]; 2];
        for (x, q) in self.x.chunks_exact_mut(width).zip(self.q) {
            let (mut moved, q) = (load_part::<S, WIDTH>(simd, &x[column..]), simd.splat_f32s(*q));
            (0..WIDTH).for_each(|n| moved[n] = simd.sub_f32s(moved[n], shift[n]));
            store_part(simd, &mut x[column..], moved);
            let mut power = moved;
            for n in 0..WIDTH {
                power[n] = exp_vector(simd, moved[n]);
                sum[n] = simd.add_f32s(sum[n], power[n]);
                read[n] = simd.mul_add_e_f32s(q, power[n], read[n]);
            }
            if let Some(weights) = weights.next() {
                store_part(simd, &mut weights[column..], power);
            }
        }
        [sum, read]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrent::Decay;
    use approx::assert_abs_diff_eq;

    /// Neither is a multiple of any vector's width.
    const ROWS: usize = 33;
    const WIDTH: usize = 37;

    /// `count` numbers of a wave; each seed has its own.
    fn wave(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7 * seed as f32 + 1.0).sin()).collect()
    }

    /// Weights are three times a distribution throughout.
    ///
    /// One token late: the state that it leaves, shifts after it, and what it reads. Powers times factors are the weights.
    fn late(old: &[f32], anchor: &[f32], shift: &mut [f32], step: f32, seed: usize) -> [Vec<f32>; 3] {
        let ([y, q], z) = ([seed, seed + 1].map(|seed| wave(ROWS, seed)), wave(WIDTH, seed + 2));
        let [mut x, mut w] = [(); 2].map(|()| vec![f32::NAN; ROWS * WIDTH]);
        let ([mut factors, mut out], found) =
            ([(); 2].map(|()| vec![0.0; WIDTH]), Found { decay: Decay { a: 0.9, lost: 0.1 }, state: old, anchor });
        let [(to, powers), (factors, read)] = [(&mut x, &mut w), (&mut factors, &mut out)];
        LateWrite { found, shift, step, y: &y, z: &z, x: to, w: powers, factors, scale: 3.0, q: &q, out: read }.run();
        w.chunks_exact_mut(WIDTH).for_each(|row| row.iter_mut().zip(&*factors).for_each(|(w, factor)| *w *= factor));
        [x, w, out]
    }

    /// The same token in 64 bits, from a state that lacks nothing: the new one, its weights, and what it reads.
    fn exact(old: &[f64], anchor: &[f32], step: f32, seed: usize) -> [Vec<f64>; 3] {
        let ([y, q], z) = ([seed, seed + 1].map(|seed| wave(ROWS, seed)), wave(WIDTH, seed + 2));
        // An empty anchor is one of zeros.
        let of = |i: usize| f64::from(anchor.get(i).copied().unwrap_or(0.0));
        let write = |i: usize| f64::from(step) * f64::from(y[i / WIDTH]) * f64::from(z[i % WIDTH]);
        let mut x: Vec<f64> = (0..old.len()).map(|i| of(i) + f64::from(0.9f32) * (old[i] - of(i)) + write(i)).collect();
        let mut out = vec![0.0; WIDTH];
        // Column by column: each is a distribution of its own.
        for (j, out) in out.iter_mut().enumerate() {
            let column = || (0..ROWS).map(|i| i * WIDTH + j);
            let top = column().map(|i| x[i]).fold(f64::NEG_INFINITY, f64::max);
            let shift = top + column().map(|i| (x[i] - top).exp()).sum::<f64>().ln();
            column().for_each(|i| x[i] -= shift);
            *out = column().map(|i| f64::from(q[i / WIDTH]) * 3.0 * x[i].exp()).sum();
        }
        let weights = x.iter().map(|x| 3.0 * x.exp()).collect();
        [x, weights, out]
    }

    #[test]
    fn tokens_one_after_another_read_softmaxes() {
        let old: Vec<f32> = wave(ROWS * WIDTH, 5).iter().map(|x| x - 3.5).collect();
        let of_memory: Vec<f32> = wave(ROWS * WIDTH, 9);
        // The last step takes columns to where powers without a shift would be 0 or infinite.
        for anchor in [&[][..], &of_memory] {
            let (mut state, mut shift) = (old.clone(), vec![0.0; WIDTH]);
            let mut expected: Vec<f64> = old.iter().map(|&x| f64::from(x)).collect();
            for (seed, step) in [(1, -0.5), (2, 0.7), (3, 300.0), (4, 0.2)] {
                let [x, w, out] = late(&state, anchor, &mut shift, step, seed);
                let [next, weights, read] = exact(&expected, anchor, step, seed);
                // Elements are rounded to their own size, up to 300 in the third token.
                let epsilon = 4.0 * f64::from(f32::EPSILON) * 600.0;
                for (i, (x, w)) in x.iter().zip(&w).enumerate() {
                    // They count from equal shares.
                    let x = f64::from(*x) - f64::from(shift[i % WIDTH]) - (ROWS as f64).ln();
                    assert_abs_diff_eq!(x, next[i], epsilon = epsilon);
                    assert_abs_diff_eq!(f64::from(*w), weights[i], epsilon = 3.0 * epsilon);
                }
                // What is read is a sum of weights times queries of at most 1.
                out.iter().zip(read).for_each(|(out, read)| {
                    assert_abs_diff_eq!(f64::from(*out), read, epsilon = 3.0 * epsilon);
                });
                (state, expected) = (x, next);
            }
        }
    }
}
