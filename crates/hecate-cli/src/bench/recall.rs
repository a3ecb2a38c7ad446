//! `hecate bench recall`.

use super::{
    contest::{Contest, Exam, graded, share},
    identities,
    settings::Settings,
    summary::Summary,
};
use crate::{
    device::{Job, with_device},
    error::{Error, Result},
    stop::Stop,
};
use clap::Args;
use hecate_core::Backend;
use hecate_models::tasks::{Questions, Random, Recall, Student, below};
use serde_json::json;
use std::process::ExitCode;

#[derive(Args, Debug)]
#[command(mut_arg("rates", |arg| arg.required(false).default_value("3e-3,1e-2,2e-2")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1500")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0.005")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("16")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("4")))]
pub(super) struct Arguments {
    /// Pairs in a sequence: each step learns sequences of one of these numbers, and each is measured
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
    settings: Settings,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    let choice = arguments.settings.device.clone();
    with_device(&choice, arguments)
}

/// Recall of sequences with different numbers of pairs.
struct Sizes {
    task: Recall,
    pairs: Vec<usize>,
}

impl Exam for Sizes {
    fn vocabulary(&self) -> usize {
        self.task.vocabulary()
    }

    fn measures(&self) -> Vec<String> {
        self.pairs.iter().map(|pairs| format!("{pairs} pairs")).collect()
    }

    fn lesson(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        let pairs = self.pairs[below(random, self.pairs.len())];
        Ok(self.task.draw(random, batch, pairs)?)
    }

    fn grade<B: Backend>(&self, student: &Student<B>, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        let of = |&pairs: &usize| {
            let right = graded(student, examples, |batch| Ok(self.task.draw(random, batch, pairs)?))?;
            Ok(share(right.into_iter()))
        };
        self.pairs.iter().map(of).collect()
    }
}

impl Job for Arguments {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let Self { pairs, keys, values, writes, settings, .. } = &self;
        settings.check()?;
        let task = Recall::new(*keys, *values, *writes)?;
        let Some(&most) = pairs.iter().max().filter(|&most| most <= keys && !pairs.contains(&0)) else {
            let why = format!("{pairs:?} are not all between 1 and {keys}, the number of keys (`--keys`)");
            return Err(Error::flag("--pairs", why));
        };
        let contestants = settings.contestants(task.length(most))?;
        let mut summary = Summary { identities: identities::check(device)?, ..Summary::new("recall", settings) };
        summary.set("pairs", json!(pairs));
        summary.set("keys", json!(keys));
        summary.set("values", json!(values));
        summary.set("writes", json!(writes));
        if !self.identities {
            let exam = Sizes { task, pairs: pairs.clone() };
            let stop = Stop::listen()?;
            eprintln!("recall of {values} values by {keys} keys; right at random: {:.3}", 1.0 / *values as f64);
            summary.measures = exam.measures();
            summary.outcomes = Contest::new(device, &exam, settings, &stop).run(&contestants)?;
            summary.stopped = stop.asked();
        }
        summary.print(settings.json)
    }
}
