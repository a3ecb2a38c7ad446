//! Cross-entropy.

use super::{embedding::checked, exp::exp, fill, fill_pair};
use crate::{
    Cpu,
    device::{floats, lent, tensor},
};
use hecate_core::{DType, Result, Tensor, primitives::Loss};

/// Exponentials added up in 32 bits; sums of these are added in 64.
const SHORT: usize = 512;

impl Loss for Cpu {
    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (rows, width) = (logits.shape().rows(), logits.shape().last());
        let targets = checked("cross_entropy", "targets", classes, targets)?;
        let logits = floats(logits);
        let (mut losses, mut lse) = (vec![0.0; rows], vec![0.0; rows]);
        fill_pair(
            self,
            width,
            (1, &mut losses),
            (1, &mut lse),
            #[inline(always)]
            |first, losses, lse| {
                let rows = logits[first * width..].chunks_exact(width).zip(&targets[first..]);
                for ((loss, lse), (row, &target)) in losses.iter_mut().zip(lse).zip(rows) {
                    let log_sum = log_sum_exp(&row[..classes]);
                    *loss = (log_sum - f64::from(row[target as usize])) as f32;
                    *lse = log_sum as f32;
                }
            },
        );
        Ok((tensor(self, [rows], DType::F32, losses), tensor(self, [rows], DType::F32, lse)))
    }

    fn cross_entropy_backward(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
        lse: &Tensor<Self>,
        factor: f32,
    ) -> Result<Tensor<Self>> {
        let width = logits.shape().last();
        let targets = checked("cross_entropy", "targets", classes, targets)?;
        let (values, lse) = (floats(logits), floats(lse));
        let mut dlogits = self.take(values.len());
        fill(
            self,
            width,
            &mut dlogits,
            #[inline(always)]
            |first, rows| {
                let values = values[first * width..].chunks_exact(width).zip(&lse[first..]).zip(&targets[first..]);
                for (out, ((row, &lse), &target)) in rows.chunks_exact_mut(width).zip(values) {
                    let (out, behind) = out.split_at_mut(classes);
                    for (out, &x) in out.iter_mut().zip(row) {
                        *out = factor * exp(x - lse);
                    }
                    behind.fill(0.0);
                    out[target as usize] -= factor;
                }
            },
        );
        Ok(lent(self, logits.shape().clone(), logits.dtype(), dlogits))
    }
}

#[inline(always)]
fn log_sum_exp(row: &[f32]) -> f64 {
    let top = largest(row);
    let mut sum = 0.0;
    for part in row.chunks(SHORT) {
        sum += f64::from(sum_exp(part, top));
    }
    f64::from(top) + sum.ln()
}

/// The largest number; NaN only if there is nothing else.
#[inline(always)]
pub(super) fn largest(row: &[f32]) -> f32 {
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

/// `Σ e^{x − top}`.
#[inline(always)]
fn sum_exp(row: &[f32], top: f32) -> f32 {
    sum_of(
        row,
        #[inline(always)]
        |x| exp(x - top),
    )
}

/// `Σ f(x)` of a short row, in 16 partial sums.
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
