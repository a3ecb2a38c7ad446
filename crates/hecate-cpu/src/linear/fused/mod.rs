//! The recurrence forward with one pass over the memory for a few tokens.
//!
//! Equations (1)–(5) as (15)–(21), in sub-chunks of four tokens, or two with momentum.
//! They are so small that what the chunk form adds to the passes is little.
//!
//! While a sub-chunk is written into the memory, the same pass takes what the next one reads and predicts from it.
//! Every element of the memory is thus loaded and stored once for four tokens.
//!
//! A few vectors of columns go through all tokens of a chunk at once.
//! What belongs to a sub-chunk stays in registers, their part of the memory in the nearest cache.

mod groups;
mod pairs;

use super::{chunk_view::ChunkView, padded_matrix::AlignedBuf};
use crate::{
    product::Mat,
    simd::{dispatch, wide},
};
use hecate_core::families::LinearSpec;
use pulp::{Simd, WithSimd};

/// Tokens that are written in one pass, where there is no momentum: a sub-chunk.
/// Four tokens of predictions and reads, two vectors wide, fill 16 of 32 registers.
pub(super) const GROUP: usize = 4;

/// Rows of what the next tokens predict and read: both for each token of a sub-chunk.
const LOOKAHEAD: usize = 2 * GROUP;

/// The memory of a tile while it runs, laid out by blocks of columns.
/// A block `[K, width]` lies in one run, so that a pass over it walks through memory in order.
#[derive(Default)]
struct BlockedMemory {
    /// `K`, the tile's columns, and the columns of a block.
    key: usize,
    columns: usize,
    width: usize,
    /// `M` and `S`, one block after another: `[blocks, K, width]`.
    m: AlignedBuf,
    s: AlignedBuf,
    /// What the next tokens predict and read: `[blocks, LOOKAHEAD, width]`.
    lookahead: AlignedBuf,
    /// Whether `lookahead` belongs to the memory as it is. It does not at the first token.
    ready: bool,
}

/// Workspace of one task: the memories of its tiles, and the packed inputs of one chunk.
#[derive(Default)]
pub(crate) struct Workspace {
    states: Vec<BlockedMemory>,
    chunk: PackedChunk,
}

/// What a tile is given in a chunk, in the order in which passes read it.
#[derive(Default)]
struct PackedChunk {
    /// Without momentum.
    groups: groups::PackedGroups,
    /// With momentum.
    pairs: pairs::PackedPairs,
    /// Rows of `v`, without gaps: `[n, columns]`.
    v: Vec<f32>,
}

/// Rows `first` to `first + G` of `x`, transposed into `[columns, G]`; zeros after its last row.
/// A pass then loads the `G` factors of one memory row from neighbouring places.
#[inline(always)]
fn interleave<const G: usize>(x: &Mat<'_>, first: usize, to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<G>();
    if first + G <= x.rows {
        let rows: [&[f32]; G] = std::array::from_fn(|i| &x.row(first + i)[..to.len()]);
        to.iter_mut().enumerate().for_each(|(column, to)| *to = rows.map(|row| row[column]));
        return;
    }
    to.fill([0.0; G]);
    for t in first..x.rows {
        to.iter_mut().zip(x.row(t)).for_each(|(to, &x)| to[t - first] = x);
    }
}

impl Workspace {
    /// Reserves space for the memories of this many tiles.
    pub(super) fn reserve(&mut self, tiles: usize) {
        self.states.resize_with(tiles.max(self.states.len()), BlockedMemory::default);
    }

    /// Tile `i` starts with the memory `[K, columns]`; `s` is empty without momentum.
    pub(super) fn start(&mut self, i: usize, m: &[f32], s: &[f32], columns: usize) {
        self.states[i].start(m, s, columns);
    }

    /// Copies `M` of tile `i`, or its `S`, to `K` rows `[columns]`.
    pub(super) fn copy<'o>(&self, i: usize, s: bool, to: impl Iterator<Item = &'o mut [f32]>) {
        self.states[i].copy(s, to);
    }
}

impl BlockedMemory {
    /// Lays the memory out in blocks. Padding columns of the last block are zero and stay so.
    fn start(&mut self, m: &[f32], s: &[f32], columns: usize) {
        (self.key, self.columns, self.ready) = (m.len() / columns, columns, false);
        self.width = dispatch(Width(columns));
        let blocks = columns.div_ceil(self.width);
        for (own, from) in [(&mut self.m, m), (&mut self.s, s)] {
            own.reset(if from.is_empty() { 0 } else { blocks * self.key * self.width });
            let size = self.key * self.width;
            for (t, from) in from.chunks_exact(columns).enumerate() {
                for (block, from) in from.chunks(self.width).enumerate() {
                    own.get_mut()[block * size + t * self.width..][..from.len()].copy_from_slice(from);
                }
            }
        }
        self.lookahead.fit(blocks * LOOKAHEAD * self.width);
    }

    /// The way back: rows out of blocks.
    fn copy<'o>(&self, s: bool, to: impl Iterator<Item = &'o mut [f32]>) {
        let (from, size) = (if s { self.s.get() } else { self.m.get() }, self.key * self.width);
        for (t, to) in to.enumerate() {
            for (block, to) in to.chunks_mut(self.width).enumerate() {
                to.copy_from_slice(&from[block * size + t * self.width..][..to.len()]);
            }
        }
    }
}

/// Rows `[n, width]` without gaps, in the memory of `to`.
fn gather(mut to: Vec<f32>, from: &Mat<'_>) -> Vec<f32> {
    to.clear();
    (0..from.rows).for_each(|t| to.extend_from_slice(from.row(t)));
    to
}

/// Asks for the columns of a block, for this many in all.
/// Two vectors where there are 32 registers, else one: wider blocks would spill.
struct Width(usize);

impl WithSimd for Width {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        if S::REGISTER_COUNT >= 32 && self.0 > S::F32_LANES { 2 * S::F32_LANES } else { S::F32_LANES }
    }
}

/// One chunk through tile `i`, for rules that are not frozen.
///
/// The view's `q`, `k`, `a` and `eta` may go on after its tokens: the last pass reads for those already.
/// `out` are `n` rows `[columns]`.
pub(super) fn forward(spec: LinearSpec, view: &ChunkView<'_>, work: &mut Workspace, i: usize, out: &mut [&mut [f32]]) {
    let Workspace { states, chunk } = work;
    let PackedChunk { groups, pairs, .. } = chunk;
    wide(
        (groups, pairs),
        #[inline(always)]
        |(groups, pairs)| match spec.momentum {
            true => pairs.pack(spec, view),
            false => groups.pack(spec, view),
        },
    );
    // Rows of one head lie far apart in the call. Gathered once, every block of columns finds them near.
    let v = gather(std::mem::take(&mut chunk.v), &view.v);
    let view = ChunkView { v: Mat::new(&v, view.tokens, view.v.columns), ..*view };
    dispatch(FusedChunk { spec, view: &view, state: &mut states[i], chunk, out });
    chunk.v = v;
}

/// One chunk of one tile, for the SIMD dispatch.
struct FusedChunk<'a, 'o> {
    spec: LinearSpec,
    view: &'a ChunkView<'a>,
    state: &'a mut BlockedMemory,
    chunk: &'a PackedChunk,
    out: &'a mut [&'o mut [f32]],
}

impl WithSimd for FusedChunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for block in 0..self.state.columns.div_ceil(self.state.width) {
            // Width and erase are constants of the inner loops, so that their sums stay in registers.
            match (self.spec.momentum, self.spec.erases(), self.state.width / S::F32_LANES) {
                (true, _, 2) => self.pairs::<S, 2>(simd, block),
                (true, _, _) => self.pairs::<S, 1>(simd, block),
                (false, true, 2) => self.groups::<S, 2, true>(simd, block),
                (false, true, _) => self.groups::<S, 1, true>(simd, block),
                (false, false, 2) => self.groups::<S, 2, false>(simd, block),
                (false, false, _) => self.groups::<S, 1, false>(simd, block),
            }
        }
        self.state.ready = true;
    }
}
