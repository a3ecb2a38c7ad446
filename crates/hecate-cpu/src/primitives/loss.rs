//! Cross-entropy over the first `classes` columns of rows of logits.
//!
//! Columns after those are padding: they take no part, and their gradient is 0.
//! The forward keeps `log Σ eˣ` of each row, so the backward is one exponential an element.
//! Vocabularies have a hundred thousand classes, so sums are taken in 32 bits only over short runs.

use super::{embedding::checked, exp::exp, fill, fill_pair, matmul::own};
use crate::{
    Cpu,
    device::{floats, pooled_tensor, tensor},
};
use hecate_core::{
    Checked, DType, Result, Tensor, memory,
    primitives::{Loss, LossBackward, LossInputs, Losses, LossesAndGradient},
};

/// Exponentials added up in 32 bits; sums of these are added in 64.
///
/// In sixteen running sums that is off by less than `2⁻¹⁸` of the sum.
const SHORT: usize = 512;

impl Loss for Cpu {
    /// Losses and log-sums, one a row.
    /// `logits [rows, width]`, `targets [rows]` below `classes`; results are `[rows]` in 32 bits.
    fn cross_entropy(&self, _: Checked<Self>, inputs: &LossInputs<&Tensor<Self>>) -> Result<Losses<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = *inputs;
        let (rows, width) = (logits.shape().rows(), logits.shape().last());
        let targets = checked("cross_entropy", "targets", classes, targets)?;
        let logits = floats(logits)?;
        // A number a row: too short to be taken from the pool.
        let zeros = || memory::zeros("cross_entropy", rows);
        let (mut losses, mut lse) = (zeros()?, zeros()?);
        fill_pair(
            self,
            width,
            (1, &mut losses),
            (1, &mut lse),
            #[inline(always)]
            |first, losses, lse| {
                // One row a token, with its target.
                let rows = logits[first * width..].chunks_exact(width).zip(&targets[first..]);
                for ((loss, lse), (row, &target)) in losses.iter_mut().zip(lse).zip(rows) {
                    // The difference is taken in 64 bits: both terms are large where the loss is small.
                    let log_sum = log_sum_exp(&row[..classes]);
                    *loss = (log_sum - f64::from(row[target as usize])) as f32;
                    *lse = log_sum as f32;
                }
            },
        );
        let array = |values| tensor(self, [rows], DType::F32, values);
        Ok(Losses { losses: array(losses)?, lse: array(lse)? })
    }

    /// `factor (softmax − one-hot)`, `[rows, width]`.
    /// `factor` is the weight of a row's loss: `1 / rows` for the mean.
    fn cross_entropy_backward(&self, _: Checked<Self>, call: &LossBackward<'_, Self>) -> Result<Tensor<Self>> {
        let LossBackward { inputs: LossInputs { classes, logits, targets }, lse, factor } = *call;
        let width = logits.shape().last();
        let targets = checked("cross_entropy", "targets", classes, targets)?;
        let (values, lse) = (floats(logits)?, floats(lse)?);
        // Every element is written, padding included.
        let mut dlogits = self.take("cross_entropy", values.len())?;
        fill(
            self,
            width,
            &mut dlogits,
            #[inline(always)]
            |first, rows| {
                let values = values[first * width..].chunks_exact(width).zip(&lse[first..]).zip(&targets[first..]);
                for (out, ((row, &lse), &target)) in rows.chunks_exact_mut(width).zip(values) {
                    out.copy_from_slice(row);
                    slopes(out, classes, target as usize, lse, factor);
                }
            },
        );
        pooled_tensor(self, logits.shape().clone(), logits.dtype(), dlogits)
    }

    /// Losses `[rows]`, and the gradient where the logits were: a row is still in the cache.
    /// Logits of 32 bits that nobody else holds are overwritten: they are often a step's largest array.
    fn cross_entropy_and_gradient(
        &self,
        _: Checked<Self>,
        factor: f32,
        inputs: LossInputs<Tensor<Self>>,
    ) -> Result<LossesAndGradient<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = inputs;
        let (shape, dtype) = (logits.shape().clone(), logits.dtype());
        let (rows, width) = (shape.rows(), shape.last());
        let targets = checked("cross_entropy", "targets", classes, &targets)?;
        let mut losses = memory::zeros("cross_entropy", rows)?;
        let mut values = own(self, logits)?;
        fill_pair(
            self,
            width,
            (1, &mut losses),
            (width, &mut values),
            #[inline(always)]
            |first, losses, values| {
                let rows = values.chunks_exact_mut(width).zip(&targets[first..]);
                for (loss, (row, &target)) in losses.iter_mut().zip(rows) {
                    let (log_sum, target) = (log_sum_exp(&row[..classes]), target as usize);
                    *loss = (log_sum - f64::from(row[target])) as f32;
                    slopes(row, classes, target, log_sum as f32, factor);
                }
            },
        );
        let losses = tensor(self, [rows], DType::F32, losses)?;
        Ok(LossesAndGradient { losses, dlogits: pooled_tensor(self, shape, dtype, values)? })
    }
}

/// Logits become slopes: the softmax from the log-sum, less one hot; what is after the classes is padding.
#[inline(always)]
fn slopes(row: &mut [f32], classes: usize, target: usize, lse: f32, factor: f32) {
    let (row, padding) = row.split_at_mut(classes);
    for x in row.iter_mut() {
        *x = factor * exp(*x - lse);
    }
    padding.fill(0.0);
    row[target] -= factor;
}

/// `log Σ eˣ` of a row, with its maximum taken off first.
#[inline(always)]
fn log_sum_exp(row: &[f32]) -> f64 {
    // Powers of differences to the maximum are at most 1.
    let top = largest(row);
    // Short sums in 32 bits vectorise; their sum is in 64.
    let mut sum = 0.0;
    for part in row.chunks(SHORT) {
        sum += f64::from(sum_exp(part, top));
    }
    f64::from(top) + sum.ln()
}

/// The largest element; NaN only if there is nothing else. Sixteen running maxima vectorise.
#[inline(always)]
pub(super) fn largest(row: &[f32]) -> f32 {
    // A comparison that a NaN fails keeps the maximum: NaN is found by the sum.
    let mut tops = [f32::NEG_INFINITY; 16];
    let chunks = row.chunks_exact(16);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (top, &x) in tops.iter_mut().zip(chunk) {
            *top = if x > *top { x } else { *top };
        }
    }
    tops.iter().chain(tail).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top })
}

/// `Σ e^{x − top}` of a short row.
#[inline(always)]
fn sum_exp(row: &[f32], top: f32) -> f32 {
    sum_of(
        row,
        #[inline(always)]
        |x| exp(x - top),
    )
}

/// `Σ f(x)` of a short row, in 16 partial sums, whose order does not depend on the processor.
#[inline(always)]
pub(super) fn sum_of(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; 16];
    let chunks = row.chunks_exact(16);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(tail) {
        *sum += f(x);
    }
    sums.iter().sum()
}
