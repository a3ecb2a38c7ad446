//! Families: rules that one engine a backend runs.
//!
//! A rule names its family ([`Rule::Family`](crate::Rule::Family)). A backend has an engine for a whole family,
//! [`LinearEngine`] or [`DeepEngine`], and with it a [`Kernel`](crate::Kernel) of every rule of the family: of those in
//! [`rules`](crate::rules), and of any other crate's. It may implement [`Kernel`](crate::Kernel) for a rule alone. The family
//! is a type parameter of it, so these impls never overlap, and a cell that is missing is a compile error.

mod deep;
mod engines;
mod linear;
mod linear_call;
mod look_ahead;

pub use deep::{
    DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepOptions, DeepRule, DeepSpec, LowerDeepGates, LowerWeights,
};
pub use engines::{DeepEngine, LinearEngine};
pub use linear::{
    EraseStrength, KeyHeads, LinearGate, LinearGates, LinearInputs, LinearLogits, LinearMatrix, LinearOutputs,
    LinearRule, LinearSpec, LinearState, LowerGates, LowerState, RetentionAxis,
};
pub use linear_call::{LinearDecode, LinearDecoded, LinearKernelCall};

/// Family of the rules that are one linear recurrence ([equations](crate::rules)): see [`LinearRule`].
#[derive(Clone, Copy, Debug)]
pub enum Linear {}

/// Family of the memories that are functions with weights: see [`DeepRule`].
#[derive(Clone, Copy, Debug)]
pub enum Deep {}

/// Rules with kernels of their own.
#[derive(Clone, Copy, Debug)]
pub enum Own {}
