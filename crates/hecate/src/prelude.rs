//! What programs that use Hecate name most: `use hecate::prelude::*;`.
//!
//! `Result` and `Error` are left out, because programs have their own.

pub use crate::{Choose, Job, devices, select};
pub use hecate_core::{
    Algorithm, Backend, DType, Device, Dims, Forward, Host, Inputs, Kernel, Outputs, Pass, Read, Rule, Sequences,
    Shape, Slots, Tensor, forward, forward_packed, infer, infer_packed, primitives, rules::*,
};
#[cfg(feature = "cpu")]
pub use hecate_cpu::Cpu;
#[cfg(feature = "cuda")]
pub use hecate_cuda::Cuda;
#[cfg(feature = "wgpu")]
pub use hecate_wgpu::Wgpu;
