//! `hecate bench recall`: how many key-value pairs a memory holds.
//!
//! Closed-form identities come first: a device on which they fail has nothing to compare.
//!
//! Multi-query associative recall (Arora et al., "Zoology"): pairs of a key and a value, then the keys alone in another
//! order. A state of `K × V` elements holds about `K` pairs. With `--lengths` it is the paper's own task.

use super::{
    identities::{self, Identity},
    published::RECALL,
    settings::{Candidate, SweepSettings},
    spread_recall::{SpreadArgs, preset},
    summary::Summary,
    sweep::{Answers, Task, answered, share, sweep},
};
use crate::{
    device::with_device,
    error::{Error, Result},
    stop::Stop,
    terminal,
};
use clap::Args;
use hecate::{
    Backend, Job,
    models::Random,
    train::tasks::{Questions, Recall},
};
use serde_json::json;
use std::process::ExitCode;

/// Flags of `hecate bench recall`.
#[derive(Args, Debug)]
// Defaults of this task; the flags themselves are those of every task.
#[command(mut_arg("rates", |arg| arg.required(false).default_value("3e-3,1e-2,2e-2")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1500")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0.005")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("16")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("4")))]
// After the defaults, before which the preset goes.
#[command(mut_args(preset))]
pub(super) struct RecallArgs {
    /// Pairs in a sequence: each step learns sequences of one of these lengths, and each length is measured
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,32", value_name = "NUMBERS")]
    pairs: Vec<usize>,
    /// Different keys
    #[arg(long, default_value_t = 64, value_name = "N")]
    keys: usize,
    /// Different values
    #[arg(long, default_value_t = 16, value_name = "N")]
    values: usize,
    /// How often each key is written, with a new value each time; the last one counts
    #[arg(long, default_value_t = 1, value_name = "N")]
    writes: usize,
    /// Check the closed-form identities and learn nothing
    #[arg(long)]
    identities: bool,
    #[command(flatten)]
    spread: SpreadArgs,
    #[command(flatten)]
    settings: SweepSettings,
}

/// Checks the identities, then learns unless `--identities` is given.
pub(super) fn run(arguments: RecallArgs) -> Result<ExitCode> {
    let RecallArgs { pairs, keys, values, writes, settings, .. } = &arguments;
    // All flags are checked before the first call of the device.
    settings.check()?;
    let mut summary = Summary::new("recall", settings);
    if let Some(task) = arguments.spread.task()? {
        let candidates = settings.candidates(task.longest())?;
        // Half of the vocabulary are values.
        let told = format!("Zoology's recall; right at random: {:.1e}", 2.0 / task.vocabulary() as f64);
        task.settings().into_iter().for_each(|(name, value)| summary.set(name, value));
        summary.identities = with_device(&settings.device, Identities)?;
        summary.published = RECALL.into();
        return learn(&task, &told, (settings, &candidates), summary);
    }
    let task = arguments.task()?;
    let most = pairs.iter().fold(0, |most, &pairs| most.max(pairs));
    let candidates = settings.candidates(task.task.length(most))?;
    // Settings of this task beside those of the sweep, so that a result says how it is made again.
    summary.set("pairs", json!(pairs));
    summary.set("keys", json!(keys));
    summary.set("values", json!(values));
    summary.set("writes", json!(writes));
    summary.identities = with_device(&settings.device, Identities)?;
    if arguments.identities {
        return summary.print(settings.json);
    }
    // Right at random is one value of all.
    let chance = 1.0 / *values as f64;
    let told = format!("recall of {values} values by {keys} keys; right at random: {chance:.3}");
    learn(&task, &told, (settings, &candidates), summary)
}

/// What must come out without learning, before threads open the device for themselves.
struct Identities;

impl Job for Identities {
    type Output = Result<Vec<Identity>>;

    fn run<B: Backend>(self, device: &B) -> Self::Output {
        identities::check(device)
    }
}

/// Recall of sequences of several lengths.
struct RecallTask {
    /// Keys, values and writes a key.
    task: Recall,
    /// Pairs in a sequence, one of which each step draws.
    pairs: Vec<usize>,
}

impl Task for RecallTask {
    fn vocabulary(&self) -> usize {
        self.task.vocabulary()
    }

    fn measures(&self) -> Vec<String> {
        self.pairs.iter().map(|pairs| format!("{pairs} pairs")).collect()
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        // One length a step: a batch has one shape.
        let pairs = self.pairs[random.below(self.pairs.len())?];
        Ok(self.task.draw(random, batch, pairs)?)
    }

    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        // Sequences of each length by themselves: accuracy falls where the memory is full.
        let of = |&pairs: &usize| {
            let right = answered(model, examples, |batch| Ok(self.task.draw(random, batch, pairs)?))?;
            Ok(share(right.into_iter()))
        };
        self.pairs.iter().map(of).collect()
    }

    /// As many pairs as there are in any.
    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64> {
        let most = self.pairs.iter().fold(0, |most, &pairs| most.max(pairs));
        Ok(share(answered(model, examples, |batch| Ok(self.task.draw(random, batch, most)?))?.into_iter()))
    }
}

impl RecallArgs {
    /// The small task, whose flags have defaults.
    fn task(&self) -> Result<RecallTask> {
        let Self { pairs, keys, values, writes, .. } = self;
        let task = Recall::new(*keys, *values, *writes)?;
        // A sequence has no key twice in a round.
        if pairs.is_empty() || pairs.iter().any(|pairs| !(1..=*keys).contains(pairs)) {
            let why = format!("{pairs:?} are not all between 1 and {keys}, the number of keys (`--keys`)");
            return Err(Error::flag("--pairs", why));
        }
        Ok(RecallTask { task, pairs: pairs.clone() })
    }
}

/// The sweep, and all that is known after it. `told` is said before it begins: what is learned, and what is right at random.
fn learn(
    task: &dyn Task,
    told: &str,
    (settings, candidates): (&SweepSettings, &[Candidate]),
    mut summary: Summary,
) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    terminal::say(told);
    summary.measures = task.measures();
    summary.take(sweep(&[task], candidates, settings, &stop)?, &stop);
    summary.print(settings.json)
}
