//! The linear engine: one recurrence for every linear rule, token by token or in exact chunks.
//!
//! A forward goes through the memory once for every four tokens (`fused`), or two with momentum; a single token
//! goes from one memory into the next (`decode`). A backward is products of matrices over chunks of 64 tokens, and so is
//! the forward of frozen rules (`chunk`, `chunk_backward`). `scan` is the plain recurrence that all are compared with.
//!
//! Equation numbers are those of [`hecate_core::rules`]. A rule says only how its gates become the scalars `w`, `r`,
//! `a`, `η` of the recurrence and how gradients of those become gradients of its gates ([`Linear`]).
//!
//! # Parallelism
//!
//! The unit of work is a *lane*: one sequence, one head, one block of value columns. Columns never interact, so a
//! lane runs by itself; gradients of `q`, `k` and the gates are sums over the column blocks of a head, taken in order.
//! How many blocks there are depends on the sizes alone, so results do not depend on the number of threads.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens: `N H ⌈T/C⌉ K V (1 + [momentum])`
//! numbers. Frozen rules keep one every `⌊C/G⌋ G` tokens, as many whole groups as fit, or, where a group is longer
//! than `C`, one every `C` tokens of each group; states between are computed again. [`Bill`](crate::Bill) is the whole bill
//! of a backward.

pub(crate) mod chunk;
pub(crate) mod chunk_backward;
mod decode;
mod fused;
mod lane;
mod memory;
mod problem;
mod replay;
mod run;
mod scan;
mod sheet;
pub(crate) mod solve;
pub(crate) mod tables;
mod tiles;

use crate::{
    Algorithm, Cpu,
    device::{lent, tensor},
    kept::Lent,
};
use hecate_core::{DType, Dims, Error, Inputs, Kernel, Of, Outputs, Read, Result, Rule, Shape, Slots, Tensor};
pub(crate) use lane::{Memory, Part, View};
pub(crate) use problem::{Chunk, cut};
use problem::{Form, Problem, add_blocks};
use rayon::prelude::*;
pub(crate) use replay::{Start, Work};
use run::Upstream;
use std::ops::Range;

/// Tokens between kept states, and of a chunk's matrix products.
pub(crate) const CHUNK: usize = 64;

/// Sequences of at most this many tokens are scanned where a backward comes: it then does less, and rounds less.
const SCAN_TOKENS: usize = 8;

/// What the engine must know of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// When a token reads.
    pub(crate) read: Read,
    /// `f = 1`, with groups of this many tokens.
    pub(crate) frozen: Option<usize>,
    /// Whether there is an `S`; without, `η = 0`.
    pub(crate) momentum: bool,
    /// Whether `r` can differ from 0.
    pub(crate) erase: bool,
}

/// Scalars of the recurrence, or their gradients, each `[rows, H]`; `r` and `eta` are empty where the rule has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scalars {
    /// Write strength.
    pub(crate) w: Vec<f32>,
    /// Erase strength.
    pub(crate) r: Vec<f32>,
    /// Retention.
    pub(crate) a: Vec<f32>,
    /// Momentum.
    pub(crate) eta: Vec<f32>,
}

/// A rule that the linear engine runs: a cell of this column is one implementation.
pub(crate) trait Linear: Rule {
    /// What its options mean to the engine.
    fn spec(self) -> Spec;

    /// Scalars from gates `[rows, H]`.
    ///
    /// # Errors
    /// [`Error::Value`] for a gate outside its range.
    fn lower(self, gates: &Of<Self::Gates, &[f32]>) -> Result<Scalars>;

    /// Gradients of the gates from those of the scalars, `scalars` being what `lower` gave.
    fn raise(self, gates: &Of<Self::Gates, &[f32]>, scalars: &Scalars, grads: Scalars) -> Of<Self::Gates, Vec<f32>>;
}

/// `e^x` of log gates.
///
/// # Errors
/// [`Error::Value`] for NaN and for anything above 0.
pub(crate) fn decays(what: &'static str, slot: &'static str, logs: &[f32]) -> Result<Vec<f32>> {
    check_gate(what, slot, logs, "a logarithm of a factor in [0, 1]: −∞ to 0", |x| x <= 0.0)?;
    Ok(logs.iter().map(|x| x.exp()).collect())
}

/// A copy of step sizes.
///
/// # Errors
/// [`Error::Value`] for NaN and infinities.
pub(crate) fn strengths(what: &'static str, slot: &'static str, values: &[f32]) -> Result<Vec<f32>> {
    check_gate(what, slot, values, "a finite number", f32::is_finite)?;
    Ok(values.to_vec())
}

fn check_gate(
    what: &'static str,
    slot: &'static str,
    values: &[f32],
    expected: &'static str,
    fits: impl Fn(f32) -> bool,
) -> Result<()> {
    match values.iter().position(|&x| !fits(x)) {
        None => Ok(()),
        Some(index) => Err(Error::Value { what, slot, index, found: values[index].into(), expected }),
    }
}

/// `x y`, element by element.
pub(crate) fn times(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}

/// `x + y`, element by element.
pub(crate) fn plus(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

/// States at chunk starts, lane by lane: `[chunks, K, columns]`, behind each `M` its `S` where there is momentum.
pub struct Saved(Option<Lent>);

impl Cpu {
    /// How a forward goes, and the length of chunks; `keep` says whether a backward comes or came.
    fn plan(&self, spec: Spec, dims: &Dims, keep: bool) -> (Form, usize) {
        match self.algorithm() {
            Algorithm::Auto if keep && dims.sequences.longest() <= SCAN_TOKENS => (Form::Scan, CHUNK),
            Algorithm::Auto if spec.frozen.is_none() => (Form::Fused, CHUNK),
            Algorithm::Auto => (Form::Chunk, CHUNK),
            Algorithm::Scan => (Form::Scan, CHUNK),
            Algorithm::Chunk(tokens) => (Form::Chunk, tokens.max(1)),
        }
    }

    fn problem<'a, R: Linear>(
        &self,
        rule: R,
        dims: &'a Dims,
        inputs: &'a Inputs<R, Tensor<Self>>,
        keep: bool,
    ) -> Result<Problem<'a>> {
        let scalars = rule.lower(&gates(inputs))?;
        let spec = rule.spec();
        Ok(Problem::new(spec, dims, self.plan(spec, dims, keep), inputs, scalars))
    }

    fn run_forward<R: Linear>(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        keep: bool,
    ) -> Result<(Outputs<R, Tensor<Self>>, Saved)> {
        let problem = self.problem(rule, dims, inputs, keep)?;
        let lanes = problem.lanes();
        let mut out = self.take(problem.v.len());
        let mut states = self.states(&problem);
        let sizes = if keep { problem.saved_sizes(&lanes) } else { vec![0; lanes.len()] };
        let mut saved = self.take(sizes.iter().sum());
        let [m, s] = &mut states;
        let (rows, m, s) = (problem.value_rows(&mut out), problem.state_rows(m), problem.state_rows(s));
        let mut s = s.into_iter();
        let mut places = (rows.into_iter().zip(m).zip(split(&mut saved, &sizes)))
            .map(|((out, m), saved)| run::Forward { out, states: [m, s.next().unwrap_or_default()], saved });
        let groups = problem.together(lanes.len(), self.threads()).into_iter();
        let groups: Vec<_> = groups.map(|own| (own.clone(), places.by_ref().take(own.len()).collect())).collect();
        self.run(|| {
            groups.into_par_iter().for_each(|(own, places)| {
                self.kept().work(|work| run::forward(&lanes[own], &problem, work, keep, places));
            });
        });
        Ok((outputs(self, rule, dims, inputs.q.dtype(), out, states), Saved(Some(saved))))
    }

    /// Room for `M` and `S` of all sequences and heads; the second empty without momentum.
    fn states(&self, problem: &Problem<'_>) -> [Lent; 2] {
        let size = problem.dims.matrices().count();
        [self.take(size), self.take(if problem.spec.momentum { size } else { 0 })]
    }
}

/// Results out of what was computed; `states` are `M` and `S`.
fn outputs<R: Rule>(
    device: &Cpu,
    rule: R,
    dims: &Dims,
    dtype: DType,
    out: Lent,
    states: [Lent; 2],
) -> Outputs<R, Tensor<Cpu>> {
    Outputs { out: lent(device, dims.values(), dtype, out), state: state::<R>(device, rule, dims, states) }
}

fn state<R: Rule>(device: &Cpu, rule: R, dims: &Dims, states: [Lent; 2]) -> Of<R::State, Tensor<Cpu>> {
    let mut states = states.into_iter();
    R::State::map(rule.state(dims), |_, shape: Shape| {
        lent(device, shape, DType::F32, states.next().unwrap_or_else(|| device.take(0)))
    })
}

/// Parts of these sizes, one behind another.
fn split<'x>(mut x: &'x mut [f32], sizes: &[usize]) -> Vec<&'x mut [f32]> {
    let mut part = |&size: &usize| {
        let (own, rest) = std::mem::take(&mut x).split_at_mut(size);
        x = rest;
        own
    };
    sizes.iter().map(&mut part).collect()
}

/// The gates' elements; core has checked that they are 32-bit floats.
fn gates<R: Rule>(inputs: &Inputs<R, Tensor<Cpu>>) -> Of<R::Gates, &[f32]> {
    R::Gates::map(R::Gates::as_ref(&inputs.gates), |_, gate| match &**gate.buffer() {
        hecate_core::Host::F32(values) => values.as_slice(),
        _ => &[],
    })
}

impl<R: Linear> Kernel<R> for Cpu {
    type Saved = Saved;

    fn forward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
    ) -> Result<(Outputs<R, Tensor<Self>>, Saved)> {
        self.run_forward(rule, dims, inputs, true)
    }

    fn infer(&self, rule: R, dims: &Dims, inputs: &Inputs<R, Tensor<Self>>) -> Result<Outputs<R, Tensor<Self>>> {
        if self.algorithm() == Algorithm::Auto && dims.sequences.longest() == 1 {
            return self.decode(rule, dims, inputs);
        }
        Ok(self.run_forward(rule, dims, inputs, false)?.0)
    }

    fn backward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        saved: Saved,
        grads: &Outputs<R, Tensor<Self>>,
    ) -> Result<Inputs<R, Tensor<Self>>> {
        let problem = self.problem(rule, dims, inputs, true)?;
        let dout = crate::device::floats(&grads.out);
        let dfinal: Vec<_> = R::State::list(&grads.state).into_iter().map(|(_, x)| crate::device::floats(x)).collect();
        let lanes = problem.lanes();
        let keys = || -> Vec<Lent> { (0..problem.blocks()).map(|_| self.take(problem.q.len())).collect() };
        let (mut dq, mut dk, mut dv, mut states) = (keys(), keys(), self.take(problem.v.len()), self.states(&problem));
        let saved = saved.0.unwrap_or_else(|| self.take(0));
        let saved: Vec<_> = {
            let mut rest = &*saved;
            let sizes = problem.saved_sizes(&lanes).into_iter();
            sizes.map(|size| rest.split_off(..size).unwrap_or_default()).collect()
        };
        let [m, s] = &mut states;
        let (q, k, v) = (problem.key_rows(&mut dq), problem.key_rows(&mut dk), problem.value_rows(&mut dv));
        let (m, mut s) = (problem.state_rows(m), problem.state_rows(s).into_iter());
        let mut places = q.into_iter().zip(k).zip(v.into_iter().zip(m)).map(|((dq, dk), (dv, m))| {
            let dstates = [m, s.next().unwrap_or_default()];
            run::Backward { dq, dk, dv, dstates }
        });
        let groups = problem.together(lanes.len(), self.threads()).into_iter();
        let groups: Vec<_> = groups.map(|own| (own.clone(), places.by_ref().take(own.len()).collect())).collect();
        let upstream = Upstream { out: &dout, states: &dfinal };
        let scalars: Vec<_> = self.run(|| {
            let run = |(own, places): (Range<usize>, _)| {
                let (lanes, saved) = (&lanes[own.clone()], &saved[own]);
                self.kept().work(|work| run::backward(lanes, &problem, work, saved, upstream, places))
            };
            groups.into_par_iter().flat_map_iter(run).collect()
        });
        let scalars = problem.join_scalars(&lanes, |i| &scalars[i]);
        let (dq, dk) = self.run(|| (add_blocks(&mut dq), add_blocks(&mut dk)));
        let dgates = rule.raise(&gates(inputs), problem.scalars(), scalars);
        let (dtype, none) = (inputs.q.dtype(), || self.take(0));
        Ok(Inputs {
            q: lent(self, dims.keys(), dtype, dq.unwrap_or_else(none)),
            k: lent(self, dims.keys(), dtype, dk.unwrap_or_else(none)),
            v: lent(self, dims.values(), dtype, dv),
            gates: R::Gates::map(dgates, |_, values| tensor(self, dims.scalars(), DType::F32, values)),
            state: state::<R>(self, rule, dims, states),
        })
    }
}
