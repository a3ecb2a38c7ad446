//! Models that learn the same task, each at its best learning rate, with several seeds.
//!
//! The first seed searches for the learning rate; questions of their own choose it, and others measure it. So no reported
//! accuracy is on questions that anything was chosen by.

mod schedule;

use super::{
    jobs::{self, Runs},
    settings::{Candidate, SweepSettings},
};
use crate::{
    error::{Error, Result},
    progress::{RunProgress, SweepProgress},
    stop::Stop,
};
use hecate::{
    Backend,
    models::{LanguageModel, Random},
    train::tasks::{Purpose, Questions, TaskModel},
};
use schedule::{Schedule, Ticket, Watch};
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

/// A task, and what is measured of it. Runs on several threads share it.
pub(super) trait Task: Sync {
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

/// A candidate that learns a task.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    task: &'a dyn Task,
    candidate: &'a Candidate,
}

/// What became of a sweep.
pub(super) struct Swept {
    /// One an entry that began: task by task, in the order of the candidates.
    pub(super) outcomes: Vec<Outcome>,
    /// Why it ended early.
    pub(super) failure: Option<Error>,
}

/// All candidates on all tasks, as many runs at once as was asked for. What is done when somebody asks to stop, or a run
/// fails, is returned as it is.
pub(super) fn sweep(
    tasks: &[&dyn Task],
    candidates: &[Candidate],
    settings: &SweepSettings,
    stop: &Stop,
) -> Result<Swept> {
    let pairs = tasks.iter().flat_map(|&task| candidates.iter().map(move |candidate| Entry { task, candidate }));
    let entries: Vec<Entry<'_>> = pairs.collect();
    for Entry { task, candidate } in &entries {
        // Who cannot take part is told before anybody starts.
        settings.config(&candidate.mixer, task.vocabulary())?;
    }
    // All rates with the first seed, then the best one with each other seed.
    let others = usize::try_from(settings.seeds - 1).unwrap_or(usize::MAX);
    let runs = settings.rates.len().saturating_add(others).saturating_mul(entries.len());
    let schedule = Schedule::new(entries.len(), &settings.rates, settings.seeds);
    let progress = SweepProgress::new(settings.steps, runs);
    let sweep = Sweep { entries, settings, stop, schedule, progress };
    // No more threads than runs: each opens the device.
    let opened = jobs::all(&settings.device, settings.jobs.jobs.min(runs), &sweep);
    let Sweep { entries, schedule, progress, .. } = sweep;
    // Before the table, which a bar would stand in.
    drop(progress);
    let (outcomes, failure) = schedule.end(&entries);
    Ok(Swept { outcomes, failure: failure.or(opened.err()) })
}

/// A sweep in progress; threads share it.
struct Sweep<'a> {
    entries: Vec<Entry<'a>>,
    settings: &'a SweepSettings,
    stop: &'a Stop,
    schedule: Schedule<'a>,
    progress: SweepProgress,
}

impl Runs for Sweep<'_> {
    type Run = Ticket;

    fn next(&self) -> Option<Ticket> {
        self.schedule.next()
    }

    fn perform<B: Backend>(&self, device: &B, ticket: Ticket) {
        let _watch = Watch(&self.schedule);
        let progress = self.progress.start(self.name(ticket));
        // A step or a measurement that somebody stopped counts for nothing.
        match self.learn(device, ticket, &progress) {
            Ok(run) => {
                let figures: Vec<String> = run.testing.iter().map(|x| format!("{x:.3}")).collect();
                // Accuracies in [0, 1], or why there are none.
                progress.end(&run.failure.clone().unwrap_or_else(|| figures.join(" ")));
                self.schedule.done(ticket, run);
            }
            Err(Error::Model(hecate::models::Error::Stopped)) => self.schedule.halt(None),
            Err(error) => {
                progress.end(&format!("failed, so no further run begins: {error}"));
                self.schedule.halt(Some(error));
            }
        }
        // Between two runs nobody else looks.
        if self.stop.asked() {
            self.schedule.halt(None);
        }
    }
}

impl Sweep<'_> {
    /// What a run is called; the task only where there are several.
    fn name(&self, Ticket { entry, rate, seed, .. }: Ticket) -> String {
        let Entry { task, candidate } = self.entries[entry];
        // Entries of one task stand together: the first and the last differ where there are more.
        let several = self.entries[0].task.measures() != self.entries[self.entries.len() - 1].task.measures();
        let task = if several { format!("{}: ", task.measures().join(", ")) } else { String::new() };
        format!("{task}{}, rate {rate}, seed {seed}", candidate.name)
    }

    /// A run from beginning to end.
    fn learn<B: Backend>(&self, device: &B, ticket: Ticket, progress: &RunProgress<'_>) -> Result<SweepRun> {
        let (Entry { task, candidate }, Ticket { rate, seed, .. }) = (self.entries[ticket.entry], ticket);
        let config = self.settings.config(&candidate.mixer, task.vocabulary())?;
        let (schedule, constants) = (self.settings.schedule(rate), self.settings.constants());
        let model = TaskModel::new(device, &config, schedule, constants, seed)?;
        self.schedule.note_state(ticket.entry, state(model.model())?);
        // Waits of one thread's device are none of another's.
        let mut model = model.with_interrupt(self.stop.interrupt().apart());
        // Those of the first step, drawn apart: a run draws them again.
        let first = task.questions(&mut Purpose::Learning.random(seed), self.settings.batch)?;
        // Runs beside each other find what the first of them compiled.
        model.prepare(&first, &mut |kernels| progress.compiling(kernels))?;
        let learned = self.train(task, &mut model, seed, progress)?;
        self.measured(task, &model, (rate, seed), learned)
    }

    /// What a model that came so far answers.
    fn measured<B: Backend>(
        &self,
        task: &dyn Task,
        model: &TaskModel<B>,
        (rate, seed): (f32, u64),
        Learned { steps, loss, failure }: Learned,
    ) -> Result<SweepRun> {
        // A model that diverged answers nothing.
        let accuracies = |purpose: Purpose| match failure {
            Some(_) => Ok(vec![0.0; task.measures().len()]),
            None => task.accuracies(model, &mut purpose.random(seed), self.settings.examples),
        };
        let (tuning, testing) = (accuracies(Purpose::Tuning)?, accuracies(Purpose::Testing)?);
        Ok(SweepRun { rate, seed, steps, loss, tuning, testing, failure })
    }

    /// Steps until the loss is low enough or enough is right, or all are done. Divergence is a result.
    fn train<B: Backend>(
        &self,
        task: &dyn Task,
        model: &mut TaskModel<B>,
        seed: u64,
        progress: &RunProgress<'_>,
    ) -> Result<Learned> {
        let random = &mut Purpose::Learning.random(seed);
        let (mut recent, mut learned) = (VecDeque::new(), Learned::default());
        while learned.steps < self.settings.steps && (recent.len() < RECENT || learned.loss >= self.settings.enough) {
            match model.learn(&task.questions(random, self.settings.batch)?) {
                Ok(loss) => recent.push_back(loss),
                Err(error @ hecate::models::Error::NonFinite { .. }) => {
                    learned.failure = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            recent.drain(..recent.len().saturating_sub(RECENT));
            learned.loss = recent.iter().sum::<f64>() / recent.len() as f64;
            learned.steps += 1;
            progress.step(learned.steps, learned.loss);
            if self.is_right_enough(task, model, seed, learned.steps)? {
                break;
            }
        }
        Ok(learned)
    }

    /// Whether the model answers as many questions as `--stop-at` says, where that is to be looked at after this step.
    fn is_right_enough<B: Backend>(
        &self,
        task: &dyn Task,
        model: &TaskModel<B>,
        seed: u64,
        steps: u64,
    ) -> Result<bool> {
        let SweepSettings { stop_at, stop_every, examples, .. } = *self.settings;
        let Some(enough) = stop_at.filter(|_| steps.is_multiple_of(stop_every)) else { return Ok(false) };
        // Questions to choose by: none that is reported.
        Ok(task.hardest(model, &mut Purpose::Tuning.random(seed), examples)? >= enough)
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

/// Elements of the cache of one text, without convolutions: what a candidate may remember.
fn state<B: Backend>(model: &LanguageModel<B>) -> Result<usize> {
    let cache = model.cache(1)?;
    let arrays = cache.layers().iter().flat_map(|layer| layer.iter());
    let memories = arrays.filter(|(name, _)| !name.contains("conv1d"));
    Ok(memories.map(|(_, array)| array.shape().count()).sum())
}

/// The learning rate with the most right answers; among equals, with the lowest loss.
fn best<'a>(runs: impl Iterator<Item = &'a SweepRun>) -> Option<f32> {
    let right = |run: &SweepRun| run.tuning.iter().sum::<f64>();
    let best = runs.max_by(|a, b| right(a).total_cmp(&right(b)).then(b.loss.total_cmp(&a.loss)));
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
