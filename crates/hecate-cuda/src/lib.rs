//! The CUDA backend: NVIDIA GPUs, through kernels of our own.
//!
//! Building this crate needs nothing from NVIDIA. The driver, the compiler (NVRTC) and cuBLAS are looked for when the
//! program runs. What is missing is an error that says so, never a panic.
//!
//! A kernel is made by itself, when it is first started:
//!
//! 1. from the cache on disk (`HECATE_CACHE`, or the user's folder for caches), else
//! 2. by NVRTC, for exactly this GPU, else
//! 3. by the driver, from the PTX in this crate, for GPUs of compute capability 8.0 and later.
//!
//! [`Cuda::kernels`] says which of them is in use.
//!
//! A [`Cuda`] is one stream of one GPU. Calls queue their work and return; reading a result back, or
//! [`hecate_core::Device::synchronize`], waits for it.
//!
//! ```
//! use hecate_core::{Tensor, primitives};
//! use hecate_cuda::Cuda;
//!
//! // Without a driver or a GPU this is an error that says what is missing.
//! match Cuda::new(0) {
//!     Ok(gpu) => {
//!         let x = Tensor::from_f32(&gpu, [3], vec![1.0, 2.0, 3.5])?;
//!         assert_eq!(primitives::sum(&x)?.to_f32()?, [6.5]);
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), hecate_core::Error>(())
//! ```

mod arguments;
mod backend;
mod blas;
mod blas_lt;
mod bulk;
mod capture;
mod compile;
mod deep;
mod device;
mod error;
mod headers;
mod launch;
mod ledger;
mod linear;
mod modules;
mod nvrtc;
mod own_kernels;
mod prepare;
mod primitives;
mod ptx;
mod recurrent;
mod rules;
mod source;
mod sources;
mod streams;
#[cfg(test)]
mod tests;
mod timing;

pub use device::{Buffer, Cuda, Properties};
pub use hecate_core::Algorithm;
pub use own_kernels::{Argument, OwnGrid, OwnKernel, OwnSource};
pub use prepare::{compile_kernel, compile_through};
pub use timing::Timing;
