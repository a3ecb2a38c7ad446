//! Steps that cannot be done, because a number is not one.

use super::{
    Trainer,
    source::{Source, Window},
};
use crate::{Error, Finding, Gradients, Place, Result, language_model::Pass, optimizer};
use hecate_core::{Backend, Tensor, primitives};

/// What a step starts from.
pub(super) struct Measured<B: Backend> {
    pub(super) loss: f64,
    pub(super) gradients: Gradients<B>,
    pub(super) norm_squared: Tensor<B>,
    pub(super) gradient_norm: f64,
}

impl<B: Backend> Measured<B> {
    /// What is not finite of these, without its place.
    fn not_finite(&self) -> Finding {
        let (what, found) = match self.loss.is_finite() {
            true => ("the norm of the gradients", self.gradient_norm),
            false => ("the loss", self.loss),
        };
        Finding { what: what.to_owned(), place: Place::default(), found }
    }
}

impl<B: Backend> Trainer<B> {
    /// Loss and gradients of the next windows.
    pub(super) fn measure(&mut self, text: &[u32]) -> Result<Measured<B>> {
        let Pass { loss, count, gradients } = self.passes(text)?;
        let norm_squared = optimizer::norm_squared(self.model.device(), &gradients)?;
        // All that a step waits for, at once.
        let figures = primitives::concat(&[&loss, &norm_squared], 0)?.to_f32()?;
        let [loss, gradient_norm] = [0, 1].map(|i| f64::from(figures.get(i).copied().unwrap_or(f32::NAN)));
        let (loss, gradient_norm) = (loss / count as f64, gradient_norm.sqrt());
        Ok(Measured { loss, gradients, norm_squared, gradient_norm })
    }

    /// Why a step cannot be done: goes through its passes again, from where their tokens came, and names the
    /// first number that is not one.
    pub(super) fn explain(&self, text: &[u32], mut source: Source<B>, outcome: Result<Measured<B>>) -> Error {
        let unplaced = match outcome {
            Ok(measured) => measured.not_finite(),
            // What a kernel refuses may have come out of the model.
            Err(error @ Error::Core(hecate_core::Error::Value { .. })) => match self.locate(text, &mut source) {
                Ok(Some(finding)) => return self.refusal(finding),
                _ => return error,
            },
            Err(error) => return error,
        };
        match self.locate(text, &mut source) {
            Ok(found) => self.refusal(found.unwrap_or(unplaced)),
            Err(error) => error,
        }
    }

    fn locate(&self, text: &[u32], source: &mut Source<B>) -> Result<Option<Finding>> {
        let batch = self.settings.batch;
        for _ in 0..self.settings.accumulate {
            let (Window { inputs, targets }, mut cache) = source.next(&self.model, text, &self.settings)?;
            let behind = cache.as_deref().filter(|cache| cache.position() > 0);
            if let Some(finding) = self.model.first_non_finite(&inputs, &targets, batch, behind)? {
                return Ok(Some(finding));
            }
            if let Some(cache) = &mut cache {
                self.model.infer(&inputs, batch, cache)?;
            }
        }
        Ok(None)
    }

    fn refusal(&self, Finding { what, place, found }: Finding) -> Error {
        let way_out = "the last checkpoint is as it was; train again with a lower learning rate, clip harder, or choose \
                       options that bound the rule's steps, such as a momentum below 1 where it has one";
        Error::NonFinite { what, place, found, step: self.step + 1, way_out }
    }
}
