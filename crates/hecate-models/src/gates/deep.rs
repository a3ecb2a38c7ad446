//! Gates of the deep family, once for all its rules.

use super::{GateInputs, GatedRule, log_eta, present, step_beside};
use crate::{Result, Tape, Var, gates::NORM_EPSILON};
use hecate_core::{
    Backend, Of,
    families::{Deep, DeepGate, DeepLogits, DeepRule, DeepSpec, LowerDeepGates, LowerWeights},
    primitives::Map,
    rules::{AttentionalBias, Retention, Structure},
};

/// Share of the steps of [`Titans`](hecate_core::rules::Titans) that a network of two layers can take. Each layer's step
/// is as long as the other is large, and both grow with the values they are taught.
const NETWORK_STEP: f32 = 0.125;

/// `θ = σ(b)`, `δ = softplus(d)`; with momentum `log η` and `θ` as of [`Titans`](hecate_core::rules::Titans).
///
/// A network takes an eighth of the steps, unless its weights are distributions. Taught by a power of its error, a memory
/// takes shorter steps (`steepness`), and values are of norm 1.
impl<R: DeepRule> GatedRule<Deep> for R {
    type Logits = <R::Gates as LowerDeepGates>::Logits;
    const MOMENTUM: &'static [&'static str] = <R::State as LowerWeights>::MOMENTUM;

    fn values<B: Backend>(self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        if let AttentionalBias::Lp { .. } = self.spec().bias { tape.l2_norm(&v, NORM_EPSILON) } else { Ok(v) }
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, Self::Logits>) -> Result<Of<R::Gates, Var<B>>> {
        let GateInputs { tape, log_a, logits, limits } = from;
        let DeepLogits { step, momentum, threshold } = R::Gates::logits(logits);
        let paced = is_paced(self.spec());
        R::Gates::try_lower_backward(|gate| match gate {
            DeepGate::LogA => Ok(log_a.clone()),
            DeepGate::LogEta => log_eta(tape, present::<R, _>(&momentum, "log_eta")?, limits),
            DeepGate::Theta => {
                let mut theta = match &momentum {
                    Some(momentum) if !self.spec().looks_ahead() => step_beside(tape, &step, momentum, limits)?,
                    _ => tape.map(Map::Sigmoid, &step)?,
                };
                if let Some(steepness) = steepness(self.spec()) {
                    theta = tape.scale(steepness.recip(), &theta)?;
                }
                if paced { tape.scale(NETWORK_STEP, &theta) } else { Ok(theta) }
            }
            DeepGate::Delta => tape.map(Map::Softplus, present::<R, _>(&threshold, "delta")?),
        })
    }
}

/// Whether a memory has the steps of a network.
fn is_paced(spec: DeepSpec) -> bool {
    matches!(spec.structure, Structure::Mlp(_)) && !matches!(spec.retention, Retention::Kl { .. })
}

/// `max(1, p (p − 1)(q − 1))`, by which steps are divided where a memory is taught by a power of its error.
///
/// Such a step grows with the error. The memory runs away from the first error `e` with
/// `θ p (p − 1)(q − 1)|e|^{p−2} > 2`. Here `q − 1` is the most that the map from the dual variable adds. For `p = 3`
/// that is an error of 2. Between unit values and what is recalled of them there is none, but learned values grow until
/// there is.
fn steepness(spec: DeepSpec) -> Option<f32> {
    let AttentionalBias::Lp { p, .. } = spec.bias else { return None };
    let added = if let Retention::Lq { q, .. } = spec.retention { q - 1.0 } else { 1.0 };
    Some((p * (p - 1.0) * added).max(1.0))
}
