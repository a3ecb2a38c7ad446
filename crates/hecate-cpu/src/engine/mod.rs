//! The linear engine: one recurrence for every linear rule, token by token or in exact chunks.
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
mod lane;
mod memory;
mod problem;
mod replay;
mod scan;
pub(crate) mod solve;
pub(crate) mod tables;

use crate::{Algorithm, Cpu, device::tensor};
use hecate_core::{DType, Dims, Error, Inputs, Kernel, Of, Outputs, Read, Result, Rule, Shape, Slots, Tensor};
pub(crate) use lane::{Memory, Part, View};
use problem::Problem;
pub(crate) use problem::{Chunk, cut};
use rayon::prelude::*;
pub(crate) use replay::Start;

/// Tokens between kept states, and of a chunk's matrix products.
pub(crate) const CHUNK: usize = 64;

/// Sequences of at most this many tokens are scanned.
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
pub struct Saved(Vec<Vec<f32>>);

impl Cpu {
    /// Whether a call is scanned, and the length of its chunks.
    pub(crate) fn plan(&self, dims: &Dims) -> (bool, usize) {
        match self.algorithm() {
            Algorithm::Auto => (dims.sequences.longest() <= SCAN_TOKENS, CHUNK),
            Algorithm::Scan => (true, CHUNK),
            Algorithm::Chunk(tokens) => (false, tokens.max(1)),
        }
    }

    fn problem<'a, R: Linear>(
        &self,
        rule: R,
        dims: &'a Dims,
        inputs: &'a Inputs<R, Tensor<Self>>,
    ) -> Result<Problem<'a>> {
        let scalars = rule.lower(&gates(inputs))?;
        let (scan, chunk) = self.plan(dims);
        Ok(Problem::new(rule.spec(), dims, scan, chunk, inputs, scalars))
    }

    fn run_forward<R: Linear>(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        keep: bool,
    ) -> Result<(Outputs<R, Tensor<Self>>, Saved)> {
        let problem = self.problem(rule, dims, inputs)?;
        let (out, states, saved) = self.run(|| {
            let lanes = problem.lanes();
            let done: Vec<_> = lanes.par_iter().map(|lane| lane.forward(&problem, keep)).collect();
            let out = problem.join(&lanes, dims.value, |i| &done[i].out);
            let states: Vec<_> =
                (0..problem.states()).map(|s| problem.join_states(&lanes, |i| &done[i].states[s])).collect();
            (out, states, done.into_iter().map(|done| done.saved).collect())
        });
        let mut states = states.into_iter();
        let out = tensor(self, dims.values(), inputs.q.dtype(), out);
        let state = R::State::map(rule.state(dims), |_, shape: Shape| {
            tensor(self, shape, DType::F32, states.next().unwrap_or_default())
        });
        Ok((Outputs { out, state }, Saved(saved)))
    }
}

/// The gates' elements; core has checked that they are 32-bit floats.
fn gates<R: Rule>(inputs: &Inputs<R, Tensor<Cpu>>) -> Of<R::Gates, &[f32]> {
    R::Gates::map(R::Gates::as_ref(&inputs.gates), |_, gate| match gate.buffer() {
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
        let problem = self.problem(rule, dims, inputs)?;
        let dout = crate::device::floats(&grads.out);
        let dfinal: Vec<_> = R::State::list(&grads.state).into_iter().map(|(_, x)| crate::device::floats(x)).collect();
        let (dq, dk, dv, scalars, states) = self.run(|| {
            let lanes = problem.lanes();
            let done: Vec<_> = lanes
                .par_iter()
                .zip(saved.0)
                .map(|(lane, saved)| lane.backward(&problem, &saved, &dout, &dfinal))
                .collect();
            let states: Vec<_> =
                (0..problem.states()).map(|s| problem.join_states(&lanes, |i| &done[i].dstates[s])).collect();
            (
                problem.join(&lanes, dims.key, |i| &done[i].dq),
                problem.join(&lanes, dims.key, |i| &done[i].dk),
                problem.join(&lanes, dims.value, |i| &done[i].dv),
                problem.join_scalars(&lanes, |i| &done[i].dscalars),
                states,
            )
        });
        let dgates = rule.raise(&gates(inputs), problem.scalars(), scalars);
        let mut states = states.into_iter();
        let dtype = inputs.q.dtype();
        Ok(Inputs {
            q: tensor(self, dims.keys(), dtype, dq),
            k: tensor(self, dims.keys(), dtype, dk),
            v: tensor(self, dims.values(), dtype, dv),
            gates: R::Gates::map(dgates, |_, values| tensor(self, dims.scalars(), DType::F32, values)),
            state: R::State::map(rule.state(dims), |_, shape: Shape| {
                tensor(self, shape, DType::F32, states.next().unwrap_or_default())
            }),
        })
    }
}
