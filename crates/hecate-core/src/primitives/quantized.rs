//! Products with quantized matrices, for inference alone.

use super::{check_dtype, check_float, check_size};
use crate::{Checked, Device, Error, Result, Shape, Tensor, quantized::Quantized};

/// Products with quantized matrices. There is no backward.
pub trait QuantizedMatmul: Device {
    /// `y = x Wᵀ` with `x [n, K]`, `W [N, K]`, in the type of `x`: `[n, N]`. NaN in a row of `x` makes that row of `y` NaN, and
    /// so does an infinity, which may stay one. A block whose scale is either does the same to its column of `y`.
    ///
    /// Rows of `x` may be rounded to 8 bits, 32 values with one scale of 32 bits: products are then of whole numbers.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn quantized_matmul(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        weight: &Quantized<Self>,
    ) -> Result<Tensor<Self>>;
}

/// `x [.., K] × W [N, K]ᵀ = [.., N]`, `W` as it was quantized.
///
/// # Errors
/// Integers, another `K` than that of the matrix, another device.
pub fn quantized_matmul<D: QuantizedMatmul>(x: &Tensor<D>, weight: &Quantized<D>) -> Result<Tensor<D>> {
    let what = "quantized_matmul";
    weight.words().check_device(x.device(), what, "weight")?;
    check_dtype(what, "weight", weight.words(), crate::DType::U32)?;
    check_float(what, "x", x)?;
    let Some((&inner, outer)) = x.shape().axes().split_last() else {
        return Err(Error::Rank { what, slot: "x", expected: "at least 1", found: x.shape().clone() });
    };
    if inner != weight.columns() {
        let expected: Shape = [outer, &[weight.columns()]].concat().into();
        return Err(Error::Shape { what, slot: "x", expected, found: x.shape().clone() });
    }
    let shape: Shape = [outer, &[weight.rows()]].concat().into();
    check_size(what, &shape, x.dtype())?;
    let rows = x.reshape([x.shape().rows(), inner])?;
    x.device().quantized_matmul(Checked::new(), &rows, weight)?.reshape(shape)
}
