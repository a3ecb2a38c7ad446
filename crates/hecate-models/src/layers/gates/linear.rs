//! Gates of the linear rules.

use super::{EraseSignals, GatedRule, MomentumSignals, WriteSignals, frozen, group, momentum, rest};
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
    ) -> Result<WriteGates<Var<B>>> {
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &signals.b_proj)? })
    }

    fn strengths<T>(self, signals: WriteSignals<Signal<T>>, _: f32) -> Option<(Signal<T>, Strengths<T>)> {
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
    ) -> Result<WriteGates<Var<B>>> {
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &signals.b_proj)? })
    }

    fn stretched<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        WriteGates { log_a, theta }: WriteGates<Var<B>>,
        factor: f32,
    ) -> Result<WriteGates<Var<B>>> {
        let theta = if factor == 1.0 { theta } else { tape.scale(factor, &theta)? };
        Ok(WriteGates { log_a, theta })
    }

    fn strengths<T>(self, signals: WriteSignals<Signal<T>>, factor: f32) -> Option<(Signal<T>, Strengths<T>)> {
        Some((signals.b_proj, Strengths::Write(factor)))
    }
}

/// `log η = log σ(e)`, `θ = (1 − η) σ(b)`: a write adds up to `σ(b)` over time, so a key met again is stable. The
/// factor is computed as `σ(−e)`, since `1 − η` loses all digits where `η` is near one.
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
    ) -> Result<MomentumGates<Var<B>>> {
        self.gates_within(tape, log_a, signals, 1.0)
    }

    fn gates_within<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: MomentumSignals<Var<B>>,
        most: f32,
    ) -> Result<MomentumGates<Var<B>>> {
        momentum(tape, log_a, signals, most)
    }

    fn strengths<T>(self, signals: MomentumSignals<Signal<T>>, _: f32) -> Option<(Signal<T>, Strengths<T>)> {
        Some((signals.b_proj, Strengths::Momentum(signals.eta_proj)))
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
    ) -> Result<DgdGates<Var<B>>> {
        let theta = tape.map(Map::Sigmoid, &b_proj)?;
        let beta = tape.map(Map::Sigmoid, &erase_proj)?;
        let beta = match self.objective {
            Objective::L2 => tape.mul(&beta, &rest(tape, &b_proj)?)?,
            Objective::Dot => beta,
        };
        Ok(DgdGates { log_a, theta, beta })
    }

    fn strengths<T>(self, signals: EraseSignals<Signal<T>>, _: f32) -> Option<(Signal<T>, Strengths<T>)> {
        let EraseSignals { b_proj, erase_proj } = signals;
        Some(match self.objective {
            Objective::L2 => (b_proj, Strengths::EraseRest(erase_proj)),
            Objective::Dot => (b_proj, Strengths::Erase(erase_proj)),
        })
    }
}
