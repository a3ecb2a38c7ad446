//! Memories that change at the ends of chunks.

use super::{
    Context, GatedRule,
    rule_call::{RuleCall, State, TextCall, keep_state, run},
    write_inputs::{WriteInputs, lengths_between_multiples, with_tokens},
};
use crate::{LayerCache, Result, Tape, Var};
use hecate_core::{Backend, Dims, Kernel};

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

    /// The same, of any rule.
    pub(super) fn chunks<B: Backend + Kernel<R>>(&self) -> Chunks<'_, B> {
        Chunks { rule: &self.rule, chunk: self.chunk }
    }
}

/// [`Chunked`] of any rule.
pub(super) struct Chunks<'a, B: Backend> {
    /// The rule, with one gradient point a chunk.
    pub(super) rule: &'a dyn RuleCall<B>,
    chunk: usize,
}

impl<B: Backend> Chunks<'_, B> {
    /// What the cache needs beside the state: room for the writes of an unfinished chunk.
    pub(super) fn cache(&self, device: &B, dims: &Dims) -> Result<LayerCache<B>> {
        let shapes = self.rule.write_shapes(&with_tokens(dims, self.chunk));
        Ok(LayerCache::new(WriteInputs::room(shapes, device)?))
    }

    /// What the queries read `[B,T,H,V]`, in a memory that starts at `state [B,H,..]` and takes the writes. Every chunk is
    /// two calls: one that reads, and, once the chunk is full, one that writes.
    pub(super) fn forward(
        &self,
        tape: &Tape<'_, B>,
        TextCall { q, writes, dims, anchor }: TextCall<'_, B>,
        mut state: State<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let Self { rule, chunk } = *self;
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
                state = run(rule, tape, &full.sequences, None, &so_far, (state, anchor))?.state;
            }
        }
        keep_state(rule, &state, context);
        WriteInputs::keep(pending.as_ref(), room, device, &mut context.part(0))?;
        tape.concat(&out.iter().collect::<Vec<_>>(), 1)
    }
}
