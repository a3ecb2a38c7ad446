//! Neural memory rules behind one [`Backend`] trait.
//!
//! A *rule* ([`Rule`]) says how a memory is written and read while a sequence goes by. A *backend* ([`Backend`]) is a
//! place that runs rules. A *cell* is one rule on one backend, with a hand-written forward and backward ([`Kernel`]). This
//! crate holds what they share, and no kernel:
//!
//! * [`rules`]: the rows, with their equations forward and backward, numbered; kernels cite the numbers.
//! * [`families`]: what an engine must know of the rules that it runs, written once for all backends.
//! * [`primitives`]: what models need around a memory, in forward/backward pairs.
//! * [`quantized`]: matrices of few bits a value, for inference.
//! * [`Device`], [`Kernel`], [`Backend`]: what a backend must provide.
//! * [`forward`], [`infer`], [`Forward`], [`Pass`]: how rules are called.
//!
//! # Where things are checked
//!
//! Devices, ranks, shapes, element types and options are checked here, once, before any kernel runs. Kernels trust their
//! arguments. So nobody else can call them: a [`KernelCall`] of a rule and the [`Checked`] of a primitive are made in this crate
//! alone. They report only what their caller could not foresee (no memory, a lost device). What a user can get wrong
//! never panics. It is an [`Error`] that names the operation, the slot, what was expected and what was found.
//!
//! # Conventions
//!
//! `B` batch, `T` tokens, `H` heads, `K` key width, `V` value width, `N` sequences. Arrays are row-major.
//! `q, k [B,T,H,K]`, `v, out [B,T,H,V]`, scalar gates `[B,T,H]`, matrix states `[N,H,K,V]` (row = key index).
//! Vectors are rows: a memory `M` is read as `y = q M` and written as `M += kᵀ z`. Gates that multiply old content
//! cross the API as logarithms (`log_a`, `log_eta`): a retention of `1 − 10⁻⁸` is no 32-bit float, but its logarithm is.
//! The inner loss is `½|k M − v|²`. The caller normalises `q` and `k`.
//! `q`, `k`, `v` and `out` may have 16 bits; gates, states and their gradients always have 32.
//!
//! # Rooms
//!
//! A module imports those before it in this list. Where two need each other, one arrow leads up:
//!
//! * `bytes`, `shape`, `dtype`, `device_id`, `error`, `algorithm`, `panics`: what all others say things with
//! * `memory`, `host`, `checked`: room on the host, arrays there, and the proof of a checked call
//! * `tensor`, `device`, `capture`: arrays, what holds them, and work that is replayed
//! * `sequences`, `checkpoints`, `quantized`, `primitives`: sizes of texts, and what models need around a memory
//! * `slots`, `gates`, `rule`, `state`: what a rule is
//! * `family`, `rules`: what rules say of themselves, and all of them
//! * `decode`, `kernel`, `pass`: a cell, and how it is called
//! * `families`, `backend`: engines, which have a cell of every rule of a family, and a whole column

#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod backend;
mod bytes;
mod capture;
mod checked;
mod checkpoints;
mod decode;
mod device;
mod device_id;
mod dtype;
mod error;
pub mod families;
mod family;
mod gates;
mod host;
mod kernel;
pub mod memory;
mod panics;
mod pass;
pub mod primitives;
pub mod quantized;
mod rule;
pub mod rules;
mod sequences;
mod shape;
mod slots;
mod state;
mod tensor;

pub use algorithm::Algorithm;
pub use backend::{Backend, Rules};
pub use capture::{Capture, CapturedStep, Replay, Step, Work, capture, capture_work};
pub use checked::Checked;
pub use checkpoints::Checkpoints;
pub use decode::{ConvInput, Decode, Decoded, GateForm, GateLogit, TokenGates, decode};
pub use device::{Device, check_memory};
pub use device_id::DeviceId;
pub use dtype::DType;
pub use error::{Error, Result};
pub use gates::{GateKind, GateSlots};
pub use half::{bf16, f16};
pub use host::Host;
pub use kernel::{DecodeCall, InputsOn, Kernel, KernelCall, OutputsOn};
pub use memory::{Bytes, DeviceMemory};
pub use panics::caught;
pub use pass::{Forward, Pass, forward, forward_packed, infer, infer_packed};
pub use rule::{Dims, Initial, Inputs, Outputs, Read, Rule};
pub use sequences::Sequences;
pub use shape::Shape;
pub use slots::{NoSlots, Of, Slots};
pub use state::fresh_state;
pub use tensor::Tensor;
