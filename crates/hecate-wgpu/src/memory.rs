//! Filling memory, copying it, and converting between 16 and 32 bits.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
    stored::BITS,
};
use hecate_core::{DType, Result, Tensor};

/// Conversions are bit by bit, so that every adapter rounds alike.
const SOURCE: WgslSource =
    WgslSource { name: "memory", parts: &[PRELUDE, HALF, BITS, MemoryArgs::WGSL, include_str!("memory.wgsl")] };

/// Whether a half is IEEE's or has the exponent of a float.
const HALF: &str = "const IEEE: bool = F16 == 1u;";

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel("fill", BF16),
    kernel("copy", BF16),
    kernel("widen", BF16),
    kernel("widen", F16),
    kernel("narrow", BF16),
    kernel("narrow", F16),
];

/// Halves with the exponent of a float.
const BF16: &[(&str, u32)] = &[("F16", 0)];
/// IEEE's halves.
const F16: &[(&str, u32)] = &[("F16", 1)];

/// `F16` says which halves a conversion is of.
const fn kernel(entry: &'static str, constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &SOURCE, entry, constants }
}

parameters! {
    /// What fills and conversions are told.
    struct MemoryArgs {
        /// Words, or floats that are converted.
        count: u32,
        /// What `fill` writes.
        value: u32,
    }
}

/// So many elements in words of 32 bits.
fn words(x: &Tensor<Wgpu>) -> usize {
    (x.shape().count() * x.dtype().size()).div_ceil(4)
}

/// Workgroups of 256 invocations for `count` elements.
pub(crate) fn groups(count: usize) -> (usize, usize, usize) {
    (count.div_ceil(256), 1, 1)
}

impl Wgpu {
    /// `widen` or `narrow`: an invocation converts two elements.
    fn convert(&self, kernel: &Kernel<'_>, from: &Tensor<Self>, to: &Tensor<Self>) -> Result<()> {
        let count = from.shape().count();
        let args = MemoryArgs { count: count as u32, value: 0 };
        self.launch(kernel, groups(count.div_ceil(2)), &args, &[Binding::Write(to), Binding::Read(from)])
    }

    /// Writes `value` to every word.
    pub(crate) fn fill(&self, x: &Tensor<Self>, value: u32) -> Result<()> {
        let count = words(x);
        let args = MemoryArgs { count: count as u32, value };
        self.launch(&kernel("fill", BF16), groups(count), &args, &[Binding::Write(x)])
    }

    /// The elements of one tensor into the memory of another like it.
    pub(crate) fn copy(&self, from: &Tensor<Self>, to: &Tensor<Self>) -> Result<()> {
        let count = words(from);
        let args = MemoryArgs { count: count as u32, value: 0 };
        self.launch(&kernel("copy", BF16), groups(count), &args, &[Binding::Write(to), Binding::Read(from)])
    }

    /// The same elements in memory of their own.
    pub(crate) fn copied(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty(x.shape().clone(), x.dtype())?;
        self.copy(x, &y)?;
        Ok(y)
    }

    /// The array in memory that nobody else holds.
    pub(crate) fn own(&self, x: Tensor<Self>) -> Result<Tensor<Self>> {
        let (shape, dtype) = (x.shape().clone(), x.dtype());
        match x.into_buffer() {
            Ok(buffer) => Tensor::from_buffer(self, shape, dtype, buffer),
            Err(shared) => self.copied(&shared),
        }
    }

    /// A float tensor's values in 32 bits; the tensor itself where it has them already.
    pub(crate) fn widened(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        if x.dtype() == DType::F32 {
            return Ok(x.clone());
        }
        let y = self.empty(x.shape().clone(), DType::F32)?;
        self.convert(&kernel("widen", format(x.dtype())), x, &y)?;
        Ok(y)
    }

    /// 32-bit values as `dtype`, rounded to the nearest, of two the even one; what has that type as it is.
    pub(crate) fn rounded(&self, x: Tensor<Self>, dtype: DType) -> Result<Tensor<Self>> {
        if dtype == x.dtype() {
            return Ok(x);
        }
        let y = self.empty(x.shape().clone(), dtype)?;
        self.convert(&kernel("narrow", format(dtype)), &x, &y)?;
        Ok(y)
    }
}

/// The constants of a conversion.
fn format(dtype: DType) -> &'static [(&'static str, u32)] {
    if dtype == DType::F16 { F16 } else { BF16 }
}
