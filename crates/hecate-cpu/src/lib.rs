//! The CPU backend of Hecate: the default column, and the one that needs nothing but a processor.
//!
//! It is also the reference of the others: its scan follows the equations of [`hecate_core::rules`] line by line.
//!
//! # A rule on the CPU
//!
//! Four tokens of one head with `K = V = 2` go through the delta rule, forward and back.
//! The keys alternate between two directions, so the third token reads what the first one wrote.
//!
//! ```
//! use hecate_core::{DType, Forward, Inputs, Tensor, forward, rules::{Delta, Matrix, WriteGates}};
//! use hecate_cpu::Cpu;
//!
//! # fn main() -> hecate_core::Result<()> {
//! let device = Cpu::new();
//! // Shapes are [B, T, H, width]: one sequence of four tokens, one head.
//! let rows = |values: [f32; 8]| Tensor::from_f32(&device, [1, 4, 1, 2], values.to_vec());
//! let gate = |value: f32| Tensor::from_f32(&device, [1, 4, 1], vec![value; 4]);
//! let inputs = Inputs {
//!     q: rows([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0])?,
//!     k: rows([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])?,
//!     v: rows([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0])?,
//!     gates: WriteGates { log_a: gate(0.0)?, theta: gate(1.0)? },
//!     state: Matrix { m: Tensor::zeros(&device, [1, 1, 2, 2], DType::F32)? },
//!     anchor: None,
//! };
//! let Forward { outputs, pass } = forward(&device, Delta::default(), inputs)?;
//! assert_eq!(outputs.out.to_f32()?[4..], [1.0, 2.0, 3.0, 4.0]);
//!
//! // The gradient of the sum of all reads: a pass goes back once.
//! let grads = pass.backward_out(rows([1.0; 8])?)?;
//! assert_eq!(grads.k.shape().axes(), [1, 4, 1, 2]);
//! # Ok(())
//! # }
//! ```
//!
//! # How rules run
//!
//! | rules | engine | unit of work |
//! |---|---|---|
//! | linear recurrences: Hebbian, delta, Titans, DGD, Lightning | `linear` | sequence, head, block of value columns |
//! | memories with weights: TitansMLP, Yaad, Moneta, Memora | `deep`, by `recurrent` | sequence, head |
//! | memories that forget by channel: Gla, Kda | `rules`, by `recurrent` | sequence, head |
//! | Atlas, Lattice, Lif, Trellis | `rules`, by `recurrent` | sequence, head |
//!
//! Linear rules run fused, in chunks of matrix products, or token by token ([`Algorithm`]).
//! The others go token by token; frozen groups and short windows go in chunks where their equations allow it.
//! Primitives run in parallel over rows.
//!
//! # Promises
//!
//! - The same call gives the same bits, whatever the number of threads: orders of sums depend on sizes alone.
//! - Loops are compiled for every level of vector instructions, and the best one is taken at run time.
//!   With `HECATE_CPU_SIMD=scalar` in the environment, none is.
//! - States are 32-bit floats. `q`, `k`, `v` and activations may be 16-bit ones.
//!   They are widened on the way in and rounded on the way out.
//! - Between forward and backward a state is kept every 64 tokens, never one a token.
//!   [`PeakMemory`] bounds what a backward takes.

mod buffer_pool;
mod deep;
mod device;
mod few_rows;
mod fused_gemv;
mod linear;
mod peak_memory;
mod primitives;
mod product;
mod quantized;
mod recurrent;
mod rows;
mod rules;
mod simd;

pub use buffer_pool::Array;
pub use device::Cpu;
pub use hecate_core::Algorithm;
pub use linear::Saved;
pub use peak_memory::PeakMemory;
pub use recurrent::SavedStates;
