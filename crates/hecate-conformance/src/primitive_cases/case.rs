//! One call of a primitive: arguments, equations, and what the device makes of it.

use crate::{
    Array, BACKWARD, Comparison, FORWARD, error,
    oracle::{self, Forward, Leaf, Var},
};
use hecate_core::primitives::Primitives;
use hecate_core::{DType, Error, Result, Tensor};
use std::fmt;

/// An argument of a primitive.
#[derive(Debug)]
pub struct Slot {
    /// Name in messages.
    pub name: &'static str,
    /// Values, and how the equations cut them into matrices.
    pub leaf: Leaf,
    /// Whether it stays at 32 bits where other arguments have 16.
    pub wide: bool,
}

/// A result of a primitive.
#[derive(Debug)]
pub struct Output {
    /// Name in messages.
    pub name: &'static str,
    /// Its gradient; zero where results are not differentiated.
    pub upstream: Array,
    /// Whether it has 32 bits where arguments have 16.
    pub wide: bool,
}

/// Results, and the gradients of the arguments that have one.
#[derive(Debug)]
pub struct CaseResult<B: Primitives> {
    /// One for each [`Output`].
    pub outputs: Vec<Tensor<B>>,
    /// One for each [`Slot`]; none at all where the primitive has no backward of its own.
    pub grads: Vec<Option<Tensor<B>>>,
}

/// One call of a primitive.
pub struct PrimitiveCase<B: Primitives> {
    /// Primitive.
    pub name: &'static str,
    /// Sizes and options.
    pub options: String,
    /// Arguments.
    pub slots: Vec<Slot>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Its equations, forward only.
    pub forward: Box<Forward<'static>>,
    /// The primitive itself: from arguments and gradients of the results.
    pub device: Box<dyn Fn(&[Tensor<B>], &[Tensor<B>]) -> Result<CaseResult<B>>>,
}

impl<B: Primitives> fmt::Debug for PrimitiveCase<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, options, slots, outputs, .. } = self;
        let mut shown = f.debug_struct("PrimitiveCase");
        shown.field("name", name).field("options", options).field("slots", slots).field("outputs", outputs);
        shown.finish_non_exhaustive()
    }
}

/// Results and gradients on the host.
#[derive(Debug)]
pub struct Solution {
    /// One for each [`Output`].
    pub outputs: Vec<Array>,
    /// One for each [`Slot`].
    pub grads: Vec<Option<Array>>,
}

impl Slot {
    /// Cut into its innermost rows.
    pub(super) fn rows(name: &'static str, array: Array) -> Self {
        let tile = (1, array.shape.last());
        Self::tiles(name, array, tile)
    }

    /// Cut into single elements.
    pub(super) fn elements(name: &'static str, array: Array) -> Self {
        Self::tiles(name, array, (1, 1))
    }

    /// Cut into matrices of `tile` rows and columns.
    pub(super) fn tiles(name: &'static str, array: Array, tile: (usize, usize)) -> Self {
        Self { name, leaf: Leaf { array, tile }, wide: false }
    }
}

/// Results that keep 32 bits are sums, norms and logarithms, whose rounding would be the largest error.
impl Output {
    /// As wide as the arguments.
    pub(super) fn new(name: &'static str, upstream: Array) -> Self {
        Self { name, upstream, wide: false }
    }

    /// In 32 bits whatever the arguments are.
    pub(super) fn wide(name: &'static str, upstream: Array) -> Self {
        Self { name, upstream, wide: true }
    }
}

impl<B: Primitives> PrimitiveCase<B> {
    /// Why this device does not have the primitive, where it is one that a device need not have.
    pub fn lacking(&self, device: &B) -> Option<Error> {
        // All others are there on every device.
        if self.name == "fp8_matmul" { device.check_fp8().err() } else { None }
    }

    /// What the equations say, for arguments as `dtype` holds them.
    pub fn solve(&self, dtype: DType) -> Solution {
        let (leaves, upstream) = self.arguments(dtype);
        let (outputs, grads) = oracle::differentiate(&leaves, &upstream, &*self.forward);
        let outputs = self.outputs.iter().zip(outputs).map(|(o, x)| Array::new(o.upstream.shape.clone(), x));
        let grads = leaves.iter().zip(grads).map(|(leaf, x)| Some(Array::new(leaf.array.shape.clone(), x)));
        Solution { outputs: outputs.collect(), grads: grads.collect() }
    }

    /// Largest relative error of the equations' gradients against central differences.
    pub fn differences(&self, count: usize) -> f64 {
        let (leaves, upstream) = self.arguments(DType::F32);
        oracle::differences(&leaves, &upstream, &*self.forward, count)
    }

    /// What a backend makes of it.
    ///
    /// # Errors
    /// Whatever the primitive reports.
    pub fn run(&self, device: &B, dtype: DType) -> Result<Solution> {
        // What is wide stays at 32 bits on the device too.
        let width = |wide| if wide { DType::F32 } else { dtype };
        let upload = |slot: &Slot| slot.leaf.array.upload(device, width(slot.wide));
        let inputs = self.slots.iter().map(upload).collect::<Result<Vec<_>>>()?;
        let upload = |output: &Output| output.upstream.upload(device, width(output.wide));
        let upstream = self.outputs.iter().map(upload).collect::<Result<Vec<_>>>()?;
        // Gradients of results go up before the call, so that one closure makes forward and backward.
        let CaseResult { outputs, grads } = (self.device)(&inputs, &upstream)?;
        Ok(Solution {
            outputs: outputs.iter().map(Array::download).collect::<Result<_>>()?,
            grads: grads.iter().map(|x| x.as_ref().map(Array::download).transpose()).collect::<Result<_>>()?,
        })
    }

    /// Errors of results and of gradients against `truth`, at limits that `limit` sets from the truth of a slot.
    pub fn compare(&self, truth: &Solution, found: &Solution) -> (Vec<Comparison>, Vec<Comparison>) {
        let compare = |slot, truth: &Array, found: &Array, limit| {
            // Equal lengths of other axes would compare the wrong elements.
            assert_eq!(truth.shape, found.shape, "{} {}: shape of `{slot}`", self.name, self.options);
            Comparison { slot, error: error(&truth.values, &found.values), limit }
        };
        let outputs = self.outputs.iter().zip(truth.outputs.iter().zip(&found.outputs));
        let outputs = outputs.map(|(o, (t, f))| compare(o.name, t, f, FORWARD)).collect();
        let slots = self.slots.iter().zip(truth.grads.iter().zip(&found.grads));
        let grads = slots.filter_map(|(s, (t, f))| Some(compare(s.name, t.as_ref()?, f.as_ref()?, BACKWARD))).collect();
        (outputs, grads)
    }

    /// Leaves and gradients of results, rounded as `dtype` would hold them.
    fn arguments(&self, dtype: DType) -> (Vec<Leaf>, Vec<Array>) {
        let round = |wide: bool, array: &Array| if wide { array.clone() } else { array.rounded(dtype) };
        let leaf = |slot: &Slot| Leaf { array: round(slot.wide, &slot.leaf.array), tile: slot.leaf.tile };
        let leaves = self.slots.iter().map(leaf).collect();
        (leaves, self.outputs.iter().map(|output| round(output.wide, &output.upstream)).collect())
    }
}

/// The matrix `[rows, 1]` with 1 at `index`: times a row, one element.
pub(super) fn pick(like: &Var, rows: usize, index: usize) -> Var {
    let mut values = vec![0.0; rows];
    values[index] = 1.0;
    like.constant(rows, 1, values)
}

/// Each matrix of a list by itself.
pub(super) fn each(list: &[Var], f: impl Fn(&Var) -> Var) -> Vec<Var> {
    list.iter().map(f).collect()
}
