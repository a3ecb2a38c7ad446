//! A rule behind a pointer, as layers call it.
//!
//! Layers do the same for every rule, and so are compiled once a backend.

use super::{
    Context, GateInputs, GatedRule, Limits,
    difference::{head_products, run_difference},
    write_inputs::{WriteInputs, write_shapes},
};
use crate::{Error, Result, Tape, Var, tape::ErasedRule};
use hecate_core::{
    Backend, ConvInput, Decode, Dims, GateKind, GateLogit, GateSlots, Kernel, Sequences, Shape, Slots, Tensor,
    TokenGates, decode,
};

/// Arrays of a state `[N,H,..]`, one a slot of the rule, in their order.
pub(super) type State<B> = Vec<Var<B>>;

/// What memories go back to as they forget, `[H,..]`, slot by slot; empty where that is zero.
pub(super) type Anchor<B> = Vec<Var<B>>;

/// What a text is told and asked in a call that covers all its tokens.
#[derive(Clone, Copy)]
pub(super) struct TextCall<'a, B: Backend> {
    /// Queries `[B,T,H,K]`.
    pub(super) q: &'a Var<B>,
    /// What the same tokens write.
    pub(super) writes: &'a WriteInputs<B>,
    /// Sizes of the whole call.
    pub(super) dims: &'a Dims,
    /// What the memory goes back to.
    pub(super) anchor: &'a Anchor<B>,
}

/// What a rule leaves.
pub(super) struct CallOutputs<B: Backend> {
    /// What was read, `[B,T,H,V]`.
    pub(super) out: Var<B>,
    /// After the last token of each sequence.
    pub(super) state: State<B>,
}

/// A rule with its options, whatever rule it is, on one backend: what layers ask of it. Gates and states are in the order
/// of the rule's slots.
pub(super) trait RuleCall<B: Backend>: ErasedRule<B> {
    /// Shapes of the state.
    fn state_shapes(&self, dims: &Dims) -> Vec<Shape>;

    /// Names and shapes of what `dims.tokens` tokens write ([`write_shapes`]).
    fn write_shapes(&self, dims: &Dims) -> Vec<(&'static str, Shape)>;

    /// Whether parts of the state move the memory by themselves ([`GatedRule::MOMENTUM`]).
    fn has_momentum(&self) -> bool;

    /// [`GatedRule::values`].
    fn values(&self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>>;

    /// [`GatedRule::gates_of`].
    fn gates_of(&self, tape: &Tape<'_, B>, log_a: Var<B>, logits: Vec<Var<B>>, limits: Limits) -> Result<Vec<Var<B>>>;

    /// The same writes, with step sizes divided by the tokens that share a gradient point. Writes of a group act as one
    /// step of the sum of their sizes. Where unit keys repeat, that is stable up to a sum of two.
    fn scale_step(&self, tape: &Tape<'_, B>, writes: &WriteInputs<B>) -> Result<WriteInputs<B>>;

    /// Gates of tokens that write nothing and forget nothing.
    fn idle(&self, device: &B, dims: &Dims) -> Result<Vec<Var<B>>>;

    /// What `q [B,T,H,K]` reads `[B,T,H,V]` in a memory that stays as it is.
    fn read(&self, tape: &Tape<'_, B>, dims: &Dims, q: Var<B>, state: State<B>) -> Result<Var<B>>;

    /// How many of the state's first slots memories can go back to.
    fn anchors(&self) -> usize;

    /// The rule of the difference `D = M − B`, and what it is told by tokens that write so ([`GatedRule::of_difference`]), from
    /// the anchor `B [H,K,V]` of a rule without an anchor of its own.
    fn difference(
        &self,
        tape: &Tape<'_, B>,
        writes: &WriteInputs<B>,
        anchor: &Var<B>,
    ) -> Result<(Box<dyn ErasedRule<B>>, WriteInputs<B>)>;

    /// Whether the device has a kernel for one token of a layer, and the rule a word for its strengths within `limits`.
    fn has_fused_decode(&self, device: &B, dims: &Dims, limits: Limits) -> bool;

    /// One token of a layer ([`hecate_core::decode`]), from what surrounds the rule, logits and state.
    fn decode(&self, surroundings: Surroundings<B>, state: Vec<Tensor<B>>) -> Result<TokenOutputs<B>>;
}

/// What surrounds the rule in a layer's token: [`Decode`] without the state, its strengths not formed yet.
pub(super) struct Surroundings<B: Backend> {
    /// `H`, `K`, `V`.
    pub(super) sizes: [usize; 3],
    pub(super) qkv: [ConvInput<Tensor<B>>; 3],
    pub(super) norm_epsilon: f32,
    pub(super) retention: Option<(GateLogit<Tensor<B>>, Tensor<B>)>,
    /// In the order of the rule's logits.
    pub(super) logits: Vec<GateLogit<Tensor<B>>>,
    pub(super) limits: Limits,
    pub(super) weight: Tensor<B>,
    pub(super) epsilon: f32,
    pub(super) gate: Option<Tensor<B>>,
}

/// What a layer's token leaves: [`Decoded`](hecate_core::Decoded), its state slot by slot.
pub(super) struct TokenOutputs<B: Backend> {
    pub(super) out: Tensor<B>,
    pub(super) state: Vec<Tensor<B>>,
    pub(super) convs: [Option<Tensor<B>>; 3],
}

impl<B: Backend + Kernel<R>, R: GatedRule> RuleCall<B> for R {
    fn state_shapes(&self, dims: &Dims) -> Vec<Shape> {
        R::State::into_vec(self.state(dims))
    }

    fn write_shapes(&self, dims: &Dims) -> Vec<(&'static str, Shape)> {
        write_shapes(*self, dims)
    }

    fn has_momentum(&self) -> bool {
        !R::MOMENTUM.is_empty()
    }

    fn values(&self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        GatedRule::values(*self, tape, v)
    }

    fn gates_of(&self, tape: &Tape<'_, B>, log_a: Var<B>, logits: Vec<Var<B>>, limits: Limits) -> Result<Vec<Var<B>>> {
        let logits = slots::<R::Logits, _>(logits);
        Ok(R::Gates::into_vec(GatedRule::gates_of(*self, GateInputs { tape, log_a, logits, limits })?))
    }

    fn scale_step(&self, tape: &Tape<'_, B>, writes: &WriteInputs<B>) -> Result<WriteInputs<B>> {
        scale_step(self.group(), R::Gates::KINDS, tape, writes)
    }

    fn idle(&self, device: &B, dims: &Dims) -> Result<Vec<Var<B>>> {
        Ok(R::Gates::into_vec(GatedRule::idle(*self, device, dims)?))
    }

    fn read(&self, tape: &Tape<'_, B>, dims: &Dims, q: Var<B>, state: State<B>) -> Result<Var<B>> {
        let inputs = self.reading(dims, q, slots::<R::State, _>(state))?;
        Ok(tape.memory(self.still(), &dims.sequences, inputs)?.out)
    }

    fn anchors(&self) -> usize {
        match R::Anchor::NAMES.len() {
            0 => usize::from(self.of_difference().is_some()),
            own => own,
        }
    }

    fn difference(
        &self,
        tape: &Tape<'_, B>,
        writes: &WriteInputs<B>,
        anchor: &Var<B>,
    ) -> Result<(Box<dyn ErasedRule<B>>, WriteInputs<B>)> {
        let rule = self.of_difference().ok_or_else(|| Error::config("retain", "initial", "a rule that can go back"))?;
        let (k, v, gates) = writes.parts();
        let less = || head_products(tape, k, &tape.scale(-1.0, anchor)?);
        let (v, gates) = self.difference_inputs(tape, v.clone(), slots::<R::Gates, _>(gates.to_vec()), less)?;
        Ok((Box::new(rule), WriteInputs::new(k.clone(), v, R::Gates::into_vec(gates))))
    }

    fn has_fused_decode(&self, device: &B, dims: &Dims, limits: Limits) -> bool {
        let word = self.strengths(R::Logits::build(|_| GateLogit { x: (), bias: () }), limits);
        word.is_some() && Kernel::<R>::has_fused_decode(device, *self, dims)
    }

    fn decode(&self, surroundings: Surroundings<B>, state: Vec<Tensor<B>>) -> Result<TokenOutputs<B>> {
        let Surroundings { sizes, qkv: [q, k, v], norm_epsilon, retention, logits, limits, .. } = surroundings;
        let strengths = self.strengths(slots::<R::Logits, _>(logits), limits);
        let no_word = || Error::config("rule", R::NAME, "one whose strengths have a name");
        let (write, strengths) = strengths.ok_or_else(no_word)?;
        let inputs = Decode::<R, _> {
            q,
            k,
            v,
            norm_epsilon,
            gates: TokenGates { retention, write, strengths },
            state: slots::<R::State, _>(state),
            weight: surroundings.weight,
            epsilon: surroundings.epsilon,
            gate: surroundings.gate,
        };
        let decoded = decode(*self, sizes, &inputs)?;
        Ok(TokenOutputs { out: decoded.out, state: R::State::into_vec(decoded.state), convs: decoded.convs })
    }
}

/// Writes, and reads `q`; without queries the result is of no use. What the memory forgets goes back to the anchor.
pub(super) fn run<B: Backend>(
    rule: &dyn RuleCall<B>,
    tape: &Tape<'_, B>,
    sequences: &Sequences,
    q: Option<&Var<B>>,
    writes: &WriteInputs<B>,
    (mut state, anchor): (State<B>, &Anchor<B>),
) -> Result<CallOutputs<B>> {
    if let (Some(anchor), true) = (anchor.first(), rule.anchor_names().is_empty()) {
        return run_difference(rule, tape, sequences, q, writes, (state, anchor));
    }
    // The anchor's arrays follow those of the state.
    state.extend(anchor.iter().cloned());
    let mut outputs = tape.erased_memory(rule, sequences, writes.inputs(q, state))?.into_iter();
    // The first is what was read.
    let out = outputs.next().expect("an output of every rule");
    Ok(CallOutputs { out, state: outputs.collect() })
}

/// [`RuleCall::scale_step`] where `group` tokens share a gradient point.
fn scale_step<B: Backend>(
    group: usize,
    kinds: &[GateKind],
    tape: &Tape<'_, B>,
    writes: &WriteInputs<B>,
) -> Result<WriteInputs<B>> {
    writes.with_gates(|slot, gate| match kinds[slot] {
        GateKind::Step if group > 1 => tape.scale((group as f32).recip(), gate),
        _ => Ok(gate.clone()),
    })
}

/// Arrays under the names of their slots.
fn slots<S: Slots, T>(arrays: Vec<T>) -> S::Of<T> {
    let mut arrays = arrays.into_iter();
    // Every list comes out of `Slots::into_vec` of the same slots.
    S::build(|_| arrays.next().expect("as many arrays as slots"))
}

/// Remembers a state under the names of its slots; gradients of later calls end there.
pub(super) fn keep_state<B: Backend>(rule: &dyn RuleCall<B>, state: &State<B>, context: &mut Context<'_, B>) {
    rule.state_names().iter().zip(state).for_each(|(name, last)| context.keep(name, last.value()));
}
