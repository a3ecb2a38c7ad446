//! Lanes of one sequence that are computed together, chunk after chunk.
//!
//! Rows of neighbouring heads lie side by side in memory, those of neighbouring tokens far apart. Lanes that go through
//! a chunk one after another therefore find their rows on the same pages.

use super::{
    Scalars, chunk_backward, fused,
    lane::{Lane, Memory, Part},
    problem::{Chunk, Form, Problem},
    replay::{Replay, Work},
    scan,
};
use std::{borrow::Cow, mem, ops::Range};

/// Where a lane's results go: rows of `out` and of the final `M` and `S`, and the states at chunk starts.
pub(super) struct Forward<'o> {
    pub(super) out: Vec<&'o mut [f32]>,
    pub(super) states: [Vec<&'o mut [f32]>; 2],
    pub(super) saved: &'o mut [f32],
}

/// Where a lane's gradients go: rows of `dq`, `dk`, `dv`, and of those of the initial `M` and `S`.
pub(super) struct Backward<'o> {
    pub(super) dq: Vec<&'o mut [f32]>,
    pub(super) dk: Vec<&'o mut [f32]>,
    pub(super) dv: Vec<&'o mut [f32]>,
    pub(super) dstates: [Vec<&'o mut [f32]>; 2],
}

/// Runs lanes of one sequence; `keep` says whether a backward will come.
pub(super) fn forward(lanes: &[Lane], problem: &Problem<'_>, work: &mut Work, keep: bool, places: Vec<Forward<'_>>) {
    work.fused.room(lanes.len());
    let start = |(i, (lane, place)): (usize, (_, _))| Ahead::new(lane, problem, work, i, place);
    let mut under_way: Vec<_> = lanes.iter().zip(places).enumerate().map(start).collect();
    for chunk in lanes.first().map(|lane| problem.chunks(lane.tokens())).unwrap_or_default() {
        for (i, lane) in under_way.iter_mut().enumerate() {
            if keep && chunk.kept {
                lane.keep(problem, work, i);
            }
            lane.advance(problem, work, i, &chunk);
        }
    }
    under_way.into_iter().enumerate().for_each(|(i, lane)| lane.finish(problem, work, i));
}

/// A lane on its way through the chunks.
struct Ahead<'a, 'o> {
    lane: &'a Lane,
    scalars: Scalars,
    /// Where the memory is, unless it is in the scratch of the fused form.
    memory: Memory,
    place: Forward<'o>,
}

impl<'a, 'o> Ahead<'a, 'o> {
    fn new(lane: &'a Lane, problem: &Problem<'_>, work: &mut Work, i: usize, place: Forward<'o>) -> Self {
        let memory = lane.memory(problem, &problem.initial);
        if problem.form == Form::Fused {
            work.fused.start(i, &memory.m, &memory.s, lane.width());
        }
        Self { lane, scalars: lane.scalars(problem), memory, place }
    }

    /// Keeps the memory for the backward.
    fn keep(&mut self, problem: &Problem<'_>, work: &Work, i: usize) {
        let states = [&self.memory.m, &self.memory.s];
        for (slot, state) in states.into_iter().enumerate().take(problem.states()) {
            let (own, rest) = mem::take(&mut self.place.saved).split_at_mut(state.len());
            self.place.saved = rest;
            match problem.form {
                Form::Fused => work.fused.copy(i, slot == 1, own.chunks_exact_mut(self.lane.width())),
                Form::Scan | Form::Chunk => own.copy_from_slice(state),
            }
        }
    }

    fn advance(&mut self, problem: &Problem<'_>, work: &mut Work, i: usize, chunk: &Chunk) {
        let mut view = self.lane.view(problem, &self.scalars, &chunk.tokens);
        let out = &mut self.place.out[chunk.tokens.clone()];
        if problem.form != Form::Fused {
            return work.advance(problem, &view, chunk.starts_group, &mut self.memory, out);
        }
        let ahead = chunk.tokens.start..(chunk.tokens.end + fused::GROUP).min(self.lane.tokens());
        let keys = 0..problem.dims.key;
        view.q = self.lane.mat(problem, &problem.q, &keys, &ahead);
        view.k = self.lane.mat(problem, &problem.k, &keys, &ahead);
        view.a = &self.scalars.a[ahead.clone()];
        view.eta = self.scalars.eta.get(ahead).unwrap_or_default();
        fused::forward(problem.spec, &view, &mut work.fused, i, out);
    }

    fn finish(self, problem: &Problem<'_>, work: &Work, i: usize) {
        if problem.form != Form::Fused {
            return self.memory.store(self.place.states, self.lane.width());
        }
        for (slot, state) in self.place.states.into_iter().enumerate() {
            work.fused.copy(i, slot == 1, state.into_iter());
        }
    }
}

/// Gradients of all outputs: of `out [rows, H, V]`, and of the final `M` and `S`.
#[derive(Clone, Copy)]
pub(super) struct Upstream<'a> {
    pub(super) out: &'a [f32],
    pub(super) states: &'a [Cow<'a, [f32]>],
}

/// Turns lanes of one sequence around; `saved` is what each kept. Gradients of their scalars.
pub(super) fn backward(
    lanes: &[Lane],
    problem: &Problem<'_>,
    work: &mut Work,
    saved: &[&[f32]],
    upstream: Upstream<'_>,
    places: Vec<Backward<'_>>,
) -> Vec<Scalars> {
    let all_scalars: Vec<_> = lanes.iter().map(|lane| lane.scalars(problem)).collect();
    let each = lanes.iter().zip(&all_scalars).zip(saved.iter().zip(places));
    let mut under_way: Vec<_> = each
        .map(|((lane, scalars), (saved, place))| Back {
            lane,
            scalars,
            replay: Replay::new(lane, problem, scalars, saved),
            dmemory: lane.memory(problem, upstream.states),
            dscalars: zeros(scalars),
            place,
        })
        .collect();
    let spans = under_way.first().map(|lane| lane.replay.spans()).unwrap_or_default();
    for span in spans.into_iter().rev() {
        under_way.iter_mut().for_each(|lane| lane.turn(problem, work, span.clone(), upstream.out));
    }
    under_way.into_iter().map(Back::finish).collect()
}

/// A lane on its way back.
struct Back<'a, 'o> {
    lane: &'a Lane,
    scalars: &'a Scalars,
    replay: Replay<'a>,
    dmemory: Memory,
    dscalars: Scalars,
    place: Backward<'o>,
}

impl Back<'_, '_> {
    /// Goes back from one kept state to the one before it.
    fn turn(&mut self, problem: &Problem<'_>, work: &mut Work, span: Range<usize>, dout: &[f32]) {
        let Self { lane, scalars, replay, dmemory, dscalars, place } = self;
        let (spec, states) = (problem.spec, replay.states(span.clone(), work));
        for i in span.clone().rev() {
            let chunk = &replay.chunks[i];
            let view = lane.view(problem, scalars, &chunk.tokens);
            let start = replay.start(&states, span.start, i);
            let dout = lane.mat(problem, dout, &lane.columns, &chunk.tokens);
            let own = place.part(&chunk.tokens, dscalars);
            match problem.form {
                Form::Scan => scan::backward(spec, &view, &start, &mut work.scan, &dout, dmemory, own),
                _ => chunk_backward::run(spec, &view, &start, &mut work.chunk, &dout, dmemory, own),
            }
            if chunk.starts_group {
                dmemory.leave_group();
            }
        }
    }

    fn finish(self) -> Scalars {
        self.dmemory.store(self.place.dstates, self.lane.width());
        self.dscalars
    }
}

/// Zeros for gradients of scalars.
fn zeros(scalars: &Scalars) -> Scalars {
    let like = |x: &[f32]| vec![0.0; x.len()];
    let Scalars { w, r, a, eta } = scalars;
    Scalars { w: like(w), r: like(r), a: like(a), eta: like(eta) }
}

impl<'o> Backward<'o> {
    fn part<'a>(&'a mut self, tokens: &Range<usize>, dscalars: &'a mut Scalars) -> Part<'a, 'o> {
        fn of<'x>(x: &'x mut [f32], tokens: &Range<usize>) -> &'x mut [f32] {
            if x.is_empty() { x } else { &mut x[tokens.clone()] }
        }
        let Scalars { w, r, a, eta } = dscalars;
        Part {
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
