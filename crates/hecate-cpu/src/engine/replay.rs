//! States at the starts of chunks, for the backward: kept ones, and those between them computed again.

use super::{
    Scalars, chunk, chunk_backward, fused,
    lane::{Lane, Memory, View},
    problem::{Chunk, Form, Problem},
    scan,
};
use std::{borrow::Cow, ops::Range};

/// Scratch of a lane, whichever way it is computed; lanes that follow each other use it in turn.
#[derive(Default)]
pub(crate) struct Work {
    pub(super) fused: fused::Workspace,
    pub(super) chunk: chunk_backward::Workspace,
    pub(super) scan: scan::States,
}

impl Work {
    /// Takes the memory from a chunk's start to its end; rows of `out`.
    pub(super) fn advance(
        &mut self,
        problem: &Problem<'_>,
        view: &View<'_>,
        starts_group: bool,
        memory: &mut Memory,
        out: &mut [&mut [f32]],
    ) {
        if starts_group && problem.spec.frozen.is_some() {
            memory.group.copy_from_slice(&memory.m);
        }
        match problem.form {
            Form::Scan => scan::forward(problem.spec, view, memory, out),
            Form::Chunk | Form::Fused => chunk::forward(problem.spec, view, memory, &mut self.chunk.forward, out),
        }
    }
}

/// State at the start of a chunk, and `M` at the start of its group.
pub(crate) struct Start<'a> {
    pub(crate) m: &'a [f32],
    pub(crate) s: &'a [f32],
    pub(crate) group: &'a [f32],
}

/// A lane's chunks and kept states.
pub(super) struct Replay<'a> {
    lane: &'a Lane,
    problem: &'a Problem<'a>,
    scalars: &'a Scalars,
    pub(super) chunks: Vec<Chunk>,
    /// `[kept chunks, M then S]`.
    saved: &'a [f32],
    /// Elements of `M`, and of a whole state.
    size: usize,
    stride: usize,
}

impl<'a> Replay<'a> {
    pub(super) fn new(lane: &'a Lane, problem: &'a Problem<'a>, scalars: &'a Scalars, saved: &'a [f32]) -> Self {
        let size = problem.dims.key * lane.width();
        let chunks = problem.chunks(lane.tokens());
        Self { lane, problem, scalars, chunks, saved, size, stride: size * problem.states() }
    }

    /// Chunks from each kept state to the next.
    pub(super) fn spans(&self) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = (0..self.chunks.len()).filter(|&i| self.chunks[i].kept).collect();
        starts.push(self.chunks.len());
        starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// States at the starts of a span's chunks, `[chunks, M then S]`.
    pub(super) fn states(&self, span: Range<usize>, work: &mut Work) -> Cow<'a, [f32]> {
        let kept = self.kept(span.start);
        if span.len() == 1 {
            return Cow::Borrowed(kept);
        }
        let mut states = Vec::with_capacity(span.len() * self.stride);
        states.extend_from_slice(kept);
        let (m, s) = kept.split_at(self.size);
        let frozen = self.problem.spec.frozen.is_some();
        let group = if frozen { self.start(&states, span.start, span.start).group.to_vec() } else { Vec::new() };
        let mut memory = Memory { m: m.to_vec(), s: s.to_vec(), group };
        let mut out: Vec<f32> = Vec::new();
        for chunk in &self.chunks[span.start..span.end - 1] {
            let view = self.lane.view(self.problem, self.scalars, &chunk.tokens);
            out.resize(chunk.tokens.len() * self.lane.width(), 0.0);
            let mut rows: Vec<_> = out.chunks_exact_mut(self.lane.width()).collect();
            work.advance(self.problem, &view, chunk.starts_group, &mut memory, &mut rows);
            states.extend_from_slice(&memory.m);
            states.extend_from_slice(&memory.s);
        }
        Cow::Owned(states)
    }

    /// What chunk `i` starts from, `states` being those of the span whose first chunk is `first`.
    pub(super) fn start<'s>(&'s self, states: &'s [f32], first: usize, i: usize) -> Start<'s> {
        let (m, s) = states[(i - first) * self.stride..][..self.stride].split_at(self.size);
        let group = self.chunks[..=i].iter().rposition(|chunk| chunk.starts_group).unwrap_or(0);
        let group = match group.checked_sub(first) {
            Some(own) => &states[own * self.stride..][..self.size],
            None => &self.kept(group)[..self.size],
        };
        Start { m, s, group }
    }

    /// The state kept at the start of chunk `i`.
    fn kept(&self, i: usize) -> &'a [f32] {
        let before = self.chunks[..i].iter().filter(|chunk| chunk.kept).count();
        &self.saved[before * self.stride..][..self.stride]
    }
}
