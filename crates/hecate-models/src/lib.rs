//! Language models made of neural memories, written once for every Hecate backend.
//!
//! Everything is generic over [`hecate_core::Backend`]; the choice of a device is the caller's. A [`Config`] says what a
//! model is made of, [`LanguageModel`] is the model, a [`Tape`] turns its forward around. Model code writes the forward
//! only; gradients come from the primitives' and rules' own backwards.
//!
//! # Conventions
//!
//! Activations are `[B,T,width]`, in 32 bits unless a [`Precision`] says otherwise, weights `[outputs, inputs]` as in
//! PyTorch, tokens row-major `[B,T]`.
//! Parameters are named as in flash-linear-attention and Hugging Face models.

mod bounds;
#[cfg(feature = "dfdx")]
pub mod bridge;
mod cache;
pub mod checkpoint;
mod checksum;
pub mod config;
mod error;
pub mod evaluate;
mod footprint;
pub mod generate;
mod init;
mod language_model;
pub mod layers;
pub mod metrics;
pub mod optimizer;
mod parameters;
mod precision;
mod probe;
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
    MemoryConfig, MixerConfig, RuleConfig, TntConfig, Wiring,
};
pub use error::{Error, Result};
pub use footprint::Footprint;
pub use init::{Builder, Init};
pub use language_model::LanguageModel;
pub use parameters::{Gradients, Parameter, ParameterId, Parameters};
pub use precision::Precision;
pub use probe::{Finding, Place, Probe};
pub use tape::{Tape, Var};
pub use tokenizer::{Decoder, Vocabulary};
