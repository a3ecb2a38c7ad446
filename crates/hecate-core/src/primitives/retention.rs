//! The forgetting gate.

use super::{check_device, check_dtype, check_float, check_like, check_shape};
use crate::{Checked, DType, Device, Result, Tensor};

/// Arguments of [`retention`], and, filled with gradients, what [`retention_backward`] returns.
#[derive(Clone, Copy, Debug)]
pub struct RetentionInputs<T> {
    /// `[.., H]`.
    pub x: T,
    /// `[H]` in 32 bits.
    pub a_log: T,
    /// `[H]` in 32 bits.
    pub dt_bias: T,
}

/// What the gradients of [`retention`] are made from.
#[derive(Clone, Debug)]
pub struct RetentionBackward<'a, D: Device> {
    /// Those of the forward.
    pub inputs: RetentionInputs<&'a Tensor<D>>,
    /// Gradient of `log a`: of the shape of `x`, in 32 bits.
    pub dy: &'a Tensor<D>,
}

/// How much of a memory is kept, from a number a head.
pub trait Retention: Device {
    /// `log a = −exp(a_log) softplus(x + dt_bias)`, of the shape of `x [.., H]` and in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn retention(&self, checked: Checked<Self>, inputs: &RetentionInputs<&Tensor<Self>>) -> Result<Tensor<Self>>;

    /// `dx = −exp(a_log) σ(x + dt_bias) dy`, `da_log = Σ_rows dy log a`, `ddt_bias = Σ_rows dx`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn retention_backward(
        &self,
        checked: Checked<Self>,
        call: &RetentionBackward<'_, Self>,
    ) -> Result<RetentionInputs<Tensor<Self>>>;
}

/// `log a = −exp(a_log) softplus(x + dt_bias)`, in 32 bits, of `x [.., H]`; `a_log [H]` and `dt_bias [H]` have 32 bits.
/// Never over zero: a memory forgets, and does not grow by itself. Source: `A_log` and `dt_bias` of Mamba (Gu and Dao), as
/// Gated DeltaNet has them.
///
/// # Errors
/// Shapes that do not fit, integers, no elements.
pub fn retention<D: Retention>(inputs: &RetentionInputs<&Tensor<D>>) -> Result<Tensor<D>> {
    check(inputs)?;
    inputs.x.device().retention(Checked::new(), inputs)
}

/// Gradients of [`retention`].
///
/// # Errors
/// As [`retention`], and a `dy` unlike its result.
pub fn retention_backward<D: Retention>(call: &RetentionBackward<'_, D>) -> Result<RetentionInputs<Tensor<D>>> {
    let (x, dy) = (call.inputs.x, call.dy);
    check(&call.inputs)?;
    check_device("retention", x, &[("dy", dy)])?;
    check_shape("retention", "dy", dy, x.shape())?;
    check_dtype("retention", "dy", dy, DType::F32)?;
    x.device().retention_backward(Checked::new(), call)
}

fn check<D: Device>(inputs: &RetentionInputs<&Tensor<D>>) -> Result<()> {
    let RetentionInputs { x, a_log, dt_bias } = *inputs;
    check_device("retention", x, &[("a_log", a_log)])?;
    check_float("retention", "x", x)?;
    check_shape("retention", "a_log", a_log, &[x.shape().last()].into())?;
    check_dtype("retention", "a_log", a_log, DType::F32)?;
    check_like("retention", "dt_bias", dt_bias, a_log)
}
