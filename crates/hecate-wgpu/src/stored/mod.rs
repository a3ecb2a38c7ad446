//! Arrays read and written in the type that they have, by kernels that do so once: products, and linear rules forward.
//!
//! Such a kernel has a [`WgslSource`](crate::launch::WgslSource) for every type ([`sources!`]). Others go through an array many
//! times, or through several of several types: what they read is [widened](Wgpu::widened) before.

use crate::Wgpu;
use hecate_core::{DType, Result, Tensor};

/// How an array is read.
/// 32-bit floats.
pub(crate) const F32: &str = include_str!("f32.wgsl");
/// Two bf16 to a word, on every adapter.
pub(crate) const BF16: &str = include_str!("bf16.wgsl");
/// f16 of an adapter that has them.
pub(crate) const F16: &str = include_str!("f16.wgsl");

/// How a result is written.
pub(crate) const STORE_F32: &str = include_str!("store_f32.wgsl");
pub(crate) const STORE_F16: &str = include_str!("store_f16.wgsl");

/// Conversions bit by bit, after a line that says `IEEE`.
pub(crate) const BITS: &str = include_str!("bits.wgsl");
/// The exponent and fraction of IEEE's halves.
pub(crate) const IEEE: &str = "const IEEE: bool = true;";

/// Sources of one kernel, by the [type](Wgpu::stored) of what it reads: 32-bit floats, bf16 and f16. Of bf16 it makes
/// 32-bit floats, since two of them share a word. Written `sources!("matmul", [PRELUDE, ..])`.
macro_rules! sources {
    ($name:expr, [$($part:expr),* $(,)?] $(,)?) => {{
        use $crate::{launch::WgslSource, stored::{BF16, BITS, F16, F32, IEEE, STORE_F16, STORE_F32}};
        [
            WgslSource { name: $name, parts: &[F32, STORE_F32, $($part),*] },
            WgslSource { name: concat!($name, "_bf16"), parts: &[BF16, STORE_F32, $($part),*] },
            WgslSource { name: concat!($name, "_f16"), parts: &[F16, STORE_F16, IEEE, BITS, $($part),*] },
        ]
    }};
}
pub(crate) use sources;

/// An array that kernels of every type can read.
pub(crate) struct Stored {
    pub(crate) array: Tensor<Wgpu>,
    /// Which of [`sources!`] reads it.
    pub(crate) source: usize,
    /// What that one makes.
    pub(crate) output: DType,
}

impl Wgpu {
    /// The array itself. Its elements in 32 bits where kernels have no type for it on this adapter, or its rows are not
    /// `aligned`, of a multiple of four elements.
    pub(crate) fn stored(&self, x: &Tensor<Self>, aligned: bool) -> Result<Stored> {
        // The array as it is, read by the source of its type.
        let stored = |source, output| Stored { array: x.clone(), source, output };
        match x.dtype() {
            DType::Bf16 if aligned => Ok(stored(1, DType::F32)),
            DType::F16 if aligned && self.reads_f16() => Ok(stored(2, DType::F16)),
            _ => Ok(Stored { array: self.widened(x)?, source: 0, output: DType::F32 }),
        }
    }
}
