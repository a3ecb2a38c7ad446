//! Element by element: maps, sums, products, conversions.

use super::{DropMask, Operands, Reduce, check_device, check_filled, check_float, check_like, check_shape, reduce};
use crate::{Checked, DType, Device, Error, Result, Tensor};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Map {
    /// `x σ(x)`.
    Silu,
    /// `σ(x) = 1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `log σ(x) = −log(1 + e⁻ˣ)`.
    LogSigmoid,
    /// `log(1 + eˣ)`.
    Softplus,
    /// `½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))`: the tanh form, which every shading language can compute.
    Gelu,
    /// `eˣ`.
    Exp,
    /// `max(x, 0)`; its slope at 0 is 0.
    Relu,
    /// `max(x, 0)²` (So et al., "Primer").
    ReluSquared,
}

impl Map {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Silu,
        Self::Sigmoid,
        Self::LogSigmoid,
        Self::Softplus,
        Self::Gelu,
        Self::Exp,
        Self::Relu,
        Self::ReluSquared,
    ];

    /// Place in [`Map::ALL`], by which kernels know it.
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::LogSigmoid => "log_sigmoid",
            Self::Softplus => "softplus",
            Self::Gelu => "gelu",
            Self::Exp => "exp",
            Self::Relu => "relu",
            Self::ReluSquared => "relu_squared",
        }
    }
}

/// Kernels know a map by its place.
const _: () = {
    let mut place = 0;
    while place < Map::ALL.len() {
        assert!(Map::ALL[place].index() as usize == place);
        place += 1;
    }
};

/// `b [width]` serves each of `rows` rows of `a [rows, width]`; `rows = 1` where the shapes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// How often `b` is used.
    pub rows: usize,
    /// Elements of `b`.
    pub width: usize,
}

/// How the elements of two arrays are put together. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// `a + b`.
    Sum,
    /// `a b`.
    Product,
    /// `a − b`.
    Difference,
    /// `a / b`.
    Quotient,
}

impl Combine {
    /// The number that kernels know it by.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What the gradients of [`gated`] are made from: arrays of one shape and type.
#[derive(Clone, Debug)]
pub struct GatedBackward<'a, D: Device> {
    /// What is let through.
    pub x: &'a Tensor<D>,
    /// The gate, before its map.
    pub g: &'a Tensor<D>,
    /// Gradient of `x map(g)`.
    pub dy: &'a Tensor<D>,
}

/// Gradients of [`gated`], like what they are gradients of.
#[derive(Clone, Copy, Debug)]
pub struct GatedGrads<T> {
    /// `map(g) dy`.
    pub x: T,
    /// `map'(g) x dy`.
    pub g: T,
}

/// What the gradients of [`biased`] are made from.
#[derive(Clone, Debug)]
pub struct BiasedBackward<'a, D: Device> {
    /// `[.., D]`.
    pub x: &'a Tensor<D>,
    /// `[D]`, or more of the innermost axes of `x`.
    pub b: &'a Tensor<D>,
    /// Gradient of `map(x + b)`.
    pub dy: &'a Tensor<D>,
}

/// Element-wise kernels.
pub trait Elementwise: Device {
    /// `y = map(x)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn map(&self, checked: Checked<Self>, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dx = map'(x) dy`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn map_backward(
        &self,
        checked: Checked<Self>,
        map: Map,
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// `y = x map(g)`, arrays of one shape.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn gated(&self, checked: Checked<Self>, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dx = map(g) dy`, `dg = map'(g) x dy`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn gated_backward(
        &self,
        checked: Checked<Self>,
        map: Map,
        call: &GatedBackward<'_, Self>,
    ) -> Result<GatedGrads<Tensor<Self>>>;

    /// `y = map(x + b)`, `b` for every row.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn biased(
        &self,
        checked: Checked<Self>,
        map: Map,
        dims: Broadcast,
        x: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// `dx = map'(x + b) dy`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn biased_backward(
        &self,
        checked: Checked<Self>,
        map: Map,
        dims: Broadcast,
        call: &BiasedBackward<'_, Self>,
    ) -> Result<Tensor<Self>>;

    /// `a + b`, or what else `how` says, element by element.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn combine(
        &self,
        checked: Checked<Self>,
        how: Combine,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// `factor x`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn scale(&self, checked: Checked<Self>, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `mask.factor(i) x_i`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn dropout(&self, checked: Checked<Self>, mask: DropMask, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// The elements rounded to another float type.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn cast(&self, checked: Checked<Self>, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// As [`Elementwise::cast`] of several arrays, at least one.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn cast_all(&self, checked: Checked<Self>, dtype: DType, xs: &[&Tensor<Self>]) -> Result<Vec<Tensor<Self>>> {
        xs.iter().map(|x| self.cast(checked, dtype, x)).collect()
    }
}

/// `y = map(x)`, any shape.
///
/// # Errors
/// Integers, no elements.
pub fn map<D: Elementwise>(map: Map, x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("map", "x", x)?;
    x.device().map(Checked::new(), map, x)
}

/// Gradient of [`map()`]: `dx = map'(x) dy`.
///
/// # Errors
/// As [`map()`], and a `dy` unlike `x`.
pub fn map_backward<D: Elementwise>(map: Map, x: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("map", "x", x)?;
    check_like("map", "dy", dy, x)?;
    x.device().map_backward(Checked::new(), map, x, dy)
}

/// `y = x map(g)`: what [`map()`] of `g` lets through of `x`, an array of the same shape.
///
/// # Errors
/// Shapes or types that differ, integers, no elements.
pub fn gated<D: Elementwise>(map: Map, x: &Tensor<D>, g: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("gated", "x", x)?;
    check_like("gated", "g", g, x)?;
    x.device().gated(Checked::new(), map, x, g)
}

/// Gradients of [`gated`].
///
/// # Errors
/// As [`gated`], and a `dy` unlike `x`.
pub fn gated_backward<D: Elementwise>(map: Map, call: &GatedBackward<'_, D>) -> Result<GatedGrads<Tensor<D>>> {
    let GatedBackward { x, g, dy } = call;
    check_float("gated", "x", x)?;
    check_like("gated", "g", g, x)?;
    check_like("gated", "dy", dy, x)?;
    x.device().gated_backward(Checked::new(), map, call)
}

/// `map(x + b)`, shapes as in [`add`]: a bias and what follows it. Without a map it is [`add`].
///
/// # Errors
/// As [`add`].
pub fn biased<D: Elementwise>(map: Option<Map>, x: &Tensor<D>, b: &Tensor<D>) -> Result<Tensor<D>> {
    let dims = broadcast("biased", ("x", x), b)?;
    match map {
        Some(map) => x.device().biased(Checked::new(), map, dims, x, b),
        None => x.device().combine(Checked::new(), Combine::Sum, dims, x, b),
    }
}

/// Gradients of [`biased`]: `dx = map'(x + b) dy`, and `dx` summed over the rows that shared `b`.
///
/// # Errors
/// As [`biased`], and a `dy` unlike `x`.
pub fn biased_backward<D: Reduce + Elementwise>(
    map: Option<Map>,
    call: &BiasedBackward<'_, D>,
) -> Result<Operands<Tensor<D>>> {
    let BiasedBackward { x, b, dy } = *call;
    let dims = broadcast("biased", ("x", x), b)?;
    check_like("biased", "dy", dy, x)?;
    let dx = map.map_or(Ok(dy.clone()), |map| x.device().biased_backward(Checked::new(), map, dims, call))?;
    let db = if dims.rows == 1 { dx.clone() } else { reduce::sum_rows(&dx, dims.width)? };
    Ok(Operands { a: dx, b: db.reshape(b.shape().clone())? })
}

/// `a + b`; the shape of `b` is that of `a` or of its innermost axes (then every row gets the same `b`).
///
/// # Errors
/// Shapes that do not fit, mixed or integer types.
pub fn add<D: Elementwise>(a: &Tensor<D>, b: &Tensor<D>) -> Result<Tensor<D>> {
    a.device().combine(Checked::new(), Combine::Sum, broadcast("add", ("a", a), b)?, a, b)
}

/// Gradients of [`add`]: `dy`, and `dy` summed over the rows that shared `b`.
///
/// # Errors
/// As [`add`], and a `dy` unlike `a`.
pub fn add_backward<D: Reduce + Elementwise>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    let dims = broadcast("add", ("a", a), b)?;
    check_like("add", "dy", dy, a)?;
    let db = if dims.rows == 1 { dy.clone() } else { reduce::sum_rows(dy, dims.width)? };
    Ok(Operands { a: dy.clone(), b: db.reshape(b.shape().clone())? })
}

/// `a b` element by element, shapes as in [`add`].
///
/// # Errors
/// As [`add`].
pub fn mul<D: Elementwise>(a: &Tensor<D>, b: &Tensor<D>) -> Result<Tensor<D>> {
    a.device().combine(Checked::new(), Combine::Product, broadcast("mul", ("a", a), b)?, a, b)
}

/// Gradients of [`mul`]: `da = b dy`, and `db = a dy`, summed over the rows that shared `b`.
///
/// # Errors
/// As [`mul`], and a `dy` unlike `a`.
pub fn mul_backward<D: Reduce + Elementwise>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<Operands<Tensor<D>>> {
    let (dims, device) = (broadcast("mul", ("a", a), b)?, a.device());
    check_like("mul", "dy", dy, a)?;
    let da = device.combine(Checked::new(), Combine::Product, dims, dy, b)?;
    let db = match dims.rows {
        1 => device.combine(Checked::new(), Combine::Product, dims, dy, a)?,
        _ => device.sum_products(Checked::new(), dims.width, a, dy)?,
    };
    Ok(Operands { a: da, b: db.reshape(b.shape().clone())? })
}

/// `factor x`; its gradient is `scale(factor, dy)`.
///
/// # Errors
/// Integers, no elements.
pub fn scale<D: Elementwise>(factor: f32, x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("scale", "x", x)?;
    x.device().scale(Checked::new(), factor, x)
}

/// The elements that a mask drops times 0, the others times its factor; its gradient is `dropout(mask, dy)`.
/// All devices drop the same elements.
///
/// # Errors
/// Integers, no elements; a mask of a share outside `[0, 1)`.
pub fn dropout<D: Elementwise>(mask: DropMask, x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("dropout", "x", x)?;
    // Written so that NaN is refused too.
    if !(mask.kept >= 1.0 && mask.kept.is_finite()) {
        let (found, expected) = (format!("a factor of {}", mask.kept), "1 / (1 − share) of a share in [0, 1)");
        return Err(Error::Config { what: "dropout", option: "mask", found, expected });
    }
    x.device().dropout(Checked::new(), mask, x)
}

/// The elements rounded to another float type; its gradient is `cast` back.
///
/// # Errors
/// Integers on either side, no elements.
pub fn cast<D: Elementwise>(dtype: DType, x: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("cast", "x", x)?;
    if !dtype.is_float() {
        return Err(Error::DType { what: "cast", slot: "dtype", expected: "a float type", found: dtype });
    }
    if dtype == x.dtype() { Ok(x.clone()) } else { x.device().cast(Checked::new(), dtype, x) }
}

/// [`cast`] of several arrays of one device, any shapes, in their order: one call where the device has one for all.
///
/// # Errors
/// As [`cast`].
pub fn cast_all<D: Elementwise>(dtype: DType, xs: &[&Tensor<D>]) -> Result<Vec<Tensor<D>>> {
    xs.iter()
        .try_for_each(|x| x.check_device(xs[0].device(), "cast", "x").and_then(|()| check_float("cast", "x", x)))?;
    if !dtype.is_float() {
        return Err(Error::DType { what: "cast", slot: "dtype", expected: "a float type", found: dtype });
    }
    let others: Vec<_> = xs.iter().copied().filter(|x| x.dtype() != dtype).collect();
    let Some(first) = others.first() else { return Ok(xs.iter().copied().cloned().collect()) };
    let mut made = first.device().cast_all(Checked::new(), dtype, &others)?.into_iter();
    let of = |x: &&Tensor<D>| if x.dtype() == dtype { Some(Tensor::clone(x)) } else { made.next() };
    Ok(xs.iter().filter_map(of).collect())
}

/// How `b` serves the rows of `a`, which is called `slot` in messages.
pub(super) fn broadcast<D: Device>(
    what: &'static str,
    (slot, a): (&'static str, &Tensor<D>),
    b: &Tensor<D>,
) -> Result<Broadcast> {
    check_device(what, a, &[("b", b)])?;
    check_float(what, slot, a)?;
    check_filled(what, "b", b)?;
    super::check_dtype(what, "b", b, a.dtype())?;
    if !a.shape().axes().ends_with(b.shape().axes()) {
        check_shape(what, "b", b, a.shape())?;
    }
    let width = b.shape().count();
    Ok(Broadcast { rows: a.shape().count() / width, width })
}
