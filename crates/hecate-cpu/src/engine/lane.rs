//! A lane: one sequence, one head, one block of value columns, chunk after chunk.

use super::{
    Scalars, chunk, chunk_backward,
    problem::{Chunk, Problem},
    scan,
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

    /// This lane's `tokens` of an array like `v`.
    pub(crate) fn values<'v>(&self, problem: &Problem<'_>, x: &'v [f32], tokens: &Range<usize>) -> Mat<'v> {
        self.mat(problem, x, &self.columns, tokens)
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

    /// Runs the lane; `keep` says whether a backward will come.
    pub(crate) fn forward(&self, problem: &Problem<'_>, keep: bool) -> Forward {
        let mut memory = self.memory(problem, &problem.initial);
        let mut out = vec![0.0; self.tokens() * self.width()];
        let scalars = self.scalars(problem);
        let chunks = problem.chunks(self.tokens());
        let mut saved = Vec::new();
        if keep {
            saved.reserve_exact(chunks.len() * memory.m.len() * problem.states());
        }
        let mut work = (!problem.scan).then(|| chunk::Workspace::new(self.width()));
        for chunk in chunks {
            if keep {
                saved.extend_from_slice(&memory.m);
                saved.extend_from_slice(&memory.s);
            }
            if chunk.starts_group && problem.spec.frozen.is_some() {
                memory.group.copy_from_slice(&memory.m);
            }
            let view = self.view(problem, &scalars, &chunk.tokens);
            let out = &mut out[chunk.tokens.start * self.width()..][..chunk.tokens.len() * self.width()];
            match &mut work {
                Some(work) => chunk::forward(problem.spec, &view, &mut memory, work, out),
                None => scan::forward(problem.spec, &view, &mut memory, out),
            }
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
        let (tokens, key) = (self.tokens(), problem.dims.key);
        let scalars = self.scalars(problem);
        let like = |x: &[f32]| vec![0.0; x.len()];
        let mut grads = Backward {
            dq: vec![0.0; tokens * key],
            dk: vec![0.0; tokens * key],
            dv: vec![0.0; tokens * self.width()],
            dscalars: Scalars {
                w: like(&scalars.w),
                r: like(&scalars.r),
                a: like(&scalars.a),
                eta: like(&scalars.eta),
            },
            dstates: Vec::new(),
        };
        let mut dmemory = self.memory(problem, dfinal);
        let chunks = problem.chunks(tokens);
        let mut starts = Starts::new(saved, key * self.width(), problem.spec.momentum);
        let mut work = match problem.scan {
            true => Work::Scan(scan::States::default()),
            false => Work::Chunk(Box::new(chunk_backward::Workspace::new(self.width()))),
        };
        for (i, chunk) in chunks.iter().enumerate().rev() {
            let view = self.view(problem, &scalars, &chunk.tokens);
            let start = starts.at(i, group_start(&chunks, i));
            let dout = self.values(problem, dout, &chunk.tokens);
            let own = grads.part(&chunk.tokens, key, self.width());
            match &mut work {
                Work::Scan(states) => scan::backward(problem.spec, &view, &start, states, &dout, &mut dmemory, own),
                Work::Chunk(work) => chunk_backward::run(problem.spec, &view, &start, work, &dout, &mut dmemory, own),
            }
            if chunk.starts_group && problem.spec.frozen.is_some() {
                let Memory { m, group, .. } = &mut dmemory;
                m.iter_mut().zip(group.iter_mut()).for_each(|(m, group)| *m += std::mem::take(group));
            }
        }
        grads.dstates = if problem.spec.momentum { vec![dmemory.m, dmemory.s] } else { vec![dmemory.m] };
        grads
    }
}

enum Work {
    Scan(scan::States),
    Chunk(Box<chunk_backward::Workspace>),
}

/// Index of the chunk with which the frozen group of chunk `i` starts.
fn group_start(chunks: &[Chunk], i: usize) -> usize {
    chunks[..=i].iter().rposition(|chunk| chunk.starts_group).unwrap_or(0)
}

/// Kept states, by chunk.
struct Starts<'a> {
    saved: &'a [f32],
    size: usize,
    momentum: bool,
}

/// State at the start of a chunk, and `M` at the start of its group.
pub(crate) struct Start<'a> {
    pub(crate) m: &'a [f32],
    pub(crate) s: &'a [f32],
    pub(crate) group: &'a [f32],
}

impl<'a> Starts<'a> {
    fn new(saved: &'a [f32], size: usize, momentum: bool) -> Self {
        Self { saved, size, momentum }
    }

    fn at(&mut self, chunk: usize, group: usize) -> Start<'a> {
        let stride = self.size * (1 + usize::from(self.momentum));
        let own = &self.saved[chunk * stride..][..stride];
        let (m, s) = own.split_at(self.size);
        Start { m, s, group: &self.saved[group * stride..][..self.size] }
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

impl Backward {
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
