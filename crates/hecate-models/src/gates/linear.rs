//! Gates of the linear family, once for all its rules.

use super::{GateInputs, GatedRule, Limits, log_eta, present, rest, step_beside};
use crate::{Result, Tape, Var};
use hecate_core::{
    Backend, DType, GateForm, GateLogit, Of, Tensor,
    families::{EraseStrength, Linear, LinearGate, LinearGates, LinearLogits, LinearRule, LowerGates, LowerState},
    primitives::{Map, Transpose, map},
};

/// Forms the gates of a linear rule from logits `b` (write), `e` (momentum) and `r` (erase), each `[B,T,H]`.
///
/// The step size is `θ = step σ(b)`. With unit keys and `step` of at most 1 it is stable for any retention.
///
/// With momentum, `log η = log σ(e)` and `θ = (1 − η) σ(b)`: if `η` is the same for all tokens, the effects of one write add up
/// to `σ(b)` over time, so a key that comes again stays stable. The factor is computed as `σ(−e)`, since the difference `1 − η`
/// loses all digits for `η` near one. With a largest momentum below 1, `η = momentum σ(e)` and `θ = (1 − momentum) σ(b)`; fused
/// decode does not know this form. Momentum that looks ahead needs no such factor: `θ = σ(b)`.
///
/// The erase strength is `β = σ(r)`. A rule that erases by the sum `θ + β` takes `β = (1 − θ) σ(r)` instead, because a sum of
/// more than `1 + a` would be unstable ([`LinearRule::shares_erase`]).
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

    /// With `M = B + D`, what is written is `z = w (v − f k M_c) − r k M = u − w f k D_c − r k D` where `u = w v − (w f + r) k B`.
    /// So `D` starts at zero and changes as `M` does, told `u` in place of `w v`. Where `r` is `w`, or nothing is erased but by
    /// a frozen target, `u = w (v − k B)`. Where `r` has a gate of its own, `u` is told with `w = 1`.
    ///
    /// A decayed erase sees `B + a D`, the memory that went back: `r = w a` of `D`, and `w` of `B`.
    fn of_difference(self) -> Option<Self> {
        match (self.spec().erase, self.spec().frozen) {
            (EraseStrength::Nothing, _) | (EraseStrength::Theta | EraseStrength::Decayed, None) => Some(self),
            (EraseStrength::Beta | EraseStrength::ThetaAndBeta, None) => self.with_beta_alone(),
            // Two strengths of which one would have to be divided by the other.
            (_, Some(_)) => None,
        }
    }

    fn difference_inputs<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        v: Var<B>,
        gates: Of<R::Gates, Var<B>>,
        less: impl FnOnce() -> Result<Var<B>>,
    ) -> Result<(Var<B>, Of<R::Gates, Var<B>>)> {
        match self.spec().erase {
            EraseStrength::Nothing if self.spec().frozen.is_none() => Ok((v, gates)),
            EraseStrength::Nothing | EraseStrength::Theta | EraseStrength::Decayed => {
                Ok((tape.add(&v, &less()?)?, gates))
            }
            EraseStrength::Beta | EraseStrength::ThetaAndBeta => {
                erase_apart::<B, R>(self.spec().erase, tape, v, gates, &less()?)
            }
        }
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

/// The value `u = θ v − r k B` and the gates `θ = 1`, `β = r`, with `r` as `erase` says and `less = −k B`. Nothing is divided.
fn erase_apart<B: Backend, R: LinearRule>(
    erase: EraseStrength,
    tape: &Tape<'_, B>,
    v: Var<B>,
    gates: Of<R::Gates, Var<B>>,
    less: &Var<B>,
) -> Result<(Var<B>, Of<R::Gates, Var<B>>)> {
    let LinearGates { log_a, log_eta, theta, beta } = R::Gates::lower(gates);
    let beta = present::<R, _>(&beta, "beta")?.clone();
    let r = if erase == EraseStrength::ThetaAndBeta { tape.add(&theta, &beta)? } else { beta };
    let (dtype, width) = (v.value().dtype(), v.axes()[3]);
    // Rounded once, after the sum.
    let times =
        |strength: &Var<B>, x: &Var<B>| tape.mul(&every_value(tape, strength, width)?, &tape.cast(DType::F32, x)?);
    let u = tape.cast(dtype, &tape.add(&times(&theta, &v)?, &times(&r, less)?)?)?;
    let one = ones(theta.value().device(), theta.axes())?;
    let gates = R::Gates::try_lower_backward(|gate| match gate {
        LinearGate::LogA => present::<R, _>(&log_a, "log_a").cloned(),
        LinearGate::LogEta => present::<R, _>(&log_eta, "log_eta").cloned(),
        LinearGate::Theta => Ok(one.clone()),
        LinearGate::Beta => Ok(r.clone()),
    })?;
    Ok((u, gates))
}

/// A number `x [B,T,H]` a head at each of its `width` values: `[B,T,H,V]`.
fn every_value<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>, width: usize) -> Result<Var<B>> {
    let column = tape.reshape(x, [x.axes(), &[1]].concat())?;
    tape.matmul(&column, &ones(x.value().device(), &[1, width])?, Transpose::default())
}

/// Ones, made on the device, since a captured step does not hear from the host.
fn ones<B: Backend>(device: &B, axes: &[usize]) -> Result<Var<B>> {
    Ok(Var::constant(map(Map::Exp, &Tensor::zeros(device, axes, DType::F32)?)?))
}
