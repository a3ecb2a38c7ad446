//! Sums: short ones in 32 bits, sums of those in 64, in an order given by the sizes.

use super::BLOCK;
use crate::{
    Cpu,
    device::{floats, tensor},
    rows::axpy,
    simd::wide,
};
use hecate_core::{DType, Result, Tensor, primitives::Reduce};
use rayon::prelude::*;
use std::ops::Range;

/// Rows added up in 32 bits.
const SHORT: usize = 32;

/// Most partial sums of an array, whatever its size.
const PARTS: usize = 64;

impl Reduce for Cpu {
    fn sum(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(total(self, &floats(x), f64::from))
    }

    fn sum_squares(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(total(
            self,
            &floats(x),
            #[inline(always)]
            |x| f64::from(x) * f64::from(x),
        ))
    }

    fn sum_rows(&self, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let values = floats(x);
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
        Ok(tensor(self, [width], x.dtype(), sums))
    }
}

/// Sum of `f` over all elements, `[1]`.
fn total(device: &Cpu, values: &[f32], f: impl Fn(f32) -> f64 + Sync) -> Tensor<Cpu> {
    let block = |values: &[f32]| {
        wide(
            values,
            #[inline(always)]
            |values| {
                let mut sums = [0.0f64; 8];
                let chunks = values.chunks_exact(8);
                let tail = chunks.remainder();
                for chunk in chunks {
                    for (sum, &x) in sums.iter_mut().zip(chunk) {
                        *sum += f(x);
                    }
                }
                for (sum, &x) in sums.iter_mut().zip(tail) {
                    *sum += f(x);
                }
                sums.iter().sum::<f64>()
            },
        )
    };
    let sum: f64 = if values.len() <= BLOCK {
        block(values)
    } else {
        device.run(|| values.par_chunks(BLOCK).map(block).collect::<Vec<_>>()).iter().sum()
    };
    tensor(device, [1], DType::F32, vec![sum as f32])
}

/// Sums over rows, `[width]`: `add(rows, sums)` adds what a few rows contribute.
pub(super) fn over_rows<F>(device: &Cpu, rows: usize, width: usize, add: F) -> Vec<f32>
where
    F: Fn(Range<usize>, &mut [f32]) + Sync,
{
    let block = (BLOCK / width).max(rows.div_ceil(PARTS)).next_multiple_of(SHORT);
    let part = |i: usize| {
        let range = i * block..rows.min((i + 1) * block);
        wide(
            range,
            #[inline(always)]
            |range| sum_part(range, width, &add),
        )
    };
    if rows <= block {
        return part(0).iter().map(|&x| x as f32).collect();
    }
    let parts: Vec<Vec<f64>> = device.run(|| (0..rows.div_ceil(block)).into_par_iter().map(part).collect());
    let mut sums = vec![0.0; width];
    for part in parts {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum += x;
        }
    }
    sums.iter().map(|&x| x as f32).collect()
}

#[inline(always)]
fn sum_part(rows: Range<usize>, width: usize, add: &impl Fn(Range<usize>, &mut [f32])) -> Vec<f64> {
    let mut sums = vec![0.0f64; width];
    let mut short = vec![0.0f32; width];
    let mut first = rows.start;
    while first < rows.end {
        let end = rows.end.min(first + SHORT);
        short.fill(0.0);
        add(first..end, &mut short);
        for (sum, &x) in sums.iter_mut().zip(&short) {
            *sum += f64::from(x);
        }
        first = end;
    }
    sums
}
