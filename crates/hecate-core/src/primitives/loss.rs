//! Cross-entropy.

use super::{check_device, check_dtype, check_float, check_shape};
use crate::{Checked, DType, Device, Error, Result, Shape, Tensor};

/// What [`cross_entropy`] compares.
#[derive(Clone, Copy, Debug)]
pub struct LossInputs<T> {
    /// Columns that are looked at, from the first on: at least 1, at most `V`.
    pub classes: usize,
    /// `[.., V]`.
    pub logits: T,
    /// `[..]`, integers under `classes`.
    pub targets: T,
}

/// Losses in nats, and what the backward needs; both `[..]` in 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Losses<T> {
    /// `lse − logits[target]`.
    pub losses: T,
    /// `log Σ_v e^{logits[v]}`.
    pub lse: T,
}

/// What the gradient of [`cross_entropy`] is made from.
#[derive(Clone, Debug)]
pub struct LossBackward<'a, D: Device> {
    /// Those of the forward.
    pub inputs: LossInputs<&'a Tensor<D>>,
    /// [`Losses::lse`] of the forward.
    pub lse: &'a Tensor<D>,
    /// Gradient of every loss.
    pub factor: f32,
}

/// Losses, and the gradient of their sum times a factor.
#[derive(Clone, Copy, Debug)]
pub struct LossesAndGradient<T> {
    /// As [`Losses::losses`].
    pub losses: T,
    /// By the logits, and like them.
    pub dlogits: T,
}

/// The loss of a language model, one number a row. Of the columns of `logits` the first `classes` are looked at; what is
/// after these fills a row up to a length that suits the device.
pub trait Loss: Device {
    /// `lse = log Σ_v e^{logits[v]}`, `loss = lse − logits[target]`; `[rows]` each.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for a target that is no class, where the device can tell at no cost;
    /// elsewhere such a row's loss is NaN.
    fn cross_entropy(&self, checked: Checked<Self>, inputs: &LossInputs<&Tensor<Self>>)
    -> Result<Losses<Tensor<Self>>>;

    /// `dlogits[v] = factor (e^{logits[v] − lse} − [v = target])`, zero after the classes.
    ///
    /// # Errors
    /// As [`Loss::cross_entropy`].
    fn cross_entropy_backward(&self, checked: Checked<Self>, call: &LossBackward<'_, Self>) -> Result<Tensor<Self>>;

    /// Both at once; `logits` may become the gradient.
    ///
    /// # Errors
    /// As [`Loss::cross_entropy`].
    fn cross_entropy_and_gradient(
        &self,
        checked: Checked<Self>,
        factor: f32,
        inputs: LossInputs<Tensor<Self>>,
    ) -> Result<LossesAndGradient<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = &inputs;
        let inputs = LossInputs { classes: *classes, logits, targets };
        let Losses { losses, lse } = self.cross_entropy(checked, &inputs)?;
        Ok(LossesAndGradient {
            losses,
            dlogits: self.cross_entropy_backward(checked, &LossBackward { inputs, lse: &lse, factor })?,
        })
    }
}

/// Losses of rows of `logits [.., V]` against `targets [..]`. Columns after the first `classes` of the `V` have no part in
/// them.
///
/// # Errors
/// No classes, or more than `V`; targets that are no integers, not under `classes`, or not one a row.
pub fn cross_entropy<D: Loss>(inputs: &LossInputs<&Tensor<D>>) -> Result<Losses<Tensor<D>>> {
    let shape = check(inputs)?;
    let Losses { losses, lse } = inputs.logits.device().cross_entropy(Checked::new(), inputs)?;
    Ok(Losses { losses: losses.reshape(shape.clone())?, lse: lse.reshape(shape)? })
}

/// Gradient of `factor · Σ losses` by the logits.
///
/// # Errors
/// As [`cross_entropy`], and an `lse` that is not the forward's.
pub fn cross_entropy_backward<D: Loss>(call: &LossBackward<'_, D>) -> Result<Tensor<D>> {
    let (shape, logits, lse) = (check(&call.inputs)?, call.inputs.logits, call.lse);
    check_device("cross_entropy", logits, &[("lse", lse)])?;
    check_shape("cross_entropy", "lse", lse, &shape)?;
    check_dtype("cross_entropy", "lse", lse, DType::F32)?;
    logits.device().cross_entropy_backward(Checked::new(), call)
}

/// [`cross_entropy`] and its gradient in one pass over rows, which takes the place of the logits where nobody else holds them:
/// for losses whose gradient is known before, as that of a mean is.
///
/// # Errors
/// As [`cross_entropy`].
pub fn cross_entropy_and_gradient<D: Loss>(
    factor: f32,
    inputs: LossInputs<Tensor<D>>,
) -> Result<LossesAndGradient<Tensor<D>>> {
    let shape = check(&LossInputs { classes: inputs.classes, logits: &inputs.logits, targets: &inputs.targets })?;
    let device = inputs.logits.device().clone();
    let LossesAndGradient { losses, dlogits } = device.cross_entropy_and_gradient(Checked::new(), factor, inputs)?;
    Ok(LossesAndGradient { losses: losses.reshape(shape)?, dlogits })
}

/// Shape of the losses.
fn check<D: Device>(inputs: &LossInputs<&Tensor<D>>) -> Result<Shape> {
    let LossInputs { classes, logits, targets } = *inputs;
    check_device("cross_entropy", logits, &[("targets", targets)])?;
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
