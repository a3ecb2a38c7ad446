//! Atlas without Newton-Schulz in grouped form: a chunk goes through matrix products, segment after segment.
//!
//! Without Newton-Schulz steps the update is linear in the state, so the exact rule has a chunk form.
//! Every token writes `c` rows; a segment is as many tokens as write at most [`ROWS`]. Frozen groups go by [`frozen`](super::frozen).

use super::{
    AtlasCell, Scratch,
    chunk::{ROWS, SubChunk, Workspace},
    chunk_backward,
};
use crate::{
    linear::CHUNK,
    recurrent::{GroupBackward, GroupForward, GroupedForm},
};

impl AtlasCell {
    /// Elements that [`GroupedForm`] needs for one chunk at most: its rows, its segments' states, one workspace.
    pub(super) fn chunk_elements(&self) -> usize {
        let Self { key, value, window, .. } = *self;
        let most = ROWS / window;
        // Keys and values of a segment and of the chunk, each with the window in front.
        let (u, all) = (most + window - 1, CHUNK + window - 1);
        let sub_chunk = 2 * all * (key + value) + CHUNK * (3 + window);
        let states = CHUNK.div_ceil(most) * 2 * key * value;
        // Triangles of written rows, products of keys, and the tables with their gradients.
        let squares = 4 * ROWS * ROWS + 4 * u * u + 2 * (most + 1) * (2 * most + 3);
        sub_chunk + states + squares + 5 * ROWS * value + 7 * u * value + most * (key + ROWS)
    }
}

impl GroupedForm<Scratch> for AtlasCell {
    /// `out [n,V]`; the state moves past the chunk, its window included.
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        if self.rule.frozen.is_some() {
            return self.frozen_forward(chunk, true);
        }
        let GroupForward { rows, old, new: state, out, .. } = chunk;
        state.copy_from_slice(old);
        let sub_chunk = SubChunk::new(self, rows, state);
        let mut work = Workspace::default();
        for tokens in sub_chunk.segments() {
            let out = &mut out[tokens.start * self.value..tokens.end * self.value];
            sub_chunk.run(&tokens, state, &mut work, Some(out));
        }
        sub_chunk.keep(state);
    }

    fn advance(&self, chunk: GroupForward<'_, Scratch>) {
        match self.rule.frozen {
            Some(_) => self.frozen_forward(chunk, false),
            None => self.forward(chunk),
        }
    }

    /// The group's start is not read unless it is frozen: the exact rule has each token's own state as its point.
    fn backward(&self, chunk: GroupBackward<'_, Scratch>) {
        if self.rule.frozen.is_some() {
            return self.frozen_backward(chunk);
        }
        let GroupBackward { rows, start, dout, adjoint, grads, .. } = chunk;
        chunk_backward::run(self, rows, start, dout, adjoint.state, grads);
    }
}
