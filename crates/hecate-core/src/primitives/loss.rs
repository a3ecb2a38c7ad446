//! Cross-entropy.

use super::{check_dtype, check_float, check_shape};
use crate::{DType, Device, Error, Result, Shape, Tensor};

/// The loss of a language model, one number a row. Of the columns of `logits` the first `classes` are looked at; what is
/// behind these fills a row up to a length that suits the device.
pub trait Loss: Device {
    /// `lse = log Σ_v e^{logits[v]}`, `loss = lse − logits[target]`; returns `(loss [rows], lse [rows])` in 32 bits.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for a target that is no class, where the device can tell at no cost;
    /// elsewhere such a row's loss is NaN.
    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// `dlogits[v] = factor (e^{logits[v] − lse} − [v = target])`, zero behind the classes.
    ///
    /// # Errors
    /// As [`Loss::cross_entropy`].
    fn cross_entropy_backward(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
        lse: &Tensor<Self>,
        factor: f32,
    ) -> Result<Tensor<Self>>;
}

/// Losses of rows of `logits [.., V]` against `targets [..]`, in nats: `(losses, lse)`, both `[..]` in 32 bits; `lse`
/// is what the backward needs. Columns behind the first `classes` of the `V` have no part in them.
///
/// # Errors
/// No classes, or more than `V`; targets that are no integers, not under `classes`, or not one a row.
pub fn cross_entropy<D: Loss>(
    classes: usize,
    logits: &Tensor<D>,
    targets: &Tensor<D>,
) -> Result<(Tensor<D>, Tensor<D>)> {
    let shape = check(classes, logits, targets)?;
    let (losses, lse) = logits.device().cross_entropy(classes, logits, targets)?;
    Ok((losses.reshape(shape.clone())?, lse.reshape(shape)?))
}

/// Gradient of `factor · Σ losses` by the logits.
///
/// # Errors
/// As [`cross_entropy`], and an `lse` that is not the forward's.
pub fn cross_entropy_backward<D: Loss>(
    classes: usize,
    logits: &Tensor<D>,
    targets: &Tensor<D>,
    lse: &Tensor<D>,
    factor: f32,
) -> Result<Tensor<D>> {
    let shape = check(classes, logits, targets)?;
    check_shape("cross_entropy", "lse", lse, &shape)?;
    check_dtype("cross_entropy", "lse", lse, DType::F32)?;
    logits.device().cross_entropy_backward(classes, logits, targets, lse, factor)
}

fn check<D: Device>(classes: usize, logits: &Tensor<D>, targets: &Tensor<D>) -> Result<Shape> {
    check_float("cross_entropy", "logits", logits)?;
    check_dtype("cross_entropy", "targets", targets, DType::U32)?;
    let [rows @ .., width] = logits.shape().axes() else {
        let found = logits.shape().clone();
        return Err(Error::Rank { what: "cross_entropy", slot: "logits", expected: "at least 1", found });
    };
    if classes == 0 || classes > *width {
        return Err(Error::Config {
            what: "cross_entropy",
            option: "classes",
            found: format!("{classes}, and `logits` have {width} columns"),
            expected: "at least 1, and at most as many as there are columns",
        });
    }
    let shape = Shape::from(rows);
    check_shape("cross_entropy", "targets", targets, &shape)?;
    Ok(shape)
}
