//! Multi-query associative recall.

use super::{Questions, shuffle};
use hecate_core::memory;
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// Key-value pairs, then every key once more, in another order: which value came with it? (Arora et al., "Zoology:
/// Measuring and Improving Recall in Efficient Language Models", MQAR.)
///
/// ```text
/// k1 v1 k2 v2 … kn vn   kσ(1) kσ(2) … kσ(n)          answers after the last n tokens: vσ(1) … vσ(n)
/// ```
///
/// Written more than once, every key comes with a new value in each round, and the last one counts.
///
/// Keys are the tokens under `keys`, all different in one sequence, values the `values` tokens above those. Zoology
/// puts other tokens between the queries, as [`SpreadRecall`](super::SpreadRecall) does; here there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    keys: usize,
    values: usize,
    writes: usize,
}

impl Recall {
    /// Numbers of different keys and values, and how often each key of a sequence is written.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for fewer than two of the first two, none of the third, or too
    /// many.
    pub fn new(keys: usize, values: usize, writes: usize) -> Result<Self> {
        within("keys", keys, 2..=SIZE / 2)?;
        within("values", values, 2..=SIZE / 2)?;
        within("writes", writes, 1..=64)?;
        Ok(Self { keys, values, writes })
    }

    /// Number of different tokens.
    pub fn vocabulary(self) -> usize {
        self.keys + self.values
    }

    /// Tokens of a sequence of this many keys; `usize::MAX` where there are more.
    pub fn length(self, pairs: usize) -> usize {
        pairs.saturating_mul(2 * self.writes + 1)
    }

    /// `batch` sequences of `pairs` pairs each.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no pair, or more pairs than keys.
    pub fn draw(self, random: &mut Random, batch: usize, pairs: usize) -> Result<Questions> {
        within("pairs", pairs, 1..=self.keys)?;
        within("batch", batch, 1..=SIZE / self.length(pairs))?;
        let (length, count) = (self.length(pairs), batch * pairs);
        let mut questions = Questions {
            batch,
            inputs: memory::with_capacity("recall", batch * length)?,
            rows: memory::with_capacity("recall", count)?,
            answers: memory::with_capacity("recall", count)?,
        };
        let mut keys = memory::collect("recall", 0..self.keys as u32)?;
        // A sequence is `writes` rounds of pairs, then the keys alone.
        for sequence in 0..batch {
            shuffle(random, &mut keys, pairs);
            let mut known: Vec<(u32, u32)> = keys[..pairs].iter().map(|&key| (key, 0)).collect();
            for round in 0..self.writes {
                if round > 0 {
                    shuffle(random, &mut known, pairs);
                }
                let values = self.keys as u32..self.vocabulary() as u32;
                known.iter_mut().for_each(|(_, value)| *value = random.within(values.clone()));
                questions.inputs.extend(known.iter().flat_map(|&(key, value)| [key, value]));
            }
            shuffle(random, &mut known, pairs);
            let first = ((sequence + 1) * length - pairs) as u32;
            questions.rows.extend(first..first + pairs as u32);
            questions.inputs.extend(known.iter().map(|(key, _)| key));
            questions.answers.extend(known.iter().map(|(_, value)| value));
        }
        Ok(questions)
    }
}
