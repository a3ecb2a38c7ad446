//! How rules are called.

use crate::{DType, Device, Dims, Inputs, Kernel, KernelCall, Outputs, Result, Rule, Slots, Tensor};
use std::fmt;

/// A forward that can be turned around: it owns what the gradient needs and is consumed by it.
///
/// ```
/// # use hecate_core::{Inputs, Kernel, Pass, Result, Rule, Tensor};
/// fn once<D: Kernel<R>, R: Rule>(pass: Pass<D, R>, dout: Tensor<D>) -> Result<Inputs<R, Tensor<D>>> {
///     pass.backward_out(dout)
/// }
/// ```
///
/// Going back twice does not compile, because the first time gave away what it needs:
///
/// ```compile_fail,E0382
/// # use hecate_core::{Inputs, Kernel, Pass, Result, Rule, Tensor};
/// fn twice<D: Kernel<R>, R: Rule>(pass: Pass<D, R>, dout: Tensor<D>) -> Result<Inputs<R, Tensor<D>>> {
///     pass.backward_out(dout.clone())?;
///     pass.backward_out(dout)
/// }
/// ```
pub struct Pass<D: Kernel<R>, R: Rule> {
    device: D,
    rule: R,
    dims: Dims,
    inputs: Inputs<R, Tensor<D>>,
    saved: D::Saved,
}

impl<D: Kernel<R>, R: Rule> fmt::Debug for Pass<D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, rule, dims, inputs, .. } = self;
        let mut shown = f.debug_struct("Pass");
        shown.field("device", device).field("rule", rule).field("dims", dims).field("inputs", inputs);
        shown.finish_non_exhaustive()
    }
}

/// What a [`forward`] gives.
#[derive(Debug)]
pub struct Forward<D: Kernel<R>, R: Rule> {
    /// What was read, and the state after the last token.
    pub outputs: Outputs<R, Tensor<D>>,
    /// Turns the call around.
    pub pass: Pass<D, R>,
}

impl<D: Kernel<R>, R: Rule> Pass<D, R> {
    /// Gradients of all inputs, given the gradients of the output and of the final state.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) or [`Error::DType`](crate::Error::DType) if a gradient does not have the form
    /// of what it is the gradient of. [`Error::OtherDevice`](crate::Error::OtherDevice) if it lies elsewhere than the
    /// inputs. The device's own failures.
    pub fn backward(self, grads: Outputs<R, Tensor<D>>) -> Result<Inputs<R, Tensor<D>>> {
        let Self { device, rule, dims, inputs, saved } = self;
        grads.check(rule, &device, &dims, inputs.q.dtype())?;
        say::<D, R>("backward", &dims);
        D::backward(KernelCall { device: &device, rule, dims: &dims, inputs: &inputs }, saved, &grads)
    }

    /// As [`Pass::backward`] where nothing was made of the final state: its gradient is zero.
    ///
    /// # Errors
    /// As [`Pass::backward`].
    pub fn backward_out(self, dout: Tensor<D>) -> Result<Inputs<R, Tensor<D>>> {
        let shapes = self.rule.state(&self.dims);
        let state = R::State::try_map(shapes, |_, shape| Tensor::zeros(&self.device, shape, DType::F32))?;
        self.backward(Outputs { out: dout, state })
    }

    /// Sizes of the call.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }
}

/// Runs a rule over `B` sequences of `T` tokens and keeps what the backward needs.
///
/// One token writes a value under its key, and the next one reads it:
///
/// ```
/// use hecate_core::{DType, Forward, Inputs, Tensor, forward, rules::{Delta, Matrix, WriteGates}};
/// use hecate_cpu::Cpu;
///
/// # fn main() -> hecate_core::Result<()> {
/// let cpu = Cpu::new();
/// // One sequence of two tokens and one head, keys of width 2 and values of width 1.
/// let array = |axes: &[usize], values: &[f32]| Tensor::from_f32(&cpu, axes, values.to_vec());
/// let inputs = Inputs {
///     q: array(&[1, 2, 1, 2], &[0.0, 0.0, 1.0, 0.0])?,
///     k: array(&[1, 2, 1, 2], &[1.0, 0.0, 0.0, 1.0])?,
///     v: array(&[1, 2, 1, 1], &[5.0, 7.0])?,
///     // Nothing is forgotten, and steps are whole.
///     gates: WriteGates { log_a: array(&[1, 2, 1], &[0.0; 2])?, theta: array(&[1, 2, 1], &[1.0; 2])? },
///     state: Matrix { m: Tensor::zeros(&cpu, [1, 1, 2, 1], DType::F32)? },
///     anchor: None,
/// };
/// let Forward { outputs, pass } = forward(&cpu, Delta::default(), inputs)?;
/// assert_eq!(outputs.out.to_f32()?, [0.0, 5.0]);
/// // What the second token read goes up by as much as the first one's value does.
/// let grads = pass.backward_out(array(&[1, 2, 1, 1], &[0.0, 1.0])?)?;
/// assert_eq!(grads.v.to_f32()?, [1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What does not fit the rule (rank, shape, element type, options) or lies on another device, before anything runs; the
/// device's own failures.
pub fn forward<D: Kernel<R>, R: Rule>(device: &D, rule: R, inputs: Inputs<R, Tensor<D>>) -> Result<Forward<D, R>> {
    run(device, rule, None, inputs)
}

/// As [`forward`], over sequences of these `lengths` packed into one row of tokens (`B = 1`, `T` = their sum); states
/// have `N = lengths.len()` in front.
///
/// # Errors
/// As [`forward`].
pub fn forward_packed<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    lengths: &[usize],
    inputs: Inputs<R, Tensor<D>>,
) -> Result<Forward<D, R>> {
    run(device, rule, Some(lengths), inputs)
}

fn run<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    lengths: Option<&[usize]>,
    inputs: Inputs<R, Tensor<D>>,
) -> Result<Forward<D, R>> {
    let dims = dims(device, rule, lengths, &inputs)?;
    say::<D, R>("forward", &dims);
    let (outputs, saved) = D::forward(KernelCall { device, rule, dims: &dims, inputs: &inputs }, true)?;
    let saved = saved.ok_or_else(|| crate::Error::Unsupported {
        backend: D::NAME,
        what: R::NAME,
        why: "its forward kept nothing for a backward".into(),
    })?;
    Ok(Forward { outputs, pass: Pass { device: device.clone(), rule, dims, inputs, saved } })
}

/// Sizes of a call on `device`, where all inputs must lie.
fn dims<D: Device, R: Rule>(
    device: &D,
    rule: R,
    lengths: Option<&[usize]>,
    inputs: &Inputs<R, Tensor<D>>,
) -> Result<Dims> {
    inputs.q.check_device(device, R::NAME, "q")?;
    inputs.dims(rule, lengths)
}

/// Runs a rule and keeps nothing: generation, evaluation.
///
/// # Errors
/// As [`forward`].
pub fn infer<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    inputs: &Inputs<R, Tensor<D>>,
) -> Result<Outputs<R, Tensor<D>>> {
    infer_over(device, rule, None, inputs)
}

/// As [`infer`], over packed sequences ([`forward_packed`]).
///
/// # Errors
/// As [`forward`].
pub fn infer_packed<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    lengths: &[usize],
    inputs: &Inputs<R, Tensor<D>>,
) -> Result<Outputs<R, Tensor<D>>> {
    infer_over(device, rule, Some(lengths), inputs)
}

fn infer_over<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    lengths: Option<&[usize]>,
    inputs: &Inputs<R, Tensor<D>>,
) -> Result<Outputs<R, Tensor<D>>> {
    let dims = dims(device, rule, lengths, inputs)?;
    say::<D, R>("infer", &dims);
    Ok(D::forward(KernelCall { device, rule, dims: &dims, inputs }, false)?.0)
}

/// A call of a rule as a `tracing` event; one comparison where nobody listens.
fn say<D: Device, R: Rule>(call: &str, dims: &Dims) {
    let Dims { batch, tokens, heads, key, value, .. } = dims;
    tracing::trace!(backend = D::NAME, rule = R::NAME, batch, tokens, heads, key, value, "{call}");
}
