//! Why a step cannot be made: the first element that is not finite, and its place.

use super::{
    Material, Trainer,
    batch_source::{BatchSource, TokenWindow},
    measure::{Measured, masks},
};
use hecate_core::Backend;
use hecate_models::{At, Error, NonFinite, Place, Result};

impl<B: Backend> Measured<B> {
    /// What is not finite of these, without its place.
    fn not_finite(&self) -> NonFinite {
        let (what, found) = match self.loss.is_finite() {
            true => ("the norm of the gradients", self.gradient_norm),
            false => ("the loss", self.loss),
        };
        NonFinite { what: what.to_owned(), place: Place::default(), found }
    }
}

impl<B: Backend> Trainer<B> {
    /// The error of a step whose `outcome` is an error or not finite. The passes run again on the tokens of `source`, watched
    /// by a probe, until the first element that is not finite; the weights are still those before the step.
    pub(super) fn explain(
        &mut self,
        text: Material<'_>,
        mut source: BatchSource<B>,
        outcome: Result<Measured<B>>,
    ) -> Error {
        let unplaced = match outcome {
            Ok(measured) => measured.not_finite(),
            // What a kernel refuses may have come out of the model.
            Err(error @ Error::Core(hecate_core::Error::Value { .. })) => match self.locate(text, &mut source) {
                Ok(Some(non_finite)) => return self.refusal(non_finite),
                _ => return error,
            },
            Err(error) => return error,
        };
        match self.locate(text, &mut source) {
            Ok(found) => self.refusal(found.unwrap_or(unplaced)),
            // Whoever stops the search is told what is known without it.
            Err(Error::Stopped) => self.refusal(unplaced),
            Err(error) => error,
        }
    }

    /// Runs the passes of a step again, each as it was run, but that memories are carried on without dropping anything. None
    /// if every element is finite this time.
    fn locate(&mut self, text: Material<'_>, source: &mut BatchSource<B>) -> Result<Option<NonFinite>> {
        let batch = self.settings.batch;
        // Those of this step: a graph has them apart from the model.
        self.model.set_fp8_scales(self.fp8_scales()?);
        for pass in 0..self.settings.accumulate {
            self.model.set_masks(Some(masks(&self.settings, self.step, pass)));
            let text = match text {
                Material::Text(text) => text,
                Material::Examples(examples) => {
                    let packed = source.draw(examples, &self.settings)?;
                    if let Some(non_finite) = self.model.first_non_finite_packed(&packed)? {
                        return Ok(Some(non_finite));
                    }
                    continue;
                }
            };
            let (TokenWindow { inputs, targets }, mut cache) = source.next(&self.model, text, &self.settings)?;
            let carried = cache.as_deref().filter(|cache| cache.position() > 0);
            if let Some(non_finite) = self.model.first_non_finite(&inputs, &targets, batch, carried)? {
                return Ok(Some(non_finite));
            }
            // The next window of the same texts starts where this one ended.
            if let Some(cache) = &mut cache {
                self.model.infer(&inputs, batch, cache)?;
            }
        }
        Ok(None)
    }

    /// The step's error for an element that is not finite.
    fn refusal(&self, NonFinite { what, place, found }: NonFinite) -> Error {
        let way_out = "the last checkpoint is as it was; train again with a lower learning rate, clip harder, or choose \
                       options that bound the rule's steps, such as a momentum below 1 where it has one";
        Error::NonFinite { what, place, found, at: At::Step(self.step + 1), way_out }
    }
}
