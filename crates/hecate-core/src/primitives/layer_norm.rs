//! Rows of mean 0 and variance 1.

use super::{
    Combine, Elementwise, alike, cast, check_device, check_dtype, check_epsilon, check_float, check_like, check_shape,
    wide,
};
use crate::{Checked, DType, Device, Result, Tensor};

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

/// A sum, and its rows after a layer norm.
#[derive(Clone, Copy, Debug)]
pub struct AddedLayerNorm<T> {
    /// `x + residual`, of the shape and type of `x`.
    pub sum: T,
    /// What [`layer_norm`] makes of it.
    pub normed: LayerNormed<T>,
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
pub trait LayerNorm: Elementwise {
    /// `y = n w + b`, `n = (x − m) r`, `m = mean x`, `r = 1 / √(mean (x − m)² + ε)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn layer_norm(
        &self,
        checked: Checked<Self>,
        epsilon: f32,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<LayerNormed<Tensor<Self>>>;

    /// With `h = w dy`, `dx = r (h − mean h − n mean (n h))`, `dw = Σ_rows n dy`, `db = Σ_rows dy`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>>;

    /// `s = x + residual`, rounded to its type, and [`LayerNorm::layer_norm`] of `s`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_layer_norm(
        &self,
        checked: Checked<Self>,
        epsilon: f32,
        residual: &Tensor<Self>,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<AddedLayerNorm<Tensor<Self>>> {
        self.add_layer_norm_by_parts(checked, epsilon, residual, inputs)
    }

    /// The same by a sum and a norm, for rows that a backend has no kernel for.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_layer_norm_by_parts(
        &self,
        checked: Checked<Self>,
        epsilon: f32,
        residual: &Tensor<Self>,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<AddedLayerNorm<Tensor<Self>>> {
        let sum = self.combine(checked, Combine::Sum, alike(residual), inputs.x, residual)?;
        let normed = self.layer_norm(checked, epsilon, &LayerNormInputs { x: &sum, ..*inputs })?;
        Ok(AddedLayerNorm { sum, normed })
    }

    /// As [`LayerNorm::layer_norm_backward`] with `s` for `x`; `dsum`, the gradient that `s` itself has, is added to `dx`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        self.add_layer_norm_backward_by_parts(checked, call, dsum)
    }

    /// The same by a norm and a sum: in 32 bits, so that `dx` is rounded once.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_layer_norm_backward_by_parts(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        let LayerNormInputs { x, weight, bias } = call.inputs;
        let ([x, weight, bias, dy, dsum], dtype) = (wide([x, weight, bias, call.dy, dsum])?, x.dtype());
        let inputs = LayerNormInputs { x: &x, weight: &weight, bias: &bias };
        let grads = self.layer_norm_backward(checked, &LayerNormBackward { inputs, dy: &dy, ..*call })?;
        let dx = self.combine(checked, Combine::Sum, alike(&dsum), &grads.x, &dsum)?;
        let [x, weight, bias] = [dx, grads.weight, grads.bias].map(|grad| cast(dtype, &grad));
        Ok(LayerNormInputs { x: x?, weight: weight?, bias: bias? })
    }
}

/// Each row of `x [.., D]` brought to mean 0 and variance 1, times `weight [D]`, plus `bias [D]`:
/// `y = (x − m) r w + b`, `m = mean x`, `r = 1 / √(mean (x − m)² + ε)` (Ba et al., "Layer Normalization"). Rows `x − m` that are too
/// long or too short for it are those of [`rms_norm`](super::rms_norm): they give `b`, or infinities.
///
/// # Errors
/// Shapes that do not fit, integers, no elements, `ε` negative or not finite.
pub fn layer_norm<D: LayerNorm>(inputs: &LayerNormInputs<&Tensor<D>>, epsilon: f32) -> Result<LayerNormed<Tensor<D>>> {
    check(inputs)?;
    check_epsilon("layer_norm", epsilon)?;
    inputs.x.device().layer_norm(Checked::new(), epsilon, inputs)
}

/// Gradients of [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`], and arguments unlike those of the forward.
pub fn layer_norm_backward<D: LayerNorm>(call: &LayerNormBackward<'_, D>) -> Result<LayerNormInputs<Tensor<D>>> {
    check_backward(call)?;
    call.inputs.x.device().layer_norm_backward(Checked::new(), call)
}

/// The sum `s = x + residual` of arrays of one shape, and [`layer_norm`] of `s`: one pass over a residual stream.
///
/// # Errors
/// As [`layer_norm`], and a `residual` unlike `x`.
pub fn add_layer_norm<D: LayerNorm>(
    residual: &Tensor<D>,
    inputs: &LayerNormInputs<&Tensor<D>>,
    epsilon: f32,
) -> Result<AddedLayerNorm<Tensor<D>>> {
    check(inputs)?;
    check_epsilon("layer_norm", epsilon)?;
    check_like("layer_norm", "residual", residual, inputs.x)?;
    residual.device().add_layer_norm(Checked::new(), epsilon, residual, inputs)
}

/// Gradients of [`add_layer_norm`], with [`AddedLayerNorm::sum`] for `x` in `call`, and `dsum`, the gradient of that sum. That
/// of `x` is the residual's too.
///
/// # Errors
/// As [`layer_norm_backward`], and a `dsum` unlike `x`.
pub fn add_layer_norm_backward<D: LayerNorm>(
    call: &LayerNormBackward<'_, D>,
    dsum: &Tensor<D>,
) -> Result<LayerNormInputs<Tensor<D>>> {
    check_backward(call)?;
    check_like("layer_norm", "dsum", dsum, call.inputs.x)?;
    dsum.device().add_layer_norm_backward(Checked::new(), call, dsum)
}

/// What the forward left of each row, and a gradient like `x`.
fn check_backward<D: Device>(call: &LayerNormBackward<'_, D>) -> Result<()> {
    let LayerNormBackward { inputs, mean, inverse, dy } = call;
    check(inputs)?;
    let (what, x) = ("layer_norm", inputs.x);
    for (slot, kept) in [("mean", mean), ("inverse", inverse)] {
        check_device(what, x, &[(slot, kept)])?;
        check_shape(what, slot, kept, &[x.shape().rows()].into())?;
        check_dtype(what, slot, kept, DType::F32)?;
    }
    check_like(what, "dy", dy, x)
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
