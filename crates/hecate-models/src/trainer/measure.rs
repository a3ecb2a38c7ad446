//! Loss and gradients of the passes of one step.

use super::{Settings, Trainer};
use crate::{Gradients, Masks, Result, language_model::LossGradients, optimizer, text::TokenSource};
use hecate_core::{Backend, Tensor, primitives};
use std::sync::Arc;

/// What a step starts from: means over all its passes.
pub(super) struct Measured<B: Backend> {
    /// Nats a token.
    pub(super) loss: f64,
    /// Root of the squared norm, on the host.
    pub(super) gradient_norm: f64,
    pub(super) arrays: Arc<StepArrays<B>>,
}

/// What of it stays on the device.
#[derive(Debug)]
pub(super) struct StepArrays<B: Backend> {
    pub(super) gradients: Gradients<B>,
    /// Squared norm of all gradients together, `[1]`.
    pub(super) norm_squared: Tensor<B>,
}

impl<B: Backend> Measured<B> {
    /// Whether a step may be made of it.
    pub(super) fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.gradient_norm.is_finite()
    }
}

/// What the passes of a step leave on the device.
#[derive(Debug)]
pub(super) struct StepResults<B: Backend> {
    arrays: Arc<StepArrays<B>>,
    /// Sum of the losses and squared norm, `[2]`.
    figures: Tensor<B>,
    /// Number of losses.
    count: usize,
}

impl<B: Backend> StepResults<B> {
    /// Of all passes as one, the sum of their losses and the mean of their gradients; nothing waited for them.
    pub(super) fn of(device: &B, passes: impl IntoIterator<Item = Result<LossGradients<B>>>) -> Result<Self> {
        let mut passes = passes.into_iter();
        let LossGradients { mut loss, mut count, mut gradients } = match passes.next() {
            Some(first) => first?,
            None => return Err(crate::Error::config("accumulate", 0, "at least one pass a step")),
        };
        let mut number = 1;
        for more in passes {
            let more = more?;
            loss = primitives::add(&loss, &more.loss)?;
            count += more.count;
            gradients.accumulate(more.gradients)?;
            number += 1;
        }
        if number > 1 {
            optimizer::scale(&mut gradients, 1.0 / number as f32)?;
        }
        let norm_squared = optimizer::norm_squared(device, &gradients)?;
        // One copy to the host brings all that a step waits for.
        let figures = primitives::concat(&[&loss, &norm_squared], 0)?;
        Ok(Self { arrays: Arc::new(StepArrays { gradients, norm_squared }), figures, count })
    }

    /// Waits for the figures.
    pub(super) fn read(&self) -> Result<Measured<B>> {
        let figures = self.figures.to_f32()?;
        let [loss, gradient_norm] = [0, 1].map(|i| f64::from(figures.get(i).copied().unwrap_or(f32::NAN)));
        let (loss, gradient_norm) = (loss / self.count as f64, gradient_norm.sqrt());
        Ok(Measured { loss, gradient_norm, arrays: Arc::clone(&self.arrays) })
    }
}

impl<B: Backend> Trainer<B> {
    /// Loss and gradients of the next windows of `text`; the weights stay as they are.
    pub(super) fn measure_call_by_call(&mut self, text: TokenSource<'_>) -> Result<Measured<B>> {
        let device = self.model.device().clone();
        let (settings, step) = (&self.settings, self.step);
        let (model, source) = (&mut self.model, &mut self.source);
        let passes = (0..settings.accumulate).map(|pass| {
            model.set_masks(Some(masks(settings, step, pass)));
            source.learn(model, text, settings)
        });
        let results = StepResults::of(&device, passes);
        // What is asked of the model between steps drops nothing.
        self.model.set_masks(None);
        results?.read()
    }
}

/// What pass `pass` of the step after `step` drops by: a run that is resumed finds the same.
pub(super) fn masks(settings: &Settings, step: u64, pass: usize) -> Masks {
    Masks { seed: settings.seed, step: step + 1, pass: pass as u64 }
}
