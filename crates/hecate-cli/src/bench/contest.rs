//! Models that learn the same task, each at its best learning rate, with several seeds.

use super::settings::Settings;
use crate::{error::Result, progress::Contest as Progress, stop::Stop};
use hecate_core::Backend;
use hecate_models::{
    LanguageModel, MixerConfig,
    tasks::{Purpose, Questions, Random, Student},
};
use std::collections::VecDeque;

/// Steps whose mean loss tells whether a run has learned enough.
const RECENT: usize = 20;
/// Sequences that are measured at once.
const PART: usize = 32;

/// A task, and what is measured of it.
pub(super) trait Exam {
    /// Number of different tokens.
    fn vocabulary(&self) -> usize;

    /// Names of what is measured.
    fn measures(&self) -> Vec<String>;

    /// Questions to learn from.
    fn lesson(&self, random: &mut Random, batch: usize) -> Result<Questions>;

    /// Share of right answers, one for each measure, on `examples` sequences each.
    fn grade<B: Backend>(&self, student: &Student<B>, random: &mut Random, examples: usize) -> Result<Vec<f64>>;
}

/// Who takes part.
pub(super) struct Contestant {
    pub(super) name: String,
    pub(super) mixer: MixerConfig,
}

/// One model from its first step to its last.
pub(super) struct Run {
    pub(super) rate: f32,
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

/// What became of a contestant.
pub(super) struct Outcome {
    pub(super) name: String,
    /// Numbers that a text's memories hold, all layers together, without inputs of convolutions.
    pub(super) state: usize,
    /// Every run, the search for the learning rate included.
    pub(super) runs: Vec<Run>,
    /// The learning rate whose runs count; none if the contest was broken off before.
    pub(super) rate: Option<f32>,
}

impl Outcome {
    /// The runs that count, by seed.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| Some(run.rate) == self.rate)
    }
}

/// A contest in progress.
pub(super) struct Contest<'a, B: Backend, E: Exam> {
    device: &'a B,
    exam: &'a E,
    settings: &'a Settings,
    stop: &'a Stop,
    progress: Progress,
}

impl<'a, B: Backend, E: Exam> Contest<'a, B, E> {
    pub(super) fn new(device: &'a B, exam: &'a E, settings: &'a Settings, stop: &'a Stop) -> Self {
        Self { device, exam, settings, stop, progress: Progress::new(settings.steps) }
    }

    /// All contestants, one after another, until somebody asks to stop.
    pub(super) fn run(mut self, contestants: &[Contestant]) -> Result<Vec<Outcome>> {
        for Contestant { mixer, .. } in contestants {
            // Who cannot take part is told before anybody starts.
            self.settings.config(mixer, self.exam.vocabulary())?;
        }
        let runs = contestants.len() * (self.settings.rates.len() + self.settings.seeds as usize - 1);
        self.progress.begin(runs);
        let mut outcomes = Vec::new();
        for contestant in contestants {
            outcomes.push(self.contestant(contestant)?);
            if self.stop.asked() {
                break;
            }
        }
        Ok(outcomes)
    }

    /// The first seed at all learning rates, the others at the best.
    fn contestant(&mut self, contestant: &Contestant) -> Result<Outcome> {
        let name = contestant.name.clone();
        let mut outcome = Outcome { name, state: self.state(contestant)?, runs: Vec::new(), rate: None };
        for &rate in &self.settings.rates {
            match self.learn(contestant, rate, 0)? {
                Some(run) => outcome.runs.push(run),
                None => return Ok(outcome),
            }
        }
        outcome.rate = best(&outcome.runs);
        for seed in 1..self.settings.seeds {
            let Some(rate) = outcome.rate else { break };
            match self.learn(contestant, rate, seed)? {
                Some(run) => outcome.runs.push(run),
                None => break,
            }
        }
        Ok(outcome)
    }

    fn state(&self, contestant: &Contestant) -> Result<usize> {
        let config = self.settings.config(&contestant.mixer, self.exam.vocabulary())?;
        let cache = LanguageModel::new(self.device, &config, 0)?.cache(1)?;
        let arrays = cache.layers().iter().flat_map(|layer| layer.iter());
        let memories = arrays.filter(|(name, _)| !name.contains("conv1d"));
        Ok(memories.map(|(_, array)| array.shape().count()).sum())
    }

    /// A run from beginning to end; none if somebody asked to stop.
    fn learn(&mut self, contestant: &Contestant, rate: f32, seed: u64) -> Result<Option<Run>> {
        let Self { device, exam, settings, .. } = *self;
        let config = settings.config(&contestant.mixer, exam.vocabulary())?;
        let mut student = Student::new(device, &config, settings.schedule(rate), Settings::constants(), seed)?;
        self.progress.start(&contestant.name, rate, seed);
        let Some(Lessons { steps, loss, failure }) = self.lessons(&mut student, seed)? else { return Ok(None) };
        let grade = |purpose: Purpose| match failure {
            Some(_) => Ok(vec![0.0; exam.measures().len()]),
            None => exam.grade(&student, &mut purpose.random(seed), settings.examples),
        };
        let (tuning, testing) = (grade(Purpose::Tuning)?, grade(Purpose::Testing)?);
        self.progress.end(&testing, failure.as_deref());
        Ok(Some(Run { rate, seed, steps, loss, tuning, testing, failure }))
    }

    fn lessons(&self, student: &mut Student<B>, seed: u64) -> Result<Option<Lessons>> {
        let random = &mut Purpose::Learning.random(seed);
        let (mut recent, mut lessons) = (VecDeque::new(), Lessons::default());
        while lessons.steps < self.settings.steps && (recent.len() < RECENT || lessons.loss >= self.settings.enough) {
            if self.stop.asked() {
                return Ok(None);
            }
            match student.learn(&self.exam.lesson(random, self.settings.batch)?) {
                Ok(loss) => recent.push_back(loss),
                Err(error @ hecate_models::Error::NonFinite { .. }) => {
                    lessons.failure = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            recent.drain(..recent.len().saturating_sub(RECENT));
            lessons.loss = recent.iter().sum::<f64>() / recent.len() as f64;
            lessons.steps += 1;
            self.progress.step(lessons.steps, lessons.loss);
        }
        Ok(Some(lessons))
    }
}

/// How far a run came.
#[derive(Default)]
struct Lessons {
    steps: u64,
    loss: f64,
    failure: Option<String>,
}

/// The learning rate with the most right answers; among equals, with the lowest loss.
fn best(runs: &[Run]) -> Option<f32> {
    let right = |run: &Run| run.tuning.iter().sum::<f64>();
    let best = runs.iter().max_by(|a, b| right(a).total_cmp(&right(b)).then(b.loss.total_cmp(&a.loss)));
    best.map(|run| run.rate)
}

/// Whether each question of `examples` sequences is answered rightly; `draw` makes as many sequences as it is told.
pub(super) fn graded<B: Backend>(
    student: &Student<B>,
    examples: usize,
    mut draw: impl FnMut(usize) -> Result<Questions>,
) -> Result<Vec<bool>> {
    let mut right = Vec::new();
    for first in (0..examples).step_by(PART) {
        right.extend(student.right(&draw(PART.min(examples - first))?)?);
    }
    Ok(right)
}

/// Share of what is right.
pub(super) fn share(right: impl Iterator<Item = bool>) -> f64 {
    let (sum, count) = right.fold((0_usize, 0_usize), |(sum, count), right| (sum + usize::from(right), count + 1));
    sum as f64 / count.max(1) as f64
}
