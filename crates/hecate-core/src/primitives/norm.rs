//! Normalising rows.

use super::{check_device, check_dtype, check_float, check_like, check_shape};
use crate::{DType, Device, Error, Result, Tensor};

/// Arguments of [`rms_norm`], and, filled with gradients, what [`rms_norm_backward`] returns.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormInputs<T> {
    /// `[.., D]`.
    pub x: T,
    /// `[D]`, of the type of `x`.
    pub weight: T,
    /// A gate like `x`, whose SiLU is one more factor.
    pub g: Option<T>,
}

/// Rows after a norm.
#[derive(Clone, Copy, Debug)]
pub struct Normed<T> {
    /// Of the shape and type of `x`.
    pub y: T,
    /// `r [rows]` in 32 bits: what each row was times; the backward needs it.
    pub inverse: T,
}

/// What the gradients of [`rms_norm`] are made from.
#[derive(Clone, Debug)]
pub struct RmsNormBackward<'a, D: Device> {
    /// Those of the forward.
    pub inputs: RmsNormInputs<&'a Tensor<D>>,
    /// [`Normed::inverse`] of the forward.
    pub inverse: &'a Tensor<D>,
    /// Gradient of `y`, and like it.
    pub dy: &'a Tensor<D>,
}

/// Normalisation over the innermost axis of `x [.., D]`; `rows` below is the product of the others.
pub trait Norm: Device {
    /// `y = x r w`, `r = 1 / √(mean x² + ε)`; with a gate `y = x r w silu(g)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm(&self, epsilon: f32, inputs: &RmsNormInputs<&Tensor<Self>>) -> Result<Normed<Tensor<Self>>>;

    /// With `h = w dy`, `dx = r h − x r³ (x·h) / D` and `dw = Σ_rows x r dy`. With a gate `silu(g) dy` stands for `dy` in
    /// both, and `dg = silu'(g) x r w dy`; there is a gradient of a gate where there is a gate.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm_backward(&self, call: &RmsNormBackward<'_, Self>) -> Result<RmsNormInputs<Tensor<Self>>>;

    /// `y = x r`, `r = 1 / √(|x|² + ε²)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>>;

    /// `dx = r (dy − x r² (x·dy))`, `r` as `inverse`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>>;
}

/// Root-mean-square normalisation of each row of `x [.., D]` with `weight [D]`: `y = x r w`,
/// `r = 1 / √(mean x² + ε)`. With a gate `g`, an array like `x`, `y = x r w silu(g)`.
///
/// # Errors
/// Shapes that do not fit, integers, no elements, `ε` negative or not finite.
pub fn rms_norm<D: Norm>(inputs: &RmsNormInputs<&Tensor<D>>, epsilon: f32) -> Result<Normed<Tensor<D>>> {
    let what = check_rms(inputs)?;
    check_epsilon(what, epsilon)?;
    inputs.x.device().rms_norm(epsilon, inputs)
}

/// Gradients of [`rms_norm`]; there is one of the gate where there is a gate.
///
/// # Errors
/// As [`rms_norm`], and arguments unlike those of the forward.
pub fn rms_norm_backward<D: Norm>(call: &RmsNormBackward<'_, D>) -> Result<RmsNormInputs<Tensor<D>>> {
    let what = check_rms(&call.inputs)?;
    check_inverse(what, call.inputs.x, call.inverse, call.dy)?;
    call.inputs.x.device().rms_norm_backward(call)
}

/// Each row of `x [.., D]` divided by `√(|x|² + ε²)`: smooth at zero, where the gradient is at most `1/ε`.
///
/// # Errors
/// Integers, no elements, `ε` negative or not finite.
pub fn l2_norm<D: Norm>(x: &Tensor<D>, epsilon: f32) -> Result<Normed<Tensor<D>>> {
    check_float("l2_norm", "x", x)?;
    check_epsilon("l2_norm", epsilon)?;
    x.device().l2_norm(epsilon, x)
}

/// Gradient of [`l2_norm`], given its [`Normed::inverse`].
///
/// # Errors
/// As [`l2_norm`], and arguments unlike those of the forward.
pub fn l2_norm_backward<D: Norm>(x: &Tensor<D>, inverse: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("l2_norm", "x", x)?;
    check_inverse("l2_norm", x, inverse, dy)?;
    x.device().l2_norm_backward(x, inverse, dy)
}

/// The name in messages, which says whether there is a gate.
fn check_rms<D: Device>(inputs: &RmsNormInputs<&Tensor<D>>) -> Result<&'static str> {
    let RmsNormInputs { x, weight, g } = *inputs;
    let what = if g.is_some() { "rms_norm_gated" } else { "rms_norm" };
    check_device(what, x, &[("weight", weight)])?;
    check_float(what, "x", x)?;
    check_shape(what, "weight", weight, &[x.shape().last()].into())?;
    check_dtype(what, "weight", weight, x.dtype())?;
    g.map_or(Ok(()), |g| check_like(what, "g", g, x))?;
    Ok(what)
}

fn check_inverse<D: Device>(what: &'static str, x: &Tensor<D>, inverse: &Tensor<D>, dy: &Tensor<D>) -> Result<()> {
    check_device(what, x, &[("inverse", inverse)])?;
    check_shape(what, "inverse", inverse, &[x.shape().rows()].into())?;
    check_dtype(what, "inverse", inverse, DType::F32)?;
    check_like(what, "dy", dy, x)
}

pub(super) fn check_epsilon(what: &'static str, epsilon: f32) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    let expected = "a finite number, 0 or more";
    Err(Error::Config { what, option: "epsilon", found: epsilon.to_string(), expected })
}
