//! A server of language models for OpenAI's clients, generic over [`hecate_core::Backend`].
//!
//! One thread owns the model and works in rounds ([`serve`]'s own thread): every round reads a part of a prompt and draws a token of
//! every running text, so texts join and leave between two tokens. Another thread has all connections. It knows nothing of
//! devices: it turns requests into orders, and what becomes of them into answers.
//!
//! `docs/serving.md` says what clients see.
//!
//! # Example
//!
//! A model that has learned nothing yet, for whoever connects to this machine's port 8080:
//!
//! ```no_run
//! use hecate_cpu::Cpu;
//! use hecate_models::{Config, Interrupt, LanguageModel, Vocabulary};
//! use hecate_serve::{Plain, Served, Settings, serve};
//! use std::{net::TcpListener, sync::Arc};
//!
//! # fn main() -> hecate_serve::Result<()> {
//! let served = Served {
//!     model: LanguageModel::new(&Cpu::new(), &Config::uniform("delta", 2, 64, 2)?, 0)?,
//!     vocabulary: Vocabulary::Bytes,
//!     ends: Vec::new(),
//!     id: "tiny".to_owned(),
//!     template: Arc::new(Plain),
//! };
//! let stop = Interrupt::default();
//! // Returns once somebody calls `stop.ask()`, such as a handler of signals.
//! serve(served, TcpListener::bind("127.0.0.1:8080")?, Settings::default(), &stop)
//! # }
//! ```
//!
//! # What is trusted
//!
//! Requests are not: their lengths are looked at before memory is taken for them, every field has a range, and a name of a
//! session has no letter that means something to a file system. Files of sessions are not either: a session's own reader
//! checks them. Whoever has the key, or where there is none whoever reaches the address, may use all sessions.
//!
//! # Rooms
//!
//! A module imports those before it in this list alone:
//!
//! * `error`, `limits`: what ends a server, and what requests may take
//! * `refusal`, `name`, `fields`: what requests get wrong, and how they are read
//! * `metrics`, `template`, `schema`: what is counted, how conversations become prompts, and how answers are kept to schemas
//! * `order`, `engine`: what the model's thread is asked for, and that thread
//! * `http`, `server`: addresses, and connections
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_debug_implementations)]

mod engine;
mod error;
mod fields;
mod http;
mod limits;
mod metrics;
mod name;
mod order;
mod refusal;
mod schema;
mod server;
mod template;

pub use error::{Error, Result};
pub use limits::Limits;
pub use server::{Served, Settings, key_from_environment, serve};
pub use template::{Call, Message, Plain, Template, Unknown};
