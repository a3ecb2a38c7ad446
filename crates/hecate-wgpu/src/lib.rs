//! The WebGPU backend: any GPU that wgpu reaches (Vulkan, Metal, Direct3D 12), and software Vulkan.
//!
//! Kernels are WGSL beside the Rust that starts them. They keep to what every adapter can do: 32-bit floats, 256
//! invocations and 16 KiB of shared memory a workgroup, eight storage buffers a stage, no subgroups. Arrays of 16-bit
//! floats are widened to 32 bits for a kernel and rounded behind it. What an adapter cannot do, or fails at, is an error
//! that says so, never a panic.
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
#[cfg(test)]
mod tests;
mod transfers;

pub use adapter::{Adapter, Selection};
pub use device::{Buffer, Wgpu};
pub use transfers::Readback;
