//! The linear family: how a rule's options, gates and states become those of the recurrence, and gradients come back.
//!
//! Every rule of the family is the recurrence (1)–(5) of [`rules`](crate::rules) with `w = θ`. Rules differ in what
//! they erase, whether they have momentum, and which gates a token brings. A rule says so in a [`LinearSpec`] and in
//! two lowerings of a few lines, [`LowerGates`] and [`LowerState`], which rules with the same gates share. Engines see
//! [`LinearInputs`] and [`LinearOutputs`] alone, never the rule.

use super::Linear;
use crate::{DType, Dims, Error, GateSlots, Of, Read, Result, Rule, Shape, Slots, Tensor, memory, primitives};
use std::convert::Infallible;

/// A rule that the linear engine runs.
pub trait LinearRule: Rule<Family = Linear, Gates: LowerGates, State: LowerState> {
    /// What its options mean to the engine.
    fn spec(self) -> LinearSpec;

    /// `log a` of a head out of `heads`, in `[−∞, 0]`, of a rule whose gates have no `log_a`; 0 where nothing is forgotten.
    fn head_log_a(self, _head: usize, _heads: usize) -> f32 {
        0.0
    }

    /// The rule without [`LinearRule::head_log_a`]: with strengths of zero its memory stays as it is.
    fn without_retention(self) -> Self {
        self
    }

    /// The rule with an erase strength of `β` alone, whatever `θ` is; none where it has no such form.
    fn with_beta_alone(self) -> Option<Self> {
        None
    }

    /// Whether layers make `β` a share of `1 − θ`, because the memory is erased by `θ + β` in all.
    fn shares_erase(self) -> bool {
        false
    }
}

/// What an engine must know of a rule. The default is a Hebbian rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearSpec {
    /// When a token reads.
    pub read: Read,
    /// `f = 1`, with groups of this many tokens.
    pub frozen: Option<u32>,
    /// Whether there is an `S`; without, `η = 0`.
    pub momentum: bool,
    /// Whether the momentum [looks ahead](crate::rules::MomentumForm::LookAhead); core makes
    /// that of two rules that every engine runs.
    pub look_ahead: bool,
    /// What `r` is; `w` is always `θ`.
    pub erase: EraseStrength,
    /// What one `log a` multiplies.
    pub retention: RetentionAxis,
    /// Which value heads share queries and keys.
    pub keys: KeyHeads,
}

/// How the erase strength `r` follows from the gates. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EraseStrength {
    /// `r = 0`.
    #[default]
    Nothing,
    /// `r = θ`.
    Theta,
    /// `r = θ a`.
    Decayed,
    /// `r = β`.
    Beta,
    /// `r = θ + β`.
    ThetaAndBeta,
}

/// What one `log a` multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionAxis {
    /// The matrix of a head: `log_a [B,T,H]`.
    #[default]
    Head,
    /// A row of it, the channel of a key: `log_a [B,T,H,K]`. The engine of rules of the [`Channel`](super::Channel) family has
    /// kernels for it, that of linear rules has none.
    Channel,
}

/// Which value heads share queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyHeads {
    /// Each value head has its own: `q, k [B,T,H,K]`.
    #[default]
    Own,
    /// So many value heads in a row share one: `q, k [B,T,H/shared,K]`. No engine has kernels for it.
    Shared(u32),
}

impl EraseStrength {
    /// The number that kernels know it by.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether `β` is a part of it.
    pub const fn has_beta(self) -> bool {
        matches!(self, Self::Beta | Self::ThetaAndBeta)
    }
}

impl LinearSpec {
    /// Whether `r` can differ from 0.
    pub fn erases(self) -> bool {
        self.erase != EraseStrength::Nothing
    }

    /// Tokens of a frozen group.
    pub fn group(self) -> Option<usize> {
        self.frozen.map(|group| group as usize)
    }

    /// Matrices of a state: `M`, and `S` where there is momentum.
    pub fn matrices(self) -> usize {
        1 + usize::from(self.momentum)
    }

    /// The spec, of a rule of this name, if a backend's engine can run it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for retention by channel and for shared keys, which no engine has kernels for.
    pub fn runnable(self, backend: &'static str, what: &'static str) -> Result<Self> {
        let why = match (self.retention, self.keys) {
            (RetentionAxis::Head, KeyHeads::Own) => return Ok(self),
            (RetentionAxis::Channel, _) => {
                "linear kernels have one `log_a` a head; a rule with retention by channel is of the channel family"
            }
            (_, KeyHeads::Shared(_)) => "value heads that share keys have no kernels; repeat the keys for each",
        };
        Err(Error::Unsupported { backend, what, why: why.into() })
    }
}

/// The gates that a rule of the family can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearGate {
    /// `log a`.
    LogA,
    /// `log η`.
    LogEta,
    /// `θ`.
    Theta,
    /// `β`.
    Beta,
}

/// A rule's gates as the family knows them, each `[B,T,H]`; absent where the rule has none.
#[derive(Clone, Copy, Debug)]
pub struct LinearGates<T> {
    /// Retention; absent: [`LinearRule::head_log_a`].
    pub log_a: Option<T>,
    /// Momentum.
    pub log_eta: Option<T>,
    /// Write strength.
    pub theta: T,
    /// Erase strength.
    pub beta: Option<T>,
}

impl<T> LinearGates<T> {
    /// The gates of a rule that has no other.
    pub fn write(theta: T) -> Self {
        Self { log_a: None, log_eta: None, theta, beta: None }
    }
}

/// What layers form a rule's gates from, beside retention, each a map of the residual stream `[B,T,H]`, any real numbers.
///
/// ```text
/// log η = log σ(e)     θ = σ(b), with momentum (1 − η) σ(b)     β = σ(r), or (1 − θ) σ(r)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LinearLogits<T> {
    /// `b` of the write strength.
    pub write: T,
    /// `e` of the momentum.
    pub momentum: Option<T>,
    /// `r` of the erase strength.
    pub erase: Option<T>,
}

/// Gates that the linear engine takes: which slot is which, and what layers form them from.
pub trait LowerGates: GateSlots {
    /// The logits by the names of the maps that make them.
    type Logits: Slots;

    /// A rule's gates, or their shapes or gradients, as the engine's.
    fn lower<T>(gates: Self::Of<T>) -> LinearGates<T>;

    /// A rule's gates, or their gradients, from the engine's.
    ///
    /// # Errors
    /// The first error of `gate`.
    fn try_lower_backward<T, E>(gate: impl FnMut(LinearGate) -> Result<T, E>) -> Result<Self::Of<T>, E>;

    /// The logits as the family knows them.
    fn logits<T>(logits: Of<Self::Logits, T>) -> LinearLogits<T>;

    /// As [`LowerGates::try_lower_backward`], of what never fails.
    fn lower_backward<T>(mut gate: impl FnMut(LinearGate) -> T) -> Self::Of<T> {
        match Self::try_lower_backward(|name| Ok::<T, Infallible>(gate(name))) {
            Ok(gates) => gates,
            Err(never) => match never {},
        }
    }
}

/// The matrices of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearMatrix {
    /// The memory.
    M,
    /// The momentum.
    S,
}

/// The state of the recurrence, each `[N,H,K,V]`.
#[derive(Clone, Copy, Debug)]
pub struct LinearState<T> {
    /// Memory.
    pub m: T,
    /// Momentum, where the rule has it.
    pub s: Option<T>,
}

/// States that the linear engine takes: which slot is which.
pub trait LowerState: Slots {
    /// Slots that move the memory by themselves, whatever the gates say.
    const MOMENTUM: &'static [&'static str] = &[];

    /// A rule's state, or its shapes or gradients, as the engine's.
    fn lower<T>(state: Self::Of<T>) -> LinearState<T>;

    /// A rule's state, or its gradients, from the engine's.
    fn lower_backward<T>(matrix: impl FnMut(LinearMatrix) -> T) -> Self::Of<T>;
}

/// Arguments of the engine, and, filled with gradients, what its backward writes.
#[derive(Clone, Debug)]
pub struct LinearInputs<T> {
    /// Queries `[B,T,H,K]`.
    pub q: T,
    /// Keys `[B,T,H,K]`.
    pub k: T,
    /// Values `[B,T,H,V]`.
    pub v: T,
    /// Retention `[B,T,H]`.
    pub log_a: T,
    /// Momentum `[B,T,H]`, where the rule has it.
    pub log_eta: Option<T>,
    /// Write strength `[B,T,H]`.
    pub theta: T,
    /// Erase strength `[B,T,H]`, where the rule has one of its own.
    pub beta: Option<T>,
    /// State before the first token of each sequence.
    pub state: LinearState<T>,
}

/// Results of the engine, and, filled with gradients, what its backward takes.
#[derive(Clone, Debug)]
pub struct LinearOutputs<T> {
    /// What was read `[B,T,H,V]`.
    pub out: T,
    /// State after the last token of each sequence.
    pub state: LinearState<T>,
}

impl<T> LinearState<T> {
    /// Makes each from its shape and element type: `M`, and `S` where there is momentum.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_build<E>(
        spec: LinearSpec,
        dims: &Dims,
        mut make: impl FnMut(Shape, DType) -> Result<T, E>,
    ) -> Result<Self, E> {
        let mut matrices = || make(dims.matrices(), DType::F32);
        Ok(Self { m: matrices()?, s: spec.momentum.then(matrices).transpose()? })
    }

    /// The matrices in their order.
    pub fn list(&self) -> impl Iterator<Item = &T> {
        [&self.m].into_iter().chain(&self.s)
    }
}

impl<T> LinearInputs<T> {
    /// Makes each from its shape and element type: those that a rule of this spec has. Queries, keys and values have elements of
    /// `dtype`.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_build<E>(
        spec: LinearSpec,
        dims: &Dims,
        dtype: DType,
        mut make: impl FnMut(Shape, DType) -> Result<T, E>,
    ) -> Result<Self, E> {
        let [q, k, v] = [make(dims.keys(), dtype)?, make(dims.keys(), dtype)?, make(dims.values(), dtype)?];
        let mut gate = || make(dims.scalars(), DType::F32);
        let (log_a, log_eta) = (gate()?, spec.momentum.then(&mut gate).transpose()?);
        let (theta, beta) = (gate()?, spec.erase.has_beta().then(&mut gate).transpose()?);
        Ok(Self { q, k, v, log_a, log_eta, theta, beta, state: LinearState::try_build(spec, dims, make)? })
    }

    /// Names in messages and references to all arrays, in their order.
    pub(crate) fn list(&self) -> Vec<(&'static str, &T)> {
        let Self { q, k, v, log_a, log_eta, theta, beta, state: LinearState { m, s } } = self;
        let all =
            [("q", Some(q)), ("k", Some(k)), ("v", Some(v)), ("log_a", Some(log_a)), ("log_eta", log_eta.as_ref())];
        let rest = [("theta", Some(theta)), ("beta", beta.as_ref()), ("m", Some(m)), ("s", s.as_ref())];
        all.into_iter().chain(rest).filter_map(|(name, x)| Some((name, x?))).collect()
    }
}

impl<T> LinearOutputs<T> {
    /// As [`LinearInputs::try_build`]; what was read has elements of `dtype`.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_build<E>(
        spec: LinearSpec,
        dims: &Dims,
        dtype: DType,
        mut make: impl FnMut(Shape, DType) -> Result<T, E>,
    ) -> Result<Self, E> {
        Ok(Self { out: make(dims.values(), dtype)?, state: LinearState::try_build(spec, dims, make)? })
    }

    /// As [`LinearInputs::list`].
    pub(crate) fn list(&self) -> Vec<(&'static str, &T)> {
        let Self { out, state: LinearState { m, s } } = self;
        [("out", Some(out)), ("m", Some(m)), ("s", s.as_ref())]
            .into_iter()
            .filter_map(|(name, x)| Some((name, x?)))
            .collect()
    }
}

/// [`LinearRule::head_log_a`] of every token, `[B,T,H]`: the retention of a rule without that gate.
///
/// # Errors
/// The device's own failures.
pub(crate) fn constant_log_a<D: primitives::Elementwise, R: LinearRule>(
    device: &D,
    rule: R,
    dims: &Dims,
) -> Result<Tensor<D>> {
    let heads = (0..dims.heads).map(|head| rule.head_log_a(head, dims.heads));
    let heads = Tensor::from_f32(device, [dims.heads], memory::collect(R::NAME, heads)?)?;
    primitives::add(&Tensor::zeros(device, dims.scalars(), DType::F32)?, &heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_engine_has_kernels_for_is_refused() {
        let refused = |spec: LinearSpec| match spec.runnable("cpu", "kda") {
            Err(Error::Unsupported { backend: "cpu", what: "kda", why }) => why,
            other => panic!("{other:?}"),
        };
        let plain = LinearSpec::default();
        assert!(refused(LinearSpec { retention: RetentionAxis::Channel, ..plain }).contains("by channel"));
        assert!(refused(LinearSpec { keys: KeyHeads::Shared(4), ..plain }).contains("share keys"));
        assert!(plain.runnable("cpu", "hebbian").is_ok_and(|spec| spec == plain));
    }

    /// As `linear.cuh` and `args.wgsl` number them.
    #[test]
    fn erase_strengths_are_numbered_as_in_kernels() {
        use EraseStrength::{Beta, Decayed, Nothing, Theta, ThetaAndBeta};
        assert_eq!([Nothing, Theta, Decayed, Beta, ThetaAndBeta].map(EraseStrength::number), [0, 1, 2, 3, 4]);
    }
}
