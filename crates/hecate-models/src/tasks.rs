//! Made-up tasks that tell memories apart: sequences with questions in them, and a model that learns to answer.

mod parity;
mod recall;

pub use parity::Parity;
pub use recall::Recall;

use crate::{
    Config, Error, LanguageModel, Place, Random, Result,
    optimizer::{self, Constants, Moments},
    schedule::Schedule,
};
use hecate_core::Backend;

/// Sequences of one length, and the tokens that have to follow some of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens `[batch, T]`, row-major.
    pub inputs: Vec<u32>,
    /// Rows among the `batch × T` tokens after which there is a question.
    pub rows: Vec<u32>,
    /// The answer to each, a token: as many as `rows`.
    pub answers: Vec<u32>,
}

/// What questions are drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To learn from.
    Learning,
    /// To choose settings by.
    Tuning,
    /// To report.
    Testing,
}

impl Purpose {
    /// Random numbers of a seed; each purpose has its own, and none has those of the weights.
    pub fn random(self, seed: u64) -> Random {
        Random::stream(seed, self as u64 + 1)
    }
}

/// A model that learns to answer: AdamW on the mean cross-entropy of the answers.
#[derive(Debug)]
pub struct TaskModel<B: Backend> {
    model: LanguageModel<B>,
    moments: Moments<B>,
    schedule: Schedule,
    constants: Constants,
    step: u32,
}

impl<B: Backend> TaskModel<B> {
    /// A fresh model.
    ///
    /// # Errors
    /// [`Error::Config`] for settings or a configuration that make no sense; the device's own failures.
    pub fn new(device: &B, config: &Config, schedule: Schedule, constants: Constants, seed: u64) -> Result<Self> {
        schedule.check()?;
        constants.check()?;
        let model = LanguageModel::new(device, config, seed)?;
        let moments = Moments::new(device, model.parameters())?;
        Ok(Self { model, moments, schedule, constants, step: 0 })
    }

    /// One step on these questions; returns the mean loss before it, in nats a question.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if the loss, the gradients or what a memory is told is not finite; the model's own.
    pub fn learn(&mut self, questions: &Questions) -> Result<f64> {
        let Questions { batch, inputs, rows, answers } = questions;
        self.step += 1;
        let (loss, gradients) = match self.model.answer_loss_and_gradients(inputs, *batch, rows, answers) {
            // A kernel may refuse what came out of the model.
            Err(Error::Core(hecate_core::Error::Value { what, slot, found, .. })) if !found.is_finite() => {
                return Err(self.diverged(format!("`{slot}` of {what}"), found));
            }
            outcome => outcome?,
        };
        let norm_squared = optimizer::norm_squared(self.model.device(), &gradients)?;
        let norm = f64::from(norm_squared.to_f32()?.iter().sum::<f32>()).sqrt();
        for (what, found) in [("the loss", loss), ("the norm of the gradients", norm)] {
            if !found.is_finite() {
                return Err(self.diverged(what.to_owned(), found));
            }
        }
        let at = (self.step, self.schedule.rate(self.step.into()));
        self.moments.update(self.model.parameters_mut(), &gradients, &norm_squared, &self.constants, at)?;
        Ok(loss)
    }

    /// The error of a step whose loss or gradients are not finite.
    fn diverged(&self, what: String, found: f64) -> Error {
        let way_out = "learn with a lower rate";
        Error::NonFinite { what, place: Place::default(), found, step: self.step.into(), way_out }
    }

    /// Whether each question is answered rightly: the likeliest token is the answer. Among equals the lowest counts.
    ///
    /// # Errors
    /// The model's own.
    pub fn right(&self, questions: &Questions) -> Result<Vec<bool>> {
        let Questions { batch, inputs, rows, answers } = questions;
        let scores = self.model.answer_scores(inputs, *batch, rows)?.to_f32()?;
        let width = self.model.config().vocabulary_size;
        let likeliest = |scores: &[f32]| {
            let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            best.filter(|(_, score)| score.is_finite()).map(|(token, _)| token)
        };
        let rights = scores.chunks(width).zip(answers);
        Ok(rights.map(|(scores, &answer)| likeliest(scores) == Some(answer as usize)).collect())
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel<B> {
        &self.model
    }
}
