//! Neural memory rules for Rust: sequence layers whose state learns while it reads.
//!
//! This crate is the front door: it re-exports the others, finds devices and chooses among them.
//!
//! | module | crate | feature |
//! |---|---|---|
//! | the root, [`rules`], [`primitives`] | `hecate-core` | |
//! | `cpu` | `hecate-cpu`: rayon, SIMD, gemm | `cpu`, default |
//! | `cuda` | `hecate-cuda`: NVIDIA GPUs; needs nothing of NVIDIA's to build | `cuda` |
//! | `wgpu` | `hecate-wgpu`: Vulkan, Metal, Direct3D 12 | `wgpu` |
//! | `models` | `hecate-models`: tape, layers, language models, generation | `models`, default |
//! | `train` | `hecate-train`: optimizers, the trainer, runs, evaluation | `train`, default |
//!
//! `dfdx` makes any rule an operation on a dfdx tape, `tokenizer` reads `tokenizer.json`; `full` is all of these.
//!
//! # A rule, forward and backward
//!
#![cfg_attr(feature = "cpu", doc = "```")]
#![cfg_attr(not(feature = "cpu"), doc = "```ignore")]
#![doc = include_str!("../examples/quickstart.rs")]
//! ```
//!
//! # Choosing a device
//!
//! [`devices`] lists what is there and why the rest is not, [`select`] is a pure function of that list, and
//! [`Selected::run`] opens the device for code that is generic over [`Backend`].
//!
#![cfg_attr(feature = "cpu", doc = "```")]
#![cfg_attr(not(feature = "cpu"), doc = "```ignore")]
#![doc = include_str!("../examples/devices.rs")]
//! ```
//!
//! # Longer programs
//!
//! Each is a file of `examples/`; `cargo run -p hecate-memory --example NAME` runs it in seconds.
//!
//! ## `train`: a model generic over the backend, trained with AdamW
//!
#![cfg_attr(all(feature = "cpu", feature = "train"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "cpu", feature = "train")), doc = "```ignore")]
#![doc = include_str!("../examples/train.rs")]
//! ```
//!
//! ## `own_rule`: a rule of one's own, checked on every device
//!
#![cfg_attr(feature = "cpu", doc = "```no_run")]
#![cfg_attr(not(feature = "cpu"), doc = "```ignore")]
#![doc = include_str!("../examples/own_rule.rs")]
//! ```
//!
//! ## `own_model`: a model of one's own layers, trained, stopped, resumed, and reading a stream
//!
#![cfg_attr(all(feature = "cpu", feature = "train"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "cpu", feature = "train")), doc = "```ignore")]
#![doc = include_str!("../examples/own_model.rs")]
//! ```
//!
//! ## `streaming`: a memory that reads a stream, is saved and goes on
//!
#![cfg_attr(feature = "cpu", doc = "```no_run")]
#![cfg_attr(not(feature = "cpu"), doc = "```ignore")]
#![doc = include_str!("../examples/streaming.rs")]
//! ```
//!
//! ## `dfdx`: a rule inside a dfdx network (feature `dfdx`)
//!
#![cfg_attr(all(feature = "cpu", feature = "dfdx"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "cpu", feature = "dfdx")), doc = "```ignore")]
#![doc = include_str!("../examples/dfdx.rs")]
//! ```
//!
//! # Errors
//!
//! [`Result`] is the one for programs: `?` takes errors of devices and rules, those of models, and those of files into it. Where
//! a function of `models` is to return that crate's own result, `?` goes the other way as well.
//!
#![cfg_attr(all(feature = "cpu", feature = "models"), doc = "```")]
#![cfg_attr(not(all(feature = "cpu", feature = "models")), doc = "```ignore")]
//! use hecate::{Tensor, cpu::Cpu, models::Config, primitives};
//!
//! fn work() -> hecate::Result<f32> {
//!     let config = Config::from_json(&std::fs::read_to_string("config.json")?)?;
//!     let x = Tensor::from_f32(&Cpu::new(), [2], vec![config.norm_eps, 1.0])?;
//!     Ok(primitives::sum(&x)?.to_f32()?[0])
//! }
//! // There is no such file.
//! assert!(work().is_err());
//! ```
//!
//! # Events
//!
//! Crates say what they do through [`tracing`]: a device that is opened is an `info`, a call of a rule and a launch of a
//! kernel a `trace`, a best device that is no GPU a `warn`. Without a subscriber an event costs one comparison.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod devices;
mod open;
pub mod prelude;
mod select;

pub use devices::{
    Absent, BackendKind, DeviceInfo, DeviceName, Devices, OLDEST_CAPABILITY, OLDEST_DRIVER, Properties, devices,
    devices_of,
};
pub use hecate_core::*;
pub use open::Job;
pub use select::{Choose, FEW_ELEMENTS, Selected, select};

#[cfg(feature = "cpu")]
pub use hecate_cpu as cpu;
#[cfg(feature = "cuda")]
pub use hecate_cuda as cuda;
#[cfg(feature = "models")]
pub use hecate_models as models;
#[cfg(feature = "train")]
pub use hecate_train as train;
#[cfg(feature = "wgpu")]
pub use hecate_wgpu as wgpu;
