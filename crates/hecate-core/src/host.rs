//! Arrays on the host.

use crate::{DType, Result, memory};
use half::{bf16, f16};

/// An array on the host, as it is uploaded and downloaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Host {
    /// [`DType::F32`].
    F32(Vec<f32>),
    /// [`DType::Bf16`].
    Bf16(Vec<bf16>),
    /// [`DType::F16`].
    F16(Vec<f16>),
    /// [`DType::U32`].
    U32(Vec<u32>),
}

impl Host {
    /// `count` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) for more than there is room for.
    pub fn zeros(dtype: DType, count: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(memory::zeros("zeros", count)?),
            DType::Bf16 => Self::Bf16(memory::zeros("zeros", count)?),
            DType::F16 => Self::F16(memory::zeros("zeros", count)?),
            DType::U32 => Self::U32(memory::zeros("zeros", count)?),
        })
    }

    /// The values rounded to `dtype`. Floats become integers by truncation toward zero, saturating.
    pub fn from_f32(dtype: DType, values: Vec<f32>) -> Self {
        match dtype {
            DType::F32 => Self::F32(values),
            DType::Bf16 => Self::Bf16(values.iter().map(|&x| bf16::from_f32(x)).collect()),
            DType::F16 => Self::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
            DType::U32 => Self::U32(values.iter().map(|&x| x as u32).collect()),
        }
    }

    /// The values as 32-bit floats; copies unless they are that already.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(x) => x,
            Self::Bf16(x) => x.into_iter().map(f32::from).collect(),
            Self::F16(x) => x.into_iter().map(f32::from).collect(),
            Self::U32(x) => x.into_iter().map(|x| x as f32).collect(),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::Bf16(_) => DType::Bf16,
            Self::F16(_) => DType::F16,
            Self::U32(_) => DType::U32,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::U32(x) => x.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
