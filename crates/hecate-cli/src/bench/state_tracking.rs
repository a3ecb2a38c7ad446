//! `hecate bench state-tracking`: parity, or the product of a symmetric group's elements, of sequences several times as
//! long as those that were learned.
//!
//! A memory that only shrinks cannot follow a bit that flips; the delta rule can, with steps over 1.
//!
//! Parity needs a state that changes its sign with a token: `M ← (1 − θ) M` along a key, negative for `θ` over 1. See
//! Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues". The words of S3 and S5 are those
//! of Merrill et al., "The Illusion of State in State-Space Models".

use super::{
    published::PARITY,
    settings::{Candidate, SweepSettings},
    summary::Summary,
    sweep::{Answers, Task, answered, share, sweep},
};
use crate::{
    error::{Error, Result},
    stop::Stop,
    terminal,
};
use clap::{Args, ValueEnum};
use hecate::{
    models::{MemoryConfig, MixerConfig, Random, RuleConfig},
    train::tasks::{Parity, Questions, SymmetricGroup},
};
use serde_json::json;
use std::{ops::Range, process::ExitCode};

/// Flags of `hecate bench state-tracking`.
#[derive(Args, Debug)]
// Defaults of this task; the flags themselves are those of every task.
#[command(mut_arg("rates", |arg| arg.required(false).default_value("3e-3,1e-2,3e-2")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1000")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("0")))]
pub(super) struct StateTrackingArgs {
    /// What is tracked
    #[arg(long, default_value = "parity", value_name = "NAME")]
    group: Group,
    /// Tokens of a sequence that is learned
    #[arg(long, default_value_t = 40, value_name = "N")]
    length: usize,
    /// Tokens of a sequence that is measured [default: 240 bits, of a group 16 times `--length`]
    #[arg(long, value_name = "N")]
    test_length: Option<usize>,
    /// Largest step sizes of the delta rule, each a candidate; over 1 a write can turn a memory's sign
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "SIZES")]
    step_sizes: Vec<f32>,
    #[command(flatten)]
    settings: SweepSettings,
}

/// Runs the benchmark on the chosen device.
pub(super) fn run(arguments: StateTrackingArgs) -> Result<ExitCode> {
    let StateTrackingArgs { group, length, ref step_sizes, ref settings, .. } = arguments;
    settings.check()?;
    let test_length = arguments.test_length();
    if length == 0 || test_length <= length {
        let why = format!("{test_length} is too short; give more than `--length`, {length}, itself at least 1");
        return Err(Error::flag("--test-length", why));
    }
    let candidates = arguments.candidates()?;
    let (task, stop) = (TrackingTask { tracked: group.tracked()?, length, test_length }, Stop::listen()?);
    let (name, tokens, chance) = (group.typed(), task.tracked.token(), 1.0 / task.vocabulary() as f64);
    // To standard error: with `--json` standard output holds nothing but JSON.
    let told = format!("{name} of {length} {tokens}s learned, of {test_length} measured; right at random: {chance:.3}");
    terminal::say(&told);
    let mut summary = Summary::new("state-tracking", settings);
    summary.take(sweep(&[&task], &candidates, settings, &stop)?, &stop);
    summary.measures = task.measures();
    // Of words there is no figure of that length.
    summary.published = if matches!(group, Group::Parity) { PARITY.into() } else { Vec::new() };
    summary.set("group", json!(name));
    summary.set("length", json!(length));
    summary.set("test_length", json!(test_length));
    summary.set("step_sizes", json!(step_sizes));
    summary.print(settings.json)
}

/// Bits of parity that are measured unless told otherwise.
const BITS: usize = 240;
/// How many times the learned length of words is measured unless told otherwise.
const TIMES: usize = 16;

/// What a state is an element of. Parity is the group of two elements.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Group {
    /// Is the number of ones so far odd?
    Parity,
    /// How are three things arranged? 6 tokens
    S3,
    /// How are five things arranged? 120 tokens
    S5,
}

impl Group {
    /// What its sequences are drawn from.
    fn tracked(self) -> Result<Tracked> {
        Ok(match self {
            Self::Parity => Tracked::Parity,
            Self::S3 => Tracked::Words(SymmetricGroup::new(3)?),
            Self::S5 => Tracked::Words(SymmetricGroup::new(5)?),
        })
    }

    /// As it is typed.
    fn typed(self) -> &'static str {
        match self {
            Self::Parity => "parity",
            Self::S3 => "s3",
            Self::S5 => "s5",
        }
    }
}

/// What is asked after each token.
enum Tracked {
    /// The parity of bits.
    Parity,
    /// The product of elements.
    Words(SymmetricGroup),
}

impl Tracked {
    /// Sequences with a question after every token.
    fn draw(&self, random: &mut Random, batch: usize, length: usize) -> Result<Questions> {
        Ok(match self {
            Self::Parity => Parity.draw(random, batch, length)?,
            Self::Words(group) => group.draw(random, batch, length)?,
        })
    }

    /// What a token is called.
    fn token(&self) -> &'static str {
        match self {
            Self::Parity => "bit",
            Self::Words(_) => "token",
        }
    }
}

/// A state that tokens change, in sequences longer than those that are learned.
struct TrackingTask {
    tracked: Tracked,
    /// Tokens of a sequence that is learned.
    length: usize,
    /// Tokens of a sequence that is measured, more than `length`.
    test_length: usize,
}

impl TrackingTask {
    /// How far a state is followed shows in where it is lost.
    ///
    /// Ranges of tokens that are measured apart: the learned length, what is beyond, and the very last token. Of words each
    /// doubling of the length is a range.
    fn ranges(&self) -> Vec<Range<usize>> {
        let Self { length, test_length, .. } = *self;
        let (mut ranges, mut start) = (Vec::new(), 0);
        while start < test_length {
            let end = match self.tracked {
                _ if start == 0 => length,
                Tracked::Parity => test_length,
                Tracked::Words(_) => test_length.min(start.saturating_mul(2)),
            };
            ranges.push(start..end);
            start = end;
        }
        ranges.push(test_length - 1..test_length);
        // One token beyond is the last.
        ranges.dedup();
        ranges
    }
}

impl Task for TrackingTask {
    fn vocabulary(&self) -> usize {
        match &self.tracked {
            Tracked::Parity => Parity::VOCABULARY,
            Tracked::Words(group) => group.vocabulary(),
        }
    }

    fn measures(&self) -> Vec<String> {
        let token = self.tracked.token();
        // Counted from 1, as readers do.
        let name = |range: Range<usize>| match range.len() {
            1 => format!("{token} {}", range.end),
            _ => format!("{token}s {} to {}", range.start + 1, range.end),
        };
        self.ranges().into_iter().map(name).collect()
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        self.tracked.draw(random, batch, self.length)
    }

    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        let Self { test_length, .. } = *self;
        // Sequences are longer than any that was learned from.
        let right = answered(model, examples, |batch| self.tracked.draw(random, batch, test_length))?;
        // Every token of a sequence has a question: rows of `test_length` answers.
        let part = |tokens: Range<usize>| {
            let rows = right.chunks(test_length);
            share(rows.flat_map(|row| row[tokens.clone()].iter().copied()))
        };
        Ok(self.ranges().into_iter().map(part).collect())
    }

    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64> {
        let right = answered(model, examples, |batch| self.tracked.draw(random, batch, self.length))?;
        Ok(share(right.into_iter()))
    }
}

impl StateTrackingArgs {
    /// Tokens of a sequence that is measured.
    fn test_length(&self) -> usize {
        self.test_length.unwrap_or(match self.group {
            Group::Parity => BITS,
            Group::S3 | Group::S5 => self.length.saturating_mul(TIMES),
        })
    }

    /// The delta rule once for each step size, all others once: the step size is what the benchmark is about.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        // Other rules have steps of at most 1.
        // The step size goes into the name, by which rows are told apart.
        let sized = |Candidate { name, mixer }: Candidate| match mixer {
            MixerConfig::Memory(memory @ MemoryConfig { rule: RuleConfig::Delta(_), .. }) => {
                let of = |&step: &f32| Candidate {
                    name: format!("{name}, steps to {step}"),
                    mixer: MixerConfig::Memory(MemoryConfig { step, ..memory.clone() }),
                };
                self.step_sizes.iter().map(of).collect()
            }
            mixer => vec![Candidate { name, mixer }],
        };
        Ok(self.settings.candidates(self.test_length())?.into_iter().flat_map(sized).collect())
    }
}
