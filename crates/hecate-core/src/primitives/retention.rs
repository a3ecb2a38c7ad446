//! The forgetting gate.

use super::{check_dtype, check_float, check_like, check_shape};
use crate::{DType, Device, Result, Tensor};

/// How much of a memory is kept, from a number a head.
pub trait Retention: Device {
    /// `log a = −exp(slope) softplus(x + offset)` of `x [.., H]`; `slope [H]`, `offset [H]` and the result have 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn retention(&self, x: &Tensor<Self>, slope: &Tensor<Self>, offset: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dx = −exp(slope) σ(x + offset) dy`, `dslope = Σ_rows dy log a`, `doffset = Σ_rows dx`; returns
    /// `(dx, dslope, doffset)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn retention_backward(
        &self,
        x: &Tensor<Self>,
        slope: &Tensor<Self>,
        offset: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)>;
}

/// `log a = −exp(slope) softplus(x + offset)`, in 32 bits, of `x [.., H]`; `slope [H]` and `offset [H]` have 32 bits.
/// Never over zero: a memory forgets, and does not grow by itself. Source: `A_log` and `dt_bias` of Mamba (Gu and Dao), as
/// Gated DeltaNet has them.
///
/// # Errors
/// Shapes that do not fit, integers, no elements.
pub fn retention<D: Retention>(x: &Tensor<D>, slope: &Tensor<D>, offset: &Tensor<D>) -> Result<Tensor<D>> {
    check(x, slope, offset)?;
    x.device().retention(x, slope, offset)
}

/// Gradients `(dx, dslope, doffset)` of [`retention`].
///
/// # Errors
/// As [`retention`], and a `dy` unlike its result.
pub fn retention_backward<D: Retention>(
    x: &Tensor<D>,
    slope: &Tensor<D>,
    offset: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<(Tensor<D>, Tensor<D>, Tensor<D>)> {
    check(x, slope, offset)?;
    check_shape("retention", "dy", dy, x.shape())?;
    check_dtype("retention", "dy", dy, DType::F32)?;
    x.device().retention_backward(x, slope, offset, dy)
}

fn check<D: Device>(x: &Tensor<D>, slope: &Tensor<D>, offset: &Tensor<D>) -> Result<()> {
    check_float("retention", "x", x)?;
    check_shape("retention", "slope", slope, &[x.shape().last()].into())?;
    check_dtype("retention", "slope", slope, DType::F32)?;
    check_like("retention", "offset", offset, slope)
}
