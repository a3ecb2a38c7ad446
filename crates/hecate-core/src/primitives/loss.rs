//! Cross-entropy.

use super::{check_dtype, check_float, check_shape};
use crate::{DType, Device, Error, Result, Shape, Tensor};

/// The loss of a language model, one number a row.
pub trait Loss: Device {
    /// `lse = log Σ_v e^{logits[v]}`, `loss = lse − logits[target]`; returns `(loss [rows], lse [rows])` in 32 bits.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for a target outside the vocabulary, where the device can tell at no
    /// cost; elsewhere such a row's loss is NaN.
    fn cross_entropy(&self, logits: &Tensor<Self>, targets: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// `dlogits[v] = factor (e^{logits[v] − lse} − [v = target])`.
    ///
    /// # Errors
    /// As [`Loss::cross_entropy`].
    fn cross_entropy_backward(
        &self,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
        lse: &Tensor<Self>,
        factor: f32,
    ) -> Result<Tensor<Self>>;
}

/// Losses of rows of `logits [.., V]` against `targets [..]`, in nats: `(losses, lse)`, both `[..]` in 32 bits; `lse`
/// is what the backward needs.
///
/// # Errors
/// Targets that are no integers, not under `V`, or not one a row.
pub fn cross_entropy<D: Loss>(logits: &Tensor<D>, targets: &Tensor<D>) -> Result<(Tensor<D>, Tensor<D>)> {
    let shape = check(logits, targets)?;
    let (losses, lse) = logits.device().cross_entropy(logits, targets)?;
    Ok((losses.reshape(shape.clone())?, lse.reshape(shape)?))
}

/// Gradient of `factor · Σ losses` by the logits.
///
/// # Errors
/// As [`cross_entropy`], and an `lse` that is not the forward's.
pub fn cross_entropy_backward<D: Loss>(
    logits: &Tensor<D>,
    targets: &Tensor<D>,
    lse: &Tensor<D>,
    factor: f32,
) -> Result<Tensor<D>> {
    let shape = check(logits, targets)?;
    check_shape("cross_entropy", "lse", lse, &shape)?;
    check_dtype("cross_entropy", "lse", lse, DType::F32)?;
    logits.device().cross_entropy_backward(logits, targets, lse, factor)
}

fn check<D: Device>(logits: &Tensor<D>, targets: &Tensor<D>) -> Result<Shape> {
    check_float("cross_entropy", "logits", logits)?;
    check_dtype("cross_entropy", "targets", targets, DType::U32)?;
    let [rows @ .., _] = logits.shape().axes() else {
        let found = logits.shape().clone();
        return Err(Error::Rank { what: "cross_entropy", slot: "logits", expected: "at least 1", found });
    };
    let shape = Shape::from(rows);
    check_shape("cross_entropy", "targets", targets, &shape)?;
    Ok(shape)
}
