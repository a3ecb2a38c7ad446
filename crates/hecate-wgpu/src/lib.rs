//! The WebGPU backend: any GPU that wgpu reaches (Vulkan, Metal, Direct3D 12), and software Vulkan.
//!
//! Kernels are WGSL beside the Rust that starts them. They keep to what every adapter can do: 32-bit floats, 256
//! invocations and 16 KiB of shared memory a workgroup, eight storage buffers a stage. What an adapter cannot do, or fails
//! at, is an error that says so, never a panic.
//!
//! Numbers are computed with in 32 bits. Products of matrices and linear rules forward read 16-bit arrays as they are, bf16
//! as words anywhere, f16 where the adapter has such floats ([`Adapter::f16`]), and then write them too. For other kernels
//! 16-bit arrays are widened before and rounded behind. Where there are subgroups ([`Adapter::subgroups`]), sums and maxima
//! over a workgroup take one barrier, and the linear rules' sums over keys none. [`Wgpu::with_portable_kernels`] does without
//! both.
//!
//! The linear rules' kernels run unchecked: their indices follow from shapes that the core has checked, and checks would keep
//! compilers from unrolling their loops. All others are checked as wgpu does it.
//!
//! Work is queued and submitted many dispatches at a time; reading a result back, or [`hecate_core::Device::synchronize`],
//! submits what is left. An error in queued work is therefore seen at a later call.

mod adapter;
mod bind_groups;
mod deep;
mod device;
mod engine;
mod error;
mod launch;
mod memory;
mod packing;
mod pool;
mod primitives;
mod queue;
mod recurrent;
mod rules;
mod sources;
mod stored;
#[cfg(test)]
mod tests;
mod transfers;

pub use adapter::{Adapter, Selection};
pub use device::{Buffer, Wgpu};
pub use transfers::Readback;
