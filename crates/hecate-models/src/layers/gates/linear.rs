//! Gates of the linear family, once for all its rules.

use super::{GateInputs, GatedRule, Limits, log_eta, present, rest, step_beside};
use crate::{Result, Var};
use hecate_core::{
    Backend, GateForm, GateLogit, Of,
    families::{Linear, LinearGate, LinearLogits, LinearRule, LowerGates, LowerState},
    primitives::Map,
};

/// `θ = step σ(b)`: with steps of at most 1 stable for any retention, with unit keys.
///
/// With momentum `log η = log σ(e)` and `θ = (1 − η) σ(b)`. Where `η` is the same for all tokens a write adds up to `σ(b)`
/// over time, so a key met again is stable. The factor is computed as `σ(−e)`, since `1 − η` loses all digits where `η` is
/// near one. With a largest momentum below 1, `η = momentum σ(e)` and `θ = (1 − momentum) σ(b)`, of which the kernel for a
/// whole layer has not heard. Momentum that looks ahead needs no such factor: `θ = σ(b)`.
///
/// An erase strength is `β = σ(r)`, or `(1 − θ) σ(r)` where the memory is erased by `θ + β` in all and more than `1 + a`
/// would be unstable ([`LinearRule::shares_erase`]).
impl<R: LinearRule> GatedRule<Linear> for R {
    type Logits = <R::Gates as LowerGates>::Logits;
    const MOMENTUM: &'static [&'static str] = <R::State as LowerState>::MOMENTUM;

    fn still(self) -> Self {
        self.without_retention()
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, Self::Logits>) -> Result<Of<R::Gates, Var<B>>> {
        let GateInputs { tape, log_a, logits, limits } = from;
        let LinearLogits { write, momentum, erase } = R::Gates::logits(logits);
        R::Gates::try_lower_backward(|gate| match gate {
            LinearGate::LogA => Ok(log_a.clone()),
            LinearGate::LogEta => log_eta(tape, present::<R, _>(&momentum, "log_eta")?, limits),
            LinearGate::Theta => match &momentum {
                Some(momentum) if !self.spec().look_ahead => step_beside(tape, &write, momentum, limits),
                _ if limits.step == 1.0 => tape.map(Map::Sigmoid, &write),
                _ => tape.scale(limits.step, &tape.map(Map::Sigmoid, &write)?),
            },
            LinearGate::Beta => {
                let beta = tape.map(Map::Sigmoid, present::<R, _>(&erase, "beta")?)?;
                if self.shares_erase() { tape.mul(&beta, &rest(tape, &write)?) } else { Ok(beta) }
            }
        })
    }

    fn strengths<T>(
        self,
        logits: Of<Self::Logits, GateLogit<T>>,
        limits: Limits,
    ) -> Option<(GateLogit<T>, GateForm<T>)> {
        let LinearLogits { write, momentum, erase } = R::Gates::logits(logits);
        if self.spec().look_ahead {
            return None;
        }
        let form = match (momentum, erase) {
            (None, None) => GateForm::Write(limits.step),
            (Some(momentum), None) if limits.momentum == 1.0 => GateForm::Momentum(momentum),
            (None, Some(erase)) if self.shares_erase() => GateForm::EraseRest(erase),
            (None, Some(erase)) => GateForm::Erase(erase),
            (Some(_), _) => return None,
        };
        Some((write, form))
    }
}
