//! Gates of the linear rules.

use super::{EraseSignals, GatedRule, Limits, MomentumSignals, WriteSignals, frozen, group, momentum, rest};
use crate::{Result, Tape, Var};
use hecate_core::{
    Backend, Signal, Strengths,
    primitives::Map,
    rules::{Delta, Dgd, DgdGates, Hebbian, MomentumGates, Objective, Titans, WriteGates},
};

/// `θ = σ(b)`.
impl GatedRule for Hebbian {
    type Signals = WriteSignals<()>;

    fn with_group(self, _: usize) -> Self {
        self
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: WriteSignals<Var<B>>,
        _: Limits,
    ) -> Result<WriteGates<Var<B>>> {
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &signals.b_proj)? })
    }

    fn strengths<T>(self, signals: WriteSignals<Signal<T>>, _: Limits) -> Option<(Signal<T>, Strengths<T>)> {
        Some((signals.b_proj, Strengths::Write(1.0)))
    }
}

/// `θ = σ(b)`: stable for any retention, with unit keys. With longer steps `θ = step σ(b)`.
impl GatedRule for Delta {
    type Signals = WriteSignals<()>;

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: WriteSignals<Var<B>>,
        limits: Limits,
    ) -> Result<WriteGates<Var<B>>> {
        let theta = tape.map(Map::Sigmoid, &signals.b_proj)?;
        Ok(WriteGates { log_a, theta: if limits.step == 1.0 { theta } else { tape.scale(limits.step, &theta)? } })
    }

    fn strengths<T>(self, signals: WriteSignals<Signal<T>>, limits: Limits) -> Option<(Signal<T>, Strengths<T>)> {
        Some((signals.b_proj, Strengths::Write(limits.step)))
    }
}

/// `log η = log σ(e)`, `θ = (1 − η) σ(b)`: where `η` is the same for all tokens a write adds up to `σ(b)` over time, so a
/// key met again is stable. The factor is computed as `σ(−e)`, since `1 − η` loses all digits where `η` is near one. With a
/// largest momentum below 1, `η = momentum σ(e)` and `θ = (1 − momentum) σ(b)`, of which the kernel for a whole layer has not
/// heard.
impl GatedRule for Titans {
    type Signals = MomentumSignals<()>;
    const MOMENTUM: &'static [&'static str] = &["s"];

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: MomentumSignals<Var<B>>,
        limits: Limits,
    ) -> Result<MomentumGates<Var<B>>> {
        momentum(tape, log_a, signals, limits)
    }

    fn strengths<T>(self, signals: MomentumSignals<Signal<T>>, limits: Limits) -> Option<(Signal<T>, Strengths<T>)> {
        (limits.momentum == 1.0).then_some((signals.b_proj, Strengths::Momentum(signals.eta_proj)))
    }
}

/// `θ = σ(b)`; `β = σ(e)` with the dot objective, `(1 − θ) σ(e)` with L2, where the memory is erased by `θ + β` in all
/// and more than `1 + a` would be unstable.
impl GatedRule for Dgd {
    type Signals = EraseSignals<()>;

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        match self.objective {
            Objective::L2 => Self { frozen: frozen(tokens), ..self },
            Objective::Dot => self,
        }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        EraseSignals { b_proj, erase_proj }: EraseSignals<Var<B>>,
        _: Limits,
    ) -> Result<DgdGates<Var<B>>> {
        let theta = tape.map(Map::Sigmoid, &b_proj)?;
        let beta = tape.map(Map::Sigmoid, &erase_proj)?;
        let beta = match self.objective {
            Objective::L2 => tape.mul(&beta, &rest(tape, &b_proj)?)?,
            Objective::Dot => beta,
        };
        Ok(DgdGates { log_a, theta, beta })
    }

    fn strengths<T>(self, signals: EraseSignals<Signal<T>>, _: Limits) -> Option<(Signal<T>, Strengths<T>)> {
        let EraseSignals { b_proj, erase_proj } = signals;
        Some(match self.objective {
            Objective::L2 => (b_proj, Strengths::EraseRest(erase_proj)),
            Objective::Dot => (b_proj, Strengths::Erase(erase_proj)),
        })
    }
}
