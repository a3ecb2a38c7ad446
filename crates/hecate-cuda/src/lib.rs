//! The CUDA backend: NVIDIA GPUs, through kernels of our own.
//!
//! Building this crate needs nothing from NVIDIA: the driver, the compiler (NVRTC) and cuBLAS are looked for when the
//! program runs. What is missing is an error that says so, never a panic.

mod blas;
mod compile;
mod deep;
mod device;
mod engine;
mod error;
mod launch;
mod nvrtc;
mod primitives;
mod recording;
mod recurrent;
mod rules;
mod sources;
#[cfg(test)]
mod tests;
mod timing;

pub use device::{Buffer, Cuda, Properties};
pub use engine::Algorithm;
pub use timing::Timing;
