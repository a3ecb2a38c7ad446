//! Multi-query associative recall at its published difficulty.

use super::{Questions, shuffle};
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// Exponent of the power law of gaps; 1 would spread queries evenly.
const POWER: f64 = 0.01;

/// What stands between the queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filler {
    /// Any tokens of the vocabulary.
    #[default]
    Random,
    /// Token 0, which is no key.
    Zeros,
}

/// Key-value pairs, then each key once more, spread over the rest of the sequence, which other tokens fill. Only after
/// queries there are questions (Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models").
///
/// ```text
/// k1 v1 k2 v2 … kn vn   kσ(1) . . . kσ(2) . kσ(3) . . . . . . kσ(n) .
/// ```
///
/// The rest of a sequence has a place for a query every two tokens. Places are drawn without replacement, the one after
/// `g` others with a probability that goes with `(g + 1)^(0.01 − 1)`: a query is likely to come soon.
///
/// Keys are the lower half of the vocabulary without 0, values the upper half. No key and no value comes twice in the
/// pairs of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadRecall {
    vocabulary: usize,
    filler: Filler,
}

impl SpreadRecall {
    /// A vocabulary of so many tokens, 8,192 in the paper.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for fewer than four tokens, or too many.
    pub fn new(vocabulary: usize, filler: Filler) -> Result<Self> {
        within("vocabulary", vocabulary, 4..=SIZE)?;
        Ok(Self { vocabulary, filler })
    }

    /// Number of different tokens.
    pub fn vocabulary(self) -> usize {
        self.vocabulary
    }

    /// Refuses a length that cannot hold so many pairs and their queries, and more pairs than keys.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) naming the one at fault.
    pub fn check(self, length: usize, pairs: usize) -> Result<()> {
        within("pairs", pairs, 1..=self.vocabulary / 2 - 1)?;
        // Two tokens a pair, and room for as many queries.
        within(format!("length with {pairs} pairs"), length, 4 * pairs..=SIZE)
    }

    /// `batch` sequences of `length` tokens with `pairs` pairs each.
    ///
    /// # Errors
    /// As [`SpreadRecall::check`]; [`Error::Config`](hecate_models::Error::Config) for no sequence or too many.
    pub fn draw(self, random: &mut Random, batch: usize, length: usize, pairs: usize) -> Result<Questions> {
        self.check(length, pairs)?;
        within("batch", batch, 1..=SIZE / length)?;
        let half = self.vocabulary as u32 / 2;
        let (mut keys, mut values): (Vec<u32>, Vec<u32>) =
            ((1..half).collect(), (half..self.vocabulary as u32).collect());
        let mut questions = Questions { batch, inputs: Vec::new(), rows: Vec::new(), answers: Vec::new() };
        for _ in 0..batch {
            shuffle(random, &mut keys, pairs);
            shuffle(random, &mut values, pairs);
            self.append(random, &mut questions, length, (&keys[..pairs], &values[..pairs]));
        }
        Ok(questions)
    }

    /// One more sequence of these keys and values.
    fn append(self, random: &mut Random, questions: &mut Questions, length: usize, (keys, values): (&[u32], &[u32])) {
        let (start, written) = (questions.inputs.len(), 2 * keys.len());
        questions.inputs.extend(keys.iter().zip(values).flat_map(|(&key, &value)| [key, value]));
        for _ in written..length {
            questions.inputs.push(match self.filler {
                Filler::Random => random.within(0..self.vocabulary as u32),
                Filler::Zeros => 0,
            });
        }
        let gaps = gaps(random, (length - written) / 2, keys.len());
        // By their places, so that rows rise.
        let mut queries: Vec<(usize, usize)> = gaps.into_iter().enumerate().map(|(pair, gap)| (gap, pair)).collect();
        queries.sort_unstable();
        for (gap, pair) in queries {
            let row = start + written + 2 * gap;
            questions.inputs[row] = keys[pair];
            questions.rows.push(row as u32);
            questions.answers.push(values[pair]);
        }
    }
}

/// `count` different numbers under `space`, each drawn among those that are left with probabilities by the power law.
fn gaps(random: &mut Random, space: usize, count: usize) -> Vec<usize> {
    // A race: who arrives after an exponential time of its own rate is drawn first.
    let arrival = |gap: usize| -(1.0 - random.unit()).ln() / ((gap + 1) as f64).powf(POWER - 1.0);
    let times: Vec<f64> = (0..space).map(arrival).collect();
    let mut order: Vec<usize> = (0..space).collect();
    order.sort_by(|&a, &b| times[a].total_cmp(&times[b]));
    order.truncate(count);
    order
}
