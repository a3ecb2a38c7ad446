//! How rules get their gates.

mod channel;
mod deep;
mod linear;
mod own;

use crate::{Error, Result, Tape, Var};
use hecate_core::{
    Backend, DType, Dims, GateForm, GateKind, GateLogit, GateSlots, Inputs, Of, Rule, Shape, Slots, Tensor, memory,
    primitives::Map,
};
use std::fmt;

/// Added to squared lengths where heads' vectors are made unit vectors.
pub(crate) const NORM_EPSILON: f32 = 1e-6;

/// The option behind a group of this many tokens. Groups too large to be counted are never filled.
pub(crate) fn frozen(tokens: usize) -> Option<u32> {
    (tokens != 1).then(|| u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// What a layer allows its memories: [`MemoryConfig::step`](crate::MemoryConfig::step) and
/// [`MemoryConfig::momentum`](crate::MemoryConfig::momentum), in their ranges.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest step size.
    pub step: f32,
    /// Largest momentum.
    pub momentum: f32,
}

/// What a rule's gates are formed from.
pub struct GateInputs<'a, 't, B: Backend, L: Slots> {
    /// Where it is put down.
    pub tape: &'a Tape<'t, B>,
    /// Retention `[B,T,H]`, or `[B,T,H,K]` where a rule forgets [by channel](GatedRule::channels).
    pub log_a: Var<B>,
    /// Logits `[B,T,H]` or `[B,T,H,width]`, any real numbers.
    pub logits: Of<L, Var<B>>,
    /// What the layer allows, where the rule has such an option.
    pub limits: Limits,
}

impl<B: Backend, L: Slots> fmt::Debug for GateInputs<'_, '_, B, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateInputs").field("log_a", &self.log_a).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A rule whose gates can be made from the residual stream. `F` is its family, as of [`Kernel`](hecate_core::Kernel): what
/// all rules of a family have in common is written once.
///
/// What a token tells a rule beside how much to forget, a number or a few a head, are *logits*: linear maps with bias,
/// named as their parameters are.
pub trait GatedRule<F = <Self as Rule>::Family>: Rule {
    /// The logits by name.
    type Logits: Slots;

    /// Slots of the state that move the memory by themselves, whatever the gates say. They are zeros in a pass that only
    /// reads ([`GatedRule::reading`]).
    const MOMENTUM: &'static [&'static str] = &[];

    /// Tokens that share a gradient point; 1 where the rule is exact. Calls must start at a multiple.
    fn group(self) -> usize {
        self.frozen().map_or(1, |group| group as usize)
    }

    /// The rule with one gradient point for each group of this many tokens: exact for 1; unchanged where the gradient
    /// does not see the memory.
    fn with_group(self, tokens: usize) -> Self {
        self.with_frozen(frozen(tokens))
    }

    /// The rule as it reads without writing: with [`GatedRule::idle`] gates its memory stays as it is.
    fn still(self) -> Self {
        self
    }

    /// Elements a head of each signal, with keys and values of these widths; absent: one, without an axis of its own.
    fn widths(self, _: [usize; 2]) -> Of<Self::Logits, Option<usize>> {
        Self::Logits::build(|_| None)
    }

    /// Channels of a head that forget apart, with keys of this width: elements of its `log a`; absent: one for all.
    fn channels(self, _key: usize) -> Option<usize> {
        None
    }

    /// Gates from retention and logits.
    ///
    /// # Errors
    /// The device's own failures.
    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, Self::Logits>) -> Result<Of<Self::Gates, Var<B>>>;

    /// The values that are written, from `v [B,T,H,V]`: as they come, or of unit norm where only directions are learned.
    ///
    /// # Errors
    /// The device's own failures.
    fn values<B: Backend>(self, _tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        Ok(v)
    }

    /// The signal that writes, and how strengths follow from it and the other one: what [`GatedRule::gates_of`] computes, told
    /// to a device. None where there is no word for it.
    fn strengths<T>(
        self,
        _logits: Of<Self::Logits, GateLogit<T>>,
        _limits: Limits,
    ) -> Option<(GateLogit<T>, GateForm<T>)> {
        None
    }

    /// The rule by which `D = M − B` changes as memories `M` do that go back to `B`: for rules without an anchor of their own.
    /// None where no rule does.
    fn of_difference(self) -> Option<Self> {
        None
    }

    /// What [`GatedRule::of_difference`] is told by the tokens that tell the rule `v [B,T,H,V]` and `gates`. `less` is
    /// `−k B [B,T,H,V]`, and is computed where it is asked for.
    ///
    /// # Errors
    /// Those of `less`; the device's own failures.
    fn difference_inputs<B: Backend>(
        self,
        _tape: &Tape<'_, B>,
        v: Var<B>,
        gates: Of<Self::Gates, Var<B>>,
        _less: impl FnOnce() -> Result<Var<B>>,
    ) -> Result<(Var<B>, Of<Self::Gates, Var<B>>)> {
        Ok((v, gates))
    }

    /// Gates of tokens that write nothing and forget nothing: factors of one, strengths of zero. The memory stays as it
    /// is where the slots of [`GatedRule::MOMENTUM`] are zero.
    ///
    /// # Errors
    /// The device's own failures.
    fn idle<B: Backend>(self, device: &B, dims: &Dims) -> Result<Of<Self::Gates, Var<B>>> {
        Self::Gates::try_map_kinds(self.gates(dims), |kind, shape| match kind {
            // It has to be over zero; without a step size it bounds nothing.
            GateKind::Threshold => {
                let ones = memory::filled("gates", shape.count(), 1.0)?;
                Ok(Var::constant(Tensor::from_f32(device, shape, ones)?))
            }
            GateKind::Retention | GateKind::Momentum | GateKind::Step | GateKind::Strength => zeros(device, shape),
        })
    }

    /// Arguments of a pass of [`GatedRule::still`] in which `q` reads the memory `state` and nothing is written. Every
    /// token reads the same memory, so the order of the tokens does not matter. Gradients flow to `q` and `state`; the
    /// state after the pass is of no use.
    ///
    /// # Errors
    /// The device's own failures.
    fn reading<B: Backend>(
        self,
        dims: &Dims,
        q: Var<B>,
        state: Of<Self::State, Var<B>>,
    ) -> Result<Inputs<Self, Var<B>>> {
        let device = q.value().device().clone();
        let still = |name, x: Var<B>| {
            if Self::MOMENTUM.contains(&name) { zeros(&device, x.value().shape().clone()) } else { Ok(x) }
        };
        let state = Self::State::try_map(state, still)?;
        let tokens = |shape| Ok::<_, Error>(Var::constant(Tensor::zeros(&device, shape, q.value().dtype())?));
        let (k, v) = (tokens(dims.keys())?, tokens(dims.values())?);
        Ok(Inputs { q, k, v, gates: self.idle(&device, dims)?, state, anchor: None })
    }
}

fn zeros<B: Backend>(device: &B, shape: Shape) -> Result<Var<B>> {
    Ok(Var::constant(Tensor::zeros(device, shape, DType::F32)?))
}

/// `1 − σ(x)`, to full precision.
fn rest<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
    tape.map(Map::Sigmoid, &tape.scale(-1.0, x)?)
}

/// `log η` of `η = momentum σ(e)`.
fn log_eta<B: Backend>(tape: &Tape<'_, B>, e: &Var<B>, Limits { momentum, .. }: Limits) -> Result<Var<B>> {
    let log_eta = tape.map(Map::LogSigmoid, e)?;
    if momentum == 1.0 {
        return Ok(log_eta);
    }
    // One number a head, the same for all rows; made on the device, since a captured step does not hear from the host.
    let zeros = Tensor::zeros(e.value().device(), [e.axes()[2]], DType::F32)?;
    let log_most = tape.scale(momentum.ln(), &tape.map(Map::Exp, &Var::constant(zeros))?)?;
    tape.add(&log_eta, &log_most)
}

/// `θ = (1 − momentum) σ(b)`, or `(1 − η) σ(b)` where the largest momentum is 1.
fn step_beside<B: Backend>(
    tape: &Tape<'_, B>,
    b: &Var<B>,
    e: &Var<B>,
    Limits { momentum, .. }: Limits,
) -> Result<Var<B>> {
    let step = tape.map(Map::Sigmoid, b)?;
    if momentum == 1.0 { tape.mul(&step, &rest(tape, e)?) } else { tape.scale(1.0 - momentum, &step) }
}

/// The logit that a gate is formed from.
fn present<'a, R: Rule, T>(logit: &'a Option<T>, gate: &'static str) -> Result<&'a T> {
    let missing = || hecate_core::Error::Config {
        what: R::NAME,
        option: gate,
        found: "no logit".into(),
        expected: "a logit a gate",
    };
    Ok(logit.as_ref().ok_or_else(missing)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_core::{for_each_rule, rules::*};

    /// A slot that is misspelt would move the memory while it is only read.
    #[test]
    fn momentum_is_a_part_of_the_state() {
        macro_rules! slots {
            ($($rule:ident),*) => {
                [$((<$rule as Rule>::NAME, <$rule as GatedRule>::MOMENTUM, <$rule as Rule>::State::NAMES)),*]
            };
        }
        for (rule, momentum, state) in for_each_rule!(slots) {
            assert!(momentum.iter().all(|slot| state.contains(slot)), "{rule}: {momentum:?} of {state:?}");
        }
    }
}
