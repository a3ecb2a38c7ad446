//! Primitives, one file each, with the kernels beside them.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod features;
pub(crate) mod layer_norm;
pub(crate) mod layout;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod matmul_cooperative;
pub(crate) mod matmul_rows;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod quantized;
pub(crate) mod reduce;
pub(crate) mod retention;
pub(crate) mod rotary;
pub(crate) mod sample;
pub(crate) mod sequences;
pub(crate) mod softmax;
pub(crate) mod sums;
mod whole_rows;

use crate::Wgpu;
use hecate_core::primitives::Fp8Matmul;

/// The language of kernels has no such numbers.
impl Fp8Matmul for Wgpu {}
