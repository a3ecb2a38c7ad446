//! Element types.

use std::fmt;

/// Element type of a [`Tensor`](crate::Tensor), known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit IEEE float: states, gates, masks, weights.
    F32,
    /// 16-bit float with 8 bits of exponent: activations.
    Bf16,
    /// 16-bit IEEE float: activations.
    F16,
    /// 32-bit unsigned integer: token ids.
    U32,
}

impl DType {
    /// Width of one element, bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::U32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::U32 => "u32",
        })
    }
}
