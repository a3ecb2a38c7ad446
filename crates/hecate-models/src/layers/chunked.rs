//! Memories that change at the ends of chunks.

use super::{
    Context, GatedRule,
    rule_call::{RuleCall, State, TextCall, keep_state},
    write_inputs::{WriteInputs, lengths_between_multiples, with_tokens, write_shapes},
};
use crate::{LayerCache, Result, Tape, Var};
use hecate_core::{Backend, Dims, GateKind, GateSlots, Kernel, Of, Slots};

/// A memory that is constant for `C` tokens at a time. All tokens of a chunk read it as it was at the chunk's start. At
/// the chunk's end it has taken what they write. The gradients of the writes are taken at the chunk's start too. Chunks
/// are counted from the start of the text.
///
/// In the context's cache lie the state at the start of the chunk, and, in part 0, the writes of the chunk so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunked<R> {
    /// The rule, with one gradient point a chunk.
    rule: R,
    /// Tokens a chunk, `C`.
    chunk: usize,
}

impl<R: GatedRule> Chunked<R> {
    pub(super) fn new(rule: R, chunk: usize) -> Self {
        Self { rule: rule.with_group(chunk), chunk }
    }

    /// What the cache needs beside the state: room for the writes of an unfinished chunk.
    pub(super) fn cache<B: Backend>(&self, device: &B, dims: &Dims) -> Result<LayerCache<B>> {
        let shapes = write_shapes(self.rule, &with_tokens(dims, self.chunk));
        Ok(LayerCache::new(WriteInputs::room(shapes, device)?))
    }

    /// The gates of memories whose gradients are taken at the starts of chunks ([`scale_step`]).
    pub(super) fn scale_step<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        gates: Of<R::Gates, Var<B>>,
    ) -> Result<Of<R::Gates, Var<B>>> {
        scale_step(self.rule, tape, gates)
    }

    /// What the queries read `[B,T,H,V]`, in a memory that starts at `state [B,H,..]` and takes the writes.
    pub(super) fn forward<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        call: TextCall<'_, B>,
        state: Of<R::State, Var<B>>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        forward(&self.rule, self.chunk, tape, call, R::State::into_vec(state), context)
    }
}

/// [`Chunked::forward`] of any rule. Every chunk is two calls: one that reads, and, once the chunk is full, one that writes.
fn forward<B: Backend>(
    rule: &dyn RuleCall<B>,
    chunk: usize,
    tape: &Tape<'_, B>,
    TextCall { q, writes, dims }: TextCall<'_, B>,
    mut state: State<B>,
    context: &mut Context<'_, B>,
) -> Result<Var<B>> {
    let full = with_tokens(dims, chunk);
    let (device, room) = (q.value().device(), rule.write_shapes(&full));
    let read_only = context.cache.is_none();
    let lengths = lengths_between_multiples(context.position, writes.tokens(), chunk);
    let mut pending = WriteInputs::pending(&room, context.position % chunk, tape, q, &context.part(0))?;
    let mut out = Vec::new();
    let mut left = writes.tokens();
    for (q, part) in tape.split(q, 1, &lengths)?.into_iter().zip(writes.split(tape, &lengths)?) {
        let dims = with_tokens(dims, q.axes()[1]);
        out.push(rule.read(tape, &dims, q, state.clone())?);
        left -= part.tokens();
        let so_far = pending.take().map_or_else(|| Ok(part.clone()), |pending| pending.join(tape, &part))?;
        if so_far.tokens() < chunk {
            pending = Some(so_far);
        } else if left > 0 || !read_only {
            // Nobody reads what the last chunk of a call without a cache leaves.
            state = rule.run(tape, &full.sequences, None, &so_far, state)?.state;
        }
    }
    keep_state(rule, &state, context);
    WriteInputs::keep(pending.as_ref(), room, device, &mut context.part(0))?;
    tape.concat(&out.iter().collect::<Vec<_>>(), 1)
}

/// The same gates with the step size `θ` divided by the tokens that share a gradient point. Their writes act as one step
/// of the sum of their sizes; where unit keys repeat, that is stable up to a sum of two.
pub(super) fn scale_step<R: GatedRule, B: Backend>(
    rule: R,
    tape: &Tape<'_, B>,
    gates: Of<R::Gates, Var<B>>,
) -> Result<Of<R::Gates, Var<B>>> {
    let group = rule.group();
    R::Gates::try_map_kinds(gates, |kind, gate| match kind {
        GateKind::Step if group > 1 => tape.scale((group as f32).recip(), &gate),
        _ => Ok(gate),
    })
}
