//! The scalars `w`, `r`, `a`, `η` of the recurrence: from a rule's gates, and gradients back to them.
//!
//! Every linear rule is the same recurrence with other scalars.
//! Retention and momentum come as logarithms; the write and erase strengths come as they are.
//! Which gate is which strength is the rule's [`EraseStrength`], so the way back is the transposed of the way there.

use hecate_core::{
    Dims, GateKind, Of, Result, Slots,
    families::{EraseStrength, LinearGate, LinearRule, LowerGates},
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
    /// From a rule's gates `[rows, H]`.
    ///
    /// # Errors
    /// [`Error::Value`](hecate_core::Error::Value) for a gate outside its range.
    pub(super) fn new<R: LinearRule>(rule: R, dims: &Dims, gates: &Of<R::Gates, &[f32]>) -> Result<Self> {
        let gates = R::Gates::lower(R::Gates::map(R::Gates::as_ref(gates), |_, x| *x));
        // A rule without a retention gate has one constant a head, the same for every token.
        let a = match gates.log_a {
            Some(log_a) => decays(R::NAME, "log_a", log_a)?,
            None => {
                let heads: Vec<f32> = (0..dims.heads).map(|head| rule.head_log_a(head, dims.heads)).collect();
                decays(R::NAME, "log_a", &heads)?.repeat(dims.sequences.rows())
            }
        };
        let eta = gates.log_eta.map_or(Ok(Vec::new()), |log_eta| decays(R::NAME, "log_eta", log_eta))?;
        let w = strengths(R::NAME, "theta", gates.theta)?;
        let beta = gates.beta.map_or(Ok(Vec::new()), |beta| strengths(R::NAME, "beta", beta))?;
        // What the erase strength is made of. The products are taken here, once for all columns.
        let r = match rule.spec().erase {
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
