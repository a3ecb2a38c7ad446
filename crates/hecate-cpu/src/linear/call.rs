//! A call of the linear engine: its arrays, its form, and how it is cut into head tiles and put together again.

use super::{
    checkpoints::{Chunk, cut},
    head_tile::HeadTile,
    scalars::Scalars,
};
use crate::{Cpu, buffer_pool::PooledBuf, device::floats};
use hecate_core::{
    Dims, Result, Tensor,
    families::{LinearInputs, LinearSpec},
};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Enough tiles to keep the processors of a workstation busy.
/// Calls with fewer heads than this split them into column blocks.
const TILES: usize = 16;

/// Most tiles that one task computes together: their memories must stay in the near caches.
const TOGETHER: usize = 4;

/// Columns of the narrowest block: one cache line of elements.
const COLUMNS: usize = 16;

/// A call, with all arrays as 32-bit floats on rows `[rows, H, width]`.
pub(crate) struct LinearCall<'a> {
    pub(crate) spec: LinearSpec,
    pub(crate) dims: &'a Dims,
    pub(super) form: Form,
    /// Most tokens of a chunk.
    chunk: usize,
    /// `[rows, H, K]`; `k` likewise.
    pub(super) q: Cow<'a, [f32]>,
    pub(super) k: Cow<'a, [f32]>,
    /// `[rows, H, V]`.
    pub(super) v: Cow<'a, [f32]>,
    /// `[rows, H]` each.
    pub(super) scalars: Scalars,
    /// The initial `M`, and `S` where there is momentum: `[N, H, K, V]`.
    pub(super) initial: Vec<Cow<'a, [f32]>>,
}

/// How a forward goes. A backward scans after [`Form::Scan`], and goes in chunks after the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Token by token, as the equations stand.
    Scan,
    /// As products of matrices.
    Chunk,
    /// In one pass over the memory for a few tokens; not for frozen rules.
    Fused,
}

impl<'a> LinearCall<'a> {
    /// Borrows f32 arrays and widens 16-bit ones.
    ///
    /// # Errors
    /// Those of [`floats`].
    pub(crate) fn new(
        spec: LinearSpec,
        dims: &'a Dims,
        (form, chunk): (Form, usize),
        inputs: &'a LinearInputs<Tensor<Cpu>>,
        scalars: Scalars,
    ) -> Result<Self> {
        let initial = inputs.state.list().map(floats).collect::<Result<_>>()?;
        let (q, k, v) = (floats(&inputs.q)?, floats(&inputs.k)?, floats(&inputs.v)?);
        Ok(Self { spec, dims, form, chunk, q, k, v, scalars, initial })
    }

    /// The lowered gates.
    pub(crate) fn scalars(&self) -> &Scalars {
        &self.scalars
    }

    /// Number of state matrices: 2 with momentum.
    pub(crate) fn states(&self) -> usize {
        1 + usize::from(self.spec.momentum)
    }

    /// Tiles in the order sequence, head, columns. Every row list below has the same order.
    pub(crate) fn tiles(&self) -> Vec<HeadTile> {
        let Dims { heads, value, .. } = *self.dims;
        let width = block_width(self.dims.sequences.count() * heads, value);
        let mut tiles = Vec::new();
        for (sequence, rows) in self.dims.sequences.ranges().enumerate() {
            for head in 0..heads {
                for start in (0..value).step_by(width) {
                    let columns = start..(start + width).min(value);
                    tiles.push(HeadTile { sequence, rows: rows.clone(), head, columns });
                }
            }
        }
        tiles
    }

    /// Tiles that one task computes together: neighbours in one sequence, and enough tasks for all threads.
    /// The tasks are `threads` dependent; what each tile computes is not.
    pub(super) fn together(&self, tiles: usize, threads: usize) -> Vec<Range<usize>> {
        // Tiles of one sequence are neighbours; a task never crosses to the next sequence.
        let sequence = tiles / self.dims.sequences.count().max(1);
        // Four tasks a thread even out their lengths.
        let size = (tiles / (4 * threads)).clamp(1, TOGETHER).min(sequence.max(1));
        let starts = (0..tiles).step_by(sequence.max(1));
        starts
            .flat_map(|first| (first..first + sequence).step_by(size).map(move |i| i..(i + size).min(first + sequence)))
            .collect()
    }

    /// Chunks of a sequence of `tokens` tokens.
    pub(crate) fn chunks(&self, tokens: usize) -> Vec<Chunk> {
        cut(tokens, self.spec.group(), self.chunk)
    }

    /// Column blocks of a head.
    pub(super) fn blocks(&self) -> usize {
        let Dims { heads, value, .. } = *self.dims;
        value.div_ceil(block_width(self.dims.sequences.count() * heads, value))
    }

    /// Rows of `x [rows, H, V]` for every tile: those of its tokens and head, cut to its columns.
    pub(super) fn value_rows<'x>(&self, x: &'x mut [f32]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, value, .. } = *self.dims;
        let (width, blocks) = (block_width(self.dims.sequences.count() * heads, value), self.blocks());
        let mut tiles = Vec::with_capacity(self.dims.sequences.count() * heads * blocks);
        let mut rows = x.chunks_exact_mut(value);
        for tokens in self.dims.sequences.ranges().map(|range| range.len()) {
            let first = tiles.len();
            tiles.extend((0..heads * blocks).map(|_| Vec::with_capacity(tokens)));
            // Row by row of the array: consecutive rows are those of consecutive heads.
            for row in rows.by_ref().take(tokens * heads).enumerate() {
                let head = first + row.0 % heads * blocks;
                row.1.chunks_mut(width).zip(&mut tiles[head..]).for_each(|(row, tile)| tile.push(row));
            }
        }
        tiles
    }

    /// Rows for every tile out of arrays `[rows, H, K]`, one array for each column block.
    pub(super) fn key_rows<'x>(&self, blocks: &'x mut [PooledBuf]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, key, .. } = *self.dims;
        let count = blocks.len();
        let mut tiles: Vec<Vec<_>> = Vec::new();
        for tokens in self.dims.sequences.ranges().map(|range| range.len()) {
            tiles.extend((0..heads * count).map(|_| Vec::with_capacity(tokens)));
        }
        // Tiles of one head write to different arrays, so no two of them share a row.
        for (block, x) in blocks.iter_mut().enumerate() {
            let mut rows = x.chunks_exact_mut(key);
            for (sequence, tokens) in self.dims.sequences.ranges().map(|range| range.len()).enumerate() {
                for (i, row) in rows.by_ref().take(tokens * heads).enumerate() {
                    tiles[(sequence * heads + i % heads) * count + block].push(row);
                }
            }
        }
        tiles
    }

    /// Rows of matrices `[N, H, K, V]` for every tile, cut to its columns.
    pub(super) fn state_rows<'x>(&self, x: &'x mut [f32]) -> Vec<Vec<&'x mut [f32]>> {
        let Dims { heads, key, value, .. } = *self.dims;
        let (width, blocks) = (block_width(self.dims.sequences.count() * heads, value), self.blocks());
        let mut tiles = Vec::with_capacity(self.dims.sequences.count() * heads * blocks);
        for state in x.chunks_exact_mut(key * value) {
            let first = tiles.len();
            tiles.extend((0..blocks).map(|_| Vec::with_capacity(key)));
            for row in state.chunks_exact_mut(value) {
                row.chunks_mut(width).zip(&mut tiles[first..]).for_each(|(row, tile)| tile.push(row));
            }
        }
        tiles
    }

    /// Elements that each tile keeps for the backward: one state for each checkpoint.
    pub(super) fn saved_sizes(&self, tiles: &[HeadTile]) -> Vec<usize> {
        let size = |tile: &HeadTile| {
            let kept = self.chunks(tile.tokens()).iter().filter(|chunk| chunk.kept).count();
            kept * self.dims.key * tile.columns.len() * self.states()
        };
        tiles.iter().map(size).collect()
    }

    /// Tiles' scalars `[T]`, added over the column blocks of a head in their order, as arrays `[rows, H]`.
    pub(crate) fn join_scalars<'l>(&self, tiles: &[HeadTile], part: impl Fn(usize) -> &'l Scalars) -> Scalars {
        let heads = self.dims.heads;
        // Tiles of one head come in the order of their columns: the sum has one order.
        let join = |field: fn(&Scalars) -> &Vec<f32>| {
            if field(&self.scalars).is_empty() {
                return Vec::new();
            }
            let mut joined = vec![0.0; self.dims.sequences.rows() * heads];
            for (i, tile) in tiles.iter().enumerate() {
                for (row, x) in tile.rows.clone().zip(field(part(i))) {
                    joined[row * heads + tile.head] += x;
                }
            }
            joined
        };
        Scalars { w: join(|x| &x.w), r: join(|x| &x.r), a: join(|x| &x.a), eta: join(|x| &x.eta) }
    }
}

/// Columns of a block, from the sizes alone: as few blocks as make enough tiles.
/// `heads` counts those of all sequences.
pub(super) fn block_width(heads: usize, value: usize) -> usize {
    // Narrower blocks repeat the work on keys; wider ones leave processors idle.
    let blocks = TILES.div_ceil(heads.max(1)).min(value.div_ceil(COLUMNS)).max(1);
    value.div_ceil(blocks).checked_next_multiple_of(COLUMNS).unwrap_or(value).min(value)
}

/// The first of some arrays becomes their sum, added in order.
pub(super) fn add_blocks(blocks: &mut Vec<PooledBuf>) -> Option<PooledBuf> {
    let rest = blocks.split_off(1.min(blocks.len()));
    let mut sum = blocks.pop()?;
    // Every element adds its blocks in the same order, so cutting the array for threads changes nothing.
    const SEGMENT: usize = 1 << 14;
    if !rest.is_empty() {
        sum.par_chunks_mut(SEGMENT).enumerate().for_each(|(i, sum)| {
            for part in &rest {
                sum.iter_mut().zip(&part[i * SEGMENT..]).for_each(|(sum, x)| *sum += x);
            }
        });
    }
    Some(sum)
}
