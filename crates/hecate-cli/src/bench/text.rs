//! `hecate bench text`: one text, learned by every rule and composition as `hecate train` learns it.
//!
//! A model learns some steps and is measured on the held-out part: with fresh memories every window, as it learned, and in
//! one pass, by how much of the text was read before. A memory that does not hold shows in the later columns.
//!
//! Weights are those that `hecate train` has with the same flags and seed: the same trainer draws the same windows. Nothing
//! is written to the disk.

mod learn;
mod report;

use super::jobs::{self, JobsArgs};
use crate::{
    defaults,
    device::Choice,
    error::{Error, Result},
    progress::SweepProgress,
    sources::{self, MemoryArgs},
    stop::Stop,
    terminal,
    train::{COMPOSED, LevelArgs, ModelArgs, ModelFlags, ShapeArgs, TrainingArgs},
};
use clap::{
    Args,
    builder::{PossibleValuesParser, RangedU64ValueParser},
};
use hecate::{
    models::{Config, RuleConfig, Vocabulary, text::Corpus},
    train::{RunPlan, Settings},
};
use learn::TextRuns;
use report::Report;
use serde_json::json;
use std::{path::PathBuf, process::ExitCode};

/// Flags of `hecate bench text`.
#[derive(Args, Debug)]
pub(super) struct TextArgs {
    /// Text to learn, UTF-8: files, folders, or `-` for standard input; Hecate's own sources unless given
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
    /// Models to compare, with commas between: rules, and mixers of `hecate train`; all of them unless given
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = PossibleValuesParser::new(names()))]
    models: Vec<String>,
    // --momentum, --momentum-form, --retain, --clip-errors and --frozen are of those models that have them.
    #[command(flatten)]
    shape: ShapeArgs,
    /// Number of steps
    #[arg(long, default_value_t = defaults::STEPS, value_name = "N", help_heading = "Training", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::from(u32::MAX)))]
    steps: u64,
    #[command(flatten)]
    training: TrainingArgs,
    /// Seeds: so many runs of each model
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 20))]
    seeds: u64,
    /// The first of the seeds, which follow each other
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    first_seed: u64,
    /// Share of the held-out text that is measured, from its start
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    measure: f64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    device: Choice,
}

/// All models that have a name.
fn names() -> Vec<&'static str> {
    RuleConfig::NAMES.into_iter().chain(COMPOSED).collect()
}

/// Each option of [`ShapeArgs::given`] by itself.
/// A model gets those of them that it takes, and one that no model takes is refused.
const ALONE: [[bool; 5]; 5] = [
    [true, false, false, false, false],
    [false, true, false, false, false],
    [false, false, true, false, false],
    [false, false, false, true, false],
    [false, false, false, false, true],
];

/// A model with one seed.
struct TextRun {
    model: String,
    config: Config,
    seed: u64,
}

/// Learns and measures all models.
pub(super) fn run(arguments: TextArgs) -> Result<ExitCode> {
    // Flags first, then the text, then the device.
    let runs = arguments.runs()?;
    let settings = arguments.settings()?;
    let source = sources::load(&arguments.text, None, arguments.memory)?;
    let corpus = Corpus::of(&source, &Vocabulary::Bytes, arguments.training.holdout, settings.text())?;
    let stop = Stop::listen()?;
    terminal::say(&format!(
        "{} runs of {} steps; {} bytes of text, of which {} are held out",
        runs.len(),
        arguments.steps,
        corpus.identity.bytes,
        corpus.held_out.bytes
    ));
    let report = Report::new(&runs, arguments.json);
    let all = TextRuns::new(
        (&runs, settings),
        arguments.plan(&corpus),
        (&corpus, arguments.measured(&corpus)),
        &stop,
        (SweepProgress::new(arguments.steps, runs.len()), report),
    );
    let opened = jobs::all(&arguments.device, arguments.jobs.jobs.min(runs.len()), &all);
    // What was found comes before what went wrong.
    let outcome = all.end(arguments.to_json(&settings));
    opened.and(outcome)
}

impl TextArgs {
    /// Every model with every seed, all seeds of a model together. Models that cannot be made are told before anybody starts.
    fn runs(&self) -> Result<Vec<TextRun>> {
        // Without a list, all that there are.
        let all: Vec<String> = names().into_iter().map(str::to_owned).collect();
        let models = if self.models.is_empty() { &all } else { &self.models };
        self.check_options(models)?;
        let last = self.first_seed.checked_add(self.seeds - 1).ok_or_else(|| {
            Error::flag("--first-seed", format!("{} has too few seeds after it; give less", self.first_seed))
        })?;
        // As many rows as the report has.
        let mut runs = Vec::new();
        for model in models {
            let config = config(model, &self.options(model))?;
            let of = |seed| TextRun { model: model.clone(), config: config.clone(), seed };
            runs.extend((self.first_seed..=last).map(of));
        }
        Ok(runs)
    }

    /// How all of them learn; the seed is each run's.
    fn settings(&self) -> Result<Settings> {
        // Written so that NaN is refused too.
        if !(self.measure > 0.0 && self.measure <= 1.0) {
            return Err(Error::flag("--measure", format!("{} is no share; give over 0, at most 1", self.measure)));
        }
        // The seed of each run takes the place of this one.
        let settings = self.training.settings(self.steps, self.first_seed)?;
        settings.check()?;
        Ok(settings)
    }

    /// Tokens of the held-out text that are measured: one to read and one to predict at least.
    fn measured(&self, corpus: &Corpus) -> usize {
        let tokens = corpus.held_out.tokens.len();
        ((tokens as f64 * self.measure).round() as usize).clamp(2, tokens.max(2))
    }

    /// Nothing is saved, and nothing is measured on the way.
    fn plan(&self, corpus: &Corpus) -> RunPlan {
        let (identity, held_out, keep) = (corpus.identity.clone(), self.training.holdout, RunPlan::KEEP);
        RunPlan {
            text: self.text.clone(),
            json_lines: None,
            identity,
            held_out,
            evaluate_every: self.steps,
            save_every: self.steps,
            keep,
        }
    }

    /// The flags of this model: those that only some rules have where this one has them.
    fn options(&self, model: &str) -> ShapeArgs {
        // One after another: a model may have one of them alone, or not beside those before it.
        let mut taken = [false; ALONE.len()];
        for i in 0..taken.len() {
            let mut more = taken;
            more[i] = true;
            if config(model, &self.shape.with(more)).is_ok() {
                taken = more;
            }
        }
        self.shape.with(taken)
    }

    /// Refuses an option that none of the models has, or whose value none takes: it would look as if it had worked.
    fn check_options(&self, models: &[String]) -> Result<()> {
        for (option, _) in ALONE.into_iter().zip(self.shape.given()).filter(|(_, given)| *given) {
            let shape = self.shape.with(option);
            let made = models.iter().map(|model| config(model, &shape).map(drop));
            // The first reason, if all have one.
            made.reduce(|first, next| first.or_else(|why| next.map_err(|_| why))).unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Names and values, for the report.
    fn to_json(&self, settings: &Settings) -> serde_json::Value {
        // What the configurations of rows do not tell.
        let Settings { batch, tokens, accumulate, carry, first_states, .. } = settings;
        let Settings { schedule, optimizer, precision, .. } = settings;
        json!({
            "steps": self.steps, "seeds": self.seeds, "first_seed": self.first_seed, "batch": batch, "tokens": tokens,
            "accumulate": accumulate, "carry": carry, "first_states": first_states, "schedule": schedule, "optimizer": optimizer, "precision": precision,
            "holdout": self.training.holdout, "measure": self.measure,
        })
    }
}

/// The configuration of a model by its name, as `hecate train` makes it of the same flags.
fn config(model: &str, shape: &ShapeArgs) -> Result<Config> {
    let (model, levels) = (ModelArgs::named(model), LevelArgs::default());
    ModelFlags { model: &model, shape, levels: &levels }.config(&Vocabulary::Bytes)
}
