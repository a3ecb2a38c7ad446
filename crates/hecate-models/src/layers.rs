//! Layers: parameters by place, and what they do on a tape.
//!
//! Layers hold no arrays, only the places of their parameters, and say the forward alone. Activations are
//! `[B,T,width]`.

mod attention;
mod block;
mod chunked;
mod context;
mod conv;
mod embedding;
mod fresh;
mod gates;
mod gating;
mod hope;
mod levels;
mod linear;
mod mac;
mod mag;
mod mal;
mod memory;
mod merge;
mod mlp;
mod norm;
mod persistent;
mod projection;
mod pulse;
mod readout;
mod sharded;
mod texts;
mod tnt;
mod writes;

pub use attention::SlidingWindow;
pub use block::{Block, Mixer, mixer};
pub use context::Context;
pub use conv::ShortConv;
pub use embedding::Embedding;
pub use fresh::Fresh;
pub use gates::{
    CodeSignals, EraseSignals, GatedRule, HuberMomentumSignals, HuberSignals, Limits, MomentumSignals, WriteSignals,
};
pub use hope::Hope;
pub use levels::Levels;
pub use linear::Linear;
pub use mac::Mac;
pub use mag::Mag;
pub use mal::Mal;
pub use memory::Memory;
pub use merge::Merge;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use persistent::Persistent;
pub use projection::{Behind, Projection};
pub use tnt::Tnt;
