//! Rows of shares.

use super::{check_float, check_like};
use crate::{Checked, Device, Result, Tensor};

/// Softmax over the innermost axis of `x [.., D]`.
pub trait Softmax: Device {
    /// `y = e^{x − top} / Σ e^{x − top}` with `top = max x` of each row, so that no power overflows.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn softmax(&self, checked: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dx = y (dy − y·dy)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn softmax_backward(&self, checked: Checked<Self>, y: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>>;
}

/// `y = e^x / Σ e^x` of each row of `x [.., D]`. Sums are in 32 bits. A number added to a whole row changes nothing. A row
/// with a NaN, with `+∞`, or of `−∞` alone is NaN.
///
/// # Errors
/// Integers, no elements.
pub fn softmax<D: Softmax>(x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("softmax", "x", x)?;
    x.device().softmax(Checked::new(), x)
}

/// Gradient of [`softmax`] by `x`, given its result `y` and the gradient `dy` of that.
///
/// # Errors
/// As [`softmax`], and a `dy` unlike `y`.
pub fn softmax_backward<D: Softmax>(y: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("softmax", "y", y)?;
    check_like("softmax", "dy", dy, y)?;
    y.device().softmax_backward(Checked::new(), y, dy)
}
