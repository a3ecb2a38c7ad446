//! The workspace of a task of the linear engine, whichever form it takes.

use super::{
    call::{Form, LinearCall},
    chunk, chunk_backward,
    chunk_view::{ChunkView, Memory},
    fused, scan,
};

/// Workspace of head tiles that one task runs in turn; the device keeps it for later calls.
#[derive(Default)]
pub(crate) struct TileWorkspace {
    /// Memories of all tiles of the task in the fused form, and one chunk's packed inputs.
    pub(super) fused: fused::Workspace,
    /// Matrices of one chunk, forward and backward.
    pub(super) chunk: chunk_backward::Workspace,
    /// States of one chunk, token by token.
    pub(super) scan: scan::States,
}

impl TileWorkspace {
    /// Takes the memory from a chunk's start to its end; `out` are `n` rows `[columns]`.
    pub(super) fn advance(
        &mut self,
        call: &LinearCall<'_>,
        view: &ChunkView<'_>,
        starts_group: bool,
        memory: &mut Memory,
        out: &mut [&mut [f32]],
    ) {
        // The first token of a group fixes the memory that the group's targets are predicted from.
        if starts_group && call.spec.frozen.is_some() {
            memory.group.copy_from_slice(&memory.m);
        }
        match call.form {
            Form::Scan => scan::forward(call.spec, view, memory, out),
            // The fused form keeps its memory in blocks; states between kept ones are computed as chunks.
            Form::Chunk | Form::Fused => chunk::forward(call.spec, view, memory, &mut self.chunk.forward, out),
        }
    }
}
