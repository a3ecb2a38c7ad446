//! Loss and gradients of the passes of one step.

use super::{Material, Settings, Trainer, scales::Scales};
use crate::optimizer;
use hecate_core::{Backend, Tensor, primitives};
use hecate_models::{Error, Gradients, LossGradients, Masks, Result};
use std::sync::Arc;

/// What a step starts from: means over all its passes.
pub(super) struct Measured<B: Backend> {
    /// Nats a token.
    pub(super) loss: f64,
    /// Tokens with a loss.
    pub(super) tokens: usize,
    /// Root of the squared norm, on the host.
    pub(super) gradient_norm: f64,
    /// The largest magnitudes of 8-bit factors, where there are such.
    pub(super) maxima: Vec<f32>,
    /// Places of weights whose products stayed at 16 bits among those of 8.
    pub(super) unaligned: Vec<usize>,
    /// Whether the graph made the step already, as it does where all is finite.
    pub(super) updated: bool,
    pub(super) arrays: Arc<StepArrays<B>>,
}

/// What of it stays on the device.
#[derive(Debug)]
pub(super) struct StepArrays<B: Backend> {
    pub(super) gradients: Gradients<B>,
    /// Squared norm of all gradients together, `[1]`.
    pub(super) norm_squared: Tensor<B>,
    /// Sum of the losses and squared norm, `[2]`: a step is made where both are finite.
    pub(super) finite: Tensor<B>,
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
    /// Sum of the losses, squared norm, then the maxima of 8-bit factors, pass after pass.
    figures: Tensor<B>,
    /// Number of losses.
    count: usize,
    /// Number of passes.
    passes: usize,
    /// As [`Measured::unaligned`].
    unaligned: Vec<usize>,
}

impl<B: Backend> StepResults<B> {
    /// Of all passes as one, the sum of their losses and the mean of their gradients; nothing waited for them.
    pub(super) fn of(device: &B, passes: impl IntoIterator<Item = Result<LossGradients<B>>>) -> Result<Self> {
        let mut passes = passes.into_iter();
        let LossGradients { mut loss, mut count, mut gradients, fp8 } = match passes.next() {
            Some(first) => first?,
            None => return Err(Error::config("accumulate", 0, "at least one pass a step")),
        };
        let (mut number, mut found) = (1, Vec::from_iter(fp8));
        for more in passes {
            let more = more?;
            loss = primitives::add(&loss, &more.loss)?;
            count += more.count;
            gradients.accumulate(more.gradients)?;
            found.extend(more.fp8);
            number += 1;
        }
        if number > 1 {
            optimizer::scale(&mut gradients, 1.0 / number as f32)?;
        }
        let norm_squared = optimizer::norm_squared(device, &gradients)?;
        // One copy to the host brings all that a step waits for.
        let finite = primitives::concat(&[&loss, &norm_squared], 0)?;
        let maxima = found.iter().map(|found| &found.maxima);
        let figures = match found.is_empty() {
            true => finite.clone(),
            false => primitives::concat(&[&finite].into_iter().chain(maxima).collect::<Vec<_>>(), 0)?,
        };
        let unaligned = found.pop().map_or_else(Vec::new, |found| found.unaligned);
        let arrays = Arc::new(StepArrays { gradients, norm_squared, finite });
        Ok(Self { arrays, figures, count, passes: number, unaligned })
    }

    /// What stays on the device.
    pub(super) fn arrays(&self) -> &StepArrays<B> {
        &self.arrays
    }

    /// Waits for the figures of passes, and of the step where that is `updated` with them.
    pub(super) fn read(&self, updated: bool) -> Result<Measured<B>> {
        let figures = self.figures.to_f32()?;
        let [loss, gradient_norm] = [0, 1].map(|i| f64::from(figures.get(i).copied().unwrap_or(f32::NAN)));
        let (loss, gradient_norm) = (loss / self.count as f64, gradient_norm.sqrt());
        let of_passes = figures.get(2..).unwrap_or_default();
        let mut passes = of_passes.chunks((of_passes.len() / self.passes).max(1));
        let mut maxima = passes.next().map_or_else(Vec::new, <[f32]>::to_vec);
        for pass in passes {
            // A NaN is found elsewhere: the step is not made.
            maxima.iter_mut().zip(pass).for_each(|(most, more)| *most = most.max(*more));
        }
        let (unaligned, arrays) = (self.unaligned.clone(), Arc::clone(&self.arrays));
        Ok(Measured { loss, tokens: self.count, gradient_norm, maxima, unaligned, updated, arrays })
    }
}

impl<B: Backend> Trainer<B> {
    /// Loss and gradients of the next windows of `text`; the weights stay as they are.
    pub(super) fn measure_call_by_call(&mut self, text: Material<'_>) -> Result<Measured<B>> {
        let device = self.model.device().clone();
        self.model.set_fp8_scales(self.fp8_scales()?);
        let (settings, step) = (&self.settings, self.step);
        let (model, source) = (&mut self.model, &mut self.source);
        let passes = (0..settings.accumulate).map(|pass| {
            model.set_masks(Some(masks(settings, step, pass)));
            source.learn(model, text, settings)
        });
        let results = StepResults::of(&device, passes);
        // What is asked of the model between steps drops nothing.
        self.model.set_masks(None);
        results?.read(false)
    }

    /// Scales of 8-bit factors on the device, where there are such and something is known of them.
    pub(super) fn fp8_scales(&self) -> Result<Option<Tensor<B>>> {
        let scales = self.scales.as_ref().and_then(Scales::values);
        let upload = |scales: Vec<f32>| Tensor::from_f32(self.model.device(), [scales.len()], scales);
        Ok(scales.map(upload).transpose()?)
    }

    /// Remembers what a step that was made found of 8-bit factors, and tells once which products have none.
    pub(super) fn note_fp8(&mut self, maxima: &[f32], unaligned: &[usize]) {
        let Some(scales) = &mut self.scales else { return };
        let first = scales.values().is_none();
        scales.note(maxima);
        // Without one such product there is nothing to scale, and no graph need wait for scales.
        if scales.values().is_none() {
            self.scales = None;
        }
        if first && !unaligned.is_empty() {
            let names = self.model.parameters().iter().enumerate().filter(|(i, _)| unaligned.contains(i));
            let names: Vec<_> = names.map(|(_, parameter)| parameter.name.as_str()).collect();
            let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
            let names = names[..names.len().min(3)].join(", ");
            self.tell(format!("products of {names}{more} stay at bf16: 16 does not divide all of their sizes"));
        }
    }
}

/// What pass `pass` of the step after `step` drops by: a run that is resumed finds the same.
pub(super) fn masks(settings: &Settings, step: u64, pass: usize) -> Masks {
    Masks { seed: settings.seed, step: step + 1, pass: pass as u64 }
}
