//! States at the starts of chunks, for the backward: kept ones, and those between them computed again.

use super::{
    Scalars, chunk, chunk_backward,
    lane::{Lane, Memory},
    problem::{Chunk, Problem},
    scan,
};
use std::ops::Range;

/// Scratch of a lane's backward.
pub(super) enum Work {
    Scan(scan::States),
    Chunk(Box<chunk_backward::Workspace>),
}

impl Work {
    pub(super) fn new(scan: bool, width: usize) -> Self {
        match scan {
            true => Self::Scan(scan::States::default()),
            false => Self::Chunk(Box::new(chunk_backward::Workspace::new(width))),
        }
    }

    fn forward(&mut self) -> Option<&mut chunk::Workspace> {
        match self {
            Self::Scan(_) => None,
            Self::Chunk(work) => Some(&mut work.forward),
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
    pub(super) fn states(&self, span: Range<usize>, work: &mut Work) -> Vec<f32> {
        let kept = self.kept(span.start);
        let mut states = Vec::with_capacity(span.len() * self.stride);
        states.extend_from_slice(kept);
        if span.len() == 1 {
            return states;
        }
        let (m, s) = kept.split_at(self.size);
        let frozen = self.problem.spec.frozen.is_some();
        let group = if frozen { self.start(&states, span.start, span.start).group.to_vec() } else { Vec::new() };
        let mut memory = Memory { m: m.to_vec(), s: s.to_vec(), group };
        let mut out = Vec::new();
        for chunk in &self.chunks[span.start..span.end - 1] {
            let view = self.lane.view(self.problem, self.scalars, &chunk.tokens);
            out.resize(chunk.tokens.len() * self.lane.width(), 0.0);
            self.lane.advance(self.problem, &view, chunk.starts_group, &mut memory, work.forward(), &mut out);
            states.extend_from_slice(&memory.m);
            states.extend_from_slice(&memory.s);
        }
        states
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
