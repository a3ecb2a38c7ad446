//! The linear engine: one recurrence for every linear rule.
//!
//! Equation numbers are those of [`hecate_core::rules`]. A rule says only what its options mean to the engine
//! ([`Linear`]); its gates become the scalars of the recurrence, and their gradients gradients of its gates, inside the
//! kernels.
//!
//! # How it runs
//!
//! Forward goes token by token. Columns never interact; the rows of one stay in the registers of a few invocations.
//! Backward, two more such scans find what every token wrote, from the kept states on for all spans between them at once,
//! and what that is worth, from the last token to the first. With both known, no system of equations is left to be solved:
//! the gradients of queries, keys and gates are products of the [chunk form](chunk), for all chunks at once.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every 64 tokens. Frozen rules keep one every `⌊64/G⌋ G` tokens,
//! as many whole groups as fit, or, where a group is longer than 64 tokens, one every 64 tokens of each. While the
//! backward runs it holds as many gradients of states, up to four arrays like `v`, and the numbers of as many chunks as
//! [fit into 256 MiB](chunk), 64 MiB where the memory is not the GPU's own.

pub(crate) mod chunk;
mod layout;
pub(crate) mod scan;
mod shape;

use crate::Wgpu;
use hecate_core::{DType, Dims, Inputs, Kernel, Of, Outputs, Read, Result, Rule, Shape, Slots, Tensor};
use layout::Layout;

/// Tokens between kept states.
const CHUNK: usize = 64;

/// What the engine must know of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// When a token reads.
    pub(crate) read: Read,
    /// `f = 1`, with groups of this many tokens.
    pub(crate) frozen: Option<u32>,
    /// Whether there is an `S`; without, `η = 0`.
    pub(crate) momentum: bool,
    /// What `r` is; `w` is always `θ`.
    pub(crate) erase: Strength,
}

/// How the erase strength `r` follows from the gates, as numbered in `linear.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    /// `r = 0`.
    Nothing,
    /// `r = θ`.
    Theta,
    /// `r = θ a`.
    Decayed,
    /// `r = β`.
    Beta,
    /// `r = θ + β`.
    Both,
}

impl Spec {
    /// Matrices of a state.
    fn matrices(self) -> usize {
        1 + usize::from(self.momentum)
    }

    fn erases(self) -> bool {
        self.erase != Strength::Nothing
    }
}

/// A rule that the linear engine runs: a cell of this column is one implementation. Its gates are among `log_a`,
/// `log_eta`, `theta` and `beta`, its states among `m` and `s`; none has both `log_eta` and `beta`.
pub(crate) trait Linear: Rule {
    /// What its options mean to the engine.
    fn spec(self) -> Spec;
}

/// States that a backward starts from.
pub struct Saved {
    kept: Tensor<Wgpu>,
}

/// The slot of the first of these names that there is.
fn named<'a>(slots: &[(&'static str, &'a Tensor<Wgpu>)], names: &[&str]) -> Option<&'a Tensor<Wgpu>> {
    names.iter().find_map(|name| slots.iter().find(|(slot, _)| slot == name)).map(|(_, x)| *x)
}

/// Tensors of 32-bit floats for every slot, about to be written.
fn fresh<S: Slots>(device: &Wgpu, shapes: Of<S, Shape>) -> Result<Of<S, Tensor<Wgpu>>> {
    S::try_map(shapes, |_, shape| device.empty(shape, DType::F32))
}

/// Inputs whose token arrays hold 32-bit floats.
fn widened<R: Rule>(device: &Wgpu, inputs: &Inputs<R, Tensor<Wgpu>>) -> Result<Inputs<R, Tensor<Wgpu>>> {
    inputs.clone().try_map(|_, x| device.widened(&x))
}

impl Wgpu {
    fn run_linear<R: Linear>(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        keep: bool,
    ) -> Result<(Outputs<R, Tensor<Self>>, Option<Tensor<Self>>)> {
        let layout = Layout::new(self, dims, rule.spec())?;
        let kept = if keep { Some(layout.room(layout.kept_elements())?) } else { None };
        let stored = |x| self.stored(x, scan::wide(dims.key));
        let tokens = [stored(&inputs.q)?, stored(&inputs.k)?, stored(&inputs.v)?];
        let out = self.empty(dims.values(), tokens[0].made)?;
        let state = fresh::<R::State>(self, rule.state(dims))?;
        let outputs = Outputs::<R, _> { out, state };
        scan::forward(&layout, inputs, &tokens, &outputs, kept.as_ref())?;
        let Outputs { out, state } = outputs;
        Ok((Outputs { out: self.rounded(out, inputs.q.dtype())?, state }, kept))
    }
}

impl<R: Linear> Kernel<R> for Wgpu {
    type Saved = Saved;

    fn forward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
    ) -> Result<(Outputs<R, Tensor<Self>>, Saved)> {
        let (outputs, kept) = self.run_linear(rule, dims, inputs, true)?;
        let kept = match kept {
            Some(kept) => kept,
            None => self.empty([0], DType::F32)?,
        };
        Ok((outputs, Saved { kept }))
    }

    fn infer(&self, rule: R, dims: &Dims, inputs: &Inputs<R, Tensor<Self>>) -> Result<Outputs<R, Tensor<Self>>> {
        Ok(self.run_linear(rule, dims, inputs, false)?.0)
    }

    fn backward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        saved: Saved,
        grads: &Outputs<R, Tensor<Self>>,
    ) -> Result<Inputs<R, Tensor<Self>>> {
        let layout = Layout::new(self, dims, rule.spec())?;
        let wide = widened(self, inputs)?;
        let dout = self.widened(&grads.out)?;
        let dinputs = Inputs::<R, _> {
            q: self.empty(dims.keys(), DType::F32)?,
            k: self.empty(dims.keys(), DType::F32)?,
            v: self.empty(dims.values(), DType::F32)?,
            gates: fresh::<R::Gates>(self, rule.gates(dims))?,
            state: fresh::<R::State>(self, rule.state(dims))?,
        };
        let known = scan::backward(&layout, &wide, saved.kept, (&dout, grads), &dinputs)?;
        chunk::run(&layout, &wide, &dout, &known, &dinputs)?;
        let (dtype, mut tokens) = (inputs.q.dtype(), ["q", "k", "v"].iter());
        dinputs.try_map(|slot, x| if tokens.any(|of| *of == slot) { self.rounded(x, dtype) } else { Ok(x) })
    }
}
