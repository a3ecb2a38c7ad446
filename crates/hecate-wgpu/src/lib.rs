//! The WebGPU backend: any GPU that wgpu reaches (Vulkan, Metal, Direct3D 12), and software Vulkan.
//!
//! Kernels are WGSL beside the Rust that starts them. They keep to what every adapter can do: 32-bit floats, 256
//! invocations and 16 KiB of shared memory a workgroup, eight storage buffers a stage. What an adapter cannot do, or fails
//! at, is an error that says so, never a panic.
//!
//! # Sixteen bits
//!
//! Kernels compute in 32 bits. Products of matrices, and linear rules forward, read and write 16-bit arrays as they are: bf16
//! anywhere, f16 where the adapter has such floats ([`Adapter::f16`]). Other kernels get 16-bit arrays widened, and their
//! results are rounded after them.
//!
//! # Devices
//!
//! A [`Wgpu`] is one queue on one adapter. Clones, and values that differ in options alone, are the same device. Two values
//! that were opened are two: one refuses arrays of the other ([`hecate_core::Error::OtherDevice`]).
//!
//! # What an adapter may have
//!
//! With subgroups ([`Adapter::subgroups`]) sums and maxima over a workgroup take one barrier. The linear rules' sums over keys
//! take none, nor do attention's over a row where subgroups have at least 8 invocations. [`Wgpu::with_portable_kernels`] does
//! without subgroups and f16.
//!
//! Products of f16 go by cooperative matrices on a device that was opened with them ([`Wgpu::cooperative`]), where the adapter has
//! some ([`Adapter::cooperative_matrices`]). So do the products of frozen groups of large deep memories, each number as two halves,
//! with about 21 bits beside the largest around it. They are experimental.
//!
//! # Bounds
//!
//! The linear rules' kernels run unchecked, because checks would keep compilers from unrolling their loops. Their indices
//! follow from shapes that the core has checked. So do products and sweeps of frozen groups, and products by cooperative matrices.
//! All other kernels are checked as wgpu does it.
//!
//! # The queue
//!
//! Work is queued and submitted many dispatches at a time. Reading a result back, or
//! [`hecate_core::Device::synchronize`], submits what is left. So an error in queued work is seen at a later call.
//!
//! ```
//! use hecate_core::{Tensor, primitives};
//! use hecate_wgpu::{Selection, Wgpu};
//!
//! // Without a driver this is an error that says what to install.
//! match Wgpu::new(&Selection::Default) {
//!     Ok(gpu) => {
//!         let x = Tensor::from_f32(&gpu, [3], vec![1.0, 2.0, 3.5])?;
//!         assert_eq!(primitives::sum(&x)?.to_f32()?, [6.5]);
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), hecate_core::Error>(())
//! ```

mod adapter;
mod bind_groups;
mod deep;
mod device;
mod error;
mod launch;
mod linear;
mod memory;
mod own_kernels;
mod packing;
mod parameters;
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

pub use adapter::{Adapter, CooperativeMatrices, Selection};
pub use device::{Buffer, Wgpu};
pub use launch::Binding;
pub use own_kernels::OwnSource;
pub use transfers::Readback;
