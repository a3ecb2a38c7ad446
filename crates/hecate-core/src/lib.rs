//! Neural memory rules behind one [`Backend`] trait.
//!
//! A *rule* ([`Rule`]) says how a memory is written and read while a sequence goes by. A *backend* ([`Backend`]) is a
//! place that runs rules. One *cell* of the rules × backends matrix is one `impl Kernel<Rule> for Backend`, with a
//! hand-written forward and backward. This crate holds what they share and no kernel at all:
//!
//! * [`rules`]: the rows, with their equations forward and backward, numbered; kernels cite the numbers.
//! * [`primitives`]: what models need around a memory, in forward/backward pairs.
//! * [`Device`], [`Kernel`], [`Backend`]: what a column must provide.
//! * [`forward`], [`infer`], [`Pass`]: how rules are called.
//!
//! # Where things are checked
//!
//! Ranks, shapes, element types and options are checked here, once, before any kernel runs; kernels trust their
//! arguments and report only what their caller could not foresee (no memory, a lost device). Nothing a user can get
//! wrong panics: everything is an [`Error`] that names the operation, the slot, what was expected and what was found.
//!
//! # Conventions
//!
//! `B` batch, `T` tokens, `H` heads, `K` key width, `V` value width, `N` sequences. Arrays are row-major.
//! `q, k [B,T,H,K]`, `v, out [B,T,H,V]`, scalar gates `[B,T,H]`, matrix states `[N,H,K,V]` (row = key index).
//! Vectors are rows: a memory `M` is read as `y = q M` and written as `M += kᵀ z`. Gates that multiply old content
//! cross the API as logarithms (`log_a`, `log_eta`), because a retention of `1 − 10⁻⁸` is not a 32-bit number but its
//! logarithm is. The inner loss is `½|k M − v|²`. Normalising `q` and `k` is the caller's affair.
//! `q`, `k`, `v` and `out` may be 16 bits wide; gates, states and their gradients are always 32.

mod backend;
mod decode;
mod dtype;
mod error;
mod pass;
pub mod primitives;
mod recording;
mod rule;
pub mod rules;
mod slots;
mod tensor;

pub use backend::{Backend, Device, Kernel, Rules};
pub use decode::{Decode, Decoded, Projected, Signal, Strengths, TokenGates, decode};
pub use dtype::{DType, Host};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use pass::{Pass, forward, forward_packed, infer, infer_packed};
pub use recording::{Recording, Step};
pub use rule::{Dims, Initial, Inputs, Outputs, Read, Rule};
pub use slots::{Of, Slots};
pub use tensor::{Sequences, Shape, Tensor};
