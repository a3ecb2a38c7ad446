//! Losses on a tape, and the way back from one.

use super::{Tape, Var};
use crate::{Error, Gradients, Result};
use hecate_core::{
    Backend, Host, Tensor,
    primitives::{self as p, LossBackward, LossInputs, Losses},
};

impl<B: Backend> Tape<'_, B> {
    /// Cross-entropy of `logits [.., V]` against `targets [..]`, which are integers under `V`: the mean over all rows, in
    /// nats, `[1]` in 32 bits.
    ///
    /// # Errors
    /// As [`primitives::cross_entropy`](p::cross_entropy); no rows.
    pub fn cross_entropy(&self, logits: &Var<B>, targets: &Tensor<B>) -> Result<Var<B>> {
        self.check()?;
        let (logits_kept, targets) = (logits.value.clone(), targets.clone());
        let inputs = LossInputs { classes: logits_kept.shape().last(), logits: &logits_kept, targets: &targets };
        let Losses { losses, lse } = p::cross_entropy(&inputs)?;
        let factor = (losses.shape().count() as f32).recip();
        let mean = p::scale(factor, &p::sum(&losses)?)?;
        Ok(self.push_map(logits, mean, move |dy| {
            let inputs = LossInputs { classes: logits_kept.shape().last(), logits: &logits_kept, targets: &targets };
            let dlogits = p::cross_entropy_backward(&LossBackward { inputs, lse: &lse, factor })?;
            // `dy [1]` stays on the device: it serves all rows of one element.
            let (shape, dy) = (dlogits.shape().clone(), p::cast(dlogits.dtype(), &dy)?);
            p::mul(&dlogits.reshape([shape.count(), 1])?, &dy)?.reshape(shape)
        }))
    }

    /// Gradients of `loss`, one number, by all parameters.
    ///
    /// # Errors
    /// [`Error::Config`] for a loss of several numbers, or one that no parameter had a part in; otherwise as
    /// [`Tape::backward_seeded`].
    pub fn backward(self, loss: &Var<B>) -> Result<Gradients<B>> {
        let shape = loss.value.shape();
        if shape.count() != 1 {
            let expected = "one number; add up what it is made of, or name its gradient with `backward_seeded`";
            return Err(Error::config("loss", format!("an array {shape}"), expected));
        }
        if loss.slot.is_none() && self.record.is_some() {
            return Err(Error::config("loss", "a constant", "a value that parameters of this tape had a part in"));
        }
        let one = Host::from_f32(loss.value.dtype(), vec![1.0]);
        let seed = Tensor::upload(loss.value.device(), shape.clone(), one)?;
        self.backward_seeded([(loss.clone(), seed)])
    }
}
