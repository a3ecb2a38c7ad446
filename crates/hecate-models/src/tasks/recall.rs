//! Multi-query associative recall.

use super::{Questions, Random};
use crate::{
    Result,
    bounds::{SIZE, within},
};
use rand::RngExt;

/// Key-value pairs, then every key once more, in another order: which value came with it? (Arora et al., "Zoology:
/// Measuring and Improving Recall in Efficient Language Models", MQAR.)
///
/// ```text
/// k1 v1 k2 v2 … kn vn   kσ(1) kσ(2) … kσ(n)          answers behind the last n tokens: vσ(1) … vσ(n)
/// ```
///
/// Keys are the tokens under `keys`, all different in one sequence, values the `values` tokens behind them. Zoology
/// puts other tokens between the queries; here there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    keys: usize,
    values: usize,
}

impl Recall {
    /// Numbers of different keys and values.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for fewer than two of either, or too many.
    pub fn new(keys: usize, values: usize) -> Result<Self> {
        within("keys", keys, 2..=SIZE / 2)?;
        within("values", values, 2..=SIZE / 2)?;
        Ok(Self { keys, values })
    }

    /// Number of different tokens.
    pub fn vocabulary(self) -> usize {
        self.keys + self.values
    }

    /// Tokens of a sequence of this many pairs.
    pub fn length(pairs: usize) -> usize {
        3 * pairs
    }

    /// `batch` sequences of `pairs` pairs each.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for no pair, or more pairs than keys.
    pub fn draw(self, random: &mut Random, batch: usize, pairs: usize) -> Result<Questions> {
        within("pairs", pairs, 1..=self.keys)?;
        within("batch", batch, 1..=SIZE / Self::length(pairs))?;
        let (length, count) = (Self::length(pairs), batch * pairs);
        let mut questions = Questions {
            batch,
            inputs: Vec::with_capacity(batch * length),
            rows: Vec::with_capacity(count),
            answers: Vec::with_capacity(count),
        };
        let mut keys: Vec<u32> = (0..self.keys as u32).collect();
        for sequence in 0..batch {
            shuffle(random, &mut keys, pairs);
            let values = self.keys as u32..self.vocabulary() as u32;
            let mut known: Vec<(u32, u32)> =
                keys[..pairs].iter().map(|&key| (key, random.random_range(values.clone()))).collect();
            questions.inputs.extend(known.iter().flat_map(|&(key, value)| [key, value]));
            shuffle(random, &mut known, pairs);
            let first = (sequence * length + 2 * pairs) as u32;
            questions.rows.extend(first..first + pairs as u32);
            questions.inputs.extend(known.iter().map(|(key, _)| key));
            questions.answers.extend(known.iter().map(|(_, value)| value));
        }
        Ok(questions)
    }
}

/// Puts `count` random elements in random order in front (Fisher and Yates).
fn shuffle<T>(random: &mut Random, items: &mut [T], count: usize) {
    for i in 0..count {
        let other = random.random_range(i..items.len());
        items.swap(i, other);
    }
}
