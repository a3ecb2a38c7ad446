//! Memories that start again at the start of every shard.

use super::{
    Context, GatedRule, InitialState,
    rule_call::{Anchor, CallOutputs, RuleCall, State, TextCall, keep_state, run},
    write_inputs::{WriteInputs, lengths_between_multiples, with_tokens},
};
use crate::{Builder, LayerCache, Result, Tape, Var};
use hecate_core::{Backend, DType, Dims, Kernel, Sequences, Shape, Tensor};

/// A memory that is set to a learned state at positions `0, S, 2S, …` of the text. Its gradients are taken at the
/// starts of chunks of `C` tokens, `C` a divisor of `S`. Shards know nothing of each other: a call runs all of them
/// side by side.
///
/// In the cache lie the state at the start of the chunk, and, in part 0, the writes of the chunk so far.
#[derive(Clone, Debug)]
pub(super) struct Sharded<R> {
    /// The rule, with one gradient point a chunk.
    rule: R,
    /// Tokens a chunk, `C`.
    chunk: usize,
    /// Tokens a shard, `S`.
    shard: usize,
    initial: InitialState,
    /// Whether what is forgotten goes back to `initial`.
    anchored: bool,
}

impl<R: GatedRule> Sharded<R> {
    /// Parameters `initial.<slot> [1,H,..]`; `chunk` divides `shard`.
    pub(super) fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        dims: &Dims,
        chunk: usize,
        shard: usize,
        anchored: bool,
    ) -> Result<Self> {
        let initial = InitialState::all(build, rule, &with_sequences(dims, Sequences::batch(1, 1)))?;
        Ok(Self { rule: rule.with_group(chunk), chunk, shard, initial, anchored })
    }

    /// The same, of any rule.
    pub(super) fn shards<B: Backend + Kernel<R>>(&self) -> Shards<'_, B> {
        let Self { rule, chunk, shard, initial, anchored } = self;
        Shards { rule, chunk: *chunk, shard: *shard, initial, anchored: *anchored }
    }
}

/// [`Sharded`] of any rule.
pub(super) struct Shards<'a, B: Backend> {
    /// The rule, with one gradient point a chunk.
    pub(super) rule: &'a dyn RuleCall<B>,
    chunk: usize,
    shard: usize,
    initial: &'a InitialState,
    anchored: bool,
}

impl<B: Backend> Shards<'_, B> {
    /// What is remembered of texts that are about to start: states of zeros, since every shard sets its own.
    pub(super) fn cache(&self, device: &B, dims: &Dims) -> Result<LayerCache<B>> {
        let zeros = |(&name, shape): (&&'static str, Shape)| Ok((name, Tensor::zeros(device, shape, DType::F32)?));
        let slots = self.rule.state_names().iter().zip(self.rule.state_shapes(dims));
        let arrays = slots.map(zeros).collect::<Result<_>>()?;
        let room = WriteInputs::room(self.rule.write_shapes(&with_tokens(dims, self.chunk)), device)?;
        Ok(LayerCache::new(arrays).with_parts(vec![LayerCache::new(room)]))
    }

    /// What the memories go back to as they forget; empty where that is zero.
    pub(super) fn anchor(&self, tape: &Tape<'_, B>) -> Result<Anchor<B>> {
        let slots = if self.anchored { self.rule.anchors() } else { 0 };
        self.initial.anchor(tape, slots)
    }

    /// What the queries read `[B,T,H,V]`, as the rule says, in the memory that takes the writes.
    pub(super) fn forward(
        &self,
        tape: &Tape<'_, B>,
        call: TextCall<'_, B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        // A whole text at once: nothing is pending and nothing is kept.
        if context.cache.is_none() && context.position == 0 {
            return Ok(self.side_by_side(tape, call, None, 0)?.out);
        }
        let TextCall { q, writes, dims, anchor } = call;
        let (device, room) = (q.value().device(), self.rule.write_shapes(&with_tokens(dims, self.chunk)));
        let (before, tokens) = (context.position % self.chunk, writes.tokens());
        let known = WriteInputs::pending(&room, before, tape, q, &context.part(0))?;
        let (q, writes) = match known {
            Some(known) => (tape.concat(&[known.keys(), q], 1)?, known.join(tape, writes)?),
            None => (q.clone(), writes.clone()),
        };
        // Whole chunks move the state on. Tokens after them are read again from that state once the chunk has grown.
        let whole = writes.tokens() / self.chunk * self.chunk;
        let lengths: Vec<usize> = [whole, writes.tokens() - whole].into_iter().filter(|&length| length > 0).collect();
        let mut state = self.remembered(device, dims, context)?;
        let (mut out, mut pending) = (Vec::new(), None);
        // Chunks divide the shard: only the place in it counts.
        let mut at = (context.position - before) % self.shard;
        for (q, writes) in tape.split(&q, 1, &lengths)?.iter().zip(writes.split(tape, &lengths)?) {
            let outputs = self.side_by_side(tape, TextCall { q, writes: &writes, dims, anchor }, Some(state), at)?;
            state = outputs.state;
            at += writes.tokens();
            out.push(outputs.out);
            if !at.is_multiple_of(self.chunk) {
                pending = Some(writes);
                break;
            }
            keep_state(self.rule, &state, context);
        }
        WriteInputs::keep(pending.as_ref(), room, device, &mut context.part(0))?;
        tape.narrow(&tape.concat(&out.iter().collect::<Vec<_>>(), 1)?, 1, before, tokens)
    }

    /// The state at the start of the chunk, as the context remembers it.
    fn remembered(&self, device: &B, dims: &Dims, context: &Context<'_, B>) -> Result<State<B>> {
        let slots = self.rule.state_names().iter().zip(self.rule.state_shapes(dims));
        slots.map(|(name, shape)| context.state(device, name, shape)).collect()
    }

    /// Runs the shards of tokens that start at the start of a chunk, at `position`, as packed sequences of one row
    /// `[1, B·T, ..]`. Returns what was read `[B,T,H,V]`, and the last shard's states `[B,H,..]`. The first shard goes
    /// on with `carried`, unless one starts there.
    fn side_by_side(
        &self,
        tape: &Tape<'_, B>,
        TextCall { q, writes, dims, anchor }: TextCall<'_, B>,
        carried: Option<State<B>>,
        position: usize,
    ) -> Result<CallOutputs<B>> {
        let lengths = lengths_between_multiples(position, writes.tokens(), self.shard);
        let (batch, shards) = (dims.batch, lengths.len());
        let carried = carried.filter(|_| !position.is_multiple_of(self.shard));
        let state = self.states(tape, carried, dims, shards, q.value().device())?;
        let row = |x: &Var<B>| {
            let axes = [&[1, batch * writes.tokens()], &x.axes()[2..]].concat();
            tape.reshape(x, axes)
        };
        let sequences = Sequences::packed(&lengths.repeat(batch));
        let outputs = run(self.rule, tape, &sequences, Some(&row(q)?), &writes.map(row)?, (state, anchor))?;
        let last = outputs.state.into_iter().map(|x| {
            let axes = x.axes()[1..].to_vec();
            let texts = tape.reshape(&x, [&[batch, shards], &axes[..]].concat())?;
            tape.reshape(&tape.narrow(&texts, 1, shards - 1, 1)?, [&[batch], &axes[..]].concat())
        });
        let state = last.collect::<Result<_>>()?;
        Ok(CallOutputs { out: tape.reshape(&outputs.out, with_tokens(dims, writes.tokens()).values())?, state })
    }

    /// The states before the shards, `[B · shards, H, ..]`: carried for the first shard of a text, else learned.
    fn states(
        &self,
        tape: &Tape<'_, B>,
        carried: Option<State<B>>,
        dims: &Dims,
        shards: usize,
        device: &B,
    ) -> Result<State<B>> {
        let batch = dims.batch;
        let started = shards - usize::from(carried.is_some());
        let mut carried = carried.map(Vec::into_iter);
        let one = self.rule.state_shapes(&with_sequences(dims, Sequences::batch(1, 1)));
        let learned = self.initial.arrays(tape, device, one)?.into_iter();
        let all = learned.map(|one| {
            let axes = one.axes()[1..].to_vec();
            let rows = |x: &Var<B>, count| tape.reshape(x, [&[batch, count], &axes[..]].concat());
            let mut parts = Vec::new();
            if let Some(state) = carried.as_mut().and_then(Iterator::next) {
                parts.push(rows(&state, 1)?);
            }
            if started > 0 {
                parts.push(rows(&tape.repeat(&one, batch * started)?, started)?);
            }
            let all = tape.concat(&parts.iter().collect::<Vec<_>>(), 1)?;
            tape.reshape(&all, [&[batch * shards], &axes[..]].concat())
        });
        all.collect()
    }
}

/// The same memory in a call of these sequences.
fn with_sequences(dims: &Dims, sequences: Sequences) -> Dims {
    Dims { batch: sequences.count(), sequences, ..dims.clone() }
}
