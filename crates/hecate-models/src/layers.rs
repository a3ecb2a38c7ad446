//! Layers: parameters by place, and what they do on a tape.
//!
//! Layers hold no arrays, only the places of their parameters, and say the forward alone. Activations are
//! `[B,T,width]`.

mod attention;
mod block;
mod chunked;
mod context;
mod conv;
mod difference;
mod embedding;
mod full_attention;
mod gated_conv;
mod gated_fusion;
mod gating;
mod hope;
mod initial_state;
mod levels;
mod linear;
mod mac;
mod mag;
mod mal;
mod mamba2;
mod memory;
mod mixer;
mod mlp;
mod norm;
mod output_projection;
mod packed;
mod periodic_update;
mod persistent;
mod projection;
mod rule_call;
mod several_writes;
mod sharded;
mod side_by_side;
mod tnt;
mod write_inputs;

pub use crate::gates::{GateInputs, GatedRule, Limits};
pub use attention::SlidingWindow;
pub use block::{Block, Branches, NormPlace, mixer};
pub use context::Context;
pub use conv::ShortConv;
pub use embedding::Embedding;
pub use full_attention::{FullAttention, FullAttentionConfig, HeadNorm, Rotary};
pub use gated_conv::GatedConv;
pub use gated_fusion::GatedFusion;
pub use hope::Hope;
pub use initial_state::InitialState;
pub use levels::Levels;
pub use linear::Linear;
pub use mac::Mac;
pub use mag::Mag;
pub use mal::Mal;
pub use mamba2::{Mamba2, Mamba2Config};
pub use memory::{Memory, MemoryForm};
pub use mixer::{Counts, Mixer};
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use persistent::Persistent;
pub use projection::{Projection, ProjectionTail};
pub use side_by_side::{SideBySide, SidePart};
pub use tnt::Tnt;
