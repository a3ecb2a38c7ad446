//! Loss and gradients of the passes of one step.

use super::{Settings, Trainer};
use crate::{Gradients, Masks, Result, language_model::LossGradients, optimizer, text::TokenSource};
use hecate_core::{Backend, Tensor, primitives};

/// What a step starts from: means over all its passes.
pub(super) struct Measured<B: Backend> {
    /// Nats a token.
    pub(super) loss: f64,
    pub(super) gradients: Gradients<B>,
    /// Squared norm of all gradients together, `[1]` on the device.
    pub(super) norm_squared: Tensor<B>,
    /// Its root, on the host.
    pub(super) gradient_norm: f64,
}

impl<B: Backend> Measured<B> {
    /// Whether a step may be made of it.
    pub(super) fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.gradient_norm.is_finite()
    }
}

impl<B: Backend> Trainer<B> {
    /// Loss and gradients of the next windows of `text`; the weights stay as they are.
    pub(super) fn measure(&mut self, text: TokenSource<'_>) -> Result<Measured<B>> {
        let passes = self.passes(text);
        // What is asked of the model between steps drops nothing.
        self.model.set_masks(None);
        let LossGradients { loss, count, gradients } = passes?;
        let norm_squared = optimizer::norm_squared(self.model.device(), &gradients)?;
        // One copy to the host brings all that a step waits for.
        let figures = primitives::concat(&[&loss, &norm_squared], 0)?.to_f32()?;
        let [loss, gradient_norm] = [0, 1].map(|i| f64::from(figures.get(i).copied().unwrap_or(f32::NAN)));
        let (loss, gradient_norm) = (loss / count as f64, gradient_norm.sqrt());
        Ok(Measured { loss, gradients, norm_squared, gradient_norm })
    }

    /// The passes of one step as one: the sum of their losses, and the mean of their gradients.
    fn passes(&mut self, text: TokenSource<'_>) -> Result<LossGradients<B>> {
        let accumulate = self.settings.accumulate;
        let mut pass = |pass| {
            self.model.set_masks(Some(masks(&self.settings, self.step, pass)));
            self.source.learn(&self.model, text, &self.settings)
        };
        let mut all = pass(0)?;
        for i in 1..accumulate {
            let more = pass(i)?;
            all.loss = primitives::add(&all.loss, &more.loss)?;
            all.count += more.count;
            all.gradients.accumulate(more.gradients)?;
        }
        if accumulate > 1 {
            optimizer::scale(&mut all.gradients, 1.0 / accumulate as f32)?;
        }
        Ok(all)
    }
}

/// What pass `pass` of the step after `step` drops by: a run that is resumed finds the same.
pub(super) fn masks(settings: &Settings, step: u64, pass: usize) -> Masks {
    Masks { seed: settings.seed, step: step + 1, pass: pass as u64 }
}
