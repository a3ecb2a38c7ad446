//! Gates of memories that are functions with weights.

use super::{
    GatedRule, HuberMomentumSignals, HuberSignals, Limits, MomentumSignals, SLOW_FORGETTING, WriteSignals, frozen,
    group, momentum,
};
use crate::{Result, Tape, Var, layers::memory::NORM_EPSILON};
use hecate_core::{
    Backend,
    primitives::Map,
    rules::{
        HuberGates, HuberMomentumGates, Memora, Memory, MomentumGates, Moneta, TitansMlp, WriteGates, Yaad,
        YaadMomentum,
    },
};

/// Share of the steps of [`Titans`](hecate_core::rules::Titans) that a network of two layers can take: each layer's step
/// is as long as the other is large, and both grow with the values they are taught.
const NETWORK_STEP: f32 = 0.125;

/// Steps and forgetting of a memory, those of a network if it is one.
fn paced<B: Backend>(tape: &Tape<'_, B>, network: bool, log_a: Var<B>, theta: Var<B>) -> Result<(Var<B>, Var<B>)> {
    if !network {
        return Ok((log_a, theta));
    }
    Ok((tape.scale(SLOW_FORGETTING.recip(), &log_a)?, tape.scale(NETWORK_STEP, &theta)?))
}

/// As [`Titans`](hecate_core::rules::Titans), with an eighth of the steps, and `log a` a thousandth of what others get
/// (1/1024).
impl GatedRule for TitansMlp {
    type Signals = MomentumSignals<()>;

    const MOMENTUM: &'static [&'static str] = &["s0", "s1"];

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
        let MomentumGates { log_a, log_eta, theta } = momentum(tape, log_a, signals, limits)?;
        let (log_a, theta) = paced(tape, true, log_a, theta)?;
        Ok(MomentumGates { log_a, log_eta, theta })
    }
}

/// `θ = σ(b) / max(1, p (p − 1)(q − 1))`, for a network an eighth of it and of `log a` a thousandth, as with [`TitansMlp`];
/// values of norm 1.
///
/// A step of the `p`-th power grows with the error, and the memory runs away from the first error `e` with
/// `θ p (p − 1)(q − 1)|e|^{p−2} > 2`, where `q − 1` is the most that the map from the dual variable adds: for `p = 3` an
/// error of 2. Between unit values and what is recalled of them there is none, but learned values grow until there is.
impl<M: Memory> GatedRule for Moneta<M> {
    type Signals = WriteSignals<()>;

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn values<B: Backend>(self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        tape.l2_norm(&v, NORM_EPSILON)
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: WriteSignals<Var<B>>,
        _: Limits,
    ) -> Result<WriteGates<Var<B>>> {
        let steepness = (self.p * (self.p - 1.0) * (self.q - 1.0)).max(1.0);
        let theta = tape.scale(steepness.recip(), &tape.map(Map::Sigmoid, &signals.b_proj)?)?;
        let (log_a, theta) = paced(tape, !M::MATRIX, log_a, theta)?;
        Ok(WriteGates { log_a, theta })
    }
}

/// `θ = σ(b)`, for a network an eighth of it and of `log a` a thousandth, as with [`TitansMlp`]; `δ = softplus(d)`.
impl<M: Memory> GatedRule for Yaad<M> {
    type Signals = HuberSignals<()>;

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
        signals: HuberSignals<Var<B>>,
        _: Limits,
    ) -> Result<HuberGates<Var<B>>> {
        let (log_a, theta) = paced(tape, !M::MATRIX, log_a, tape.map(Map::Sigmoid, &signals.b_proj)?)?;
        Ok(HuberGates { log_a, theta, delta: tape.map(Map::Softplus, &signals.delta_proj)? })
    }
}

/// As [`TitansMlp`], and `δ = softplus(d)`.
impl GatedRule for YaadMomentum {
    type Signals = HuberMomentumSignals<()>;

    const MOMENTUM: &'static [&'static str] = &["s0", "s1"];

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
        HuberMomentumSignals { b_proj, eta_proj, delta_proj }: HuberMomentumSignals<Var<B>>,
        limits: Limits,
    ) -> Result<HuberMomentumGates<Var<B>>> {
        let signals = MomentumSignals { b_proj, eta_proj };
        let MomentumGates { log_a, log_eta, theta } = momentum(tape, log_a, signals, limits)?;
        let (log_a, theta) = paced(tape, true, log_a, theta)?;
        Ok(HuberMomentumGates { log_a, log_eta, theta, delta: tape.map(Map::Softplus, &delta_proj)? })
    }
}

/// `θ = σ(b)`.
impl<M: Memory> GatedRule for Memora<M> {
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
        _: Limits,
    ) -> Result<WriteGates<Var<B>>> {
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &signals.b_proj)? })
    }
}
