//! Products with quantized matrices: rows of `x` become whole numbers of 8 bits, and sums are of whole numbers.
//!
//! A row of weights is unpacked once for up to eight rows of `x`, in registers, and read as it lies in memory. With AVX-512,
//! sixteen rows are unpacked for many rows of `x`, to memory that stays in caches.
//! Without vector instructions (the reference) rows are dequantized and multiplied in 32 bits: what all else is held to.

#[cfg(target_arch = "x86_64")]
mod avx2;
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
    Checked, Error, Host, Result, Tensor,
    primitives::QuantizedMatmul,
    quantized::{BlockFormat, Quantized},
};
use rayon::prelude::*;
use rounded::{GROUP, Rounded, RoundedRow};

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
    several: Several,
}

/// Products with several rows of `x`; those of each have the bits that they have alone.
#[derive(Clone, Copy)]
enum Several {
    /// A row of weights after another.
    Rows(Dots<TOGETHER>),
    /// Sixteen rows of weights at a time.
    #[cfg(target_arch = "x86_64")]
    Panels(avx512::Panels),
}

/// Calls a kernel, which only functions that looked at the processor hand out.
#[cfg(target_arch = "x86_64")]
macro_rules! call {
    ($($kernel:ident)::+ $(<$constant:tt>)? ($($argument:ident),+)) => {
        |$($argument),+| {
            // SAFETY: the caller made sure that the processor has what the kernel is compiled for.
            #[expect(unsafe_code, reason = "vector instructions that not every processor has")]
            unsafe {
                $($kernel)::+ $(::<$constant>)? ($($argument),+)
            }
        }
    };
}
/// Functions that read the first elements of a slice into a register, wherever they lie, on processors with these features.
#[cfg(target_arch = "x86_64")]
macro_rules! loads {
    ($features:literal; $($name:ident $vector:ty, $element:ty, $count:literal, $load:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = $features)]
        fn $name(from: &[$element]) -> $vector {
            let from: &[$element; $count] = from.first_chunk().expect("a whole vector");
            // SAFETY: there are as many elements as are read, and they need no alignment.
            #[expect(unsafe_code, reason = "loads take pointers")]
            unsafe { $load(from.as_ptr().cast()) }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
use {call, loads};

/// Fewest rows of `x` that pay for unpacking weights to memory.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 4;

impl Kernels {
    /// The best for this processor.
    fn of(format: BlockFormat) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(kernels) = avx512::kernels(format).or_else(|| avx2::kernels(format)) {
            return kernels;
        }
        portable::kernels(format)
    }

    /// `out [N,n]`: products of `N` rows of weights with all `n` rows of `x`, in tasks of some rows of weights.
    fn products(&self, device: &Cpu, weights: &[u8], x: &Rounded, out: &mut [f32]) -> Result<()> {
        let n = x.rows();
        // Rows of weights, and bytes of one.
        let (rows, size) = (out.len() / n, weights.len() * n / out.len());
        #[cfg(target_arch = "x86_64")]
        if let (Several::Panels(panels), FEW..) = (self.several, n) {
            let tiles = panels.tiles(device, x)?;
            let task = |(weights, out): (&[u8], &mut [f32])| panels.multiply(weights, &tiles, n, out);
            let parts = weights.par_chunks(ROWS * size).zip(out.par_chunks_mut(ROWS * n));
            return device.run(|| parts.try_for_each(task));
        }
        let task = |(weights, out): (&[u8], &mut [f32])| {
            weights
                .chunks_exact(size)
                .zip(out.chunks_exact_mut(n))
                .for_each(|(weights, out)| self.row(weights, x, out));
        };
        // Tasks of about the same work, whatever the number of rows of `x`.
        let some = (WORK / (n * x.groups() * GROUP)).clamp(1, ROWS);
        if rows <= some {
            task((weights, out));
        } else {
            device.run(|| weights.par_chunks(some * size).zip(out.par_chunks_mut(some * n)).for_each(task));
        }
        Ok(())
    }

    /// Products of a row of weights with all rows of `x`, one for each of `out`.
    fn row(&self, weights: &[u8], x: &Rounded, out: &mut [f32]) {
        let done = match self.several {
            Several::Rows(several) => {
                let together = out.as_chunks_mut::<TOGETHER>().0;
                for (i, out) in together.iter_mut().enumerate() {
                    *out = several(weights, std::array::from_fn(|r| x.row(i * TOGETHER + r)));
                }
                together.len() * TOGETHER
            }
            // Few rows, one after another.
            #[cfg(target_arch = "x86_64")]
            Several::Panels(_) => 0,
        };
        for (i, out) in out.iter_mut().enumerate().skip(done) {
            [*out] = (self.one)(weights, [x.row(i)]);
        }
    }
}

impl QuantizedMatmul for Cpu {
    /// `y = x Wᵀ`, `x [n,K]`, `W [N,K]`: made as `[N,n]`, a row of weights after another, and then turned.
    fn quantized_matmul(&self, _: Checked<Self>, x: &Tensor<Self>, weight: &Quantized<Self>) -> Result<Tensor<Self>> {
        let (dtype, values) = (x.dtype(), floats(x)?);
        let (n, columns) = (x.shape().rows(), weight.rows());
        let words: &Host = weight.words().buffer();
        let Host::U32(words) = words else {
            let (what, found) = ("quantized_matmul", words.dtype());
            return Err(Error::DType { what, slot: "weight", expected: "u32", found });
        };
        // Words keep the order of bytes that the blocks were stored in.
        let bytes = bytemuck::cast_slice::<u32, u8>(words);
        let mut turned = self.take("quantized_matmul", n * columns)?;
        if is_scalar() {
            by_values(self, weight, bytes, &values, &mut turned)?;
        } else {
            let x = Rounded::new(self, &values, n)?;
            let bytes = &bytes[..columns * weight.row_bytes()];
            Kernels::of(weight.format()).products(self, bytes, &x, &mut turned)?;
        }
        if n == 1 {
            return pooled_tensor(self, [1, columns], dtype, turned);
        }
        let mut out = self.take("quantized_matmul", n * columns)?;
        // Row `i` of the result is every `n`-th of what was made, from `i` on.
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
