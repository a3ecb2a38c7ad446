//! Products of every head's rows with a matrix of that head.

use super::{
    Layout, Matmul, Operands, Transpose, check_device, check_dtype, check_float, check_shape, check_size, concat,
    matmul, narrow,
};
use crate::{Checked, Device, Error, Result, Shape, Tensor};

/// Rows in which heads lie beside each other, `[R,H,K]`, and one matrix a head.
pub trait HeadProducts: Layout + Matmul {
    /// `out[r,h] = x[r,h] m[h]`, or `x[r,h] m[h]ᵀ` where `transposed`; `out [R,H,·]`. A backend whose products read rows
    /// where they lie writes its own.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn head_products(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        m: &Tensor<Self>,
        transposed: bool,
    ) -> Result<Tensor<Self>> {
        self.head_by_head(checked, x, m, transposed)
    }

    /// `dm[h] = Σ_r x[r,h]ᵀ dy[r,h]`, `[H,K,V]` of `x [R,H,K]` and `dy [R,H,V]`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn head_products_backward(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        self.head_by_head_backward(checked, x, dy)
    }

    /// [`HeadProducts::head_products`] of heads that are copied out one by one.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn head_by_head(
        &self,
        _: Checked<Self>,
        x: &Tensor<Self>,
        m: &Tensor<Self>,
        transposed: bool,
    ) -> Result<Tensor<Self>> {
        let transpose = Transpose { a: false, b: transposed };
        let product = |head| {
            let product = matmul(&rows_of(x, head)?, &only(&narrow(m, 0, head, 1)?, 0)?, transpose)?;
            let [rows, columns] = [0, 1].map(|axis| product.shape().axes()[axis]);
            product.reshape([rows, 1, columns])
        };
        joined((0..x.shape().axes()[1]).map(product), 1)
    }

    /// [`HeadProducts::head_products_backward`] of heads that are copied out one by one.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn head_by_head_backward(&self, _: Checked<Self>, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let product = |head| {
            let product = matmul(&rows_of(x, head)?, &rows_of(dy, head)?, Transpose { a: true, b: false })?;
            let [key, value] = [0, 1].map(|axis| product.shape().axes()[axis]);
            product.reshape([1, key, value])
        };
        joined((0..x.shape().axes()[1]).map(product), 0)
    }
}

/// The parts joined along an axis.
fn joined<D: Layout>(parts: impl Iterator<Item = Result<Tensor<D>>>, axis: usize) -> Result<Tensor<D>> {
    let parts = parts.collect::<Result<Vec<_>>>()?;
    concat(&parts.iter().collect::<Vec<_>>(), axis)
}

/// The rows of one head, `[R,K]`.
fn rows_of<D: Layout>(x: &Tensor<D>, head: usize) -> Result<Tensor<D>> {
    only(&narrow(x, 1, head, 1)?, 1)
}

/// `x` without an axis of length 1.
fn only<D: Device>(x: &Tensor<D>, axis: usize) -> Result<Tensor<D>> {
    let mut axes = x.shape().axes().to_vec();
    axes.remove(axis);
    x.reshape(axes)
}

/// `out[..,h] = x[..,h] m[h]`: `x [..,H,K]`, `m [H,K,V]`, `out [..,H,V]`. Sums are in 32 bits.
///
/// # Errors
/// Integers, no elements, an `x` without an axis of heads, and an `m` of another type or for other heads.
pub fn head_products<D: HeadProducts>(x: &Tensor<D>, m: &Tensor<D>) -> Result<Tensor<D>> {
    let (rows, out) = check(x, m)?;
    x.device().head_products(Checked::new(), &x.reshape(rows)?, m, false)?.reshape(out)
}

/// Gradients of [`head_products`], given `dy [..,H,V]`: `dx[..,h] = dy[..,h] m[h]ᵀ` and `dm[h] = Σ x[..,h]ᵀ dy[..,h]`.
///
/// # Errors
/// As [`head_products`], and a `dy` of another shape or type.
pub fn head_products_backward<D: HeadProducts>(
    x: &Tensor<D>,
    m: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    let what = "head_products";
    let (rows, out) = check(x, m)?;
    check_device(what, x, &[("dy", dy)])?;
    check_shape(what, "dy", dy, &out)?;
    check_dtype(what, "dy", dy, x.dtype())?;
    let [count, heads, _] = rows;
    let dy = dy.reshape([count, heads, m.shape().axes()[2]])?;
    let dx = x.device().head_products(Checked::new(), &dy, m, true)?.reshape(x.shape().clone())?;
    Ok(Operands { a: dx, b: x.device().head_products_backward(Checked::new(), &x.reshape(rows)?, &dy)? })
}

/// `[R,H,K]`, and the shape of the result.
fn check<D: Device>(x: &Tensor<D>, m: &Tensor<D>) -> Result<([usize; 3], Shape)> {
    let what = "head_products";
    check_device(what, x, &[("m", m)])?;
    check_float(what, "x", x)?;
    check_float(what, "m", m)?;
    check_dtype(what, "m", m, x.dtype())?;
    let [lead @ .., heads, key] = x.shape().axes() else {
        return Err(Error::Rank { what, slot: "x", expected: "at least 2", found: x.shape().clone() });
    };
    let &[of, inner, value] = m.shape().axes() else {
        return Err(Error::Rank { what, slot: "m", expected: "3", found: m.shape().clone() });
    };
    if [of, inner] != [*heads, *key] {
        let expected = [*heads, *key, value].into();
        return Err(Error::Shape { what, slot: "m", expected, found: m.shape().clone() });
    }
    let out: Shape = lead.iter().copied().chain([*heads, value]).collect::<Vec<_>>().into();
    check_size(what, &out, x.dtype())?;
    Ok(([lead.iter().product(), *heads, *key], out))
}
