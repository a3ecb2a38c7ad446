//! A lane: one sequence, one head, one block of value columns, chunk after chunk.

use super::{
    Scalars, chunk, chunk_backward,
    problem::Problem,
    replay::{Replay, Work},
    scan,
    tables::Factors,
};
use crate::product::Mat;
use hecate_core::Dims;
use std::{borrow::Cow, ops::Range};

/// One sequence, one head, one block of value columns.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(super) sequence: usize,
    pub(super) rows: Range<usize>,
    pub(super) head: usize,
    pub(super) columns: Range<usize>,
}

/// What a lane made: `out [T, columns]`, final states `[K, columns]`, states at chunk starts.
pub(crate) struct Forward {
    pub(crate) out: Vec<f32>,
    pub(crate) states: Vec<Vec<f32>>,
    pub(crate) saved: Vec<f32>,
}

/// Gradients of a lane: `dq`, `dk` `[T, K]`, `dv [T, columns]`, scalars `[T]`, initial states `[K, columns]`.
pub(crate) struct Backward {
    pub(crate) dq: Vec<f32>,
    pub(crate) dk: Vec<f32>,
    pub(crate) dv: Vec<f32>,
    pub(crate) dscalars: Scalars,
    pub(crate) dstates: Vec<Vec<f32>>,
}

/// The memory and its companions while a lane runs, each `[K, columns]`.
pub(crate) struct Memory {
    /// `M`, or its gradient.
    pub(crate) m: Vec<f32>,
    /// `S`, or its gradient; empty without momentum.
    pub(crate) s: Vec<f32>,
    /// `M_c`, or its gradient; empty unless frozen.
    pub(crate) group: Vec<f32>,
}

/// A chunk's inputs: rows of the whole arrays, and contiguous scalars.
pub(crate) struct View<'a> {
    pub(crate) tokens: usize,
    pub(crate) q: Mat<'a>,
    pub(crate) k: Mat<'a>,
    pub(crate) v: Mat<'a>,
    pub(crate) w: &'a [f32],
    pub(crate) r: &'a [f32],
    pub(crate) a: &'a [f32],
    pub(crate) eta: &'a [f32],
}

impl View<'_> {
    /// What the tables are made of.
    pub(crate) fn factors(&self) -> Factors<'_> {
        Factors { a: self.a, eta: self.eta, emission: &[] }
    }
}

/// Row `t` of a view.
#[inline(always)]
pub(crate) fn row<'a>(x: &Mat<'a>, t: usize) -> &'a [f32] {
    &x.data[t * x.row_stride..][..x.columns]
}

impl Lane {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.rows.len()
    }

    /// Number of value columns.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }

    /// This lane's scalars, contiguous.
    pub(crate) fn scalars(&self, problem: &Problem<'_>) -> Scalars {
        let heads = problem.dims.heads;
        let own = |all: &[f32]| match all.is_empty() {
            true => Vec::new(),
            false => self.rows.clone().map(|row| all[row * heads + self.head]).collect(),
        };
        let Scalars { w, r, a, eta } = &problem.scalars;
        Scalars { w: own(w), r: own(r), a: own(a), eta: own(eta) }
    }

    /// Inputs of `tokens`.
    pub(crate) fn view<'v>(&self, problem: &'v Problem<'_>, scalars: &'v Scalars, tokens: &Range<usize>) -> View<'v> {
        let part = |x: &'v [f32]| if x.is_empty() { x } else { &x[tokens.clone()] };
        let keys = 0..problem.dims.key;
        View {
            tokens: tokens.len(),
            q: self.mat(problem, &problem.q, &keys, tokens),
            k: self.mat(problem, &problem.k, &keys, tokens),
            v: self.mat(problem, &problem.v, &self.columns, tokens),
            w: part(&scalars.w),
            r: part(&scalars.r),
            a: part(&scalars.a),
            eta: part(&scalars.eta),
        }
    }

    fn mat<'v>(&self, problem: &Problem<'_>, x: &'v [f32], columns: &Range<usize>, tokens: &Range<usize>) -> Mat<'v> {
        let heads = problem.dims.heads;
        let width = x.len() / (problem.dims.sequences.rows() * heads);
        let first = ((self.rows.start + tokens.start) * heads + self.head) * width + columns.start;
        Mat::with_stride(&x[first..], tokens.len(), columns.len(), heads * width)
    }

    /// This lane's part of states `[N, H, K, V]`, contiguous.
    fn state(&self, problem: &Problem<'_>, states: &[f32]) -> Vec<f32> {
        let Dims { heads, key, value, .. } = *problem.dims;
        let base = (self.sequence * heads + self.head) * key * value + self.columns.start;
        (0..key).flat_map(|r| &states[base + r * value..][..self.width()]).copied().collect()
    }

    /// `M` and `S` of this lane out of whole states, with room for `M_c` (zero).
    fn memory(&self, problem: &Problem<'_>, states: &[Cow<'_, [f32]>]) -> Memory {
        let mut own = states.iter().map(|x| self.state(problem, x));
        let m = own.next().unwrap_or_default();
        let s = own.next().unwrap_or_default();
        let group = if problem.spec.frozen.is_some() { vec![0.0; m.len()] } else { Vec::new() };
        Memory { m, s, group }
    }

    /// Takes the memory from a chunk's start to its end; `out [n, columns]`.
    pub(super) fn advance(
        &self,
        problem: &Problem<'_>,
        view: &View<'_>,
        starts_group: bool,
        memory: &mut Memory,
        work: Option<&mut chunk::Workspace>,
        out: &mut [f32],
    ) {
        if starts_group && problem.spec.frozen.is_some() {
            memory.group.copy_from_slice(&memory.m);
        }
        match work {
            Some(work) => chunk::forward(problem.spec, view, memory, work, out),
            None => scan::forward(problem.spec, view, memory, out),
        }
    }

    /// Runs the lane; `keep` says whether a backward will come.
    pub(crate) fn forward(&self, problem: &Problem<'_>, keep: bool) -> Forward {
        let mut memory = self.memory(problem, &problem.initial);
        let mut out = vec![0.0; self.tokens() * self.width()];
        let scalars = self.scalars(problem);
        let chunks = problem.chunks(self.tokens());
        let mut saved = Vec::new();
        if keep {
            let kept = chunks.iter().filter(|chunk| chunk.kept).count();
            saved.reserve_exact(kept * memory.m.len() * problem.states());
        }
        let mut work = (!problem.scan).then(|| chunk::Workspace::new(self.width()));
        for chunk in chunks {
            if keep && chunk.kept {
                saved.extend_from_slice(&memory.m);
                saved.extend_from_slice(&memory.s);
            }
            let view = self.view(problem, &scalars, &chunk.tokens);
            let out = &mut out[chunk.tokens.start * self.width()..][..chunk.tokens.len() * self.width()];
            self.advance(problem, &view, chunk.starts_group, &mut memory, work.as_mut(), out);
        }
        let states = if problem.spec.momentum { vec![memory.m, memory.s] } else { vec![memory.m] };
        Forward { out, states, saved }
    }

    /// Turns the lane around.
    pub(crate) fn backward(
        &self,
        problem: &Problem<'_>,
        saved: &[f32],
        dout: &[f32],
        dfinal: &[Cow<'_, [f32]>],
    ) -> Backward {
        let (spec, key) = (problem.spec, problem.dims.key);
        let scalars = self.scalars(problem);
        let mut grads = Backward::zeros(self.tokens(), key, self.width(), &scalars);
        let mut dmemory = self.memory(problem, dfinal);
        let replay = Replay::new(self, problem, &scalars, saved);
        let mut work = Work::new(problem.scan, self.width());
        for span in replay.spans().into_iter().rev() {
            let states = replay.states(span.clone(), &mut work);
            for i in span.clone().rev() {
                let chunk = &replay.chunks[i];
                let view = self.view(problem, &scalars, &chunk.tokens);
                let start = replay.start(&states, span.start, i);
                let dout = self.mat(problem, dout, &self.columns, &chunk.tokens);
                let own = grads.part(&chunk.tokens, key, self.width());
                match &mut work {
                    Work::Scan(states) => scan::backward(spec, &view, &start, states, &dout, &mut dmemory, own),
                    Work::Chunk(work) => chunk_backward::run(spec, &view, &start, work, &dout, &mut dmemory, own),
                }
                if chunk.starts_group {
                    dmemory.leave_group();
                }
            }
        }
        grads.dstates = if spec.momentum { vec![dmemory.m, dmemory.s] } else { vec![dmemory.m] };
        grads
    }
}

impl Memory {
    /// The gradient of `M_c` joins that of `M`, which it is at the group's first token.
    fn leave_group(&mut self) {
        let Self { m, group, .. } = self;
        m.iter_mut().zip(group).for_each(|(m, group)| *m += std::mem::take(group));
    }
}

/// A chunk's part of a lane's gradients.
pub(crate) struct Part<'a> {
    pub(crate) dq: &'a mut [f32],
    pub(crate) dk: &'a mut [f32],
    pub(crate) dv: &'a mut [f32],
    pub(crate) dw: &'a mut [f32],
    pub(crate) dr: &'a mut [f32],
    pub(crate) da: &'a mut [f32],
    pub(crate) deta: &'a mut [f32],
}

impl Part<'_> {
    /// `dq` and `dk` of token `t`.
    #[inline(always)]
    pub(super) fn key(&mut self, t: usize) -> (&mut [f32], &mut [f32]) {
        let width = self.dq.len() / self.dw.len();
        (&mut self.dq[t * width..][..width], &mut self.dk[t * width..][..width])
    }

    /// `dv` of token `t`.
    #[inline(always)]
    pub(super) fn value(&mut self, t: usize, columns: usize) -> &mut [f32] {
        &mut self.dv[t * columns..][..columns]
    }
}

impl Backward {
    fn zeros(tokens: usize, key: usize, columns: usize, scalars: &Scalars) -> Self {
        let like = |x: &[f32]| vec![0.0; x.len()];
        let Scalars { w, r, a, eta } = scalars;
        Self {
            dq: vec![0.0; tokens * key],
            dk: vec![0.0; tokens * key],
            dv: vec![0.0; tokens * columns],
            dscalars: Scalars { w: like(w), r: like(r), a: like(a), eta: like(eta) },
            dstates: Vec::new(),
        }
    }

    fn part(&mut self, tokens: &Range<usize>, key: usize, width: usize) -> Part<'_> {
        fn of<'a>(x: &'a mut [f32], tokens: &Range<usize>, width: usize) -> &'a mut [f32] {
            if x.is_empty() { x } else { &mut x[tokens.start * width..tokens.end * width] }
        }
        let Scalars { w, r, a, eta } = &mut self.dscalars;
        Part {
            dq: of(&mut self.dq, tokens, key),
            dk: of(&mut self.dk, tokens, key),
            dv: of(&mut self.dv, tokens, width),
            dw: of(w, tokens, 1),
            dr: of(r, tokens, 1),
            da: of(a, tokens, 1),
            deta: of(eta, tokens, 1),
        }
    }
}
