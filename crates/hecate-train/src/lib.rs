//! Training of language models made of neural memories, on every Hecate backend.
//!
//! * [`Trainer`] learns a text step by step, by [`Settings`], and goes on from a checkpoint as if it had never stopped.
//! * [`optimizer`] and [`schedule`] are for loops of one's own over a `LanguageModel` or a `Tape`.
//! * [`checkpoint`] keeps the folder of a run whole, [`metrics`] its record; [`Standing`] tells where it is.
//! * [`evaluate`] measures a model on a text, [`monitor`] what its memories are like, [`tasks`] whether they recall and track.
//!
//! Models, texts and errors are those of `hecate-models`, which knows nothing of this crate.
//!
//! # Rooms
//!
//! A module imports those before it in this list alone:
//!
//! * `schedule`, `optimizer`: one step
//! * `checkpoint`: the folder of a run
//! * `monitor`, `metrics`, `evaluate`: what is measured
//! * `tasks`, `trainer`: what learns
//!
//! # Example
//!
//! A tiny model learns a line of bytes and goes on with it:
//!
//! ```
//! use hecate_cpu::Cpu;
//! use hecate_models::{
//!     Config, LanguageModel, Result, Vocabulary,
//!     generate::generate,
//!     sampling::{Sampler, Sampling},
//! };
//! use hecate_train::optimizer::{AdamW, Constants};
//!
//! # fn main() -> Result<()> {
//! // Two blocks of width 16 with two heads of the delta rule.
//! let (device, config) = (Cpu::new(), Config::uniform("delta", 2, 16, 2)?);
//! let mut model = LanguageModel::new(&device, &config, 0)?;
//! let mut optimizer = AdamW::new(&device, model.parameters(), Constants::default())?;
//!
//! // One text of 32 tokens: each token's target is the next one.
//! let text = Vocabulary::Bytes.encode(&"tick tock ".repeat(4))?;
//! let (inputs, targets) = (&text[..32], &text[1..33]);
//! let before = model.loss(inputs, targets, 1)?;
//! for _ in 0..30 {
//!     let (_, gradients) = model.loss_and_gradients(inputs, targets, 1)?;
//!     optimizer.step(model.parameters_mut(), gradients, 0.01)?;
//! }
//! assert!(model.loss(inputs, targets, 1)? < 0.5 * before);
//!
//! // Greedy decoding; the memories' state is carried from token to token.
//! let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })?;
//! let tokens = generate(&model, &text[..10], sampler)?.take(10).collect::<Result<Vec<u32>>>()?;
//! println!("{}", Vocabulary::Bytes.decode(&tokens)?);
//! # Ok(())
//! # }
//! ```
#![deny(missing_debug_implementations)]

pub mod checkpoint;
pub mod evaluate;
pub mod metrics;
pub mod monitor;
pub mod optimizer;
pub mod schedule;
pub mod tasks;
mod trainer;

pub use trainer::{FirstStates, Material, PUBLISHED, Report, RunPlan, Settings, Standing, TEXT, Trainer};
