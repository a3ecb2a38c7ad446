//! Differences and quotients. Sums and products are with the other [element-wise](super::Elementwise) primitives.

use super::{
    Broadcast, Combine, Elementwise, Operands, Reduce, add_backward, check_like, elementwise::broadcast, scale,
};
use crate::{Checked, Result, Tensor};

/// `a − b`; the shape of `b` is that of `a` or of its innermost axes (then every row gets the same `b`).
///
/// # Errors
/// Shapes that do not fit, mixed or integer types.
pub fn sub<D: Elementwise>(a: &Tensor<D>, b: &Tensor<D>) -> Result<Tensor<D>> {
    a.device().combine(Checked::new(), Combine::Difference, broadcast("sub", ("a", a), b)?, a, b)
}

/// Gradients of [`sub`]: `dy`, and `−dy` summed over the rows that shared `b`.
///
/// # Errors
/// As [`sub`], and a `dy` unlike `a`.
pub fn sub_backward<D: Reduce + Elementwise>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    let sums = add_backward(a, b, dy)?;
    Ok(Operands { b: scale(-1.0, &sums.b)?, ..sums })
}

/// `a / b` element by element, shapes as in [`sub`]. A divisor of zero is no error: what it
/// gives is not finite.
///
/// # Errors
/// As [`sub`].
pub fn div<D: Elementwise>(a: &Tensor<D>, b: &Tensor<D>) -> Result<Tensor<D>> {
    a.device().combine(Checked::new(), Combine::Quotient, broadcast("div", ("a", a), b)?, a, b)
}

/// Gradients of [`div`]: `da = dy / b`, and `db = −a da / b`, summed over the rows that shared `b`.
///
/// # Errors
/// As [`div`], and a `dy` unlike `a`.
pub fn div_backward<D: Reduce + Elementwise>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    let (dims, device) = (broadcast("div", ("a", a), b)?, a.device());
    check_like("div", "dy", dy, a)?;
    let da = device.combine(Checked::new(), Combine::Quotient, dims, dy, b)?;
    // `b` is the same in all rows that are summed, so it divides their sum.
    let products = match dims.rows {
        1 => device.combine(Checked::new(), Combine::Product, dims, &da, a)?,
        _ => device.sum_products(Checked::new(), dims.width, &da, a)?,
    };
    let products = scale(-1.0, &products.reshape(b.shape().clone())?)?;
    let db =
        device.combine(Checked::new(), Combine::Quotient, Broadcast { rows: 1, width: dims.width }, &products, b)?;
    Ok(Operands { a: da, b: db })
}
