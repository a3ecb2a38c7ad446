//! Made-up tasks that tell memories apart: sequences with questions in them, and a model that learns to answer.

mod mad;
mod needle;
mod parity;
mod recall;
mod segments;
mod spread_recall;
mod symmetric;

pub use mad::Mad;
pub use needle::Needle;
pub use parity::Parity;
pub use recall::Recall;
pub use spread_recall::{Filler, SpreadRecall};
pub use symmetric::SymmetricGroup;

use crate::{
    optimizer::{self, AdamW, Constants},
    schedule::Schedule,
};
use hecate_core::Backend;
use hecate_models::{Architecture, At, Error, Interrupt, LanguageModel, Masks, Place, Random, Result};

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
    optimizer: AdamW<B>,
    schedule: Schedule,
    /// Of the weights, and of what is dropped.
    seed: u64,
}

impl<B: Backend> TaskModel<B> {
    /// A fresh model.
    ///
    /// # Errors
    /// [`Error::Config`] for settings or a configuration that make no sense; the device's own failures.
    pub fn new<A: Architecture<B>>(
        device: &B,
        config: &A,
        schedule: Schedule,
        constants: Constants,
        seed: u64,
    ) -> Result<Self> {
        schedule.check()?;
        let model = LanguageModel::new(device, config, seed)?;
        let optimizer = AdamW::new(device, model.parameters(), constants)?;
        Ok(Self { model, optimizer, schedule, seed })
    }

    /// The same model, whose steps and answers end with [`Error::Stopped`] once `interrupt` was asked for.
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { model: self.model.with_interrupt(interrupt), ..self }
    }

    /// Makes at once what a first step and a first answer would wait for bit by bit
    /// ([`Device::prepare`](hecate_core::Device::prepare)), of questions like these: `tell` is called with the number of kernels
    /// that are compiled. Nothing is learned.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn prepare(&mut self, questions: &Questions, tell: &mut dyn FnMut(usize)) -> Result<()> {
        let Questions { batch, inputs, rows, answers } = questions;
        let device = self.model.device().clone();
        self.model.set_masks(Some(Masks { seed: self.seed, step: 1, pass: 0 }));
        let model = &self.model;
        let mut work = || {
            // What they find means nothing.
            if let Ok((_, gradients)) = model.answer_loss_and_gradients(inputs, *batch, rows, answers) {
                let _ = optimizer::norm_squared(&device, &gradients);
            }
            let _ = optimizer::rehearse(&device);
            let _ = model.answer_scores(inputs, *batch, rows).and_then(|scores| Ok(scores.to_f32()?));
        };
        Ok(device.prepare(&mut work, tell)?)
    }

    /// One step on these questions; returns the mean loss before it, in nats a question.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if the loss, the gradients or what a memory is told is not finite; the model's own.
    pub fn learn(&mut self, questions: &Questions) -> Result<f64> {
        let Questions { batch, inputs, rows, answers } = questions;
        let step = u64::from(self.optimizer.steps()) + 1;
        self.model.set_masks(Some(Masks { seed: self.seed, step, pass: 0 }));
        let (loss, gradients) = match self.model.answer_loss_and_gradients(inputs, *batch, rows, answers) {
            // A kernel may refuse what came out of the model.
            Err(Error::Core(hecate_core::Error::Value { what, slot, found, .. })) if !found.is_finite() => {
                return Err(diverged(format!("`{slot}` of {what}"), found, step));
            }
            outcome => outcome?,
        };
        if !loss.is_finite() {
            return Err(diverged("the loss".to_owned(), loss, step));
        }
        self.optimizer.step(self.model.parameters_mut(), gradients, self.schedule.rate(step))?;
        Ok(loss)
    }

    /// Whether each question is answered rightly: the likeliest token is the answer. Among equals the lowest counts.
    ///
    /// # Errors
    /// [`Error::Config`] for another number of answers than of rows; the model's own.
    pub fn right(&self, questions: &Questions) -> Result<Vec<bool>> {
        let Questions { batch, inputs, rows, answers } = questions;
        if answers.len() != rows.len() {
            return Err(Error::config("answers", answers.len(), format!("{}, one a row", rows.len())));
        }
        let scores = self.model.answer_scores(inputs, *batch, rows)?.to_f32()?;
        let width = self.model.vocabulary_size();
        Ok(scores.chunks(width).zip(answers).map(|(scores, &answer)| is_likeliest(scores, answer)).collect())
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel<B> {
        &self.model
    }
}

/// Whether the answer has the best of the scores. Among equals the lowest token counts, and a score that is not finite is
/// none.
fn is_likeliest(scores: &[f32], answer: u32) -> bool {
    let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.filter(|(_, score)| score.is_finite()).is_some_and(|(token, _)| token == answer as usize)
}

/// The error of a step that cannot be made.
fn diverged(what: String, found: f64, step: u64) -> Error {
    Error::NonFinite { what, place: Place::default(), found, at: At::Step(step), way_out: "learn with a lower rate" }
}

/// Moves `count` random elements in random order to the start (Fisher and Yates).
fn shuffle<T>(random: &mut Random, items: &mut [T], count: usize) {
    for i in 0..count {
        let other = random.within(i..items.len());
        items.swap(i, other);
    }
}
