#![doc = include_str!("../README.md")]

mod elementwise;
mod error;
mod kernels;
mod library;
mod named;
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
pub use named::{FORMS, named};
pub use types::{
    Bf16, F16, Float, Half, Integer, Number, Packed, Pred, Reg, Type, Uniform, UniformPred, UniformValue, Value,
};
pub use writer::{
    Accumulator, Axis, Comparison, Converged, Diverged, Element, Flow, Global, Guarded, Matrices, Module, Parameter,
    Pointer, Scope, Shared, Space, Target, kernel,
};
