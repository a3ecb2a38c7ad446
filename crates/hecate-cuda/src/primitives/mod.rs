//! Primitives, one file each, with the kernels beside them.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod embedding;
mod entries;
pub(crate) mod features;
pub(crate) mod fp8;
mod head_products;
pub(crate) mod layer_norm;
pub(crate) mod layout;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod matmul_groups;
pub(crate) mod matmul_naive;
pub(crate) mod matmul_rows;
pub(crate) mod matmul_small;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod projection;
pub(crate) mod quantized;
pub(crate) mod reduce;
pub(crate) mod retention;
pub(crate) mod rotary;
pub(crate) mod sample;
pub(crate) mod sequences;
pub(crate) mod softmax;
mod whole_rows;
