//! PTX from Rust.
//!
//! PTX is the language that NVIDIA's driver compiles for its GPU. [`kernel`] writes it from typed calls. [`Specification`] has
//! kernels made with it: matrix products, softmax, norms, attention, products with 4-bit weights; [`Elementwise`] has operations
//! on arrays of real and complex numbers. Nothing here needs a GPU, a driver, a compiler or another crate.
//!
//! What is checked where:
//!
//! - Rust's types refuse a register of another type, a barrier or a shuffle to which not all threads come, and a vector of
//!   more than 16 bytes.
//! - [`kernel`] refuses, with an [`Error`], shared memory over 48 KiB, blocks that no GPU has and names that PTX does not take.
//! - Specifications refuse, when they are made, sizes for which there is no kernel.
//! - The text demands its block's shape of a launch. Lengths of arrays are the caller's to keep: a kernel cannot see them.
//!
//! The same calls give the same text, byte for byte. Its first lines name the oldest language and GPU that have all of its
//! operations ([`Module::target`]), so the oldest driver that can run a kernel takes it.

mod elementwise;
mod error;
mod kernels;
mod library;
pub mod presets;
mod types;
mod writer;

pub use elementwise::{Elementwise, Operation, Scalar};
pub use error::{Error, SHARED_LIMIT};
pub use kernels::{
    Attention, GemmNaive, GemmTensorCore, GemmTiled, HalfType, Launch, LayerNorm, Norm, QuantizedGemm, Softmax,
    Specification,
};
pub use library::Library;
pub use types::{
    Bf16, F16, Float, Half, Integer, Number, Packed, Pred, Reg, Type, Uniform, UniformPred, UniformValue, Value,
};
pub use writer::{
    Accumulator, Axis, Comparison, Converged, Diverged, Element, Flow, Global, Guarded, Matrices, Module, Parameter,
    Pointer, Scope, Shared, Space, Target, kernel,
};
