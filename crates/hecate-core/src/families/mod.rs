//! Families: rules that one engine a backend runs.
//!
//! A rule names its family ([`Rule::Family`](crate::Rule::Family)). A backend has an engine for a whole family,
//! [`LinearEngine`], [`ChannelEngine`] or [`DeepEngine`], and with it a [`Kernel`](crate::Kernel) of every rule of the family: of those in
//! [`rules`](crate::rules), and of any other crate's. It may implement [`Kernel`](crate::Kernel) for a rule alone. The family
//! is a type parameter of it, so these impls never overlap, and a cell that is missing is a compile error.

mod channel_call;
mod engines;
mod linear_call;
mod look_ahead;
mod settled;

pub use crate::family::{
    Channel, ChannelForm, ChannelGate, ChannelRule, Deep, DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepOptions,
    DeepRule, DeepSpec, EraseKey, EraseStrength, GateWidth, KeyHeads, Linear, LinearGate, LinearGates, LinearInputs,
    LinearLogits, LinearMatrix, LinearOutputs, LinearRule, LinearSpec, LinearState, LowerDeepGates, LowerGates,
    LowerState, LowerWeights, Own, RetentionAxis, RewriteKey, channel_gates,
};
pub use engines::{ChannelEngine, DeepEngine, LinearEngine};
pub use linear_call::{LinearDecode, LinearDecoded, LinearKernelCall};
