//! Memories that start again at the start of every shard.

use super::{
    Context, Fresh, GatedRule,
    chunked::temper,
    writes::{Writes, pieces, with_tokens},
};
use crate::{Builder, LayerCache, Result, Tape, Var};
use hecate_core::{Backend, DType, Dims, Kernel, Of, Rule, Sequences, Shape, Slots, Tensor};

/// A memory that is set to a learned state at positions `0, S, 2S, …` of the text, and whose gradients are taken at
/// the starts of chunks of `C` tokens, `C` a divisor of `S`. Shards know nothing of each other: a call runs all of
/// them side by side.
///
/// In the cache lie the state at the start of the chunk, and, in part 0, the writes of the chunk so far.
#[derive(Clone, Debug)]
pub(super) struct Sharded<R> {
    rule: R,
    chunk: usize,
    shard: usize,
    fresh: Fresh,
}

/// State of a memory, if it goes on with one.
type Going<R, B> = Option<Of<<R as Rule>::State, Var<B>>>;

impl<R: GatedRule> Sharded<R> {
    /// Parameters `initial.<slot> [1,H,..]`.
    pub(super) fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        dims: &Dims,
        (chunk, shard): (usize, usize),
    ) -> Result<Self> {
        let fresh = Fresh::all(build, rule, &with_sequences(dims, Sequences::batch(1, 1)))?;
        Ok(Self { rule: rule.with_group(chunk), chunk, shard, fresh })
    }

    /// The gates of memories whose gradients are taken at the starts of chunks ([`temper`]).
    pub(super) fn temper<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        gates: Of<R::Gates, Var<B>>,
    ) -> Result<Of<R::Gates, Var<B>>> {
        temper(self.rule, tape, gates)
    }

    /// What is remembered of texts that are about to start.
    pub(super) fn cache<B: Backend>(&self, device: &B, dims: &Dims) -> Result<LayerCache<B>> {
        let shapes = R::State::into_vec(self.rule.state(dims));
        let zeros = |(&name, shape): (&&'static str, Shape)| Ok((name, Tensor::zeros(device, shape, DType::F32)?));
        let arrays = R::State::NAMES.iter().zip(shapes).map(zeros).collect::<Result<_>>()?;
        let room = LayerCache::new(Writes::room(self.rule, &with_tokens(dims, self.chunk), device)?);
        Ok(LayerCache::new(arrays).with_parts(vec![room]))
    }

    /// What `q [B,T,H,K]` reads `[B,T,H,V]`, as the rule says, in the memory that takes `writes`.
    pub(super) fn forward<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        (dims, context): (&Dims, &mut Context<'_, B>),
    ) -> Result<Var<B>> {
        let device = q.value().device();
        if context.cache.is_none() && context.position == 0 {
            return Ok(self.shards(tape, (q, writes), None, (dims, 0))?.0);
        }
        let room = with_tokens(dims, self.chunk);
        let (before, tokens) = (context.position % self.chunk, writes.tokens());
        let known = Writes::pending(self.rule, &room, before, tape, (q, &context.part(0)))?;
        let (q, writes) = match known {
            Some(known) => (tape.concat(&[known.keys(), q], 1)?, known.join(tape, writes)?),
            None => (q.clone(), writes.clone()),
        };
        // Whole chunks move the state on; what is behind them is read from there again when it has grown.
        let start = context.position - before;
        let whole = writes.tokens() / self.chunk * self.chunk;
        let lengths: Vec<usize> = [whole, writes.tokens() - whole].into_iter().filter(|&length| length > 0).collect();
        let names = self.rule.state(dims);
        let mut state = R::State::try_map(names, |name, shape| context.state(device, name, shape))?;
        let (mut out, mut at, mut pending) = (Vec::new(), start, None);
        for (q, writes) in tape.split(&q, 1, &lengths)?.iter().zip(writes.split(tape, &lengths)?) {
            let (read, last) = self.shards(tape, (q, &writes), Some(state), (dims, at))?;
            state = last;
            at += writes.tokens();
            out.push(read);
            if !at.is_multiple_of(self.chunk) {
                pending = Some(writes);
                break;
            }
            R::State::list(&state).into_iter().for_each(|(name, last)| context.keep(name, last.value()));
        }
        Writes::keep(pending.as_ref(), self.rule, &room, device, &mut context.part(0))?;
        tape.narrow(&tape.concat(&out.iter().collect::<Vec<_>>(), 1)?, 1, before, tokens)
    }

    /// All shards of tokens that start at the start of a chunk, side by side: what was read, and the last states.
    fn shards<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        going: Going<R, B>,
        (dims, position): (&Dims, usize),
    ) -> Result<(Var<B>, Of<R::State, Var<B>>)> {
        let lengths = pieces(position, writes.tokens(), self.shard);
        let (batch, shards) = (dims.batch, lengths.len());
        let going = going.filter(|_| !position.is_multiple_of(self.shard));
        let state = self.states(tape, going, (dims, shards), q.value().device())?;
        let row = |x: &Var<B>| {
            let axes = [&[1, batch * writes.tokens()], &x.axes()[2..]].concat();
            tape.reshape(x, axes)
        };
        let sequences = Sequences::packed(&lengths.repeat(batch));
        let inputs = writes.map(row)?.inputs(Some(&row(q)?), state)?;
        let outputs = tape.memory(self.rule, &sequences, inputs)?;
        let last = R::State::try_map(outputs.state, |_, x| {
            let axes = x.axes()[1..].to_vec();
            let texts = tape.reshape(&x, [&[batch, shards], &axes[..]].concat())?;
            tape.reshape(&tape.narrow(&texts, 1, shards - 1, 1)?, [&[batch], &axes[..]].concat())
        })?;
        Ok((tape.reshape(&outputs.out, with_tokens(dims, writes.tokens()).values())?, last))
    }

    /// The states in front of the shards, `[B × shards, H, ..]`: the first shard of each text may go on with one.
    fn states<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        going: Going<R, B>,
        (dims, shards): (&Dims, usize),
        device: &B,
    ) -> Result<Of<R::State, Var<B>>> {
        let batch = dims.batch;
        let started = shards - usize::from(going.is_some());
        let mut going = going.map(|state| R::State::into_vec(state).into_iter());
        let one = self.rule.state(&with_sequences(dims, Sequences::batch(1, 1)));
        R::State::try_map(self.fresh.vars::<B, R::State>(tape, device, one)?, |_, one| {
            let axes = one.axes()[1..].to_vec();
            let rows = |x: &Var<B>, count| tape.reshape(x, [&[batch, count], &axes[..]].concat());
            let mut parts = Vec::new();
            if let Some(state) = going.as_mut().and_then(Iterator::next) {
                parts.push(rows(&state, 1)?);
            }
            if started > 0 {
                parts.push(rows(&tape.concat(&vec![&one; batch * started], 0)?, started)?);
            }
            let all = tape.concat(&parts.iter().collect::<Vec<_>>(), 1)?;
            tape.reshape(&all, [&[batch * shards], &axes[..]].concat())
        })
    }
}

fn with_sequences(dims: &Dims, sequences: Sequences) -> Dims {
    Dims { batch: sequences.count(), sequences, ..dims.clone() }
}
