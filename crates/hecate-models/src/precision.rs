//! How many bits activations have while a model learns.

use crate::{Error, Result};
use hecate_core::DType;
use serde::{Deserialize, Serialize};

/// Element type of activations, and of the copies of weights that meet them, in passes that learn.
///
/// Whatever it is, weights, moments, gates, states, statistics of norms, softmax and losses are 32-bit floats. So are the
/// gradients of weights once a pass is over. With [`Precision::Bf16`] every weight is rounded once a pass. Products add
/// up in 32 bits and round their results. What a use of a weight adds to its gradient is added in 32 bits. Evaluation and
/// generation take the weights as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits throughout.
    #[default]
    F32,
    /// [`DType::Bf16`]: half the memory of activations, and the matrix units of GPUs.
    Bf16,
    /// As [`Precision::Bf16`], with factors of 8 bits in the products of blocks' linear maps, on GPUs that multiply such
    /// ([`Fp8Matmul`](hecate_core::primitives::Fp8Matmul)). Embeddings, head, norms, gates and memories stay as they are, and so
    /// do maps with a size that 16 does not divide.
    Fp8,
}

impl Precision {
    /// Names in settings and on the command line.
    pub const NAMES: [&'static str; 3] = ["f32", "bf16", "fp8"];

    /// Names of those that weights are stored in to generate.
    pub const STORED: [&'static str; 2] = ["f32", "bf16"];

    /// The precision of this name.
    ///
    /// # Errors
    /// [`Error::Config`] listing the known ones.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            _ => Err(Error::config("precision", name, format!("one of {}", Self::NAMES.join(", ")))),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    /// The element type of activations.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 | Self::Fp8 => DType::Bf16,
        }
    }
}
