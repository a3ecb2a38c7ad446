//! Products of matrices.

use super::{check_dtype, check_float, check_like, check_shape};
use crate::{Device, Error, Result, Shape, Tensor};

/// Which operands are read transposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transpose {
    /// `a` is `[.., k, m]` instead of `[.., m, k]`.
    pub a: bool,
    /// `b` is `[.., n, k]` instead of `[.., k, n]`.
    pub b: bool,
}

/// Sizes of `batch` products `[m,k] × [k,n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulDims {
    /// Number of products; operands and results lie one after another.
    pub batch: usize,
    /// `m`: rows of the result.
    pub rows: usize,
    /// `k`: terms of each sum.
    pub inner: usize,
    /// `n`: columns of the result.
    pub columns: usize,
    /// How the operands are stored.
    pub transpose: Transpose,
}

/// Matrix products. The backward is made of products, so there is one method.
pub trait Matmul: Device {
    /// `out[i] = a[i]' b[i]' + onto[i]` for `i < batch`, `'` as [`Transpose`] says; `out [batch, m, n]`. Without `onto` the
    /// products alone; where nobody else holds it, they may be added in place.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn matmul(
        &self,
        dims: MatmulDims,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        onto: Option<Tensor<Self>>,
    ) -> Result<Tensor<Self>>;
}

/// `a [.., m, k] × b [.., k, n] = [.., m, n]`, either operand stored transposed. The leading axes of `a` and `b` are
/// equal, or `b` has none and serves every product (`a` then not transposed).
///
/// # Errors
/// Ranks under 2, unequal leading axes or inner lengths, mixed or integer types.
pub fn matmul<D: Matmul>(a: &Tensor<D>, b: &Tensor<D>, transpose: Transpose) -> Result<Tensor<D>> {
    let (dims, shape) = check(a, b, transpose)?;
    a.device().matmul(dims, a, b, None)?.reshape(shape)
}

/// Gradients `(da, db)` of [`matmul`], given `dout [.., m, n]`:
/// `dA' = dout B'ᵀ`, `dB' = A'ᵀ dout`, summed over the products where `b` serves them all.
///
/// # Errors
/// As [`matmul`], and a `dout` of another shape or type.
pub fn matmul_backward<D: Matmul>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    transpose: Transpose,
    dout: &Tensor<D>,
) -> Result<(Tensor<D>, Tensor<D>)> {
    matmul_backward_onto(a, b, transpose, dout, [None, None])
}

/// As [`matmul_backward`], added to what other uses of `a` and `b` gave to their gradients, where there is such.
///
/// # Errors
/// As [`matmul_backward`], and gradients unlike what they are gradients of.
pub fn matmul_backward_onto<D: Matmul>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    transpose: Transpose,
    dout: &Tensor<D>,
    onto: [Option<Tensor<D>>; 2],
) -> Result<(Tensor<D>, Tensor<D>)> {
    let (dims, shape) = check(a, b, transpose)?;
    check_shape("matmul", "dout", dout, &shape)?;
    check_dtype("matmul", "dout", dout, a.dtype())?;
    for (slot, of, x) in [("da", a, &onto[0]), ("db", b, &onto[1])] {
        x.as_ref().map_or(Ok(()), |x| check_like("matmul", slot, x, of))?;
    }
    let [onto_a, onto_b] = onto;
    let MatmulDims { batch, rows, inner, columns, .. } = dims;
    let dims = |rows, inner, columns, a, b| MatmulDims { batch, rows, inner, columns, transpose: Transpose { a, b } };
    let device = a.device();
    let da = match transpose.a {
        false => device.matmul(dims(rows, columns, inner, false, !transpose.b), dout, b, onto_a)?,
        true => device.matmul(dims(inner, columns, rows, transpose.b, true), b, dout, onto_a)?,
    };
    let db = match transpose.b {
        false => device.matmul(dims(inner, rows, columns, !transpose.a, false), a, dout, onto_b)?,
        true => device.matmul(dims(columns, rows, inner, true, transpose.a), dout, a, onto_b)?,
    };
    Ok((da.reshape(a.shape().clone())?, db.reshape(b.shape().clone())?))
}

fn check<D: Device>(a: &Tensor<D>, b: &Tensor<D>, transpose: Transpose) -> Result<(MatmulDims, Shape)> {
    let what = "matmul";
    check_float(what, "a", a)?;
    check_float(what, "b", b)?;
    check_dtype(what, "b", b, a.dtype())?;
    let (lead_a, mut rows, mut inner) = split("a", a)?;
    let (lead_b, mut inner_b, mut columns) = split("b", b)?;
    if transpose.a {
        (rows, inner) = (inner, rows);
    }
    if transpose.b {
        (inner_b, columns) = (columns, inner_b);
    }
    let shared = lead_b.is_empty() && !lead_a.is_empty() && !transpose.a;
    if inner != inner_b || (lead_a != lead_b && !shared) {
        let (r, c) = if transpose.b { (columns, inner) } else { (inner, columns) };
        let expected: Vec<usize> = lead_a.iter().copied().chain([r, c]).collect();
        return Err(Error::Shape { what, slot: "b", expected: expected.into(), found: b.shape().clone() });
    }
    let shape: Vec<usize> = lead_a.iter().copied().chain([rows, columns]).collect();
    let batch: usize = lead_a.iter().product();
    let (batch, rows) = if shared { (1, batch * rows) } else { (batch, rows) };
    Ok((MatmulDims { batch, rows, inner, columns, transpose }, shape.into()))
}

fn split<'a, D: Device>(slot: &'static str, x: &'a Tensor<D>) -> Result<(&'a [usize], usize, usize)> {
    match x.shape().axes() {
        [lead @ .., r, c] => Ok((lead, *r, *c)),
        _ => Err(Error::Rank { what: "matmul", slot, expected: "at least 2", found: x.shape().clone() }),
    }
}
