//! Products of matrices.

use super::{Elementwise, Operands, check_device, check_dtype, check_float, check_shape, check_size};
use crate::{Checked, DType, Device, Error, Result, Shape, Tensor};

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

/// What a product is made of.
#[derive(Clone, Debug)]
pub struct MatmulInputs<'a, D: Device> {
    /// `[batch, m, k]`, or `[batch, k, m]` where it is transposed.
    pub a: &'a Tensor<D>,
    /// `[batch, k, n]`, or `[batch, n, k]` where it is transposed.
    pub b: &'a Tensor<D>,
    /// Elements of the result's shape that the products are added to; where nobody else holds them, in place. Their type is
    /// the result's: that of the operands, or 32-bit floats.
    pub onto: Option<Tensor<D>>,
}

impl<D: Device> MatmulInputs<'_, D> {
    /// Element type of the result.
    pub fn dtype(&self) -> DType {
        self.onto.as_ref().map_or(self.a.dtype(), Tensor::dtype)
    }
}

/// Matrix products. The backward is made of products, so there is one method.
pub trait Matmul: Elementwise {
    /// `out[i] = a[i]' b[i]' + onto[i]` for `i < batch`, `'` as [`Transpose`] says; `out [batch, m, n]`. Without `onto` the
    /// products alone.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn matmul(&self, checked: Checked<Self>, dims: MatmulDims, inputs: MatmulInputs<'_, Self>) -> Result<Tensor<Self>>;

    /// [`Matmul::matmul`] of `x` with each of these, of which the sizes tell. A device that starts them together gains by it
    /// where `x` has few rows. An `x` of 32 bits that meets 16-bit weights may be rounded to their type; results have 32.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn matmul_each(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        weights: &[(MatmulDims, &Tensor<Self>)],
    ) -> Result<Vec<Tensor<Self>>> {
        let product = |&(dims, b): &(MatmulDims, &Tensor<Self>)| {
            let wide = if b.dtype() == x.dtype() { b.clone() } else { self.cast(checked, x.dtype(), b)? };
            self.matmul(checked, dims, MatmulInputs { a: x, b: &wide, onto: None })
        };
        weights.iter().map(product).collect()
    }

    /// `Σ_i a_i b_i' + onto`, products of one shape whose `b` are all transposed or all not: gradients of what several maps
    /// share. The type is that of `onto`, or of the factors.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn matmul_sum(
        &self,
        checked: Checked<Self>,
        products: &[(MatmulDims, [&Tensor<Self>; 2])],
        mut onto: Option<Tensor<Self>>,
    ) -> Result<Option<Tensor<Self>>> {
        for &(dims, [a, b]) in products {
            onto = Some(self.matmul(checked, dims, MatmulInputs { a, b, onto: onto.take() })?);
        }
        Ok(onto)
    }

    /// `a_iᵀ b` for each of these `a_i`, whose rows are those of `b`: gradients of the weights of several maps of `b`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn matmul_weights(
        &self,
        checked: Checked<Self>,
        factors: &[(MatmulDims, &Tensor<Self>)],
        b: &Tensor<Self>,
    ) -> Result<Vec<Tensor<Self>>> {
        factors.iter().map(|&(dims, a)| self.matmul(checked, dims, MatmulInputs { a, b, onto: None })).collect()
    }

    /// Whether products of these sizes and this type gain by being started together, forward and backward.
    fn starts_together(&self, _dims: &[MatmulDims], _dtype: DType) -> bool {
        false
    }
}

/// `a [.., m, k] × b [.., k, n] = [.., m, n]`, either operand stored transposed. The leading axes of `a` and `b` are
/// equal, or `b` has none and serves every product (`a` then not transposed).
///
/// # Errors
/// Ranks under 2, unequal leading axes or inner lengths, mixed or integer types.
pub fn matmul<D: Matmul>(a: &Tensor<D>, b: &Tensor<D>, transpose: Transpose) -> Result<Tensor<D>> {
    let (dims, shape) = check(a, b, transpose)?;
    a.device().matmul(Checked::new(), dims, MatmulInputs { a, b, onto: None })?.reshape(shape)
}

/// `x [.., K] × W [N, K]ᵀ = [.., N]` for each of several `W`, in the type of `x`. Weights may have 16 bits where `x` has 32,
/// which may be rounded to their type then; sums have 32 bits.
///
/// # Errors
/// As [`matmul`], but for such weights.
pub fn matmul_each<D: Matmul>(x: &Tensor<D>, weights: &[&Tensor<D>]) -> Result<Vec<Tensor<D>>> {
    let (dims, shapes): (Vec<_>, Vec<_>) = check_each(x, weights)?.into_iter().unzip();
    let products = x.device().matmul_each(
        Checked::new(),
        x,
        &dims.into_iter().zip(weights.iter().copied()).collect::<Vec<_>>(),
    )?;
    products.into_iter().zip(shapes).map(|(product, shape)| product.reshape(shape)).collect()
}

/// Whether a device gains by [`matmul_each`] of these in place of one product after another.
///
/// # Errors
/// As [`matmul_each`].
pub fn starts_together<D: Matmul>(x: &Tensor<D>, weights: &[&Tensor<D>]) -> Result<bool> {
    let dims: Vec<_> = check_each(x, weights)?.into_iter().map(|(dims, _)| dims).collect();
    Ok(weights.iter().all(|weight| weight.dtype() == x.dtype()) && x.device().starts_together(&dims, x.dtype()))
}

/// A weight of [`matmul_each`] on the way back.
#[derive(Clone, Debug)]
pub struct EachBackward<'a, D: Device> {
    /// `[N, K]`, of the type of `x`.
    pub weight: &'a Tensor<D>,
    /// Gradient of its product, `[.., N]`.
    pub dout: &'a Tensor<D>,
    /// What other uses gave to the weight's gradient, where there is such.
    pub onto: Option<Tensor<D>>,
}

/// Gradients of [`matmul_each`]: that of `x [.., K]`, added to `onto` where there is such, and those of the weights in their
/// order.
///
/// # Errors
/// As [`matmul_each`] and [`matmul_backward_onto`]; no weights.
pub fn matmul_each_backward<D: Matmul>(
    x: &Tensor<D>,
    back: Vec<EachBackward<'_, D>>,
    onto: Option<Tensor<D>>,
) -> Result<(Tensor<D>, Vec<Tensor<D>>)> {
    onto.as_ref().map_or(Ok(()), |dx| check_gradient("dx", dx, x))?;
    let checked = check_each(x, &back.iter().map(|back| back.weight).collect::<Vec<_>>())?;
    let mut products = Vec::new();
    for ((dims, shape), EachBackward { weight, dout, onto }) in checked.iter().zip(&back) {
        check_device("matmul", x, &[("dout", dout)])?;
        check_shape("matmul", "dout", dout, shape)?;
        check_dtype("matmul", "dout", dout, x.dtype())?;
        check_dtype("matmul", "b", weight, x.dtype())?;
        onto.as_ref().map_or(Ok(()), |dw| check_gradient("db", dw, weight))?;
        // `dout W`: what was summed over are columns now.
        let MatmulDims { batch, rows, inner, columns, .. } = *dims;
        let dims = MatmulDims { batch, rows, inner: columns, columns: inner, transpose: Transpose::default() };
        products.push((dims, [*dout, *weight]));
    }
    let missing =
        || Error::Config { what: "matmul", option: "weights", found: "none".into(), expected: "at least one" };
    let dx = x.device().matmul_sum(Checked::new(), &products, onto)?.ok_or_else(missing)?.reshape(x.shape().clone())?;
    // `doutᵀ x`, summed over all rows.
    let transpose = Transpose { a: true, b: false };
    let of_weight = |dims: &MatmulDims| MatmulDims {
        rows: dims.columns,
        inner: dims.rows,
        columns: dims.inner,
        transpose,
        ..*dims
    };
    let dims = checked.iter().map(|(dims, _)| of_weight(dims));
    let shapes: Vec<_> = back.iter().map(|back| back.weight.shape().clone()).collect();
    let made = if back.iter().all(|back| back.onto.is_none()) {
        x.device().matmul_weights(
            Checked::new(),
            &dims.zip(back.iter().map(|back| back.dout)).collect::<Vec<_>>(),
            x,
        )?
    } else {
        let added = |(dims, EachBackward { dout: a, onto, .. })| {
            x.device().matmul(Checked::new(), dims, MatmulInputs { a, b: x, onto })
        };
        dims.zip(back).map(added).collect::<Result<_>>()?
    };
    let of_weights = made.into_iter().zip(shapes).map(|(gradient, shape)| gradient.reshape(shape));
    Ok((dx, of_weights.collect::<Result<_>>()?))
}

/// Sizes and shapes of the products of [`matmul_each`].
pub(super) fn check_each<D: Device>(x: &Tensor<D>, weights: &[&Tensor<D>]) -> Result<Vec<(MatmulDims, Shape)>> {
    let transpose = Transpose { a: false, b: true };
    let checked = weights.iter().map(|weight| match (x.dtype(), weight.dtype()) {
        (DType::F32, DType::Bf16 | DType::F16) => check_sizes(x, weight, transpose),
        _ => check(x, weight, transpose),
    });
    checked.collect()
}

/// Gradients of [`matmul`], given `dout [.., m, n]`:
/// `dA' = dout B'ᵀ`, `dB' = A'ᵀ dout`, summed over the products where `b` serves them all.
///
/// # Errors
/// As [`matmul`], and a `dout` of another shape or type.
pub fn matmul_backward<D: Matmul>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    transpose: Transpose,
    dout: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    matmul_backward_onto(a, b, transpose, dout, Operands { a: None, b: None })
}

/// As [`matmul_backward`], added to what other uses of `a` and `b` gave to their gradients, where there is such: in the type
/// of what they are gradients of, or in 32 bits, which lose nothing of a long sum.
///
/// # Errors
/// As [`matmul_backward`], and gradients of another shape or type.
pub fn matmul_backward_onto<D: Matmul>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    transpose: Transpose,
    dout: &Tensor<D>,
    onto: Operands<Option<Tensor<D>>>,
) -> Result<Operands<Tensor<D>>> {
    let (dims, shape) = check(a, b, transpose)?;
    check_device("matmul", a, &[("dout", dout)])?;
    check_shape("matmul", "dout", dout, &shape)?;
    check_dtype("matmul", "dout", dout, a.dtype())?;
    for (slot, of, x) in [("da", a, &onto.a), ("db", b, &onto.b)] {
        x.as_ref().map_or(Ok(()), |x| check_gradient(slot, x, of))?;
    }
    let MatmulDims { batch, rows, inner, columns, .. } = dims;
    let product = |[rows, inner, columns]: [usize; 3], [ta, tb]: [bool; 2], [a, b]: [&Tensor<D>; 2], onto| {
        let dims = MatmulDims { batch, rows, inner, columns, transpose: Transpose { a: ta, b: tb } };
        a.device().matmul(Checked::new(), dims, MatmulInputs { a, b, onto })
    };
    let da = match transpose.a {
        false => product([rows, columns, inner], [false, !transpose.b], [dout, b], onto.a)?,
        true => product([inner, columns, rows], [transpose.b, true], [b, dout], onto.a)?,
    };
    let db = match transpose.b {
        false => product([inner, rows, columns], [!transpose.a, false], [a, dout], onto.b)?,
        true => product([columns, rows, inner], [true, transpose.a], [dout, a], onto.b)?,
    };
    Ok(Operands { a: da.reshape(a.shape().clone())?, b: db.reshape(b.shape().clone())? })
}

/// Refuses what no gradient of `of` can be added to.
fn check_gradient<D: Device>(slot: &'static str, x: &Tensor<D>, of: &Tensor<D>) -> Result<()> {
    let what = "matmul";
    check_device(what, of, &[(slot, x)])?;
    check_shape(what, slot, x, of.shape())?;
    if x.dtype() == DType::F32 { Ok(()) } else { check_dtype(what, slot, x, of.dtype()) }
}

fn check<D: Device>(a: &Tensor<D>, b: &Tensor<D>, transpose: Transpose) -> Result<(MatmulDims, Shape)> {
    let sizes = check_sizes(a, b, transpose)?;
    check_dtype("matmul", "b", b, a.dtype())?;
    Ok(sizes)
}

/// [`check`], whatever type each of them has.
fn check_sizes<D: Device>(a: &Tensor<D>, b: &Tensor<D>, transpose: Transpose) -> Result<(MatmulDims, Shape)> {
    let what = "matmul";
    check_device(what, a, &[("b", b)])?;
    check_float(what, "a", a)?;
    check_float(what, "b", b)?;
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
    let shape: Shape = lead_a.iter().copied().chain([rows, columns]).collect::<Vec<_>>().into();
    check_size(what, &shape, a.dtype())?;
    let batch: usize = lead_a.iter().product();
    let (batch, rows) = if shared { (1, batch * rows) } else { (batch, rows) };
    Ok((MatmulDims { batch, rows, inner, columns, transpose }, shape))
}

fn split<'a, D: Device>(slot: &'static str, x: &'a Tensor<D>) -> Result<(&'a [usize], usize, usize)> {
    match x.shape().axes() {
        [lead @ .., r, c] => Ok((lead, *r, *c)),
        _ => Err(Error::Rank { what: "matmul", slot, expected: "at least 2", found: x.shape().clone() }),
    }
}
