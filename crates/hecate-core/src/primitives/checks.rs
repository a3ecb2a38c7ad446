//! What primitives refuse of their arguments.

use crate::{Bytes, DType, Device, Error, Result, Shape, Tensor};

/// The two arrays of a sum or a product, or what belongs to each of them.
#[derive(Clone, Copy, Debug)]
pub struct Operands<T> {
    /// Of the first.
    pub a: T,
    /// Of the second.
    pub b: T,
}

/// Refuses arrays that do not lie where `first` does.
pub(super) fn check_device<D: Device>(
    what: &'static str,
    first: &Tensor<D>,
    others: &[(&'static str, &Tensor<D>)],
) -> Result<()> {
    others.iter().try_for_each(|(slot, x)| x.check_device(first.device(), what, slot))
}

/// Refuses a tensor of another shape.
pub(super) fn check_shape<D: Device>(
    what: &'static str,
    slot: &'static str,
    x: &Tensor<D>,
    expected: &Shape,
) -> Result<()> {
    if x.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape { what, slot, expected: expected.clone(), found: x.shape().clone() })
}

/// Refuses a result of more bytes than can be addressed.
pub(super) fn check_size(what: &'static str, shape: &Shape, dtype: DType) -> Result<()> {
    let bytes = shape.axes().iter().fold(dtype.size() as u128, |bytes, &n| bytes.saturating_mul(n as u128));
    if bytes <= isize::MAX as u128 {
        return Ok(());
    }
    Err(Error::OutOfMemory { what, bytes: Bytes(bytes), free: None })
}

/// Refuses a tensor without elements.
pub(super) fn check_filled<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>) -> Result<()> {
    if x.shape().count() > 0 {
        return Ok(());
    }
    Err(Error::Empty { what, slot, found: x.shape().clone() })
}

/// Refuses integers and empty tensors.
pub(super) fn check_float<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>) -> Result<()> {
    check_filled(what, slot, x)?;
    if x.dtype().is_float() {
        return Ok(());
    }
    Err(Error::DType { what, slot, expected: "a float type", found: x.dtype() })
}

/// Refuses a tensor of another element type.
pub(super) fn check_dtype<D: Device>(
    what: &'static str,
    slot: &'static str,
    x: &Tensor<D>,
    expected: DType,
) -> Result<()> {
    if x.dtype() == expected {
        return Ok(());
    }
    let expected = match expected {
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::U32 => "u32",
    };
    Err(Error::DType { what, slot, expected, found: x.dtype() })
}

/// Refuses a tensor that differs from `like` in device, shape or element type.
pub(super) fn check_like<D: Device>(
    what: &'static str,
    slot: &'static str,
    x: &Tensor<D>,
    like: &Tensor<D>,
) -> Result<()> {
    x.check_device(like.device(), what, slot)?;
    check_shape(what, slot, x, like.shape())?;
    check_dtype(what, slot, x, like.dtype())
}

/// Refuses a tensor with another number of axes.
pub(super) fn check_rank<D: Device>(
    what: &'static str,
    slot: &'static str,
    x: &Tensor<D>,
    rank: usize,
    expected: &'static str,
) -> Result<()> {
    if x.shape().rank() == rank {
        return Ok(());
    }
    Err(Error::Rank { what, slot, expected, found: x.shape().clone() })
}
