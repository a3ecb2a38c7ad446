//! `hecate bench needle`: one key-value pair in noise, at lengths many times the learned one.
//!
//! What memories should be good at: a state of any size holds one pair, and nothing else is worth writing. A memory that
//! writes the noise too loses the pair in it, the sooner the longer the text.
//!
//! The single needle of Hsieh et al., "RULER", is the same in words; here tokens are made up, and models learn from nothing.
//! Long texts are read in segments with the state carried over, so 32 thousand tokens take the memory of 512.

use super::{
    published::{NEEDLE, Published},
    settings::SweepSettings,
    summary::Summary,
    sweep::{Answers, Task, part, share, sweep},
};
use crate::{
    error::{Error, Result},
    stop::Stop,
    terminal,
};
use clap::Args;
use hecate::{
    models::Random,
    train::{
        evaluate::SEGMENT,
        tasks::{Needle, Questions},
    },
};
use serde_json::json;
use std::{iter, process::ExitCode};

/// Tokens of the shortest text that is learned unless told otherwise.
///
/// One question in 512 tokens is too little to start from: a model that has not found the pair learns nothing of it.
/// Short texts show it the way, and what it learns of them holds in long ones.
const SHORTEST: usize = 16;

/// Flags of `hecate bench needle`.
#[derive(Args, Debug)]
// Defaults of this task; the flags themselves are those of every task.
// Attention over all of the longest text takes minutes a text on a processor.
#[command(mut_arg("rules", |arg| arg.default_value("delta,hebbian,dgd,titans")))]
#[command(mut_arg("rates", |arg| arg.required(false).default_value("1e-3,3e-3")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1000")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("16")))]
#[command(mut_arg("examples", |arg| arg.default_value("200")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0.005")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("4")))]
pub(super) struct NeedleArgs {
    /// Tokens of the longest text that is learned. Each step draws a length: the shortest, doubled again and again, or this
    #[arg(long, default_value_t = 512, value_name = "N")]
    length: usize,
    /// Tokens of the shortest text that is learned [default: 16]
    #[arg(long, value_name = "N")]
    shortest: Option<usize>,
    /// Tokens of texts that are measured
    #[arg(long, value_delimiter = ',', default_value = "512,1024,2048,4096,8192,16384,32768", value_name = "NUMBERS")]
    test_lengths: Vec<usize>,
    /// Different keys
    #[arg(long, default_value_t = 16, value_name = "N")]
    keys: usize,
    /// Different values
    #[arg(long, default_value_t = 16, value_name = "N")]
    values: usize,
    /// Different tokens of noise
    #[arg(long, default_value_t = 224, value_name = "N")]
    noise: usize,
    #[command(flatten)]
    settings: SweepSettings,
}

/// Runs the benchmark on the chosen device.
pub(super) fn run(arguments: NeedleArgs) -> Result<ExitCode> {
    let NeedleArgs { length, ref test_lengths, keys, values, noise, ref settings, .. } = arguments;
    settings.check()?;
    arguments.check()?;
    let (task, lengths) = (Needle::new(keys, values, noise)?, arguments.lengths());
    let task = NeedleTask { task, lengths, test_lengths: test_lengths.clone() };
    // What attention has to see, if it takes part.
    let longest = test_lengths.iter().fold(length, |longest, &length| longest.max(length));
    let (candidates, stop) = (settings.candidates(longest)?, Stop::listen()?);
    // Right at random is one value of all.
    let chance = 1.0 / values as f64;
    terminal::say(&format!(
        "a needle in {length} tokens learned, in up to {longest} measured; right at random: {chance:.3}"
    ));
    let mut summary = Summary::new("needle", settings);
    summary.take(sweep(&[&task], &candidates, settings, &stop)?, &stop);
    (summary.measures, summary.published) = (task.measures(), Vec::<Published>::from(NEEDLE));
    let shortest = arguments.shortest();
    for (name, value) in
        [("length", length), ("shortest", shortest), ("keys", keys), ("values", values), ("noise", noise)]
    {
        summary.set(name, json!(value));
    }
    // What steps drew from.
    summary.set("learned", json!(task.lengths));
    summary.set("test_lengths", json!(test_lengths));
    summary.print(settings.json)
}

/// A needle in texts of several lengths.
struct NeedleTask {
    task: Needle,
    /// Tokens of texts that are learned, the longest last; each step draws one.
    lengths: Vec<usize>,
    /// Tokens of texts that are measured.
    test_lengths: Vec<usize>,
}

impl NeedleTask {
    /// Share of right answers at a length, a question a text. Texts are read in segments, so that long ones take no more memory.
    fn accuracy(&self, model: &dyn Answers, random: &mut Random, examples: usize, length: usize) -> Result<f64> {
        let mut right = Vec::new();
        for batch in part(examples) {
            // Tokens of as many texts as are read at once; not of all.
            right.extend(model.right_by_segments(&self.task.draw(random, batch, length)?, SEGMENT)?);
        }
        Ok(share(right.into_iter()))
    }
}

impl Task for NeedleTask {
    fn vocabulary(&self) -> usize {
        self.task.vocabulary()
    }

    fn measures(&self) -> Vec<String> {
        self.test_lengths.iter().map(|length| format!("{length} tokens")).collect()
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        let length = self.lengths[random.below(self.lengths.len())?];
        Ok(self.task.draw(random, batch, length)?)
    }

    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        self.test_lengths.iter().map(|&length| self.accuracy(model, random, examples, length)).collect()
    }

    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64> {
        self.lengths.last().map_or(Ok(0.0), |&length| self.accuracy(model, random, examples, length))
    }
}

impl NeedleArgs {
    /// Refuses lengths in which a pair and its query have no room, and a range of none.
    fn check(&self) -> Result<()> {
        let least = Needle::SHORTEST;
        let tested = self.test_lengths.iter().map(|&length| ("--test-lengths", length));
        let learned = [("--length", self.length), ("--shortest", self.shortest())];
        if let Some((flag, length)) = learned.into_iter().chain(tested).find(|(_, length)| *length < least) {
            let why = format!("{length} is too short for a pair and its query; give at least {least}");
            return Err(Error::flag(flag, why));
        }
        if self.shortest() > self.length {
            let why =
                format!("{} is longer than the longest; give at most `--length`, {}", self.shortest(), self.length);
            return Err(Error::flag("--shortest", why));
        }
        Ok(())
    }

    /// Tokens of the shortest text that is learned.
    fn shortest(&self) -> usize {
        self.shortest.unwrap_or(SHORTEST.min(self.length))
    }

    /// Lengths that steps draw from: the shortest doubled again and again, then the longest.
    fn lengths(&self) -> Vec<usize> {
        let doubled = iter::successors(Some(self.shortest()), |length| length.checked_mul(2));
        doubled.take_while(|&length| length < self.length).chain([self.length]).collect()
    }
}
