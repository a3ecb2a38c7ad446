//! How rules are called.

use crate::{DType, Dims, Inputs, Kernel, Outputs, Result, Rule, Slots, Tensor};

/// A forward that can be turned around: it owns what the gradient needs and is consumed by it.
pub struct Pass<D: Kernel<R>, R: Rule> {
    device: D,
    rule: R,
    dims: Dims,
    inputs: Inputs<R, Tensor<D>>,
    saved: D::Saved,
}

impl<D: Kernel<R>, R: Rule> Pass<D, R> {
    /// Gradients of all inputs, given the gradients of the output and of the final state.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) or [`Error::DType`](crate::Error::DType) if a gradient does not have the
    /// form of what it is the gradient of; the device's own failures.
    pub fn backward(self, grads: Outputs<R, Tensor<D>>) -> Result<Inputs<R, Tensor<D>>> {
        let Self { device, rule, dims, inputs, saved } = self;
        grads.check(rule, &dims, inputs.q.dtype())?;
        device.backward(rule, &dims, &inputs, saved, &grads)
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
/// # Errors
/// What does not fit the rule (rank, shape, element type, options), before anything runs; the device's own failures.
pub fn forward<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    inputs: Inputs<R, Tensor<D>>,
) -> Result<(Outputs<R, Tensor<D>>, Pass<D, R>)> {
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
) -> Result<(Outputs<R, Tensor<D>>, Pass<D, R>)> {
    run(device, rule, Some(lengths), inputs)
}

fn run<D: Kernel<R>, R: Rule>(
    device: &D,
    rule: R,
    lengths: Option<&[usize]>,
    inputs: Inputs<R, Tensor<D>>,
) -> Result<(Outputs<R, Tensor<D>>, Pass<D, R>)> {
    let dims = inputs.dims(rule, lengths)?;
    let (outputs, saved) = device.forward(rule, &dims, &inputs)?;
    Ok((outputs, Pass { device: device.clone(), rule, dims, inputs, saved }))
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
    device.infer(rule, &inputs.dims(rule, None)?, inputs)
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
    device.infer(rule, &inputs.dims(rule, Some(lengths))?, inputs)
}
