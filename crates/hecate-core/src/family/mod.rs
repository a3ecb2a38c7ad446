//! What a rule says of itself to the engine of its family.

mod channel;
mod deep;
mod linear;
mod momentum;

pub use channel::{ChannelForm, ChannelGate, ChannelRule, EraseKey, GateWidth, RewriteKey, channel_gates};
pub use deep::{
    Activation, AttentionalBias, DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepOptions, DeepRule, DeepSpec, Huber,
    LowerDeepGates, LowerWeights, Map, MatrixMemory, MlpMemory, Retention, Structure,
};
pub(crate) use linear::constant_log_a;
pub use linear::{
    EraseStrength, KeyHeads, LinearGate, LinearGates, LinearInputs, LinearLogits, LinearMatrix, LinearOutputs,
    LinearRule, LinearSpec, LinearState, LowerGates, LowerState, RetentionAxis,
};
pub use momentum::MomentumForm;

/// Family of the rules that are one linear recurrence ([equations](crate::rules)): see [`LinearRule`].
#[derive(Clone, Copy, Debug)]
pub enum Linear {}

/// Family of the memories that are functions with weights: see [`DeepRule`].
#[derive(Clone, Copy, Debug)]
pub enum Deep {}

/// Family of the linear memories that forget by channel, with an erase key of its own: see [`ChannelRule`].
#[derive(Clone, Copy, Debug)]
pub enum Channel {}

/// Rules with kernels of their own.
#[derive(Clone, Copy, Debug)]
pub enum Own {}
