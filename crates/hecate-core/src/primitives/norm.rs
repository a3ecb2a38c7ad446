//! Normalising rows.

use super::{check_dtype, check_float, check_like, check_shape};
use crate::{DType, Device, Error, Result, Tensor};

/// Normalisation over the innermost axis of `x [.., D]`; `rows` below is the product of the others.
pub trait Norm: Device {
    /// `y = x r w`, `r = 1 / √(mean x² + ε)`; returns `(y, r [rows])`, `r` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// `g = w dy`, `dx = r g − x r³ (x·g) / D`, `dw = Σ_rows x r dy`; returns `(dx, dw)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// `y = x r w silu(g)` with `r` as in [`Norm::rms_norm`], `g` of the shape of `x`; returns `(y, r [rows])`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm_gated(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// With `h = silu(g) dy`: `dx` and `dw` of `h` as in [`Norm::rms_norm_backward`], `dg = silu'(g) x r w dy`; returns
    /// `(dx, dw, dg)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm_gated_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)>;

    /// `y = x r`, `r = 1 / √(|x|² + ε²)`; returns `(y, r [rows])`, `r` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// `dx = r (dy − x r² (x·dy))`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>>;
}

/// Root-mean-square normalisation of each row of `x [.., D]` with `weight [D]`: `y = x r w`,
/// `r = 1 / √(mean x² + ε)`. Returns `(y, r)`; `r [rows]` is what the backward needs.
///
/// # Errors
/// Shapes that do not fit, integers, no elements, `ε` negative or not finite.
pub fn rms_norm<D: Norm>(x: &Tensor<D>, weight: &Tensor<D>, epsilon: f32) -> Result<(Tensor<D>, Tensor<D>)> {
    check_rms("rms_norm", x, weight)?;
    check_epsilon("rms_norm", epsilon)?;
    x.device().rms_norm(epsilon, x, weight)
}

/// Gradients `(dx, dweight)` of [`rms_norm`], given its `r` as `inverse`.
///
/// # Errors
/// As [`rms_norm`], and arguments unlike those of the forward.
pub fn rms_norm_backward<D: Norm>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    inverse: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<(Tensor<D>, Tensor<D>)> {
    check_rms("rms_norm", x, weight)?;
    check_inverse("rms_norm", x, inverse, dy)?;
    x.device().rms_norm_backward(x, weight, inverse, dy)
}

/// [`rms_norm`] with SiLU of `g`, an array like `x`, as one more factor: `y = x r w silu(g)`. Returns `(y, r)`.
///
/// # Errors
/// As [`rms_norm`], and a `g` unlike `x`.
pub fn rms_norm_gated<D: Norm>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    g: &Tensor<D>,
    epsilon: f32,
) -> Result<(Tensor<D>, Tensor<D>)> {
    check_rms("rms_norm_gated", x, weight)?;
    check_like("rms_norm_gated", "g", g, x)?;
    check_epsilon("rms_norm_gated", epsilon)?;
    x.device().rms_norm_gated(epsilon, x, weight, g)
}

/// Gradients `(dx, dweight, dg)` of [`rms_norm_gated`], given its `r` as `inverse`.
///
/// # Errors
/// As [`rms_norm_gated`], and arguments unlike those of the forward.
pub fn rms_norm_gated_backward<D: Norm>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    g: &Tensor<D>,
    inverse: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<(Tensor<D>, Tensor<D>, Tensor<D>)> {
    check_rms("rms_norm_gated", x, weight)?;
    check_like("rms_norm_gated", "g", g, x)?;
    check_inverse("rms_norm_gated", x, inverse, dy)?;
    x.device().rms_norm_gated_backward(x, weight, g, inverse, dy)
}

/// Each row of `x [.., D]` divided by `√(|x|² + ε²)`: smooth at zero, where the gradient is at most `1/ε`.
/// Returns `(y, r)`; `r [rows]`, the reciprocal norm, is what the backward needs.
///
/// # Errors
/// Integers, no elements, `ε` negative or not finite.
pub fn l2_norm<D: Norm>(x: &Tensor<D>, epsilon: f32) -> Result<(Tensor<D>, Tensor<D>)> {
    check_float("l2_norm", "x", x)?;
    check_epsilon("l2_norm", epsilon)?;
    x.device().l2_norm(epsilon, x)
}

/// Gradient of [`l2_norm`], given its `r` as `inverse`.
///
/// # Errors
/// As [`l2_norm`], and arguments unlike those of the forward.
pub fn l2_norm_backward<D: Norm>(x: &Tensor<D>, inverse: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("l2_norm", "x", x)?;
    check_inverse("l2_norm", x, inverse, dy)?;
    x.device().l2_norm_backward(x, inverse, dy)
}

fn check_rms<D: Device>(what: &'static str, x: &Tensor<D>, weight: &Tensor<D>) -> Result<()> {
    check_float(what, "x", x)?;
    check_shape(what, "weight", weight, &[x.shape().last()].into())?;
    check_dtype(what, "weight", weight, x.dtype())
}

fn check_inverse<D: Device>(what: &'static str, x: &Tensor<D>, inverse: &Tensor<D>, dy: &Tensor<D>) -> Result<()> {
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
