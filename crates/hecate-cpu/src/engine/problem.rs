//! A call, cut into lanes and put together again.

use super::{CHUNK, Scalars, Spec, lane::Lane};
use crate::{Cpu, device::floats};
use hecate_core::{Dims, Inputs, Rule, Slots, Tensor};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Enough lanes to keep the processors of a workstation busy.
const LANES: usize = 16;

/// Columns of the narrowest block.
const COLUMNS: usize = 16;

/// A call, with all arrays as 32-bit floats on rows `[rows, H, width]`.
pub(crate) struct Problem<'a> {
    pub(crate) spec: Spec,
    pub(crate) dims: &'a Dims,
    pub(crate) scan: bool,
    chunk: usize,
    pub(super) q: Cow<'a, [f32]>,
    pub(super) k: Cow<'a, [f32]>,
    pub(super) v: Cow<'a, [f32]>,
    pub(super) scalars: Scalars,
    pub(super) initial: Vec<Cow<'a, [f32]>>,
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
        scan: bool,
        chunk: usize,
        inputs: &'a Inputs<R, Tensor<Cpu>>,
        scalars: Scalars,
    ) -> Self {
        let initial = R::State::list(&inputs.state).into_iter().map(|(_, x)| floats(x)).collect();
        let (q, k, v) = (floats(&inputs.q), floats(&inputs.k), floats(&inputs.v));
        Self { spec, dims, scan, chunk, q, k, v, scalars, initial }
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

    /// Chunks of `tokens` tokens.
    pub(crate) fn chunks(&self, tokens: usize) -> Vec<Chunk> {
        cut(tokens, self.spec.frozen, self.chunk)
    }

    /// Lanes' rows `[T, part]` as one array `[rows, H, width]`: blocks of columns side by side where the lanes hold
    /// such blocks, added in order where each holds the full width.
    pub(crate) fn join<'l>(
        &self,
        lanes: &[Lane],
        width: usize,
        part: impl Fn(usize) -> &'l Vec<f32> + Sync,
    ) -> Vec<f32> {
        let heads = self.dims.heads;
        let per_head = lanes.len() / (self.dims.sequences.count() * heads);
        let mut joined = vec![0.0; self.dims.sequences.rows() * heads * width];
        let mut rest = joined.as_mut_slice();
        for (sequence, rows) in self.dims.sequences.ranges().enumerate() {
            let (own, behind) = rest.split_at_mut(rows.len() * heads * width);
            rest = behind;
            own.par_chunks_mut(heads * width).enumerate().with_min_len(64).for_each(|(t, row)| {
                for (head, row) in row.chunks_exact_mut(width).enumerate() {
                    let first = (sequence * heads + head) * per_head;
                    join_row(row, &lanes[first..first + per_head], t, |i| part(first + i));
                }
            });
        }
        joined
    }

    /// Lanes' matrices `[K, columns]` as one array `[N, H, K, V]`.
    pub(crate) fn join_states<'l>(&self, lanes: &[Lane], part: impl Fn(usize) -> &'l Vec<f32>) -> Vec<f32> {
        let Dims { heads, key, value, .. } = *self.dims;
        let mut joined = vec![0.0; self.dims.sequences.count() * heads * key * value];
        for (i, lane) in lanes.iter().enumerate() {
            let base = (lane.sequence * heads + lane.head) * key * value + lane.columns.start;
            for (r, row) in part(i).chunks_exact(lane.columns.len()).enumerate() {
                joined[base + r * value..][..row.len()].copy_from_slice(row);
            }
        }
        joined
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

fn join_row<'l>(row: &mut [f32], lanes: &[Lane], t: usize, part: impl Fn(usize) -> &'l Vec<f32>) {
    for (i, lane) in lanes.iter().enumerate() {
        let part = part(i);
        let width = part.len() / lane.rows.len();
        let own = &part[t * width..][..width];
        if width == row.len() {
            row.iter_mut().zip(own).for_each(|(row, x)| *row += x);
        } else {
            row[lane.columns.clone()].copy_from_slice(own);
        }
    }
}
