//! Rows of mean 0 and variance 1.

use super::{check_device, check_dtype, check_epsilon, check_float, check_like, check_shape};
use crate::{DType, Device, Result, Tensor};

/// Arguments of [`layer_norm`], and, filled with gradients, what [`layer_norm_backward`] returns.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormInputs<T> {
    /// `[.., D]`.
    pub x: T,
    /// `[D]`, of the type of `x`.
    pub weight: T,
    /// `[D]`, of the type of `x`.
    pub bias: T,
}

/// Rows after a layer norm.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormed<T> {
    /// Of the shape and type of `x`.
    pub y: T,
    /// `m [rows]` in 32 bits; the backward needs it.
    pub mean: T,
    /// `r [rows]` in 32 bits; the backward needs it.
    pub inverse: T,
}

/// What the gradients of [`layer_norm`] are made from.
#[derive(Clone, Debug)]
pub struct LayerNormBackward<'a, D: Device> {
    /// Those of the forward.
    pub inputs: LayerNormInputs<&'a Tensor<D>>,
    /// [`LayerNormed::mean`] of the forward.
    pub mean: &'a Tensor<D>,
    /// [`LayerNormed::inverse`] of the forward.
    pub inverse: &'a Tensor<D>,
    /// Gradient of `y`, and like it.
    pub dy: &'a Tensor<D>,
}

/// Layer norm over the innermost axis of `x [.., D]`; `rows` is the product of the others.
pub trait LayerNorm: Device {
    /// `y = n w + b`, `n = (x − m) r`, `m = mean x`, `r = 1 / √(mean (x − m)² + ε)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn layer_norm(&self, epsilon: f32, inputs: &LayerNormInputs<&Tensor<Self>>) -> Result<LayerNormed<Tensor<Self>>>;

    /// With `h = w dy`, `dx = r (h − mean h − n mean (n h))`, `dw = Σ_rows n dy`, `db = Σ_rows dy`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn layer_norm_backward(&self, call: &LayerNormBackward<'_, Self>) -> Result<LayerNormInputs<Tensor<Self>>>;
}

/// Each row of `x [.., D]` brought to mean 0 and variance 1, times `weight [D]`, plus `bias [D]`:
/// `y = (x − m) r w + b`, `m = mean x`, `r = 1 / √(mean (x − m)² + ε)` (Ba et al., "Layer Normalization").
///
/// # Errors
/// Shapes that do not fit, integers, no elements, `ε` negative or not finite.
pub fn layer_norm<D: LayerNorm>(inputs: &LayerNormInputs<&Tensor<D>>, epsilon: f32) -> Result<LayerNormed<Tensor<D>>> {
    check(inputs)?;
    check_epsilon("layer_norm", epsilon)?;
    inputs.x.device().layer_norm(epsilon, inputs)
}

/// Gradients of [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`], and arguments unlike those of the forward.
pub fn layer_norm_backward<D: LayerNorm>(call: &LayerNormBackward<'_, D>) -> Result<LayerNormInputs<Tensor<D>>> {
    let LayerNormBackward { inputs, mean, inverse, dy } = call;
    check(inputs)?;
    let (what, x) = ("layer_norm", inputs.x);
    for (slot, kept) in [("mean", mean), ("inverse", inverse)] {
        check_device(what, x, &[(slot, kept)])?;
        check_shape(what, slot, kept, &[x.shape().rows()].into())?;
        check_dtype(what, slot, kept, DType::F32)?;
    }
    check_like(what, "dy", dy, x)?;
    x.device().layer_norm_backward(call)
}

fn check<D: Device>(inputs: &LayerNormInputs<&Tensor<D>>) -> Result<()> {
    let (what, LayerNormInputs { x, weight, bias }) = ("layer_norm", *inputs);
    check_device(what, x, &[("weight", weight), ("bias", bias)])?;
    check_float(what, "x", x)?;
    for (slot, each) in [("weight", weight), ("bias", bias)] {
        check_shape(what, slot, each, &[x.shape().last()].into())?;
        check_dtype(what, slot, each, x.dtype())?;
    }
    Ok(())
}
