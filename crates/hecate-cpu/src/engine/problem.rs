//! A call, cut into lanes and put together again.

use super::{CHUNK, Scalars, Spec, lane::Lane};
use crate::{Cpu, device::floats, kept::Lent};
use hecate_core::{Dims, Inputs, Rule, Slots, Tensor};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Enough lanes to keep the processors of a workstation busy.
const LANES: usize = 16;

/// Most lanes that are computed together: their memories must stay near.
const TOGETHER: usize = 4;

/// Columns of the narrowest block.
const COLUMNS: usize = 16;

/// A call, with all arrays as 32-bit floats on rows `[rows, H, width]`.
pub(crate) struct Problem<'a> {
    pub(crate) spec: Spec,
    pub(crate) dims: &'a Dims,
    pub(super) form: Form,
    chunk: usize,
    pub(super) q: Cow<'a, [f32]>,
    pub(super) k: Cow<'a, [f32]>,
    pub(super) v: Cow<'a, [f32]>,
    pub(super) scalars: Scalars,
    pub(super) initial: Vec<Cow<'a, [f32]>>,
}

/// How a forward goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Token by token, as the equations stand. The backward goes the same way.
    Scan,
    /// As products of matrices.
    Chunk,
    /// In one pass over the memory for a few tokens; not for frozen rules.
    Fused,
}

/// A stretch of a lane that is computed at once.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Tokens, counted from the lane's first.
    pub(crate) tokens: Range<usize>,
    /// Whether a frozen group starts here.
    pub(crate) starts_group: bool,
    /// Whether the state at its start is kept for the backward.
    pub(crate) kept: bool,
}

impl<'a> Problem<'a> {
    pub(crate) fn new<R: Rule>(
        spec: Spec,
        dims: &'a Dims,
        (form, chunk): (Form, usize),
        inputs: &'a Inputs<R, Tensor<Cpu>>,
        scalars: Scalars,
    ) -> Self {
        let initial = R::State::list(&inputs.state).into_iter().map(|(_, x)| floats(x)).collect();
        let (q, k, v) = (floats(&inputs.q), floats(&inputs.k), floats(&inputs.v));
        Self { spec, dims, form, chunk, q, k, v, scalars, initial }
    }

    pub(crate) fn scalars(&self) -> &Scalars {
        &self.scalars
    }

    /// Number of state matrices.
    pub(crate) fn states(&self) -> usize {
        1 + usize::from(self.spec.momentum)
    }

    /// Lanes in the order sequence, head, columns.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        let Dims { heads, value, .. } = *self.dims;
        let width = block_width(self.dims.sequences.count() * heads, value);
        let mut lanes = Vec::new();
        for (sequence, rows) in self.dims.sequences.ranges().enumerate() {
            for head in 0..heads {
                for start in (0..value).step_by(width) {
                    let columns = start..(start + width).min(value);
                    lanes.push(Lane { sequence, rows: rows.clone(), head, columns });
                }
            }
        }
        lanes
    }

    /// Lanes that are computed together: neighbours in one sequence, and enough groups for all threads.
    pub(super) fn together(&self, lanes: usize, threads: usize) -> Vec<Range<usize>> {
        let sequence = lanes / self.dims.sequences.count().max(1);
        let size = (lanes / (4 * threads)).clamp(1, TOGETHER).min(sequence.max(1));
        let starts = (0..lanes).step_by(sequence.max(1));
        starts
            .flat_map(|first| (first..first + sequence).step_by(size).map(move |i| i..(i + size).min(first + sequence)))
            .collect()
    }

    /// Chunks of `tokens` tokens.
    pub(crate) fn chunks(&self, tokens: usize) -> Vec<Chunk> {
        cut(tokens, self.spec.frozen, self.chunk)
    }

    /// Column blocks of a head.
    pub(super) fn blocks(&self) -> usize {
        let Dims { heads, value, .. } = *self.dims;
        value.div_ceil(block_width(self.dims.sequences.count() * heads, value))
    }

    /// Rows of `x [rows, H, V]` for every lane: those of its tokens, its head, its columns.
    pub(super) fn value_rows<'x>(&self, x: &'x mut [f32]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, value, .. } = *self.dims;
        let (width, blocks) = (block_width(self.dims.sequences.count() * heads, value), self.blocks());
        let mut lanes = Vec::with_capacity(self.dims.sequences.count() * heads * blocks);
        let mut rows = x.chunks_exact_mut(value);
        for tokens in self.dims.sequences.ranges().map(|range| range.len()) {
            let first = lanes.len();
            lanes.extend((0..heads * blocks).map(|_| Vec::with_capacity(tokens)));
            for row in rows.by_ref().take(tokens * heads).enumerate() {
                let head = first + row.0 % heads * blocks;
                row.1.chunks_mut(width).zip(&mut lanes[head..]).for_each(|(row, lane)| lane.push(row));
            }
        }
        lanes
    }

    /// Rows for every lane out of one array `[rows, H, K]` for each column block.
    pub(super) fn key_rows<'x>(&self, blocks: &'x mut [Lent]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, key, .. } = *self.dims;
        let count = blocks.len();
        let mut lanes: Vec<Vec<_>> = Vec::new();
        for tokens in self.dims.sequences.ranges().map(|range| range.len()) {
            lanes.extend((0..heads * count).map(|_| Vec::with_capacity(tokens)));
        }
        for (block, x) in blocks.iter_mut().enumerate() {
            let mut rows = x.chunks_exact_mut(key);
            for (sequence, tokens) in self.dims.sequences.ranges().map(|range| range.len()).enumerate() {
                for (i, row) in rows.by_ref().take(tokens * heads).enumerate() {
                    lanes[(sequence * heads + i % heads) * count + block].push(row);
                }
            }
        }
        lanes
    }

    /// Rows of matrices `[N, H, K, V]` for every lane.
    pub(super) fn state_rows<'x>(&self, x: &'x mut [f32]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, key, value, .. } = *self.dims;
        let (width, blocks) = (block_width(self.dims.sequences.count() * heads, value), self.blocks());
        let mut lanes = Vec::with_capacity(self.dims.sequences.count() * heads * blocks);
        for state in x.chunks_exact_mut(key * value) {
            let first = lanes.len();
            lanes.extend((0..blocks).map(|_| Vec::with_capacity(key)));
            for row in state.chunks_exact_mut(value) {
                row.chunks_mut(width).zip(&mut lanes[first..]).for_each(|(row, lane)| lane.push(row));
            }
        }
        lanes
    }

    /// What is kept for the backward, lane by lane: sizes.
    pub(super) fn saved_sizes(&self, lanes: &[Lane]) -> Vec<usize> {
        let size = |lane: &Lane| {
            let kept = self.chunks(lane.tokens()).iter().filter(|chunk| chunk.kept).count();
            kept * self.dims.key * lane.columns.len() * self.states()
        };
        lanes.iter().map(size).collect()
    }

    /// Lanes' scalars `[T]`, added over the column blocks of a head, as arrays `[rows, H]`.
    pub(crate) fn join_scalars<'l>(&self, lanes: &[Lane], part: impl Fn(usize) -> &'l Scalars) -> Scalars {
        let heads = self.dims.heads;
        let join = |field: fn(&Scalars) -> &Vec<f32>| {
            if field(&self.scalars).is_empty() {
                return Vec::new();
            }
            let mut joined = vec![0.0; self.dims.sequences.rows() * heads];
            for (i, lane) in lanes.iter().enumerate() {
                for (row, x) in lane.rows.clone().zip(field(part(i))) {
                    joined[row * heads + lane.head] += x;
                }
            }
            joined
        };
        Scalars { w: join(|x| &x.w), r: join(|x| &x.r), a: join(|x| &x.a), eta: join(|x| &x.eta) }
    }
}

/// `tokens` tokens in chunks of at most `chunk`, never across the edge of a frozen group. States are kept at the start
/// of as many whole groups as fit into [`CHUNK`] tokens, and where groups are longer, every [`CHUNK`] tokens of each.
pub(crate) fn cut(tokens: usize, frozen: Option<usize>, chunk: usize) -> Vec<Chunk> {
    let group = frozen.unwrap_or(tokens).min(tokens);
    let together = group * (CHUNK / group).max(1);
    let mut chunks = Vec::new();
    for first in (0..tokens).step_by(group) {
        let end = (first + group).min(tokens);
        for start in (first..end).step_by(chunk) {
            let starts_group = start == first;
            let kept = match starts_group {
                true => first.is_multiple_of(together),
                false => group >= CHUNK && (start - first) / CHUNK > (start - chunk - first) / CHUNK,
            };
            chunks.push(Chunk { tokens: start..(start + chunk).min(end), starts_group, kept });
        }
    }
    chunks
}

/// Columns of a block, from the sizes alone: as few blocks as make enough lanes.
pub(super) fn block_width(heads: usize, value: usize) -> usize {
    let blocks = LANES.div_ceil(heads.max(1)).min(value.div_ceil(COLUMNS)).max(1);
    value.div_ceil(blocks).next_multiple_of(COLUMNS).min(value)
}

/// The first of some arrays becomes their sum, added in order.
pub(super) fn add_blocks(blocks: &mut Vec<Lent>) -> Option<Lent> {
    let rest = blocks.split_off(1.min(blocks.len()));
    let mut sum = blocks.pop()?;
    const PIECE: usize = 1 << 14;
    if !rest.is_empty() {
        sum.par_chunks_mut(PIECE).enumerate().for_each(|(i, sum)| {
            for part in &rest {
                sum.iter_mut().zip(&part[i * PIECE..]).for_each(|(sum, x)| *sum += x);
            }
        });
    }
    Some(sum)
}
