//! Families: rules that one engine a backend runs.
//!
//! A rule names its family ([`Rule::Family`](crate::Rule::Family)). A backend implements [`Kernel`](crate::Kernel) once for
//! a whole family, `impl<R: LinearRule> Kernel<R, Linear> for Cuda`, or for two families with one engine. It may do so for
//! a rule alone. The family is a type parameter, so these impls never overlap, and a cell that is missing is a compile
//! error.

mod deep;
mod linear;
pub mod look_ahead;

pub use deep::{
    DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepOptions, DeepRule, DeepSpec, LowerDeepGates, LowerWeights,
};
pub use linear::{
    EraseStrength, KeyHeads, LinearGate, LinearGates, LinearInputs, LinearLogits, LinearMatrix, LinearOutputs,
    LinearRule, LinearSpec, LinearState, LowerGates, LowerState, RetentionAxis, constant_log_a,
};

/// Family of the rules that are one linear recurrence ([equations](crate::rules)): see [`LinearRule`].
#[derive(Clone, Copy, Debug)]
pub enum Linear {}

/// Family of the memories that are functions with weights: see [`DeepRule`].
#[derive(Clone, Copy, Debug)]
pub enum Deep {}

/// Rules with kernels of their own.
#[derive(Clone, Copy, Debug)]
pub enum Own {}
