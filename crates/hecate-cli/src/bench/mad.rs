//! `hecate bench mad`: the six tasks of Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures".
//!
//! Each is a sweep of its own; sizes are the smallest of the paper, and so is the number of sequences that are learned
//! from. The paper averages over harder settings too, so its figures are no more than neighbours of ours.
//!
//! Compression differs: the paper decodes all tokens from the last vector, by a layer that only this task has. Here the model
//! gives them back one by one, and its memories may help. The other five ask what the paper asks.

use super::{
    published::{MAD, Published},
    settings::SweepSettings,
    summary::Summary,
    sweep::{Answers, Task, answered, share, sweep},
};
use crate::{error::Result, stop::Stop, terminal};
use clap::{Args, ValueEnum};
use hecate::{
    models::Random,
    train::tasks::{Mad, Purpose, Questions},
};
use serde_json::json;
use std::process::ExitCode;

/// Flags of `hecate bench mad`.
#[derive(Args, Debug)]
// Defaults of this benchmark; the flags themselves are those of every task.
#[command(mut_arg("rates", |arg| arg.required(false).default_value("1e-4,5e-4,1e-3")))]
// Two hundred times 12,800 sequences.
#[command(mut_arg("steps", |arg| arg.required(false).default_value("20000")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("128")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0")))]
#[command(mut_arg("examples", |arg| arg.default_value("1280")))]
#[command(mut_arg("layers", |arg| arg.default_value("2")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("128")))]
// The paper compares states of 4,096 numbers a layer.
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("4")))]
pub(super) struct MadArgs {
    /// Tasks, with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "compression,fuzzy-recall,recall,memorisation,noisy-recall,copying",
        value_name = "NAMES"
    )]
    tasks: Vec<Name>,
    // Few sequences that come again and again are easier to learn by heart than to understand.
    /// Different sequences to learn from; 0 for new ones in every step [default: 12800, of memorisation 256]
    #[arg(long, value_name = "N")]
    known: Option<usize>,
    #[command(flatten)]
    settings: SweepSettings,
}

/// Names of the tasks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Give 31 tokens back
    Compression,
    /// Recall with keys and values of one to three tokens
    FuzzyRecall,
    /// Recall of what followed a key before
    Recall,
    /// Know by heart what goes with each of 127 keys
    Memorisation,
    /// Recall where a fifth is noise
    NoisyRecall,
    /// Give 16 tokens back that stand among blanks
    Copying,
}

impl Name {
    /// What the crate of models calls it.
    fn task(self) -> Mad {
        match self {
            Self::Compression => Mad::Compression,
            Self::FuzzyRecall => Mad::FuzzyRecall,
            Self::Recall => Mad::ContextRecall,
            Self::Memorisation => Mad::Memorisation,
            Self::NoisyRecall => Mad::NoisyRecall,
            Self::Copying => Mad::SelectiveCopying,
        }
    }

    /// As it is typed.
    fn typed(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs the benchmark on the chosen device.
pub(super) fn run(arguments: MadArgs) -> Result<ExitCode> {
    let MadArgs { tasks, known, settings } = &arguments;
    settings.check()?;
    // The longest sequence, of copying, has 256 tokens.
    // Attention sees all of the longest sequence.
    let (candidates, stop) = (settings.candidates(256)?, Stop::listen()?);
    // What the paper learns from, unless told otherwise.
    let known = |name: Name| known.unwrap_or(name.task().known());
    let learned: Vec<_> = tasks.iter().map(|&name| MadTask { name, known: known(name) }).collect();
    let named: Vec<_> = tasks.iter().map(|name| name.typed()).collect();
    terminal::say(&format!("MAD: {}", named.join(", ")));
    let all: Vec<_> = learned.iter().map(|task| task as &dyn Task).collect();
    let mut summary = Summary::new("mad", settings);
    summary.take(sweep(&all, &candidates, settings, &stop)?, &stop);
    summary.set("tasks", json!(named));
    summary.set("known", json!(learned.iter().map(|task| task.known).collect::<Vec<_>>()));
    summary.measures = named;
    // Only what stands beside a figure of ours.
    let asked = |row: &&Published| summary.measures.iter().any(|measure| measure == row.measure);
    summary.published = MAD.iter().filter(asked).copied().collect();
    summary.print(settings.json)
}

/// One of the tasks. What is learned and what is measured differ where the paper's differ.
struct MadTask {
    name: Name,
    /// Different sequences to learn from; 0 for any.
    known: usize,
}

impl Task for MadTask {
    fn vocabulary(&self) -> usize {
        self.name.task().vocabulary()
    }

    fn measures(&self) -> Vec<String> {
        vec![self.name.typed()]
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        let task = self.name.task();
        Ok(match self.known {
            0 => task.draw(random, batch, Purpose::Learning)?,
            known => task.draw_known(random, batch, known)?,
        })
    }

    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        Ok(vec![self.hardest(model, random, examples)?])
    }

    // All sequences are equally hard.
    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64> {
        // To choose by and to report the same is asked; only the seeds differ.
        let draw = |batch| Ok(self.name.task().draw(random, batch, Purpose::Testing)?);
        Ok(share(answered(model, examples, draw)?.into_iter()))
    }
}
