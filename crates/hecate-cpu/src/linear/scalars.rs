//! The scalars `w`, `r`, `a`, `η` of the recurrence: from a rule's gates, and gradients back to them.
//!
//! Every linear rule is the same recurrence with other scalars.
//! Retention and momentum come as logarithms; the write and erase strengths come as they are.
//! Which gate is which strength is the rule's [`EraseStrength`], so the way back is the transposed of the way there.

use crate::{Cpu, device::floats};
use hecate_core::{
    GateKind, Result, Tensor,
    families::{EraseStrength, LinearGate, LinearInputs},
};

/// Scalars of the recurrence, or their gradients.
///
/// In a call they are `[rows, H]`, in a head tile `[T]`. `r` and `eta` are empty where the rule has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scalars {
    /// Write strength.
    pub(crate) w: Vec<f32>,
    /// Erase strength.
    pub(crate) r: Vec<f32>,
    /// Retention.
    pub(crate) a: Vec<f32>,
    /// Momentum.
    pub(crate) eta: Vec<f32>,
}

impl Scalars {
    /// From the gates `[rows, H]` of a rule of this name.
    ///
    /// # Errors
    /// [`Error::Value`](hecate_core::Error::Value) for a gate outside its range.
    pub(super) fn new(what: &'static str, erase: EraseStrength, inputs: &LinearInputs<Tensor<Cpu>>) -> Result<Self> {
        let LinearInputs { log_a, log_eta, theta, beta, .. } = inputs;
        let a = decays(what, "log_a", &floats(log_a)?)?;
        let eta = log_eta.as_ref().map_or(Ok(Vec::new()), |log_eta| decays(what, "log_eta", &floats(log_eta)?))?;
        let w = strengths(what, "theta", &floats(theta)?)?;
        let beta = beta.as_ref().map_or(Ok(Vec::new()), |beta| strengths(what, "beta", &floats(beta)?))?;
        // What the erase strength is made of. The products are taken here, once for all columns.
        let r = match erase {
            EraseStrength::Nothing => Vec::new(),
            EraseStrength::Theta => w.clone(),
            EraseStrength::Decayed => times(&w, &a),
            EraseStrength::Beta => beta,
            EraseStrength::ThetaAndBeta => plus(&w, &beta),
        };
        Ok(Self { w, r, a, eta })
    }

    /// The gradient of one of the gates that gave these scalars, `[rows, H]`: (14), and what `r` passes on.
    pub(super) fn gate_grad(&self, erase: EraseStrength, grads: &Self, gate: LinearGate) -> Vec<f32> {
        match (gate, erase) {
            (LinearGate::LogA, EraseStrength::Decayed) => times(&self.a, &plus(&grads.a, &times(&self.w, &grads.r))),
            (LinearGate::LogA, _) => times(&self.a, &grads.a),
            (LinearGate::LogEta, _) => times(&self.eta, &grads.eta),
            (LinearGate::Theta, EraseStrength::Nothing | EraseStrength::Beta) => grads.w.clone(),
            (LinearGate::Theta, EraseStrength::Decayed) => plus(&grads.w, &times(&self.a, &grads.r)),
            (LinearGate::Theta, EraseStrength::Theta | EraseStrength::ThetaAndBeta) => plus(&grads.w, &grads.r),
            (LinearGate::Beta, _) => grads.r.clone(),
        }
    }
}

/// `e^x` of log gates.
///
/// # Errors
/// [`Error::Value`](hecate_core::Error::Value) for NaN and for anything above 0.
fn decays(what: &'static str, slot: &'static str, logs: &[f32]) -> Result<Vec<f32>> {
    GateKind::Retention.check(what, slot, logs)?;
    Ok(logs.iter().map(|x| x.exp()).collect())
}

/// A copy of step sizes.
///
/// # Errors
/// [`Error::Value`](hecate_core::Error::Value) for NaN and infinities.
fn strengths(what: &'static str, slot: &'static str, values: &[f32]) -> Result<Vec<f32>> {
    GateKind::Strength.check(what, slot, values)?;
    Ok(values.to_vec())
}

/// `x y`, element by element, for arrays of one length.
fn times(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}

/// `x + y`, element by element, for arrays of one length.
fn plus(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}
