//! Memories that change at the ends of chunks.

use super::{
    Context, GatedRule,
    writes::{Writes, pieces, with_tokens},
};
use crate::{LayerCache, Result, Tape, Var};
use hecate_core::{Backend, Dims, Kernel, Of, Slots};

/// A memory that is constant for `C` tokens at a time: all tokens of a chunk read it as it was at the chunk's start,
/// and at the chunk's end it has taken what they write. The gradients of the writes are taken at the chunk's start too.
/// Chunks are counted from the start of the text.
///
/// In the context's cache lie the state at the start of the chunk, and, in part 0, the writes of the chunk so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunked<R> {
    rule: R,
    chunk: usize,
}

impl<R: GatedRule> Chunked<R> {
    pub(super) fn new(rule: R, chunk: usize) -> Self {
        Self { rule: rule.with_group(chunk), chunk }
    }

    /// What the cache needs beside the state.
    pub(super) fn cache<B: Backend>(&self, device: &B, dims: &Dims) -> Result<LayerCache<B>> {
        Ok(LayerCache::new(Writes::room(self.rule, &with_tokens(dims, self.chunk), device)?))
    }

    /// The gates of memories whose gradients are taken at the starts of chunks ([`temper`]).
    pub(super) fn temper<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        gates: Of<R::Gates, Var<B>>,
    ) -> Result<Of<R::Gates, Var<B>>> {
        temper(self.rule, tape, gates)
    }

    /// What `q [B,T,H,K]` reads `[B,T,H,V]`, in a memory that starts at `state` and takes `writes`.
    pub(super) fn forward<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        mut state: Of<R::State, Var<B>>,
        (dims, context): (&Dims, &mut Context<'_, B>),
    ) -> Result<Var<B>> {
        let Self { rule, chunk } = *self;
        let (device, room) = (q.value().device(), with_tokens(dims, chunk));
        let read_only = context.cache.is_none();
        let lengths = pieces(context.position, writes.tokens(), chunk);
        let mut pending = Writes::pending(rule, &room, context.position % chunk, tape, (q, &context.part(0)))?;
        let mut out = Vec::new();
        let mut left = writes.tokens();
        for (q, piece) in tape.split(q, 1, &lengths)?.into_iter().zip(writes.split(tape, &lengths)?) {
            out.push(self.read(tape, q, copy::<R, B>(&state), dims)?);
            left -= piece.tokens();
            let so_far = pending.take().map_or_else(|| Ok(piece.clone()), |pending| pending.join(tape, &piece))?;
            if so_far.tokens() < chunk {
                pending = Some(so_far);
            } else if left > 0 || !read_only {
                let sequences = &with_tokens(dims, chunk).sequences;
                state = tape.memory(rule, sequences, so_far.inputs(None, state)?)?.state;
            }
        }
        R::State::list(&state).into_iter().for_each(|(name, last)| context.keep(name, last.value()));
        Writes::keep(pending.as_ref(), rule, &room, device, &mut context.part(0))?;
        tape.concat(&out.iter().collect::<Vec<_>>(), 1)
    }

    fn read<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        q: Var<B>,
        state: Of<R::State, Var<B>>,
        dims: &Dims,
    ) -> Result<Var<B>> {
        let dims = with_tokens(dims, q.axes()[1]);
        Ok(tape.memory(self.rule, &dims.sequences, self.rule.reading(&dims, q, state)?)?.out)
    }
}

/// The same gates with the step size divided by the tokens that share a gradient point: their writes act as one step of
/// the sum of their sizes, which, with unit keys that may all be alike, is stable up to two.
pub(super) fn temper<R: GatedRule, B: Backend>(
    rule: R,
    tape: &Tape<'_, B>,
    gates: Of<R::Gates, Var<B>>,
) -> Result<Of<R::Gates, Var<B>>> {
    let group = rule.group();
    R::Gates::try_map(gates, |name, gate| match name {
        "theta" if group > 1 => tape.scale((group as f32).recip(), &gate),
        _ => Ok(gate),
    })
}

/// The same state once more.
pub(super) fn copy<R: GatedRule, B: Backend>(state: &Of<R::State, Var<B>>) -> Of<R::State, Var<B>> {
    R::State::map(R::State::as_ref(state), |_, x| x.clone())
}
