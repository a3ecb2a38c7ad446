//! The CUDA backend: NVIDIA GPUs, through kernels of our own.
//!
//! Building this crate needs nothing from NVIDIA: the driver, the compiler (NVRTC) and cuBLAS are looked for when the
//! program runs. What is missing is an error that says so, never a panic.
//!
//! A kernel is made when it is first started, by itself: out of the cache on disk (`HECATE_CACHE`, or the user's folder
//! for caches), else by NVRTC for exactly this GPU, else by the driver from the PTX in this crate, which GPUs of compute
//! capability 8.0 and later take. [`Cuda::kernels`] says which of them is in use.

mod blas;
mod compile;
mod deep;
mod device;
mod engine;
mod error;
mod launch;
mod nvrtc;
mod primitives;
mod ptx;
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
