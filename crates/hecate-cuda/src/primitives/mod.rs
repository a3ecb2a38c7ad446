//! Primitives, one file each, with the kernels beside them.
//!
//! Core checks arguments before a backend sees them: shapes, types, devices, finite options. A [`Checked`] in a signature
//! says so, and code here relies on it: what still can fail is memory, a launch, or a size that a kernel cannot count.
//!
//! Arrays lie row by row, the last axis in neighbouring elements. Kernels see `[rows, width]`: all axes but the last are rows.
//! They compute in 32 bits whatever the type of arrays, and round each result once. Sums over rows go by parts, in an order
//! that sizes alone decide, so a call gives the same bits every time.
//!
//! The line over each `SOURCE` says in PyTorch's notation what its kernels compute. Structures that cross a launch have a
//! twin in the kernels' file, field by field.
//!
//! [`Checked`]: hecate_core::Checked

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod embedding;
mod entries;
pub(crate) mod features;
pub(crate) mod fp8;
pub(crate) mod gated_norm;
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
pub(crate) mod quantized_tiles;
pub(crate) mod reduce;
pub(crate) mod retention;
pub(crate) mod rotary;
pub(crate) mod sample;
pub(crate) mod sequences;
pub(crate) mod softmax;
mod whole_rows;
