//! Models that learn the same task, each at its best learning rate, with several seeds.
//!
//! The first seed searches for the learning rate; questions of their own choose it, and others measure it. So no reported
//! accuracy is on questions that anything was chosen by.

use super::settings::{Candidate, SweepSettings};
use crate::{
    error::{Error, Result},
    progress::SweepProgress,
    stop::Stop,
};
use hecate_core::Backend;
use hecate_models::{
    LanguageModel, Random,
    tasks::{Purpose, Questions, TaskModel},
};
use std::collections::VecDeque;

/// Steps whose mean loss tells whether a run has learned enough.
const RECENT: usize = 20;
/// Sequences that are measured at once.
const PART: usize = 32;

/// A model that answers, on whatever backend: tasks are compiled once.
pub(super) trait Answers {
    /// [`TaskModel::right`].
    fn right(&self, questions: &Questions) -> Result<Vec<bool>>;

    /// [`TaskModel::right_by_segments`].
    fn right_by_segments(&self, questions: &Questions, segment: usize) -> Result<Vec<bool>>;
}

impl<B: Backend> Answers for TaskModel<B> {
    fn right(&self, questions: &Questions) -> Result<Vec<bool>> {
        Ok(TaskModel::right(self, questions)?)
    }

    fn right_by_segments(&self, questions: &Questions, segment: usize) -> Result<Vec<bool>> {
        Ok(TaskModel::right_by_segments(self, questions, segment)?)
    }
}

/// A task, and what is measured of it.
pub(super) trait Task {
    /// Number of different tokens, the vocabulary's size.
    fn vocabulary(&self) -> usize;

    /// Names of what is measured.
    fn measures(&self) -> Vec<String>;

    /// `batch` sequences with questions to learn from.
    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions>;

    /// Share of right answers, one for each measure, on `examples` sequences each.
    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>>;

    /// Share of right answers on the hardest sequences that are learned from, by which a run may end early.
    ///
    /// Those that are only measured do not count: a model may never get them right.
    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64>;
}

/// One model from its first step to its last.
pub(super) struct SweepRun {
    /// Highest learning rate.
    pub(super) rate: f32,
    /// Of the weights and of the questions.
    pub(super) seed: u64,
    /// Steps done.
    pub(super) steps: u64,
    /// Mean loss of the last steps, nats a question.
    pub(super) loss: f64,
    /// On questions to choose the learning rate by.
    pub(super) tuning: Vec<f64>,
    /// On questions that nothing was chosen by.
    pub(super) testing: Vec<f64>,
    /// Why it broke off; nothing is right then.
    pub(super) failure: Option<String>,
}

/// What became of a candidate.
pub(super) struct Outcome {
    /// The candidate's.
    pub(super) name: String,
    /// Names of the accuracies of its runs.
    pub(super) measures: Vec<String>,
    /// Elements that a text's memories hold, all layers together, without inputs of convolutions.
    pub(super) state: usize,
    /// Every run, the search for the learning rate included.
    pub(super) runs: Vec<SweepRun>,
    /// The learning rate whose runs count; none if the sweep was broken off before.
    pub(super) rate: Option<f32>,
}

impl Outcome {
    /// The runs that count, by seed.
    pub(super) fn counted(&self) -> impl Iterator<Item = &SweepRun> {
        self.runs.iter().filter(|run| Some(run.rate) == self.rate)
    }
}

/// A sweep in progress.
pub(super) struct Sweep<'a, B: Backend> {
    device: &'a B,
    task: &'a dyn Task,
    settings: &'a SweepSettings,
    stop: &'a Stop,
    progress: SweepProgress,
}

impl<'a, B: Backend> Sweep<'a, B> {
    /// A sweep that has not begun.
    pub(super) fn new(device: &'a B, task: &'a dyn Task, settings: &'a SweepSettings, stop: &'a Stop) -> Self {
        Self { device, task, settings, stop, progress: SweepProgress::new(settings.steps) }
    }

    /// All candidates, one after another. What is done when somebody asks to stop is returned as it is.
    pub(super) fn run(mut self, candidates: &[Candidate]) -> Result<Vec<Outcome>> {
        for Candidate { mixer, .. } in candidates {
            // Who cannot take part is told before anybody starts.
            self.settings.config(mixer, self.task.vocabulary())?;
        }
        // All rates with the first seed, then the best one with each other seed.
        let others = usize::try_from(self.settings.seeds - 1).unwrap_or(usize::MAX);
        let runs = self.settings.rates.len().saturating_add(others).saturating_mul(candidates.len());
        self.progress.begin(runs);
        let mut outcomes = Vec::new();
        for candidate in candidates {
            outcomes.push(self.best_rate(candidate)?);
            if self.stop.asked() {
                break;
            }
        }
        Ok(outcomes)
    }

    /// The first seed at all learning rates, the others at the best.
    fn best_rate(&mut self, candidate: &Candidate) -> Result<Outcome> {
        let name = candidate.name.clone();
        let (measures, state) = (self.task.measures(), self.state(candidate)?);
        let mut outcome = Outcome { name, measures, state, runs: Vec::new(), rate: None };
        for &rate in &self.settings.rates {
            match self.learn(candidate, rate, 0)? {
                Some(run) => outcome.runs.push(run),
                None => return Ok(outcome),
            }
        }
        outcome.rate = best(&outcome.runs);
        for seed in 1..self.settings.seeds {
            let Some(rate) = outcome.rate else { break };
            match self.learn(candidate, rate, seed)? {
                Some(run) => outcome.runs.push(run),
                None => break,
            }
        }
        Ok(outcome)
    }

    /// Elements of the cache of one text, without convolutions: what a candidate may remember.
    fn state(&self, candidate: &Candidate) -> Result<usize> {
        let config = self.settings.config(&candidate.mixer, self.task.vocabulary())?;
        let cache = LanguageModel::new(self.device, &config, 0)?.cache(1)?;
        let arrays = cache.layers().iter().flat_map(|layer| layer.iter());
        let memories = arrays.filter(|(name, _)| !name.contains("conv1d"));
        Ok(memories.map(|(_, array)| array.shape().count()).sum())
    }

    /// A run from beginning to end; none if somebody asked to stop.
    fn learn(&mut self, candidate: &Candidate, rate: f32, seed: u64) -> Result<Option<SweepRun>> {
        let Self { device, task, settings, .. } = *self;
        let config = settings.config(&candidate.mixer, task.vocabulary())?;
        let model = TaskModel::new(device, &config, settings.schedule(rate), settings.constants(), seed)?;
        let mut model = model.with_interrupt(self.stop.interrupt());
        self.progress.start(&candidate.name, rate, seed);
        // A step or a measurement that somebody stopped counts for nothing.
        match self.train(&mut model, seed).and_then(|learned| self.measured(&model, rate, seed, learned)) {
            Err(Error::Model(hecate_models::Error::Stopped)) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// What a model that came so far answers.
    fn measured(&mut self, model: &TaskModel<B>, rate: f32, seed: u64, learned: Learned) -> Result<SweepRun> {
        let Learned { steps, loss, failure } = learned;
        // A model that diverged answers nothing.
        let accuracies = |purpose: Purpose| match failure {
            Some(_) => Ok(vec![0.0; self.task.measures().len()]),
            None => self.task.accuracies(model, &mut purpose.random(seed), self.settings.examples),
        };
        let (tuning, testing) = (accuracies(Purpose::Tuning)?, accuracies(Purpose::Testing)?);
        self.progress.end(&testing, failure.as_deref());
        Ok(SweepRun { rate, seed, steps, loss, tuning, testing, failure })
    }

    /// Steps until the loss is low enough or enough is right, or all are done. Divergence is a result.
    fn train(&self, model: &mut TaskModel<B>, seed: u64) -> Result<Learned> {
        let random = &mut Purpose::Learning.random(seed);
        let (mut recent, mut learned) = (VecDeque::new(), Learned::default());
        while learned.steps < self.settings.steps && (recent.len() < RECENT || learned.loss >= self.settings.enough) {
            match model.learn(&self.task.questions(random, self.settings.batch)?) {
                Ok(loss) => recent.push_back(loss),
                Err(error @ hecate_models::Error::NonFinite { .. }) => {
                    learned.failure = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            recent.drain(..recent.len().saturating_sub(RECENT));
            learned.loss = recent.iter().sum::<f64>() / recent.len() as f64;
            learned.steps += 1;
            self.progress.step(learned.steps, learned.loss);
            if self.is_right_enough(model, seed, learned.steps)? {
                break;
            }
        }
        Ok(learned)
    }

    /// Whether the model answers as many questions as `--stop-at` says, where that is to be looked at after this step.
    fn is_right_enough(&self, model: &TaskModel<B>, seed: u64, steps: u64) -> Result<bool> {
        let SweepSettings { stop_at, stop_every, examples, .. } = *self.settings;
        let Some(enough) = stop_at.filter(|_| steps.is_multiple_of(stop_every)) else { return Ok(false) };
        // Questions to choose by: none that is reported.
        Ok(self.task.hardest(model, &mut Purpose::Tuning.random(seed), examples)? >= enough)
    }
}

/// How far a run came.
#[derive(Default)]
struct Learned {
    /// Steps done.
    steps: u64,
    /// Mean of the last [`RECENT`] losses, nats a question.
    loss: f64,
    /// Why it broke off.
    failure: Option<String>,
}

/// The learning rate with the most right answers; among equals, with the lowest loss.
fn best(runs: &[SweepRun]) -> Option<f32> {
    let right = |run: &SweepRun| run.tuning.iter().sum::<f64>();
    let best = runs.iter().max_by(|a, b| right(a).total_cmp(&right(b)).then(b.loss.total_cmp(&a.loss)));
    best.map(|run| run.rate)
}

/// Whether each question of `examples` sequences is answered rightly; `draw` makes as many sequences as it is told.
pub(super) fn answered(
    model: &dyn Answers,
    examples: usize,
    mut draw: impl FnMut(usize) -> Result<Questions>,
) -> Result<Vec<bool>> {
    let mut right = Vec::new();
    for batch in part(examples) {
        right.extend(model.right(&draw(batch)?)?);
    }
    Ok(right)
}

/// Numbers of sequences that are measured at once, `examples` together: the last may be smaller.
pub(super) fn part(examples: usize) -> impl Iterator<Item = usize> {
    (0..examples).step_by(PART).map(move |first| PART.min(examples - first))
}

/// Share of what is right, in `[0, 1]`; 0 of nothing.
pub(super) fn share(right: impl Iterator<Item = bool>) -> f64 {
    let (sum, count) = right.fold((0_usize, 0_usize), |(sum, count), right| (sum + usize::from(right), count + 1));
    sum as f64 / count.max(1) as f64
}
