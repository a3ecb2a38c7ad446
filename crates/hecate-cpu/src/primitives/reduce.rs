//! Sums: short ones in 32 bits, sums of those in 64, in an order given by the sizes.
//!
//! Every partial sum has bounds that depend on the array's size alone, and partial sums are added in order.
//! The same array thus gives the same bits on any number of threads.

use super::BLOCK;
use crate::{
    Cpu,
    device::{floats, tensor},
    rows::axpy,
    simd::wide,
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Reduce};
use rayon::prelude::*;
use std::ops::Range;

/// Rows added up in 32 bits.
///
/// The rounding of a sum of 32 is a few units of the last place; 64 bits add nothing to it.
const SHORT: usize = 32;

/// Most partial sums of an array, whatever its size: they are added on one thread.
///
/// More than the threads of most machines, so that all have work.
const PARTS: usize = 64;

impl Reduce for Cpu {
    /// `Σ x`, `[1]`.
    /// `x` has any shape; the result has 32 bits, whatever the type of `x`.
    fn sum(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(self, &floats(x)?, f64::from)
    }

    /// `Σ x²`, `[1]`.
    /// Squares are taken in 64 bits, where those of large elements do not overflow.
    fn sum_squares(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(
            self,
            &floats(x)?,
            #[inline(always)]
            |x| f64::from(x) * f64::from(x),
        )
    }

    /// `[width]`: sums over all rows.
    /// `x.view(-1, width).sum(0)`, of the type of `x`.
    fn sum_rows(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let values = floats(x)?;
        let sums = over_rows(
            self,
            values.len() / width,
            width,
            #[inline(always)]
            |rows, sums| {
                for row in values[rows.start * width..rows.end * width].chunks_exact(width) {
                    axpy(sums, 1.0, row);
                }
            },
        );
        tensor(self, [width], x.dtype(), sums)
    }

    /// `[width]`: sums of `x y` over all rows.
    /// `(x * y).view(-1, width).sum(0)`, without an array of products.
    fn sum_products(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (xs, ys) = (floats(x)?, floats(y)?);
        let sums = over_rows(
            self,
            xs.len() / width,
            width,
            #[inline(always)]
            |rows, sums| {
                // A few rows of both arrays, added up in 32 bits.
                let range = rows.start * width..rows.end * width;
                for (x, y) in xs[range.clone()].chunks_exact(width).zip(ys[range].chunks_exact(width)) {
                    for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                        *sum += x * y;
                    }
                }
            },
        );
        tensor(self, [width], x.dtype(), sums)
    }
}

/// Sum of `f` over all elements, `[1]`, in eight running sums a block.
fn total(device: &Cpu, values: &[f32], f: impl Fn(f32) -> f64 + Sync) -> Result<Tensor<Cpu>> {
    // A block's sum depends on the block alone, and blocks on the array's length.
    let block = |values: &[f32]| {
        wide(
            values,
            #[inline(always)]
            |values| {
                // Eight running sums in 64 bits; the order of their sum is fixed.
                let mut sums = [0.0f64; 8];
                let chunks = values.chunks_exact(8);
                let tail = chunks.remainder();
                for chunk in chunks {
                    for (sum, &x) in sums.iter_mut().zip(chunk) {
                        *sum += f(x);
                    }
                }
                // The last seven elements or fewer go to the first sums.
                for (sum, &x) in sums.iter_mut().zip(tail) {
                    *sum += f(x);
                }
                sums.iter().sum::<f64>()
            },
        )
    };
    // Blocks' sums come back in order, whatever thread made them.
    let sum: f64 = if values.len() <= BLOCK {
        block(values)
    } else {
        device.run(|| values.par_chunks(BLOCK).map(block).collect::<Vec<_>>()).iter().sum()
    };
    tensor(device, [1], DType::F32, vec![sum as f32])
}

/// Sums over rows, `[width]`: `add(rows, sums)` adds what a few rows contribute, in 32 bits.
pub(super) fn over_rows<F>(device: &Cpu, rows: usize, width: usize, add: F) -> Vec<f32>
where
    F: Fn(Range<usize>, &mut [f32]) + Sync,
{
    // At most PARTS blocks, whole multiples of SHORT rows: cuts depend on the sizes alone.
    let block = (BLOCK / width).max(rows.div_ceil(PARTS)).next_multiple_of(SHORT);
    let part = |i: usize| {
        // The last block may be shorter.
        let range = i * block..rows.min((i + 1) * block);
        wide(
            range,
            #[inline(always)]
            |range| sum_part(range, width, &add),
        )
    };
    // One block needs no task.
    if rows <= block {
        return part(0).iter().map(|&x| x as f32).collect();
    }
    let parts: Vec<Vec<f64>> = device.run(|| (0..rows.div_ceil(block)).into_par_iter().map(part).collect());
    // Partial sums are added in order, in 64 bits.
    let mut sums = vec![0.0; width];
    for part in parts {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum += x;
        }
    }
    sums.iter().map(|&x| x as f32).collect()
}

/// One partial sum `[width]`: at most [`SHORT`] rows go into a 32-bit sum before it is added in 64.
#[inline(always)]
fn sum_part(rows: Range<usize>, width: usize, add: &impl Fn(Range<usize>, &mut [f32])) -> Vec<f64> {
    let mut sums = vec![0.0f64; width];
    let mut short = vec![0.0f32; width];
    let mut first = rows.start;
    while first < rows.end {
        let end = rows.end.min(first + SHORT);
        // A few rows at a time, so that 32-bit sums stay short.
        short.fill(0.0);
        add(first..end, &mut short);
        for (sum, &x) in sums.iter_mut().zip(&short) {
            *sum += f64::from(x);
        }
        first = end;
    }
    sums
}
