//! Cutting and joining along an axis.

use super::{check_dtype, check_filled, check_shape, check_size};
use crate::{Checked, Device, Error, Result, Shape, Tensor, shape::product};

/// A range of one axis, the array seen as `[outer, length, inner]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Product of the axes before it.
    pub outer: usize,
    /// Length of the whole axis.
    pub length: usize,
    /// Product of the axes after it.
    pub inner: usize,
    /// First index of the range.
    pub start: usize,
    /// Indices in the range.
    pub count: usize,
}

/// Moving elements about; any element type.
pub trait Layout: Device {
    /// Copies the range out: `[outer, length, inner]` to `[outer, count, inner]`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn narrow(&self, checked: Checked<Self>, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// Puts `dy [outer, count, inner]` into zeros `[outer, length, inner]`: the adjoint of [`Layout::narrow`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn narrow_backward(&self, checked: Checked<Self>, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// Joins arrays `[outer, lengthᵢ, inner]`, one after another.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn concat(
        &self,
        checked: Checked<Self>,
        outer: usize,
        inner: usize,
        parts: &[&Tensor<Self>],
    ) -> Result<Tensor<Self>>;
}

/// Indices `start .. start + count` of `axis`.
///
/// # Errors
/// An axis or range that `x` does not have.
pub fn narrow<D: Layout>(x: &Tensor<D>, axis: usize, start: usize, count: usize) -> Result<Tensor<D>> {
    let (span, shape) = span(x.shape(), axis, start, count)?;
    if shape.count() == 0 {
        return Tensor::zeros(x.device(), shape, x.dtype());
    }
    x.device().narrow(Checked::new(), span, x)?.reshape(shape)
}

/// Gradient of [`narrow`] by `x` of shape `shape`: `dy` among zeros.
///
/// # Errors
/// As [`narrow`], a `dy` of another shape, and a `shape` that is too large.
pub fn narrow_backward<D: Layout>(
    shape: &Shape,
    axis: usize,
    start: usize,
    count: usize,
    dy: &Tensor<D>,
) -> Result<Tensor<D>> {
    let (span, part) = span(shape, axis, start, count)?;
    check_shape("narrow", "dy", dy, &part)?;
    check_size("narrow", shape, dy.dtype())?;
    if shape.count() == 0 {
        return Tensor::zeros(dy.device(), shape.clone(), dy.dtype());
    }
    dy.device().narrow_backward(Checked::new(), span, dy)?.reshape(shape.clone())
}

/// Arrays joined along `axis`; all other axes are equal. The gradient of each is [`narrow`] of the gradient.
///
/// # Errors
/// Nothing to join, other axes or types that differ.
pub fn concat<D: Layout>(parts: &[&Tensor<D>], axis: usize) -> Result<Tensor<D>> {
    let what = "concat";
    let Some(first) = parts.first() else {
        return Err(Error::Config { what, option: "parts", found: "none".into(), expected: "at least one array" });
    };
    let mut axes = first.shape().axes().to_vec();
    check_axis(what, first.shape(), axis)?;
    axes[axis] = 0;
    for part in parts {
        part.check_device(first.device(), what, "parts")?;
        let length = part.shape().axes().get(axis).copied().unwrap_or(0);
        let mut like = axes.clone();
        like[axis] = length;
        check_shape(what, "parts", part, &like.into())?;
        check_dtype(what, "parts", part, first.dtype())?;
        check_filled(what, "parts", part)?;
        axes[axis] += length;
    }
    let outer = product(&axes[..axis]);
    let inner = product(&axes[axis + 1..]);
    first.device().concat(Checked::new(), outer, inner, parts)?.reshape(axes)
}

fn check_axis(what: &'static str, shape: &Shape, axis: usize) -> Result<()> {
    if axis < shape.rank() {
        return Ok(());
    }
    Err(Error::Config { what, option: "axis", found: axis.to_string(), expected: "less than the number of axes" })
}

fn span(shape: &Shape, axis: usize, start: usize, count: usize) -> Result<(Span, Shape)> {
    check_axis("narrow", shape, axis)?;
    let mut axes = shape.axes().to_vec();
    let length = axes[axis];
    if count == 0 || start.checked_add(count).is_none_or(|end| end > length) {
        let found = format!("{start} and {count} more of axis {axis} of {shape}");
        return Err(Error::Config { what: "narrow", option: "start", found, expected: "a range inside the axis" });
    }
    axes[axis] = count;
    let outer = product(&axes[..axis]);
    let inner = product(&axes[axis + 1..]);
    Ok((Span { outer, length, inner, start, count }, axes.into()))
}
