//! Head tiles of one sequence that one task computes together, chunk after chunk.
//!
//! Rows of neighbouring heads lie side by side in memory, those of neighbouring tokens far apart.
//! Tiles that go through a chunk one after another therefore find their rows on the same pages.

use super::{
    call::{Form, LinearCall},
    checkpoints::Chunk,
    chunk_backward,
    chunk_view::{ChunkGrads, Memory},
    fused,
    head_tile::HeadTile,
    recompute::Recompute,
    scalars::Scalars,
    scan,
    workspace::TileWorkspace,
};
use std::{borrow::Cow, mem, ops::Range};

/// Where a tile's results go. The tile owns these parts of the call's arrays.
pub(super) struct ForwardOutputs<'o> {
    /// `T` rows `[columns]`.
    pub(super) out: Vec<&'o mut [f32]>,
    /// `K` rows `[columns]` of the final `M`, and of `S`.
    pub(super) states: [Vec<&'o mut [f32]>; 2],
    /// States at checkpoints, `[kept chunks, M then S]`; empty when no backward comes.
    pub(super) saved: &'o mut [f32],
}

/// Where a tile's gradients go. The tile owns these parts of the call's arrays.
pub(super) struct BackwardOutputs<'o> {
    /// `T` rows `[K]` in the array of the tile's column block.
    pub(super) dq: Vec<&'o mut [f32]>,
    /// As `dq`.
    pub(super) dk: Vec<&'o mut [f32]>,
    /// `T` rows `[columns]`.
    pub(super) dv: Vec<&'o mut [f32]>,
    /// `K` rows `[columns]` of the gradients of the initial `M` and `S`.
    pub(super) dstates: [Vec<&'o mut [f32]>; 2],
}

/// Runs tiles of one sequence from the first chunk to the last; `keep` says whether a backward will come.
pub(super) fn forward(
    tiles: &[HeadTile],
    call: &LinearCall<'_>,
    work: &mut TileWorkspace,
    keep: bool,
    places: Vec<ForwardOutputs<'_>>,
) {
    // All tiles of the task are under way at once, each with a memory of its own.
    work.fused.reserve(tiles.len());
    let start = |(i, (tile, place)): (usize, (_, _))| ForwardPass::new(tile, call, work, i, place);
    let mut under_way: Vec<_> = tiles.iter().zip(places).enumerate().map(start).collect();
    for chunk in tiles.first().map(|tile| call.chunks(tile.tokens())).unwrap_or_default() {
        for (i, pass) in under_way.iter_mut().enumerate() {
            if keep && chunk.kept {
                pass.keep(call, work, i);
            }
            pass.advance(call, work, i, &chunk);
        }
    }
    under_way.into_iter().enumerate().for_each(|(i, pass)| pass.finish(call, work, i));
}

/// A tile on its way forward.
struct ForwardPass<'a, 'o> {
    tile: &'a HeadTile,
    /// The tile's scalars, `[T]` each.
    scalars: Scalars,
    /// The memory before the next chunk, unless the fused form has it in the workspace.
    memory: Memory,
    place: ForwardOutputs<'o>,
}

impl<'a, 'o> ForwardPass<'a, 'o> {
    fn new(
        tile: &'a HeadTile,
        call: &LinearCall<'_>,
        work: &mut TileWorkspace,
        i: usize,
        place: ForwardOutputs<'o>,
    ) -> Self {
        let memory = call.memory(tile, &call.initial);
        // The fused form lays the memory out in blocks of columns.
        if call.form == Form::Fused {
            work.fused.start(i, &memory.m, &memory.s, tile.width());
        }
        Self { tile, scalars: call.tile_scalars(tile), memory, place }
    }

    /// Keeps the memory at a checkpoint; `i` is the tile's place in the task.
    fn keep(&mut self, call: &LinearCall<'_>, work: &TileWorkspace, i: usize) {
        let states = [&self.memory.m, &self.memory.s];
        // `M`, then `S` where there is momentum.
        for (slot, state) in states.into_iter().enumerate().take(call.states()) {
            // Checkpoints lie one after another in the order of the chunks.
            let (own, rest) = mem::take(&mut self.place.saved).split_at_mut(state.len());
            self.place.saved = rest;
            match call.form {
                Form::Fused => work.fused.copy(i, slot == 1, own.chunks_exact_mut(self.tile.width())),
                Form::Scan | Form::Chunk => own.copy_from_slice(state),
            }
        }
    }

    /// One chunk: what its tokens read, and the memory after it.
    fn advance(&mut self, call: &LinearCall<'_>, work: &mut TileWorkspace, i: usize, chunk: &Chunk) {
        // `out` is cut to the chunk; keys and queries may reach beyond it.
        let mut view = call.view(self.tile, &self.scalars, &chunk.tokens);
        let out = &mut self.place.out[chunk.tokens.clone()];
        if call.form != Form::Fused {
            return work.advance(call, &view, chunk.starts_group, &mut self.memory, out);
        }
        // The fused form's last pass of a chunk already reads for the tokens after it.
        let lookahead = chunk.tokens.start..(chunk.tokens.end + fused::GROUP).min(self.tile.tokens());
        let keys = 0..call.dims.key;
        view.q = call.mat(self.tile, &call.q, &keys, &lookahead);
        view.k = call.mat(self.tile, &call.k, &keys, &lookahead);
        view.a = &self.scalars.a[lookahead.clone()];
        view.eta = self.scalars.eta.get(lookahead).unwrap_or_default();
        fused::forward(call.spec, &view, &mut work.fused, i, out);
    }

    /// The final memory goes to the call's arrays.
    fn finish(self, call: &LinearCall<'_>, work: &TileWorkspace, i: usize) {
        if call.form != Form::Fused {
            return self.memory.store(self.place.states, self.tile.width());
        }
        for (slot, state) in self.place.states.into_iter().enumerate() {
            work.fused.copy(i, slot == 1, state.into_iter());
        }
    }
}

/// Gradients of all outputs of the call.
#[derive(Clone, Copy)]
pub(super) struct Upstream<'a> {
    /// `[rows, H, V]`.
    pub(super) out: &'a [f32],
    /// Of the final `M` and `S`, `[N, H, K, V]` each.
    pub(super) states: &'a [Cow<'a, [f32]>],
}

/// Goes back through tiles of one sequence, from the last checkpoint interval to the first.
/// `saved` is what each tile's forward kept. Returns the gradients of the tiles' scalars, `[T]` each.
pub(super) fn backward(
    tiles: &[HeadTile],
    call: &LinearCall<'_>,
    work: &mut TileWorkspace,
    saved: &[&[f32]],
    upstream: Upstream<'_>,
    places: Vec<BackwardOutputs<'_>>,
) -> Vec<Scalars> {
    let all_scalars: Vec<_> = tiles.iter().map(|tile| call.tile_scalars(tile)).collect();
    // Each tile starts from the gradient of the final memory.
    let each = tiles.iter().zip(&all_scalars).zip(saved.iter().zip(places));
    let mut under_way: Vec<_> = each
        .map(|((tile, scalars), (saved, place))| BackwardPass {
            tile,
            scalars,
            recompute: Recompute::new(tile, call, scalars, saved),
            dmemory: call.memory(tile, upstream.states),
            dscalars: zeros(scalars),
            place,
        })
        .collect();
    let intervals = under_way.first().map(|pass| pass.recompute.checkpoint_intervals()).unwrap_or_default();
    for interval in intervals.into_iter().rev() {
        under_way.iter_mut().for_each(|pass| pass.interval(call, work, interval.clone(), upstream.out));
    }
    under_way.into_iter().map(BackwardPass::finish).collect()
}

/// A tile on its way back.
struct BackwardPass<'a, 'o> {
    tile: &'a HeadTile,
    scalars: &'a Scalars,
    recompute: Recompute<'a>,
    /// Gradients of the memory after the chunks that are still to come.
    dmemory: Memory,
    dscalars: Scalars,
    place: BackwardOutputs<'o>,
}

impl BackwardPass<'_, '_> {
    /// One checkpoint interval: its states again, then its chunks from the last to the first.
    fn interval(&mut self, call: &LinearCall<'_>, work: &mut TileWorkspace, interval: Range<usize>, dout: &[f32]) {
        let Self { tile, scalars, recompute, dmemory, dscalars, place } = self;
        // The interval's states first: kept, or computed again.
        let (spec, states) = (call.spec, recompute.states(interval.clone(), work));
        for i in interval.clone().rev() {
            let chunk = &recompute.chunks[i];
            let view = call.view(tile, scalars, &chunk.tokens);
            let start = recompute.start(&states, interval.start, i);
            let dout = call.mat(tile, dout, &tile.columns, &chunk.tokens);
            // The chunk's rows of all gradients.
            let own = place.part(&chunk.tokens, dscalars);
            match call.form {
                Form::Scan => scan::backward(spec, &view, &start, &mut work.scan, &dout, dmemory, own),
                _ => chunk_backward::run(spec, &view, &start, &mut work.chunk, &dout, dmemory.view(), own),
            }
            // All tokens of the group have added to the gradient of its start.
            if chunk.starts_group {
                dmemory.leave_group();
            }
        }
    }

    /// The gradient of the initial memory goes to the call's arrays, those of the scalars to the caller.
    fn finish(self) -> Scalars {
        self.dmemory.store(self.place.dstates, self.tile.width());
        self.dscalars
    }
}

/// Zeros for gradients of scalars, in the same shapes.
fn zeros(scalars: &Scalars) -> Scalars {
    let like = |x: &[f32]| vec![0.0; x.len()];
    let Scalars { w, r, a, eta } = scalars;
    Scalars { w: like(w), r: like(r), a: like(a), eta: like(eta) }
}

impl<'o> BackwardOutputs<'o> {
    /// The rows and scalars of one chunk.
    fn part<'a>(&'a mut self, tokens: &Range<usize>, dscalars: &'a mut Scalars) -> ChunkGrads<'a, 'o> {
        fn of<'x>(x: &'x mut [f32], tokens: &Range<usize>) -> &'x mut [f32] {
            if x.is_empty() { x } else { &mut x[tokens.clone()] }
        }
        let Scalars { w, r, a, eta } = dscalars;
        ChunkGrads {
            dq: &mut self.dq[tokens.clone()],
            dk: &mut self.dk[tokens.clone()],
            dv: &mut self.dv[tokens.clone()],
            dw: of(w, tokens),
            dr: of(r, tokens),
            da: of(a, tokens),
            deta: of(eta, tokens),
        }
    }
}
