//! A lane: one sequence, one head, one block of value columns, chunk after chunk.

use super::{Scalars, problem::Problem, tables::Factors};
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
#[derive(Clone, Copy)]
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

    pub(super) fn mat<'v>(
        &self,
        problem: &Problem<'_>,
        x: &'v [f32],
        columns: &Range<usize>,
        tokens: &Range<usize>,
    ) -> Mat<'v> {
        let heads = problem.dims.heads;
        let width = x.len() / (problem.dims.sequences.rows() * heads);
        let first = ((self.rows.start + tokens.start) * heads + self.head) * width + columns.start;
        Mat::with_stride(&x[first..], tokens.len(), columns.len(), heads * width)
    }

    /// This lane's part of states `[N, H, K, V]`, contiguous.
    fn state(&self, problem: &Problem<'_>, states: &[f32]) -> Vec<f32> {
        let Dims { heads, key, value, .. } = *problem.dims;
        let base = (self.sequence * heads + self.head) * key * value;
        let mut own = Vec::with_capacity(key * self.width());
        let rows = states[base..][..key * value].chunks_exact(value);
        rows.for_each(|row| own.extend_from_slice(&row[self.columns.clone()]));
        own
    }

    /// `M` and `S` of this lane out of whole states, with room for `M_c` (zero).
    pub(super) fn memory(&self, problem: &Problem<'_>, states: &[Cow<'_, [f32]>]) -> Memory {
        let mut own = states.iter().map(|x| self.state(problem, x));
        let m = own.next().unwrap_or_default();
        let s = own.next().unwrap_or_default();
        let group = if problem.spec.frozen.is_some() { vec![0.0; m.len()] } else { Vec::new() };
        Memory { m, s, group }
    }
}

impl Memory {
    /// The gradient of `M_c` joins that of `M`, which it is at the group's first token.
    pub(super) fn leave_group(&mut self) {
        let Self { m, group, .. } = self;
        m.iter_mut().zip(group).for_each(|(m, group)| *m += std::mem::take(group));
    }

    /// Copies `M` and `S`, `width` columns each, to rows.
    pub(super) fn store(&self, to: [Vec<&mut [f32]>; 2], width: usize) {
        for (own, to) in [&self.m, &self.s].into_iter().zip(to) {
            own.chunks_exact(width).zip(to).for_each(|(own, to)| to.copy_from_slice(own));
        }
    }
}

/// A chunk's part of a lane's gradients, to be overwritten: rows of `dq`, `dk` and `dv`, and scalars `[n]`.
pub(crate) struct Part<'a, 'o> {
    pub(crate) dq: &'a mut [&'o mut [f32]],
    pub(crate) dk: &'a mut [&'o mut [f32]],
    pub(crate) dv: &'a mut [&'o mut [f32]],
    pub(crate) dw: &'a mut [f32],
    pub(crate) dr: &'a mut [f32],
    pub(crate) da: &'a mut [f32],
    pub(crate) deta: &'a mut [f32],
}
