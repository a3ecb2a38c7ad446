//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does ([`Cell`]). This module does the rest:
//!
//! - it checks gates and states, and cuts calls into sequences and heads ([`heads`](mod@heads), [`SequenceHead`](head::SequenceHead));
//! - it keeps states at checkpoints, and computes those between them again;
//! - it walks back, and puts the heads' gradients together.
//!
//! Frozen rules that have a form in matrix products say so ([`GroupedForm`]) and then go a chunk at a time.
//!
//! # Parallelism
//!
//! A sequence and head is one task. Nothing is shared between tasks, so results do not depend on the number of threads.
//!
//! # States
//!
//! A state is one slice: all slots of the rule, one after another, each row-major for one head.
//! The *point* of a token is the state at which its inner gradient is taken.
//! Without frozen groups that is the state before the token, else the state at the start of the group.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token.
//! That is `N H ⌈T/C⌉ |state|` elements.
//! Frozen rules keep one every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group.
//! [`PeakMemory`](crate::PeakMemory) bounds the peak memory of a backward.

mod anchor;
mod cell;
mod head;
mod head_backward;
mod heads;
mod peak_memory;
mod renorm;

pub(crate) use anchor::Decay;
pub(crate) use cell::{
    Cell, GroupAnchor, GroupBackward, GroupForward, GroupedForm, StateGrads, StepBackward, StepForward, Token,
    TokenGrads, TokenRows, TokenStates,
};

use crate::{
    Algorithm, Cpu, PeakMemory,
    buffer_pool::PooledBuf,
    device::{floats, tensor},
    linear::cut,
};
pub(crate) use heads::{CallOutputs, Heads, InputArrays, OutputGrads, heads};
use hecate_core::{
    Dims, GateSlots, Host, Inputs, InputsOn, Kernel, KernelCall, Of, Outputs, OutputsOn, Result, Rule, Slots, Tensor,
    families::{Channel, ChannelEngine, ChannelRule, Deep, DeepEngine, DeepRule, Own},
};
use peak_memory::Sizes;
use std::{borrow::Cow, fmt, iter};

/// A rule that this engine runs.
pub(crate) trait Recurrent<F = <Self as Rule>::Family>: Rule {
    /// The rule with all sizes known.
    type Cell: Heads;

    /// The rule at these sizes.
    /// The result is cheap to make; a call makes one and shares it between its heads.
    fn cell(self, dims: &Dims) -> Self::Cell;

    /// Refuses initial states that the rule is not defined for.
    ///
    /// # Errors
    /// [`Error::Value`](hecate_core::Error::Value) naming the slot.
    fn check_state(self, _dims: &Dims, _state: &Of<Self::State, &[f32]>) -> Result<()> {
        Ok(())
    }
}

/// Tokens between kept states.
pub(crate) use crate::linear::CHUNK;

/// What a rule that goes token by token keeps for its backward: states at checkpoints, head by head.
pub struct SavedStates(Vec<PooledBuf>);

impl fmt::Debug for SavedStates {
    /// Counts, not the elements: they may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SavedStates({} heads, {} elements)", self.0.len(), self.0.iter().map(|x| x.len()).sum::<usize>())
    }
}

/// A call: the rule at its sizes, and how its heads are cut.
pub(crate) struct RecurrentCall<'a, C> {
    /// Shared by all heads.
    cell: C,
    /// Sequences, heads `H`, and the widths `K` and `V`.
    dims: &'a Dims,
    /// Tokens of a frozen group.
    frozen: Option<usize>,
    /// Whether groups go through [`GroupedForm`].
    grouped: bool,
    /// Elements of each gate's slot, for one token and head.
    widths: Vec<usize>,
    /// Elements of each slot of all heads' states.
    states: Vec<usize>,
    /// Elements of one head's state.
    size: usize,
}

impl<'a, C: Cell> RecurrentCall<'a, C> {
    /// Checks the gates and the initial states, which may be uploads of anything.
    ///
    /// # Errors
    /// [`Error::Value`](hecate_core::Error::Value) naming the slot.
    fn new<R: Recurrent<F, Cell = C>, F>(call: KernelCall<'a, R, Cpu>) -> Result<Self> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        for ((slot, gate), kind) in R::Gates::list(&inputs.gates).into_iter().zip(R::Gates::KINDS) {
            kind.check(R::NAME, slot, &floats(gate)?)?;
        }
        let state = R::State::map(R::State::as_ref(&inputs.state), |_, x| match &**x.buffer() {
            Host::F32(values) => values.as_slice(),
            _ => &[],
        });
        rule.check_state(dims, &state)?;
        let cell = rule.cell(dims);
        let rows = dims.sequences.rows() * dims.heads;
        let widths = counts(R::Gates::list(&inputs.gates)).map(|count| count / rows).collect();
        let states: Vec<_> = counts(R::State::list(&inputs.state)).collect();
        let size = states.iter().sum::<usize>() / (dims.sequences.count() * dims.heads);
        let grouped = device.algorithm() != Algorithm::Scan && cell.groups().is_some();
        Ok(Self { cell, dims, frozen: rule.frozen().map(|group| group as usize), grouped, widths, states, size })
    }
}

/// Arrays for the states that each head keeps, of no elements unless a backward will come.
/// They are taken before any head starts: a lack of memory is an error of the whole call.
///
/// # Errors
/// Those of [`Cpu::take`].
fn kept_states<C: Cell>(
    call: &RecurrentCall<'_, C>,
    device: &Cpu,
    what: &'static str,
    keep: bool,
) -> Result<Vec<PooledBuf>> {
    let counts = call.sequence_heads().into_iter().map(|head| {
        let chunks = cut(head.rows.len(), call.frozen, CHUNK);
        if keep { chunks.iter().filter(|chunk| chunk.kept).count() * call.size } else { 0 }
    });
    counts.map(|count| device.take(what, count)).collect()
}

/// Elements of each of these slots.
fn counts<'a>(slots: Vec<(&'static str, &'a Tensor<Cpu>)>) -> impl Iterator<Item = usize> + use<'a> {
    slots.into_iter().map(|(_, x)| x.shape().count())
}

/// What each of these slots holds, as 32-bit floats.
fn arrays<'a>(slots: Vec<(&'static str, &'a Tensor<Cpu>)>) -> Result<Vec<Cow<'a, [f32]>>> {
    slots.into_iter().map(|(_, x)| floats(x)).collect()
}

impl<'a> InputArrays<'a> {
    /// Borrows f32 arrays and widens 16-bit ones.
    ///
    /// # Errors
    /// Those of [`floats`].
    fn new<R: Rule>(inputs: &'a InputsOn<R, Cpu>) -> Result<Self> {
        Ok(Self {
            q: floats(&inputs.q)?,
            k: floats(&inputs.k)?,
            v: floats(&inputs.v)?,
            gates: arrays(R::Gates::list(&inputs.gates))?,
            states: arrays(R::State::list(&inputs.state))?,
            anchors: inputs.anchor.as_ref().map_or_else(|| Ok(Vec::new()), |anchor| arrays(R::Anchor::list(anchor)))?,
        })
    }
}

/// A forward, of rules with cells of their own and of those of the deep family.
/// Room is asked for before heads start, since those could not report its lack.
fn forward<R: Recurrent<F>, F>(
    call: KernelCall<'_, R, Cpu>,
    keep: bool,
) -> Result<(OutputsOn<R, Cpu>, Option<SavedStates>)> {
    let KernelCall { device, rule, dims, inputs, .. } = call;
    let call = RecurrentCall::new(call)?;
    device.room(R::NAME, Sizes::of(rule, dims).map_or(usize::MAX, |x| x.forward(dims, device.threads(), keep)))?;
    let CallOutputs { out, states, kept } =
        R::Cell::forward_heads(&call, device, &InputArrays::new(inputs)?, kept_states(&call, device, R::NAME, keep)?);
    let mut results = iter::once(out).chain(states);
    let outputs = Outputs::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| {
        tensor(device, shape, dtype, results.next().unwrap_or_default())
    })?;
    Ok((outputs, keep.then_some(SavedStates(kept))))
}

/// Gradients of all inputs, from the states that the forward kept.
fn backward<R: Recurrent<F>, F>(
    call: KernelCall<'_, R, Cpu>,
    SavedStates(kept): SavedStates,
    grads: &OutputsOn<R, Cpu>,
) -> Result<InputsOn<R, Cpu>> {
    let KernelCall { device, rule, dims, inputs, .. } = call;
    let call = RecurrentCall::new(call)?;
    device.room(R::NAME, Sizes::of(rule, dims).map_or(usize::MAX, |x| x.backward(dims, device.threads())))?;
    let grads = OutputGrads { out: floats(&grads.out)?, states: arrays(R::State::list(&grads.state))? };
    let dinputs = R::Cell::backward_heads(&call, device, &InputArrays::new(inputs)?, kept, &grads);
    let mut dinputs = dinputs.into_iter();
    Inputs::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| {
        tensor(device, shape, dtype, dinputs.next().unwrap_or_default())
    })
}

/// Rules with cells of their own, each by itself: the core knows no more of them.
impl<R: Recurrent<Own>> Kernel<R, Own> for Cpu {
    /// States at checkpoints: little memory, for one more forward on the way back.
    type Saved = SavedStates;

    /// Core has checked shapes, types and devices; values of gates and states are checked here.
    fn forward(call: KernelCall<'_, R, Self>, keep: bool) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        forward(call, keep)
    }

    /// The kept states are given away, so that a head's go as soon as it is done.
    fn backward(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        backward(call, saved, grads)
    }
}

/// Deep rules, those of other crates too: the core makes a kernel of each out of this.
/// What one token does is written once for all of them, in `deep`.
impl DeepEngine for Cpu {
    /// The same for all of the family, whatever their memory's structure.
    type Saved = SavedStates;

    /// `keep` says whether a backward will come, which needs the states at checkpoints.
    fn deep_forward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        // Their family says which of a rule's steps is meant.
        forward::<R, Deep>(call, keep)
    }

    /// An interval's states are computed again from its kept one, then its tokens go back.
    fn deep_backward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        // As the forward, from the states that it kept.
        backward::<R, Deep>(call, saved, grads)
    }
}

/// Rules that forget by channel, those of other crates too, as the deep ones; what one token does is in `rules::channel`.
impl ChannelEngine for Cpu {
    /// The same for all of the family.
    type Saved = SavedStates;

    fn channel_forward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        forward::<R, Channel>(call, keep)
    }

    fn channel_backward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        backward::<R, Channel>(call, saved, grads)
    }
}

/// Families whose rules go token by token.
trait TokenByToken {}
impl TokenByToken for Channel {}
impl TokenByToken for Deep {}
impl TokenByToken for Own {}

impl<R: Recurrent<F>, F: TokenByToken> PeakMemory<R, F> for Cpu {
    /// An upper bound in bytes. It grows with the threads, each of which has its own workspace.
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize {
        peak_memory::peak_bytes(rule, dims, self.threads())
    }
}
