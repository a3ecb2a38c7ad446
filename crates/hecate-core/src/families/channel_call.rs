//! A channel rule's call as its engine sees it.
//!
//! A rule of somebody's own crate has slots of its own, which may count otherwise each time that they are asked. So arrays are
//! taken out of them once and compared with the rule's form, which is a constant. An engine gets a rule whose gates are a list.

use super::settled::{List, Names};
use crate::{
    Device, Dims, Error, GateKind, GateSlots, Inputs, InputsOn, KernelCall, NoSlots, Of, Outputs, OutputsOn, Result,
    Rule, Shape, Slots,
    family::{Channel, ChannelForm, ChannelRule},
    rule::check_slots,
};
use std::{convert::Infallible, marker::PhantomData};

/// The rule `R` with its gates and its state as lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Listed<R>(PhantomData<R>);

/// The gates of a rule.
pub(crate) struct GatesOf<R>(PhantomData<R>);

impl<R: ChannelRule> Names for GatesOf<R> {
    const NAMES: &'static [&'static str] = R::Gates::NAMES;
}

impl<R: ChannelRule> GateSlots for List<GatesOf<R>> {
    const KINDS: &'static [GateKind] = R::Gates::KINDS;
}

/// The state of a rule.
pub(crate) struct StateOf<R>(PhantomData<R>);

impl<R: ChannelRule> Names for StateOf<R> {
    const NAMES: &'static [&'static str] = R::State::NAMES;
}

impl<R: ChannelRule> Rule for Listed<R> {
    const NAME: &'static str = R::NAME;
    type Family = Channel;
    type Gates = List<GatesOf<R>>;
    type State = List<StateOf<R>>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> Vec<Shape> {
        R::FORM.shapes(dims).collect()
    }
}

impl<R: ChannelRule> ChannelRule for Listed<R> {
    const FORM: ChannelForm = R::FORM;
    type Logits = R::Logits;
}

impl<R: ChannelRule> Listed<R> {
    /// The rule, if it has the gates of its form and one matrix.
    pub(super) fn new() -> Result<Self> {
        let found = [R::Gates::NAMES.len(), R::Gates::KINDS.len(), R::State::NAMES.len()];
        let gates = R::FORM.gates().count();
        if found == [gates, gates, 1] { Ok(Self(PhantomData)) } else { Err(disagrees::<R>(format!("{found:?} slots"))) }
    }

    /// The arguments of a call by their places, checked.
    pub(super) fn inputs<D: Device>(self, call: KernelCall<'_, R, D>) -> Result<InputsOn<Self, D>> {
        let (device, dims, dtype) = (call.device, call.dims, call.inputs.q.dtype());
        if dims.anchored {
            let (found, expected) = ("an anchor".into(), "none: what this memory forgets goes to zero");
            return Err(Error::Config { what: R::NAME, option: "anchor", found, expected });
        }
        let Inputs { q, k, v, gates, state, .. } = call.inputs.clone();
        let (gates, state) = (<R::Gates as Slots>::into_vec(gates), <R::State as Slots>::into_vec(state));
        let inputs: InputsOn<Self, D> = Inputs { q, k, v, gates, state, anchor: None };
        let Ok(expected) = Inputs::<Self, _>::try_build(self, dims, dtype, |shape, _| Ok::<_, Infallible>(shape));
        if (inputs.gates.len(), inputs.state.len()) != (expected.gates.len(), 1) {
            return Err(disagrees::<R>(format!("{} gates and {} states", inputs.gates.len(), inputs.state.len())));
        }
        check_slots(R::NAME, device, &inputs.list(), &expected.list(), 3, dtype)?;
        Ok(inputs)
    }

    /// Gradients of a call's results by their places, checked.
    pub(super) fn grads<D: Device>(
        self,
        call: KernelCall<'_, R, D>,
        grads: &OutputsOn<R, D>,
    ) -> Result<OutputsOn<Self, D>> {
        let Outputs { out, state } = grads.clone();
        let grads: OutputsOn<Self, D> = Outputs { out, state: <R::State as Slots>::into_vec(state) };
        if grads.state.len() != 1 {
            return Err(disagrees::<R>(format!("{} gradients of states", grads.state.len())));
        }
        grads.check(self, call.device, call.dims, call.inputs.q.dtype())?;
        Ok(grads)
    }

    /// An engine's results under the rule's names.
    pub(super) fn outputs<D: Device>(made: OutputsOn<Self, D>) -> Result<OutputsOn<R, D>> {
        Ok(Outputs { out: made.out, state: named::<R, R::State, _>(made.state)? })
    }

    /// An engine's gradients under the rule's names.
    pub(super) fn gradients<D: Device>(grads: InputsOn<Self, D>) -> Result<InputsOn<R, D>> {
        let Inputs { q, k, v, gates, state, .. } = grads;
        let (gates, state) = (named::<R, R::Gates, _>(gates)?, named::<R, R::State, _>(state)?);
        Ok(Inputs { q, k, v, gates, state, anchor: None })
    }
}

/// Arrays in their slots.
fn named<R: ChannelRule, S: Slots, T>(arrays: Vec<T>) -> Result<Of<S, T>> {
    let mut arrays = arrays.into_iter();
    S::try_build(|_| arrays.next().ok_or_else(|| disagrees::<R>("more slots than names".into())))
}

/// A rule whose parts say different things.
fn disagrees<R: Rule>(found: String) -> Error {
    let expected = "one for each gate of the rule's form, and one matrix";
    Error::Config { what: R::NAME, option: "slots", found, expected }
}
