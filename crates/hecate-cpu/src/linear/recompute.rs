//! States at the starts of chunks, for the backward: kept ones, and those between them computed again.
//!
//! A state is kept once a checkpoint interval of about 64 tokens.
//! Where an interval has several chunks, the states between are computed again from its start.

use super::{
    call::LinearCall,
    checkpoints::Chunk,
    chunk_view::{ChunkStart, Memory},
    head_tile::HeadTile,
    scalars::Scalars,
    workspace::TileWorkspace,
};
use std::{borrow::Cow, ops::Range};

/// A tile's chunks and kept states.
pub(super) struct Recompute<'a> {
    tile: &'a HeadTile,
    call: &'a LinearCall<'a>,
    scalars: &'a Scalars,
    pub(super) chunks: Vec<Chunk>,
    /// `[kept chunks, M then S]`, each `[K, columns]`.
    saved: &'a [f32],
    /// Elements of `M`.
    size: usize,
    /// Elements of `M` and `S` together: from one state to the next.
    stride: usize,
}

impl<'a> Recompute<'a> {
    /// `saved` is what the tile's forward kept.
    pub(super) fn new(tile: &'a HeadTile, call: &'a LinearCall<'a>, scalars: &'a Scalars, saved: &'a [f32]) -> Self {
        let size = call.dims.key * tile.width();
        let chunks = call.chunks(tile.tokens());
        Self { tile, call, scalars, chunks, saved, size, stride: size * call.states() }
    }

    /// Chunks from each kept state to the next.
    pub(super) fn checkpoint_intervals(&self) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = (0..self.chunks.len()).filter(|&i| self.chunks[i].kept).collect();
        starts.push(self.chunks.len());
        starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// States at the starts of an interval's chunks, `[chunks, M then S]`.
    /// An interval of one chunk needs no more than the kept state.
    pub(super) fn states(&self, interval: Range<usize>, work: &mut TileWorkspace) -> Cow<'a, [f32]> {
        let kept = self.kept(interval.start);
        if interval.len() == 1 {
            return Cow::Borrowed(kept);
        }
        let mut states = Vec::with_capacity(interval.len() * self.stride);
        states.extend_from_slice(kept);
        let (m, s) = kept.split_at(self.size);
        let frozen = self.call.spec.frozen.is_some();
        let group =
            if frozen { self.start(&states, interval.start, interval.start).group.to_vec() } else { Vec::new() };
        let mut memory = Memory { m: m.to_vec(), s: s.to_vec(), group };
        // What the tokens read again goes here and is not used.
        let mut out: Vec<f32> = Vec::new();
        for chunk in &self.chunks[interval.start..interval.end - 1] {
            let view = self.call.view(self.tile, self.scalars, &chunk.tokens);
            out.resize(chunk.tokens.len() * self.tile.width(), 0.0);
            let mut rows: Vec<_> = out.chunks_exact_mut(self.tile.width()).collect();
            work.advance(self.call, &view, chunk.starts_group, &mut memory, &mut rows);
            states.extend_from_slice(&memory.m);
            states.extend_from_slice(&memory.s);
        }
        Cow::Owned(states)
    }

    /// What chunk `i` starts from; `states` are those of the interval whose first chunk is `first`.
    /// A group longer than a chunk may start before the interval, where its state is kept.
    pub(super) fn start<'s>(&'s self, states: &'s [f32], first: usize, i: usize) -> ChunkStart<'s> {
        let (m, s) = states[(i - first) * self.stride..][..self.stride].split_at(self.size);
        let group = self.chunks[..=i].iter().rposition(|chunk| chunk.starts_group).unwrap_or(0);
        let group = match group.checked_sub(first) {
            Some(own) => &states[own * self.stride..][..self.size],
            None => &self.kept(group)[..self.size],
        };
        ChunkStart { m, s, group }
    }

    /// The state kept at the start of chunk `i`.
    fn kept(&self, i: usize) -> &'a [f32] {
        let before = self.chunks[..i].iter().filter(|chunk| chunk.kept).count();
        &self.saved[before * self.stride..][..self.stride]
    }
}
