//! Language models made of neural memories, written once for every Hecate backend.
//!
//! Everything is generic over [`hecate_core::Backend`]; the caller chooses the device.
//!
//! * [`Config`] says what a model is made of, and [`LanguageModel`] is the model. Layers of one's own become one by an
//!   [`Architecture`].
//! * [`Tape`] records a forward and runs it backward. Model code writes the forward only; gradients come from the primitives'
//!   and rules' own backwards. [`optimizer::AdamW`] learns from them.
//! * [`layers`] has memories, attention and their compositions; [`trainer`] learns a text, [`generate`] continues a prompt,
//!   [`evaluate`] measures; [`checkpoint`] saves and loads.
//!
//! # Conventions
//!
//! `B` counts texts, `T` tokens, `H` heads; `K` and `V` are the widths of a head's keys and values.
//! Activations are `[B,T,width]`, in 32 bits unless a [`Precision`] says otherwise. Weights are `[outputs, inputs]` as in
//! PyTorch, tokens row-major `[B,T]`. Parameters are named as in flash-linear-attention and Hugging Face models.
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
//!     optimizer::{AdamW, Constants},
//!     sampling::{Sampler, Sampling},
//! };
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
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_debug_implementations)]

mod bounds;
#[cfg(feature = "dfdx")]
pub mod bridge;
mod cache;
pub mod checkpoint;
mod checksum;
pub mod config;
mod dropout;
mod error;
pub mod evaluate;
mod footprint;
pub mod generate;
mod init;
mod interrupt;
mod json;
mod language_model;
pub mod layers;
pub mod metrics;
mod model;
pub mod monitor;
pub mod optimizer;
mod parameters;
mod place;
mod plain_file;
mod precision;
mod probe;
pub mod quantize;
mod random;
pub mod sampling;
pub mod schedule;
mod tape;
pub mod tasks;
pub mod text;
mod tokenizer;
pub mod trainer;
mod weights;

pub use cache::{Cache, LayerCache};
pub use config::{
    AttentionConfig, CmsConfig, ComposedConfig, ConductorConfig, Config, Features, HopeConfig, LayerConfig, MacConfig,
    MemoryConfig, MixerConfig, Retain, RuleConfig, TntConfig, Wiring,
};
pub use dropout::{Dropout, Masks};
pub use error::{At, Error, Result};
pub use footprint::Footprint;
pub use init::{Builder, Init};
pub use interrupt::Interrupt;
pub use language_model::LanguageModel;
pub use model::{Architecture, Model};
pub use parameters::{Gradients, MatrixId, Parameter, ParameterId, Parameters, QuantizedMatrix};
pub use place::Place;
pub use precision::Precision;
pub use probe::{NonFinite, Probe};
pub use random::Random;
pub use tape::{Operand, Tape, Var};
pub use tokenizer::{Decoder, Vocabulary};
