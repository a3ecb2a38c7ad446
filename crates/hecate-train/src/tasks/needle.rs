//! A needle in a haystack.

use super::Questions;
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// One key-value pair anywhere in noise; the last token is the key once more: which value came with it? The passkey task
/// of Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", with made-up tokens.
///
/// ```text
/// . . . . . . k v . . . . . . . . . k          the answer after the last token: v
/// ```
///
/// Tokens are keys, then values, then noise: a memory that takes noise for what it is holds the pair at any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needle {
    keys: usize,
    values: usize,
    noise: usize,
}

impl Needle {
    /// Tokens of the shortest sequence: a pair and its query.
    pub const SHORTEST: usize = 3;

    /// Numbers of different keys, values and tokens of noise.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no key, fewer than two values, no noise, or too many.
    pub fn new(keys: usize, values: usize, noise: usize) -> Result<Self> {
        within("keys", keys, 1..=SIZE / 4)?;
        within("values", values, 2..=SIZE / 4)?;
        within("noise", noise, 1..=SIZE / 4)?;
        Ok(Self { keys, values, noise })
    }

    /// Number of different tokens.
    pub fn vocabulary(self) -> usize {
        self.keys + self.values + self.noise
    }

    /// `batch` sequences of `length` tokens.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no sequence, under three tokens, or too many.
    pub fn draw(self, random: &mut Random, batch: usize, length: usize) -> Result<Questions> {
        within("length", length, Self::SHORTEST..=SIZE)?;
        within("batch", batch, 1..=SIZE / length)?;
        let [keys, values, all] = [self.keys, self.keys + self.values, self.vocabulary()].map(|end| end as u32);
        let mut inputs: Vec<u32> = (0..batch * length).map(|_| random.within(values..all)).collect();
        let mut answers = Vec::with_capacity(batch);
        for text in inputs.chunks_mut(length) {
            let (key, value) = (random.within(0..keys), random.within(keys..values));
            // Anywhere before the query.
            let place = random.within(0..length - 2);
            (text[place], text[place + 1], text[length - 1]) = (key, value, key);
            answers.push(value);
        }
        let rows = (1..=batch).map(|text| (text * length - 1) as u32).collect();
        Ok(Questions { batch, inputs, rows, answers })
    }
}
