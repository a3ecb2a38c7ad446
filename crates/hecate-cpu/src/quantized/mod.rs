//! Products with quantized matrices: rows of `x` become whole numbers of 8 bits, and sums are of whole numbers.
//!
//! A row of weights is unpacked once for up to eight rows of `x`, in registers. Weights are read as they lie in memory.
//! Without vector instructions (the reference) rows are dequantized and multiplied in 32 bits: what all else is held to.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod rounded;

use crate::{
    Cpu,
    device::{floats, pooled_tensor},
    product::{Mat, MatMut, product},
    simd::{is_scalar, wide},
};
use hecate_core::{
    Error, Host, Result, Tensor,
    primitives::QuantizedMatmul,
    quantized::{BlockFormat, Quantized},
};
use rayon::prelude::*;
use rounded::{Rounded, RoundedRow};

/// Rows of `x` that a row of weights is unpacked for at once.
const TOGETHER: usize = 8;

/// Multiply-adds that are worth a task of their own.
const WORK: usize = 1 << 18;

/// Most rows of weights of a task: threads that are slowed down leave tasks to others.
const ROWS: usize = 64;

/// Values of weights that the reference dequantizes at a time, at most.
const PANEL: usize = 1 << 20;

/// The products of one row of weights with `R` rows of `x`.
type Dots<const R: usize> = fn(&[u8], [RoundedRow<'_>; R]) -> [f32; R];

/// What a format's rows are multiplied by.
#[derive(Clone, Copy)]
struct Kernels {
    one: Dots<1>,
    several: Dots<TOGETHER>,
}

impl Kernels {
    /// The best for this processor.
    fn of(format: BlockFormat) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(kernels) = avx512::kernels(format) {
            return kernels;
        }
        portable::kernels(format)
    }

    /// Products of a row of weights with all rows of `x`, one for each of `out`.
    fn row(&self, weights: &[u8], x: &Rounded, out: &mut [f32]) {
        let (together, rest) = out.as_chunks_mut::<TOGETHER>();
        let single = together.len() * TOGETHER;
        for (i, out) in together.iter_mut().enumerate() {
            *out = (self.several)(weights, std::array::from_fn(|r| x.row(i * TOGETHER + r)));
        }
        for (i, out) in rest.iter_mut().enumerate() {
            [*out] = (self.one)(weights, [x.row(single + i)]);
        }
    }
}

impl QuantizedMatmul for Cpu {
    /// `y = x Wᵀ`, `x [n,K]`, `W [N,K]`: made as `[N,n]`, a row of weights after another, and then turned.
    fn quantized_matmul(&self, x: &Tensor<Self>, weight: &Quantized<Self>) -> Result<Tensor<Self>> {
        let (dtype, values) = (x.dtype(), floats(x)?);
        let (n, inner, columns) = (x.shape().rows(), weight.columns(), weight.rows());
        let words: &Host = weight.words().buffer();
        let Host::U32(words) = words else {
            let (what, found) = ("quantized_matmul", words.dtype());
            return Err(Error::DType { what, slot: "weight", expected: "u32", found });
        };
        let (bytes, size) = (bytemuck::cast_slice::<u32, u8>(words), weight.row_bytes());
        let mut turned = self.take("quantized_matmul", n * columns)?;
        if is_scalar() {
            by_values(self, weight, bytes, &values, &mut turned)?;
        } else {
            let x = Rounded::new(self, &values, n)?;
            let kernels = Kernels::of(weight.format());
            let rows = (WORK / (n * inner)).clamp(1, ROWS);
            let task = |(i, out): (usize, &mut [f32])| {
                for (j, out) in out.chunks_exact_mut(n).enumerate() {
                    kernels.row(&bytes[(i * rows + j) * size..][..size], &x, out);
                }
            };
            if columns <= rows {
                task((0, &mut turned));
            } else {
                self.run(|| turned.par_chunks_mut(rows * n).enumerate().for_each(task));
            }
        }
        if n == 1 {
            return pooled_tensor(self, [1, columns], dtype, turned);
        }
        let mut out = self.take("quantized_matmul", n * columns)?;
        let turn = |(i, out): (usize, &mut [f32])| {
            out.iter_mut().zip(turned[i..].iter().step_by(n)).for_each(|(out, &x)| *out = x)
        };
        self.run(|| out.par_chunks_mut(columns).enumerate().for_each(turn));
        pooled_tensor(self, [n, columns], dtype, out)
    }
}

/// `out [N,n] = W xᵀ` from weights of 32 bits, some rows of which are dequantized at a time: the reference.
fn by_values(device: &Cpu, weight: &Quantized<Cpu>, bytes: &[u8], x: &[f32], out: &mut [f32]) -> Result<()> {
    let (format, inner) = (weight.format(), weight.columns());
    let (n, rows) = (x.len() / inner, (PANEL / inner).max(1));
    let size = rows * weight.row_bytes();
    let task = |(bytes, out): (&[u8], &mut [f32])| {
        let values = format.dequantize(bytes)?;
        let columns = out.len() / n;
        product(MatMut::new(out, columns, n), 0.0, 1.0, Mat::new(&values, columns, inner), Mat::new(x, n, inner).t());
        Ok(())
    };
    let bytes = &bytes[..weight.rows() * weight.row_bytes()];
    device.run(|| bytes.par_chunks(size).zip(out.par_chunks_mut(rows * n)).try_for_each(task))
}

#[cfg(test)]
mod tests;
