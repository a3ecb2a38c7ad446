//! Training: one step after another, and the same ones again after a stop.

mod batch_source;
mod files;
mod guard;
mod measure;
mod settings;

pub use files::{PUBLISHED, TOKENIZER, load_best_model, load_config, load_model};
pub use settings::{RunPlan, Settings};

use crate::{Config, Error, LanguageModel, Result, optimizer::Moments, text::Windows};
use batch_source::BatchSource;
use files::Best;
use hecate_core::Backend;
use measure::Measured;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Number of the step, from 1.
    pub step: u64,
    /// Loss before the step, nats a token.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f32,
}

/// A model being trained. After an error it must not be saved or stepped on; resume from the run's last checkpoint.
#[derive(Debug)]
pub struct Trainer<B: Backend> {
    model: LanguageModel<B>,
    moments: Moments<B>,
    settings: Settings,
    plan: RunPlan,
    source: BatchSource<B>,
    /// Content of `tokenizer.json`.
    tokenizer: Option<Vec<u8>>,
    /// Steps done.
    step: u64,
    best: Option<Best>,
    /// A step broke off: weights, moments and source may disagree.
    failed: bool,
}

impl<B: Backend> Trainer<B> {
    /// A new model at step 0. `tokenizer` is the content of its `tokenizer.json`, kept beside it.
    ///
    /// # Errors
    /// [`Error::Config`] for settings or a configuration that make no sense; the device's own failures.
    pub fn new(
        device: &B,
        config: &Config,
        settings: Settings,
        plan: RunPlan,
        tokenizer: Option<Vec<u8>>,
    ) -> Result<Self> {
        settings.check()?;
        plan.check()?;
        let model = LanguageModel::new(device, config, settings.seed)?.with_precision(settings.precision);
        settings.check_group(model.group())?;
        let moments = Moments::new(device, model.parameters())?;
        let source = BatchSource::new(Windows::new(settings.seed));
        Ok(Self { model, moments, settings, plan, source, tokenizer, step: 0, best: None, failed: false })
    }

    /// Draws windows of `text`, and learns them.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if the loss or the gradients are not finite, saying where in the model the first one
    /// appeared (the weights are then unchanged); a text that holds no window; the device's own failures.
    pub fn step(&mut self, text: &[u32]) -> Result<Report> {
        self.check_sound()?;
        self.failed = true;
        let step = self.step + 1;
        // A failed step is run again from here, to find out why.
        let source = self.source.clone();
        let Measured { loss, gradients, norm_squared, gradient_norm } = match self.measure(text) {
            Ok(measured) if measured.is_finite() => measured,
            outcome => return Err(self.explain(text, source, outcome)),
        };
        let learning_rate = self.settings.schedule.rate(step);
        let count = u32::try_from(step).map_err(|_| Error::config("steps", step, "under 2^32"))?;
        let constants = &self.settings.optimizer;
        let at = (count, learning_rate);
        self.moments.update(self.model.parameters_mut(), &gradients, &norm_squared, constants, at)?;
        self.step = step;
        self.failed = false;
        Ok(Report { step, loss, gradient_norm, learning_rate })
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Whether all steps are done.
    pub fn finished(&self) -> bool {
        self.step >= self.settings.schedule.steps
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel<B> {
        &self.model
    }

    /// How it is trained.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where the text comes from.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Content of the tokenizer's file, if the model does not read bytes.
    pub fn tokenizer(&self) -> Option<&[u8]> {
        self.tokenizer.as_deref()
    }

    /// Refuses to go on after a failed step.
    fn check_sound(&self) -> Result<()> {
        if self.failed {
            return Err(Error::config("trainer", "broken by a failed step", "one resumed from a checkpoint"));
        }
        Ok(())
    }
}
