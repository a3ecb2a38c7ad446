//! Deep rules whose answers were read once.
//!
//! Engines ask a rule for its options and its slots again and again, and trust what they hear. A rule of somebody's own crate may
//! answer otherwise each time. So it is asked here, once; what it says is compared with the arrays, and an engine gets a rule
//! that repeats it.

use crate::{
    Device, Dims, Error, GateKind, GateSlots, Inputs, InputsOn, KernelCall, Of, Outputs, OutputsOn, Result, Slots,
    family::{
        AttentionalBias, DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepRule, DeepSpec, LowerDeepGates, LowerWeights,
        Retention, Structure,
    },
    rule::check_slots,
};
use std::{convert::Infallible, marker::PhantomData};

/// What `R` said of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settled<R: DeepRule> {
    spec: DeepSpec,
    rule: PhantomData<R>,
}

/// Slots by their place, with names that are known before any of them is made.
pub(crate) struct List<N>(PhantomData<fn() -> N>);

/// Names of slots.
pub(crate) trait Names: 'static {
    /// In order.
    const NAMES: &'static [&'static str];
}

/// The gates of a rule.
pub(crate) struct GatesOf<R>(PhantomData<R>);

impl<R: DeepRule> Names for GatesOf<R> {
    const NAMES: &'static [&'static str] = <R as DeepRule>::Gates::NAMES;
}

/// The weights of a rule, and their momentum.
pub(crate) struct WeightsOf<R>(PhantomData<R>);

impl<R: DeepRule> Names for WeightsOf<R> {
    const NAMES: &'static [&'static str] = <R as DeepRule>::State::NAMES;
}

/// The anchor of a rule.
pub(crate) struct AnchorOf<R>(PhantomData<R>);

impl<R: DeepRule> Names for AnchorOf<R> {
    const NAMES: &'static [&'static str] = <R as DeepRule>::Anchor::NAMES;
}

impl<N: Names> Slots for List<N> {
    type Of<T> = Vec<T>;
    const NAMES: &'static [&'static str] = N::NAMES;

    fn try_build<T, E>(make: impl FnMut(&'static str) -> Result<T, E>) -> Result<Vec<T>, E> {
        N::NAMES.iter().copied().map(make).collect()
    }

    fn into_vec<T>(slots: Vec<T>) -> Vec<T> {
        slots
    }

    fn as_ref<T>(slots: &Vec<T>) -> Vec<&T> {
        slots.iter().collect()
    }

    fn list<T>(slots: &Vec<T>) -> Vec<(&'static str, &T)> {
        N::NAMES.iter().copied().zip(slots).collect()
    }

    fn try_map<T, U, E>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Vec<U>, E> {
        N::NAMES.iter().zip(slots).map(|(name, x)| f(name, x)).collect()
    }

    fn map<T, U>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> U) -> Vec<U> {
        N::NAMES.iter().zip(slots).map(|(name, x)| f(name, x)).collect()
    }

    fn zip<T, U>(a: Vec<T>, b: Vec<U>) -> Vec<(T, U)> {
        a.into_iter().zip(b).collect()
    }
}

impl<R: DeepRule> GateSlots for List<GatesOf<R>> {
    const KINDS: &'static [GateKind] = <R as DeepRule>::Gates::KINDS;
}

impl<R: DeepRule> LowerDeepGates for List<GatesOf<R>> {
    type Logits = <<R as DeepRule>::Gates as LowerDeepGates>::Logits;

    fn try_lower_backward<T, E>(gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<Vec<T>, E> {
        R::FORM.gates().map(gate).collect()
    }

    fn logits<T>(logits: Of<Self::Logits, T>) -> DeepLogits<T> {
        <R as DeepRule>::Gates::logits(logits)
    }
}

impl<R: DeepRule> LowerWeights for List<WeightsOf<R>> {
    fn lower_backward<T>(matrix: impl FnMut(DeepMatrix) -> T) -> Vec<T> {
        let (momentum, slots) = (R::FORM.momentum(), Self::NAMES.len());
        let layers = slots / (1 + usize::from(momentum));
        let weights = [DeepMatrix::W0, DeepMatrix::W1].into_iter().take(layers);
        weights.chain([DeepMatrix::S0, DeepMatrix::S1].into_iter().take(slots - layers)).map(matrix).collect()
    }
}

impl<R: DeepRule> DeepRule for Settled<R> {
    const NAME: &'static str = <R as DeepRule>::NAME;
    const FORM: DeepForm = R::FORM;
    type Gates = List<GatesOf<R>>;
    type State = List<WeightsOf<R>>;
    type Anchor = List<AnchorOf<R>>;

    fn spec(self) -> DeepSpec {
        self.spec
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.spec.frozen
    }
}

impl DeepForm {
    /// Refuses a spec that kernels of this form do not run, of a rule of this name.
    fn check(self, what: &'static str, spec: &DeepSpec) -> Result<()> {
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
        if (bias, retention) == (self.bias(), self.retention()) && (self.momentum() || !spec.looks_ahead()) {
            return Ok(());
        }
        Err(disagrees(
            what,
            "spec",
            format!("{spec:?}"),
            "the error, the retention and the momentum of the rule's form",
        ))
    }
}

impl<R: DeepRule> Settled<R> {
    /// What the rule says now, if an engine can run it.
    pub(crate) fn new(rule: R, dims: &Dims) -> Result<Self> {
        let (what, spec) = (<R as DeepRule>::NAME, rule.spec());
        spec.check(what, dims)?;
        R::FORM.check(what, &spec)?;
        let layers = if let Structure::Mlp(_) = spec.structure { 2 } else { 1 };
        let (matrices, gates) = (layers * (1 + usize::from(R::FORM.momentum())), R::FORM.gates().count());
        let anchors = AnchorOf::<R>::NAMES.len();
        // Gates, what each is, matrices, and those that memories go back to.
        let expected = [gates, gates, matrices, if dims.anchored { layers } else { anchors }];
        let kinds = <R as DeepRule>::Gates::KINDS.len();
        let found = [GatesOf::<R>::NAMES.len(), kinds, WeightsOf::<R>::NAMES.len(), anchors];
        if expected != found {
            let found = format!("{found:?} gates, kinds of gates, matrices and anchors, not {expected:?}");
            return Err(disagrees(what, "slots", found, "those of the rule's form and structure"));
        }
        Ok(Self { spec, rule: PhantomData })
    }

    /// What the rule said before.
    pub(crate) fn again(spec: DeepSpec) -> Self {
        Self { spec, rule: PhantomData }
    }

    /// The arguments of a call by their places, checked.
    pub(crate) fn inputs<D: Device>(self, call: KernelCall<'_, R, D>) -> Result<InputsOn<Self, D>> {
        let (device, dims, dtype) = (call.device, call.dims, call.inputs.q.dtype());
        let Inputs { q, k, v, gates, state, anchor } = call.inputs.clone();
        let (gates, state) = (<R as DeepRule>::Gates::into_vec(gates), <R as DeepRule>::State::into_vec(state));
        let anchor = anchor.map(<R as DeepRule>::Anchor::into_vec);
        let inputs: InputsOn<Self, D> = Inputs { q, k, v, gates, state, anchor };
        let Ok(expected) = Inputs::<Self, _>::try_build(self, dims, dtype, |shape, _| Ok::<_, Infallible>(shape));
        let found = (inputs.gates.len(), inputs.state.len(), inputs.anchor.as_ref().map(Vec::len));
        let wanted = (expected.gates.len(), expected.state.len(), expected.anchor.as_ref().map(Vec::len));
        if found != wanted {
            return Err(disagrees(
                <R as DeepRule>::NAME,
                "slots",
                format!("{found:?} arrays"),
                "one for each of their names",
            ));
        }
        check_slots(<R as DeepRule>::NAME, device, &inputs.list(), &expected.list(), 3, dtype)?;
        Ok(inputs)
    }

    /// Gradients of a call's results by their places, checked.
    pub(crate) fn grads<D: Device>(
        self,
        call: KernelCall<'_, R, D>,
        grads: &OutputsOn<R, D>,
    ) -> Result<OutputsOn<Self, D>> {
        let Outputs { out, state } = grads.clone();
        let grads: OutputsOn<Self, D> = Outputs { out, state: <R as DeepRule>::State::into_vec(state) };
        if grads.state.len() != WeightsOf::<R>::NAMES.len() {
            let found = format!("{} arrays", grads.state.len());
            return Err(disagrees(<R as DeepRule>::NAME, "slots", found, "one for each of their names"));
        }
        grads.check(self, call.device, call.dims, call.inputs.q.dtype())?;
        Ok(grads)
    }

    /// Results as the rule's.
    pub(crate) fn outputs<D: Device>(outputs: OutputsOn<Self, D>) -> Result<OutputsOn<R, D>> {
        Ok(Outputs { out: outputs.out, state: named::<R, <R as DeepRule>::State, _>(outputs.state)? })
    }

    /// Gradients as the rule's.
    pub(crate) fn gradients<D: Device>(inputs: InputsOn<Self, D>) -> Result<InputsOn<R, D>> {
        let Inputs { q, k, v, gates, state, anchor } = inputs;
        Ok(Inputs {
            q,
            k,
            v,
            gates: named::<R, <R as DeepRule>::Gates, _>(gates)?,
            state: named::<R, <R as DeepRule>::State, _>(state)?,
            anchor: anchor.map(named::<R, <R as DeepRule>::Anchor, _>).transpose()?,
        })
    }
}

/// Arrays in their slots.
fn named<R: DeepRule, S: Slots, T>(arrays: Vec<T>) -> Result<Of<S, T>> {
    let mut arrays = arrays.into_iter();
    S::try_build(|_| {
        let missing = || disagrees(<R as DeepRule>::NAME, "slots", "more slots than names".into(), "one for each name");
        arrays.next().ok_or_else(missing)
    })
}

/// A rule whose parts say different things.
fn disagrees(what: &'static str, option: &'static str, found: String, expected: &'static str) -> Error {
    Error::Config { what, option, found, expected }
}
