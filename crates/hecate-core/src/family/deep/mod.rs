//! The deep family: how a rule's options, gates and weights become those of the step, and gradients come back.
//!
//! Every rule of the family is the step (33)–(38) of [`rules`](crate::rules): structure × error × retention, with momentum
//! or without. A rule says so in a [`DeepSpec`] and by the types of its gates and of its state, which rules with the same
//! ones share. The rest of what a [`Rule`] is follows from that, here, once for all of them.

mod parts;
mod spec;

pub use parts::{Activation, AttentionalBias, Huber, Map, MatrixMemory, MlpMemory, Retention, Structure};
pub use spec::{DeepOptions, DeepSpec};

use super::Deep;
use crate::{Dims, GateSlots, Initial, Of, Result, Rule, Shape, Slots};
use std::fmt::Debug;

/// A rule that the deep engines run. Every such type is a [`Rule`].
pub trait DeepRule: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// As [`Rule::NAME`].
    const NAME: &'static str;
    /// Which kernels run it. A form without kernels does not compile.
    const FORM: DeepForm;
    /// As [`Rule::Gates`].
    type Gates: LowerDeepGates;
    /// As [`Rule::State`].
    type State: LowerWeights;
    /// As [`Rule::Anchor`].
    type Anchor: Slots;

    /// What its options mean to the engine.
    fn spec(self) -> DeepSpec;

    /// As [`Rule::frozen_option`].
    fn frozen_option(&mut self) -> &mut Option<u32>;

    /// What fresh weights of a layer with inputs of this width are filled with.
    fn fresh(self, inputs: usize) -> Initial {
        Initial::Normal((inputs.max(1) as f32).sqrt().recip())
    }
}

/// Error, retention and momentum together: what kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepForm {
    /// The error itself, decay, momentum: (47), (53), (57).
    L2Momentum,
    /// A power of the error, an image of a dual variable: (48), (49), (54), (58).
    LpLq,
    /// A bounded error, decay: (50)–(53), (58).
    Huber,
    /// A bounded error, decay, momentum: (50)–(53), (57).
    HuberMomentum,
    /// The error itself, distributions: (47), (55), (58).
    L2Kl,
}

impl DeepForm {
    /// The number that kernels know the error by.
    pub const fn bias(self) -> u32 {
        match self {
            Self::L2Momentum | Self::L2Kl => 0,
            Self::LpLq => 1,
            Self::Huber | Self::HuberMomentum => 2,
        }
    }

    /// The number that kernels know the retention by.
    pub const fn retention(self) -> u32 {
        match self {
            Self::L2Momentum | Self::Huber | Self::HuberMomentum => 0,
            Self::LpLq => 1,
            Self::L2Kl => 2,
        }
    }

    /// Whether there is an `S`; then the state ends with as many more matrices.
    pub const fn momentum(self) -> bool {
        matches!(self, Self::L2Momentum | Self::HuberMomentum)
    }

    /// The gates in the order in which kernels take them.
    pub fn gates(self) -> impl Iterator<Item = DeepGate> {
        let eta = self.momentum().then_some(DeepGate::LogEta);
        let delta = matches!(self, Self::Huber | Self::HuberMomentum).then_some(DeepGate::Delta);
        [Some(DeepGate::LogA), eta, Some(DeepGate::Theta), delta].into_iter().flatten()
    }
}

/// The gates that a rule of the family can have, each `[B,T,H]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepGate {
    /// `log a`.
    LogA,
    /// `log η`.
    LogEta,
    /// `θ`.
    Theta,
    /// `δ`.
    Delta,
}

/// What layers form a rule's gates from, beside retention, each a map of the residual stream `[B,T,H]`, any real numbers.
#[derive(Clone, Copy, Debug)]
pub struct DeepLogits<T> {
    /// `b` of the step size.
    pub step: T,
    /// `e` of the momentum.
    pub momentum: Option<T>,
    /// `d` of the threshold.
    pub threshold: Option<T>,
}

/// Gates that deep engines take, in the order of [`DeepForm::gates`], and what layers form them from.
pub trait LowerDeepGates: GateSlots {
    /// The logits by the names of the maps that make them.
    type Logits: Slots;

    /// A rule's gates, or their gradients, from the engine's.
    ///
    /// # Errors
    /// The first error of `gate`.
    fn try_lower_backward<T, E>(gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<Self::Of<T>, E>;

    /// The logits as the family knows them.
    fn logits<T>(logits: Of<Self::Logits, T>) -> DeepLogits<T>;
}

/// The matrices of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepMatrix {
    /// The only or the first layer, `[N,H,K,V]` or `[N,H,K,D]`.
    W0,
    /// The second layer, `[N,H,D,V]`.
    W1,
    /// The momentum of `W0`.
    S0,
    /// The momentum of `W1`.
    S1,
}

impl DeepMatrix {
    /// Whether its rows are those of a key.
    fn is_first(self) -> bool {
        matches!(self, Self::W0 | Self::S0)
    }

    /// Whether it is momentum.
    fn is_momentum(self) -> bool {
        matches!(self, Self::S0 | Self::S1)
    }
}

/// States that deep engines take, weights before momentum: which slot is which.
pub trait LowerWeights: Slots {
    /// Slots that move the memory by themselves, whatever the gates say.
    const MOMENTUM: &'static [&'static str] = &[];

    /// A rule's state, or its shapes or gradients, from the engine's.
    fn lower_backward<T>(matrix: impl FnMut(DeepMatrix) -> T) -> Self::Of<T>;
}

impl<R: DeepRule> Rule for R {
    const NAME: &'static str = <R as DeepRule>::NAME;
    type Family = Deep;
    type Gates = <R as DeepRule>::Gates;
    type State = <R as DeepRule>::State;
    type Anchor = <R as DeepRule>::Anchor;

    fn state(self, dims: &Dims) -> Of<Self::State, Shape> {
        <R as DeepRule>::State::lower_backward(|matrix| self.spec().shape(dims, matrix))
    }

    fn initial(self, dims: &Dims) -> Of<Self::State, Initial> {
        let hidden = self.spec().structure.hidden(dims.key).unwrap_or(0);
        <R as DeepRule>::State::lower_backward(|matrix| match matrix.is_momentum() {
            true => Initial::Zeros,
            false => self.fresh(if matrix.is_first() { dims.key } else { hidden }),
        })
    }

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(DeepRule::frozen_option(self))
    }

    fn needs_anchor(self) -> bool {
        self.spec().renorm
    }

    fn check(self, dims: &Dims) -> Result<()> {
        self.spec().check(Self::NAME, dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::*;
    use std::convert::Infallible;

    /// What kernels of the form take is what the rule says of itself.
    fn check_form<R: DeepRule + Default>() {
        let (form, spec) = (R::FORM, R::default().spec());
        let bias = match spec.bias {
            AttentionalBias::L2 => 0,
            AttentionalBias::Lp { .. } => 1,
            AttentionalBias::Huber(_) => 2,
        };
        let retention = match spec.retention {
            Retention::Decay => 0,
            Retention::Lq { .. } => 1,
            Retention::Kl { .. } => 2,
        };
        assert_eq!((bias, retention), (form.bias(), form.retention()), "{}", <R as DeepRule>::NAME);
        // In the order of the slots, which is that of the pointers that kernels get.
        let Ok(gates) = <R as DeepRule>::Gates::try_lower_backward(Ok::<_, Infallible>);
        let gates = <R as DeepRule>::Gates::into_vec(gates);
        assert!(gates.into_iter().eq(form.gates()), "{}", <R as DeepRule>::NAME);
        let matrices = <R as DeepRule>::State::into_vec(<R as DeepRule>::State::lower_backward(|matrix| matrix));
        let layers = if let Structure::Mlp(_) = spec.structure { 2 } else { 1 };
        let weights = [DeepMatrix::W0, DeepMatrix::W1].into_iter().take(layers);
        let momentum = [DeepMatrix::S0, DeepMatrix::S1].into_iter().take(if form.momentum() { layers } else { 0 });
        assert!(matrices.into_iter().eq(weights.chain(momentum)), "{}", <R as DeepRule>::NAME);
        assert_eq!(<R as DeepRule>::State::MOMENTUM, &<R as DeepRule>::State::NAMES[layers..]);
    }

    macro_rules! check_forms {
        ($($family:ident $rules:tt)*) => { $(check_forms! { @$family $rules })* };
        (@Deep { $($name:ident $rule:ident),* }) => { $(check_form::<$rule>();)* };
        (@$other:ident $rules:tt) => {};
    }

    #[test]
    fn rules_are_of_their_forms() {
        crate::rule_list! { families check_forms [] }
    }
}
