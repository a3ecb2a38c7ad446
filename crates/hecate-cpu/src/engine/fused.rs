//! The recurrence forward with one pass over the memory for a few tokens: equations (1)–(5) as (15)–(21), in chunks so
//! small that all they add to the passes is little.
//!
//! While a group of tokens is written into the memory, the same pass takes what the next group reads and predicts from
//! it. A few vectors of columns go through all tokens of a chunk at once: what belongs to a group stays in registers,
//! their part of the memory in the nearest cache.

mod groups;
mod pairs;

use super::{
    Spec,
    lane::{View, row},
    sheet::Lines,
};
use crate::{
    product::Mat,
    simd::{dispatch, wide},
};
use pulp::{Simd, WithSimd};

/// Tokens that are written in one pass, where there is no momentum.
pub(super) const GROUP: usize = 4;

/// Rows of what the next tokens predict and read.
const AHEAD: usize = 2 * GROUP;

/// The memory of a lane while it runs.
#[derive(Default)]
struct State {
    /// Keys, columns, and columns of a block.
    key: usize,
    columns: usize,
    width: usize,
    /// `M` and `S`, block behind block: `[blocks, K, width]`.
    m: Lines,
    s: Lines,
    /// What the next tokens predict and read, block behind block: `[blocks, AHEAD, width]`.
    ahead: Lines,
    /// Whether `ahead` holds it.
    ready: bool,
}

/// Scratch of lanes that run together, and their memories.
#[derive(Default)]
pub(crate) struct Workspace {
    states: Vec<State>,
    chunk: Inputs,
}

/// What a lane is given in a chunk.
#[derive(Default)]
struct Inputs {
    /// Without momentum, and with it.
    groups: groups::Inputs,
    pairs: pairs::Inputs,
    /// Rows of `v`, without gaps.
    v: Vec<f32>,
}

/// Rows `first` to `first + G` of `x`, transposed; zeros behind its last.
#[inline(always)]
fn interleave<const G: usize>(x: &Mat<'_>, first: usize, to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<G>();
    if first + G <= x.rows {
        let rows: [&[f32]; G] = std::array::from_fn(|i| &row(x, first + i)[..to.len()]);
        to.iter_mut().enumerate().for_each(|(column, to)| *to = rows.map(|row| row[column]));
        return;
    }
    to.fill([0.0; G]);
    for t in first..x.rows {
        to.iter_mut().zip(row(x, t)).for_each(|(to, &x)| to[t - first] = x);
    }
}

impl Workspace {
    /// Makes room for the memories of this many lanes.
    pub(super) fn room(&mut self, lanes: usize) {
        self.states.resize_with(lanes.max(self.states.len()), State::default);
    }

    /// Lane `i` starts with the memory `[K, columns]`; `s` is empty without momentum.
    pub(super) fn start(&mut self, i: usize, m: &[f32], s: &[f32], columns: usize) {
        self.states[i].start(m, s, columns);
    }

    /// Copies `M` of lane `i`, or its `S`, to rows.
    pub(super) fn copy<'o>(&self, i: usize, s: bool, to: impl Iterator<Item = &'o mut [f32]>) {
        self.states[i].copy(s, to);
    }
}

impl State {
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
        self.ahead.fit(blocks * AHEAD * self.width);
    }

    fn copy<'o>(&self, s: bool, to: impl Iterator<Item = &'o mut [f32]>) {
        let (from, size) = (if s { self.s.get() } else { self.m.get() }, self.key * self.width);
        for (t, to) in to.enumerate() {
            for (block, to) in to.chunks_mut(self.width).enumerate() {
                to.copy_from_slice(&from[block * size + t * self.width..][..to.len()]);
            }
        }
    }
}

/// Rows without gaps, in the memory of `to`.
fn gather(mut to: Vec<f32>, from: &Mat<'_>) -> Vec<f32> {
    to.clear();
    (0..from.rows).for_each(|t| to.extend_from_slice(row(from, t)));
    to
}

/// Columns of a block, for this many in all.
struct Width(usize);

impl WithSimd for Width {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        if S::REGISTER_COUNT >= 32 && self.0 > S::F32_LANES { 2 * S::F32_LANES } else { S::F32_LANES }
    }
}

/// The tokens of a view, whose `q`, `k`, `a` and `eta` may go on behind them, through lane `i`, for rules that are not
/// frozen.
pub(super) fn forward(spec: Spec, view: &View<'_>, work: &mut Workspace, i: usize, out: &mut [&mut [f32]]) {
    let Workspace { states, chunk } = work;
    let Inputs { groups, pairs, .. } = chunk;
    wide(
        (groups, pairs),
        #[inline(always)]
        |(groups, pairs)| match spec.momentum {
            true => pairs.pack(spec, view),
            false => groups.pack(spec, view),
        },
    );
    // Rows of one head lie far apart; every block of columns would wait for them again.
    let v = gather(std::mem::take(&mut chunk.v), &view.v);
    let view = View { v: Mat::new(&v, view.tokens, view.v.columns), ..*view };
    dispatch(Call { spec, view: &view, state: &mut states[i], chunk, out });
    chunk.v = v;
}

struct Call<'a, 'o> {
    spec: Spec,
    view: &'a View<'a>,
    state: &'a mut State,
    chunk: &'a Inputs,
    out: &'a mut [&'o mut [f32]],
}

impl WithSimd for Call<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for block in 0..self.state.columns.div_ceil(self.state.width) {
            match (self.spec.momentum, self.spec.erase, self.state.width / S::F32_LANES) {
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
