//! A rule behind a pointer, as mixers call it that cut a text into several calls.
//!
//! Such mixers do the same for every rule. Through a pointer they are compiled once a backend, and not once for each of
//! fifteen rules too. A call by pointer is nothing beside the kernels that it starts.

use super::{
    Context, GatedRule,
    write_inputs::{WriteInputs, write_shapes},
};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, Dims, Kernel, Sequences, Shape, Slots};

/// Arrays of a state `[N,H,..]`, one a slot of the rule, in their order.
pub(super) type State<B> = Vec<Var<B>>;

/// What a text is told and asked in a call that covers all its tokens.
#[derive(Clone, Copy)]
pub(super) struct TextCall<'a, B: Backend> {
    /// Queries `[B,T,H,K]`.
    pub(super) q: &'a Var<B>,
    /// What the same tokens write.
    pub(super) writes: &'a WriteInputs<B>,
    /// Sizes of the whole call.
    pub(super) dims: &'a Dims,
}

/// What a rule leaves.
pub(super) struct CallOutputs<B: Backend> {
    /// What was read, `[B,T,H,V]`.
    pub(super) out: Var<B>,
    /// After the last token of each sequence.
    pub(super) state: State<B>,
}

/// A rule with its options, whatever rule it is, on one backend.
pub(super) trait RuleCall<B: Backend> {
    /// Names of the state's slots.
    fn state_names(&self) -> &'static [&'static str];

    /// Shapes of the state.
    fn state_shapes(&self, dims: &Dims) -> Vec<Shape>;

    /// Names and shapes of what `dims.tokens` tokens write ([`write_shapes`]).
    fn write_shapes(&self, dims: &Dims) -> Vec<(&'static str, Shape)>;

    /// Gates of tokens that write nothing and forget nothing, in the order of the rule's slots.
    fn idle(&self, device: &B, dims: &Dims) -> Result<Vec<Var<B>>>;

    /// Writes, and reads `q`; without queries the result is of no use.
    fn run(
        &self,
        tape: &Tape<'_, B>,
        sequences: &Sequences,
        q: Option<&Var<B>>,
        writes: &WriteInputs<B>,
        state: State<B>,
    ) -> Result<CallOutputs<B>>;

    /// What `q [B,T,H,K]` reads `[B,T,H,V]` in a memory that stays as it is.
    fn read(&self, tape: &Tape<'_, B>, dims: &Dims, q: Var<B>, state: State<B>) -> Result<Var<B>>;
}

impl<B: Backend + Kernel<R>, R: GatedRule> RuleCall<B> for R {
    fn state_names(&self) -> &'static [&'static str] {
        R::State::NAMES
    }

    fn state_shapes(&self, dims: &Dims) -> Vec<Shape> {
        R::State::into_vec(self.state(dims))
    }

    fn write_shapes(&self, dims: &Dims) -> Vec<(&'static str, Shape)> {
        write_shapes(*self, dims)
    }

    fn idle(&self, device: &B, dims: &Dims) -> Result<Vec<Var<B>>> {
        Ok(R::Gates::into_vec(GatedRule::idle(*self, device, dims)?))
    }

    fn run(
        &self,
        tape: &Tape<'_, B>,
        sequences: &Sequences,
        q: Option<&Var<B>>,
        writes: &WriteInputs<B>,
        state: State<B>,
    ) -> Result<CallOutputs<B>> {
        let outputs = tape.memory(*self, sequences, writes.inputs::<R>(q, slots::<R::State, B>(state))?)?;
        Ok(CallOutputs { out: outputs.out, state: R::State::into_vec(outputs.state) })
    }

    fn read(&self, tape: &Tape<'_, B>, dims: &Dims, q: Var<B>, state: State<B>) -> Result<Var<B>> {
        let inputs = self.reading(dims, q, slots::<R::State, B>(state))?;
        Ok(tape.memory(self.still(), &dims.sequences, inputs)?.out)
    }
}

/// Arrays under the names of their slots.
fn slots<S: Slots, B: Backend>(arrays: Vec<Var<B>>) -> S::Of<Var<B>> {
    let mut arrays = arrays.into_iter();
    // Every state comes out of `Slots::into_vec` of the same slots.
    S::build(|_| arrays.next().expect("as many arrays as slots"))
}

/// Remembers a state under the names of its slots; gradients of later calls end there.
pub(super) fn keep_state<B: Backend>(rule: &dyn RuleCall<B>, state: &State<B>, context: &mut Context<'_, B>) {
    rule.state_names().iter().zip(state).for_each(|(name, last)| context.keep(name, last.value()));
}
