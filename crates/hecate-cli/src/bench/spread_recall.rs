//! The part of `hecate bench recall` that is Zoology's task: queries spread over the rest of a sequence.
//!
//! The small task has few keys and asks for them at once, so that it is learned in seconds. Here a key is one of thousands,
//! and what comes between the queries has to be read over. That is what published figures are measured on.
//!
//! Arora et al. learn from 100,000 sequences of the shortest size and 20,000 of each other. Here every step draws new
//! ones, in the same proportion under the preset. A run ends early once the hardest learned size is nearly all right.

use super::sweep::{Answers, Task, answered, share};
use crate::error::{Error, Result};
use clap::{Arg, Args, ValueEnum};
use hecate::{
    models::Random,
    train::tasks::{Filler, Questions, SpreadRecall},
};
use serde_json::{Value, json};

/// Tokens of the published vocabulary.
const VOCABULARY: usize = 8192;

/// Flags of the small task, with which these make no sense.
const SMALL: [&str; 5] = ["pairs", "keys", "values", "writes", "identities"];

/// Flags of the published task.
#[derive(Args, Debug)]
pub(super) struct SpreadArgs {
    /// Set every flag that is not given as a publication does
    #[arg(long, conflicts_with_all = SMALL, value_name = "NAME")]
    preset: Option<Preset>,
    /// Learn Zoology's task instead, with sequences of these lengths and pairs. Each step draws one; a length that is given
    /// twice is drawn twice as often
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse,
        conflicts_with_all = SMALL,
        value_name = "LENGTH:PAIRS"
    )]
    lengths: Vec<Size>,
    /// Measure these besides the learned ones
    // Longer sequences show whether a state was learned, or a length.
    #[arg(long, value_delimiter = ',', value_parser = parse, value_name = "LENGTH:PAIRS")]
    test_lengths: Vec<Size>,
    /// Tokens of Zoology's task: keys are the lower half, values the upper [default: 8192]
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// What stands between its queries [default: random]
    #[arg(long, value_name = "WHAT")]
    filler: Option<FillerName>,
}

/// Publications whose settings are known.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// Arora et al., "Zoology": two layers of width 128, batches of 256, weight decay 0.1, 32 times 180,000 sequences
    Zoology,
}

/// The published settings by the names of their flags, that of memories apart: their size is what is compared.
///
/// What each flag of the sweep is under `--preset zoology`, unless it is given.
const ZOOLOGY: [(&str, &str); 15] = [
    // The shortest has five times as many sequences as each other.
    ("lengths", "64:4,64:4,64:4,64:4,64:4,128:8,256:16,256:32,256:64"),
    ("test_lengths", "512:64,512:128,1024:256"),
    // As in its figure of this task, though not by default.
    ("filler", "zeros"),
    // Four rates, each 3.2 times the one before.
    ("rates", "1e-3,3.2e-3,1e-2,3.2e-2"),
    // As many as 32 times all sequences.
    ("steps", "22500"),
    ("batch", "256"),
    ("enough", "0"),
    ("stop_at", "0.99"),
    ("weight_decay", "0.1"),
    ("layers", "2"),
    ("width", "128"),
    // A memory of 8,192 numbers a layer.
    ("key_dim", "64"),
    ("value_dim", "128"),
    ("conv", "4"),
    // A value is known by its embedding, on the way in and on the way out.
    ("tie", "true"),
];

/// A flag with its value under the preset. It keeps its own default for when there is no preset, and a value that is given
/// goes before both.
pub(super) fn preset(arg: Arg) -> Arg {
    let found = ZOOLOGY.iter().find(|(name, _)| arg.get_id() == name);
    match found {
        Some((_, value)) => arg.default_value_if("preset", "zoology", *value),
        None => arg,
    }
}

/// What fills a sequence.
///
/// Random tokens may be keys that nobody asks for there, so filler has to be told from queries.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FillerName {
    /// Any tokens of the vocabulary
    Random,
    /// One token that is neither key nor value
    Zeros,
}

/// Tokens and pairs of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    length: usize,
    pairs: usize,
}

impl Size {
    /// As it is typed.
    fn name(self) -> String {
        format!("{}:{}", self.length, self.pairs)
    }
}

/// A size as [`Size::name`] writes it.
fn parse(text: &str) -> std::result::Result<Size, String> {
    let size = text.split_once(':').and_then(|(length, pairs)| Some((length.parse().ok()?, pairs.parse().ok()?)));
    let (length, pairs) = size.ok_or("expected LENGTH:PAIRS, tokens and pairs of a sequence, as in 256:16")?;
    Ok(Size { length, pairs })
}

/// Zoology's task with sequences of several lengths.
///
/// Accuracy is a share of queries, over all sequences of one size.
pub(super) struct SpreadTask {
    task: SpreadRecall,
    filler: Filler,
    /// What each step draws from; one may be there several times.
    lengths: Vec<Size>,
    /// What is measured: each learned size once, then others.
    measured: Vec<Size>,
}

impl SpreadArgs {
    /// The task, where its lengths are given; none where no flag asks for it. A flag that would have no effect is refused.
    pub(super) fn task(&self) -> Result<Option<SpreadTask>> {
        if self.lengths.is_empty() {
            let others = [
                ("--test-lengths", !self.test_lengths.is_empty()),
                ("--vocab", self.vocab.is_some()),
                ("--filler", self.filler.is_some()),
            ];
            return match others.into_iter().find(|&(_, given)| given) {
                Some((flag, _)) => {
                    Err(Error::flag(flag, "only Zoology's task has it; give `--lengths` or `--preset zoology` too"))
                }
                None => Ok(None),
            };
        }
        let filler = match self.filler {
            Some(FillerName::Zeros) => Filler::Zeros,
            Some(FillerName::Random) | None => Filler::Random,
        };
        // Tokens first: sizes are checked by them.
        let task = SpreadRecall::new(self.vocab.unwrap_or(VOCABULARY), filler)?;
        let mut measured: Vec<Size> = Vec::new();
        for &size in self.lengths.iter().chain(&self.test_lengths) {
            task.check(size.length, size.pairs)?;
            if !measured.contains(&size) {
                // A size that is drawn more often is measured once.
                measured.push(size);
            }
        }
        Ok(Some(SpreadTask { task, filler, lengths: self.lengths.clone(), measured }))
    }
}

impl SpreadTask {
    /// Tokens of the longest sequence, which attention has to see whole.
    pub(super) fn longest(&self) -> usize {
        self.measured.iter().map(|size| size.length).max().unwrap_or(0)
    }

    /// Names and values, for the summary.
    pub(super) fn settings(&self) -> [(&'static str, Value); 4] {
        let names = |sizes: &[Size]| json!(sizes.iter().map(|size| size.name()).collect::<Vec<_>>());
        let measured = names(&self.measured);
        let filler = match self.filler {
            Filler::Random => "random",
            Filler::Zeros => "zeros",
        };
        [
            ("filler", json!(filler)),
            ("lengths", names(&self.lengths)),
            ("measured", measured),
            ("vocab", json!(self.task.vocabulary())),
        ]
    }

    /// Share of right answers for sequences of a size.
    fn accuracy(&self, model: &dyn Answers, random: &mut Random, examples: usize, size: Size) -> Result<f64> {
        let right = answered(model, examples, |batch| Ok(self.task.draw(random, batch, size.length, size.pairs)?))?;
        Ok(share(right.into_iter()))
    }
}

impl Task for SpreadTask {
    fn vocabulary(&self) -> usize {
        self.task.vocabulary()
    }

    fn measures(&self) -> Vec<String> {
        self.measured.iter().map(|size| size.name()).collect()
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        // One size a step: a batch has one shape.
        let Size { length, pairs } = self.lengths[random.below(self.lengths.len())?];
        Ok(self.task.draw(random, batch, length, pairs)?)
    }

    fn accuracies(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        self.measured.iter().map(|&size| self.accuracy(model, random, examples, size)).collect()
    }

    /// Most pairs, and of those the longest.
    fn hardest(&self, model: &dyn Answers, random: &mut Random, examples: usize) -> Result<f64> {
        let hardest = self.lengths.iter().max_by_key(|size| (size.pairs, size.length));
        hardest.map_or(Ok(0.0), |&size| self.accuracy(model, random, examples, size))
    }
}
