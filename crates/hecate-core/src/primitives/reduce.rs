//! Sums.

use super::check_float;
use crate::{Checked, Device, Error, Result, Tensor};

/// Sums, in an order that does not depend on the number of threads.
pub trait Reduce: Device {
    /// Sum of all elements, `[1]` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn sum(&self, checked: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// Sum of all squares, `[1]` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn sum_squares(&self, checked: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `x [rows, width]` summed over rows: `[width]`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn sum_rows(&self, checked: Checked<Self>, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `x y`, arrays `[rows, width]` of one type, summed over rows: `[width]`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn sum_products(
        &self,
        checked: Checked<Self>,
        width: usize,
        x: &Tensor<Self>,
        y: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;
}

/// Sum of all elements, `[1]` in 32 bits.
///
/// # Errors
/// Integers, no elements.
pub fn sum<D: Reduce>(x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("sum", "x", x)?;
    x.device().sum(Checked::new(), x)
}

/// Sum of all squares, `[1]` in 32 bits.
///
/// # Errors
/// Integers, no elements.
pub fn sum_squares<D: Reduce>(x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("sum_squares", "x", x)?;
    x.device().sum_squares(Checked::new(), x)
}

/// Rows of `width` elements added up: `[width]`.
///
/// # Errors
/// Integers, no elements, a width that does not divide the number of elements.
pub fn sum_rows<D: Reduce>(x: &Tensor<D>, width: usize) -> Result<Tensor<D>> {
    check_float("sum_rows", "x", x)?;
    if width == 0 || !x.shape().count().is_multiple_of(width) {
        let expected = [x.shape().count().div_ceil(width.max(1)), width].into();
        return Err(Error::Shape { what: "sum_rows", slot: "x", expected, found: x.shape().clone() });
    }
    x.device().sum_rows(Checked::new(), width, x)
}
