//! Polynomial features of rows.

use super::{check_device, check_dtype, check_float, check_shape, check_size};
use crate::{Checked, Device, Error, Result, Shape, Tensor};

/// Coefficients `1/i!` of [`poly2`]: products of features are the first terms of `exp(x·z)`.
pub const POLY2: [f32; 3] = [1.0, 1.0, 0.5];

/// Elements in a row at most: half a million features.
const WIDTH: usize = 1024;

/// Feature maps over the innermost axis of `x [.., D]`.
pub trait Features: Device {
    /// `y = (√c₀, √c₁ x_i, √c₂ w_ij x_i x_j for i ≤ j)`, `w_ii = 1`, else `√2`; pairs in the order of `i`, then `j`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn poly2(&self, checked: Checked<Self>, coefficients: [f32; 3], x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dx_i = √c₁ dy_i + √c₂ (2 x_i dy_ii + √2 Σ_{j≠i} x_j dy_ij)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn poly2_backward(
        &self,
        checked: Checked<Self>,
        coefficients: [f32; 3],
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;
}

/// Features of a row of `width` elements: `1 + width + width (width + 1)/2`, or `usize::MAX` where there are more.
pub fn poly2_width(width: usize) -> usize {
    let width = width as u128;
    (width.saturating_mul(width + 3) / 2 + 1).try_into().unwrap_or(usize::MAX)
}

/// All monomials of degree up to two of each row of `x [.., D]`, weighted so that
/// `poly2(x)·poly2(z) = c₀ + c₁ x·z + c₂ (x·z)²`: `[.., 1 + D + D(D+1)/2]`.
///
/// A memory that reads and is written at such keys tells apart about `D²/2` of them instead of `D`.
/// Source: Behrouz et al., "Atlas", eq 5 (with [`POLY2`]).
///
/// # Errors
/// Integers, no elements, rows of more than 1024 elements, coefficients negative or not finite.
pub fn poly2<D: Features>(x: &Tensor<D>, coefficients: [f32; 3]) -> Result<Tensor<D>> {
    check(x, coefficients)?;
    x.device().poly2(Checked::new(), coefficients, x)
}

/// Gradient of [`poly2`].
///
/// # Errors
/// As [`poly2`], and a gradient unlike the result of the forward.
pub fn poly2_backward<D: Features>(x: &Tensor<D>, coefficients: [f32; 3], dy: &Tensor<D>) -> Result<Tensor<D>> {
    let shape = check(x, coefficients)?;
    check_device("poly2", x, &[("dy", dy)])?;
    check_shape("poly2", "dy", dy, &shape)?;
    check_dtype("poly2", "dy", dy, x.dtype())?;
    x.device().poly2_backward(Checked::new(), coefficients, x, dy)
}

/// The result's shape.
fn check<D: Device>(x: &Tensor<D>, coefficients: [f32; 3]) -> Result<Shape> {
    let refuse = |option, found: String, expected| Err(Error::Config { what: "poly2", option, found, expected });
    check_float("poly2", "x", x)?;
    let width = x.shape().last();
    if width > WIDTH {
        return refuse("width", width.to_string(), "rows of at most 1024 elements: features are half their square");
    }
    if !coefficients.iter().all(|c| c.is_finite() && *c >= 0.0) {
        return refuse("coefficients", format!("{coefficients:?}"), "finite numbers, 0 or more");
    }
    let mut axes = x.shape().axes().to_vec();
    // `check_float` has seen elements; a shape without axes has one element.
    axes.pop();
    axes.push(poly2_width(width));
    let shape = axes.into();
    check_size("poly2", &shape, x.dtype())?;
    Ok(shape)
}
