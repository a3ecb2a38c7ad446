//! The WebGPU backend: any GPU that wgpu reaches (Vulkan, Metal, Direct3D 12), and software Vulkan.
//!
//! Kernels are WGSL beside the Rust that starts them. They keep to what every adapter can do: 32-bit floats, 256
//! invocations and 16 KiB of shared memory a workgroup, eight storage buffers a stage, no subgroups. What an adapter cannot
//! do, or fails at, is an error that says so, never a panic.
