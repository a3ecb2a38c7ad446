//! Language models made of neural memories, written once for every Hecate backend.
//!
//! Everything is generic over [`hecate_core::Backend`]; the caller chooses the device. What learns is in the crate
//! `hecate-train`, which stands on this one.
//!
//! * [`Config`] says what a model is made of, and [`LanguageModel`] is the model. Layers of one's own become one by an
//!   [`Architecture`].
//! * [`Tape`] records a forward and runs it backward. Model code writes the forward only; gradients come from the primitives'
//!   and rules' own backwards.
//! * [`layers`] has memories, attention and their compositions; [`generate`] continues a prompt; [`text`] reads what is learned;
//!   [`trained`] loads a model from its folder, and [`quantize`] makes it small.
//! * [`Opened`] is a folder of a model that others released, of one of the families in [`architectures`]; [`ChatTemplate`] writes
//!   conversations as it was taught, and [`Lora`] says what learns of one beside it.
//!
//! # Conventions
//!
//! `B` counts texts, `T` tokens, `H` heads; `K` and `V` are the widths of a head's keys and values.
//! Activations are `[B,T,width]`, in 32 bits unless a [`Precision`] says otherwise. Weights are `[outputs, inputs]` as in
//! PyTorch, tokens row-major `[B,T]`. Parameters are named as in flash-linear-attention and Hugging Face models.
//!
//! # Rooms
//!
//! A module imports those before it in this list alone:
//!
//! * `place`, `error`, `interrupt`, `bounds`, `precision`, `random`, `dropout`: what all others say things with
//! * `files`: files that others may have written
//! * `parameters`, `weights`, `init`, `lora`: what is learned, its file, its first values, and adapters in its place
//! * `probe`, `tape`, `bridge`: a forward and its way back, here and on dfdx's tape
//! * `gates`: what rules are told by a stream
//! * `config`, `cache`, `layers`: what `config.json` says, what a mixer remembers, and the mixers
//! * `pieces`, `footprint`, `model`, `language_model`: the whole, and what it costs
//! * `tokens`, `tokenizer`, `text`: what is read
//! * `sampling`, `generate`: what is written
//! * `chat`: conversations
//! * `trained`, `quantize`: models out of folders and into them
//! * `architectures`, `open`: families of models that others released, and their folders
//!
//! # Example
//!
//! A tiny model reads a line of bytes and goes on with it; it has learned nothing yet:
//!
//! ```
//! use hecate_cpu::Cpu;
//! use hecate_models::{
//!     Config, LanguageModel, Result, Vocabulary,
//!     generate::generate,
//!     sampling::{Sampler, Sampling},
//! };
//!
//! # fn main() -> Result<()> {
//! // Two blocks of width 16 with two heads of the delta rule.
//! let model = LanguageModel::new(&Cpu::new(), &Config::uniform("delta", 2, 16, 2)?, 0)?;
//! let text = Vocabulary::Bytes.encode("tick tock tick tock ")?;
//!
//! // Each token's target is the next one: fresh models find all of the 256 bytes equally likely.
//! let loss = model.loss(&text[..16], &text[1..17], 1)?;
//! assert!((loss - 256f64.ln()).abs() < 0.1);
//!
//! // Greedy decoding; the memories' state is carried from token to token.
//! let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })?;
//! let tokens = generate(&model, &text, sampler)?.take(10).collect::<Result<Vec<u32>>>()?;
//! println!("{}", Vocabulary::Bytes.decode(&tokens)?);
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_debug_implementations)]

pub mod architectures;
pub mod bounds;
#[cfg(feature = "dfdx")]
pub mod bridge;
mod cache;
mod chat;
pub mod config;
mod dropout;
mod error;
pub mod files;
mod footprint;
mod gates;
pub mod generate;
mod init;
mod interrupt;
mod language_model;
pub mod layers;
mod lora;
mod model;
mod open;
mod parameters;
mod pieces;
mod place;
mod precision;
mod probe;
pub mod quantize;
mod random;
pub mod sampling;
mod tape;
pub mod text;
mod tokenizer;
mod tokens;
pub mod trained;
pub mod weights;

pub use cache::LayerCache;
pub use chat::{ChatTemplate, Message, Reading};
pub use config::{
    AttentionConfig, CmsConfig, ComposedConfig, ConductorConfig, Config, Features, HopeConfig, LayerConfig, MacConfig,
    MemoryConfig, MixerConfig, Retain, RuleConfig, TntConfig, Wiring,
};
pub use dropout::{Dropout, Masks};
pub use error::{At, Error, Result};
pub use footprint::Footprint;
pub use init::{Builder, Init};
pub use interrupt::Interrupt;
pub use language_model::{Cache, LanguageModel, LossGradients, Packed};
pub use lora::Lora;
pub use model::{Architecture, Call, Model};
pub use open::Opened;
pub use parameters::{Gradients, MatrixId, Parameter, ParameterId, Parameters, QuantizedMatrix};
pub use place::Place;
pub use precision::Precision;
pub use probe::{NonFinite, Probe};
pub use random::{Random, Whole};
pub use tape::{FactorKind, Fp8Found, Operand, Tape, Var};
pub use tokenizer::{Decoder, Vocabulary};
