//! Parity.

use super::Questions;
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// Zeros and ones: after each, is the number of ones so far even (0) or odd (1)? A state of one bit that half of the
/// tokens flip. It is the smallest that a memory whose steps only shrink it cannot track (Grazzi et al., "Unlocking
/// State-Tracking in Linear RNNs Through Negative Eigenvalues").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parity;

impl Parity {
    /// Number of different tokens.
    pub const VOCABULARY: usize = 2;

    /// `batch` sequences of `length` bits, each followed by a question.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no sequence, no bit, or too many.
    pub fn draw(self, random: &mut Random, batch: usize, length: usize) -> Result<Questions> {
        within("length", length, 1..=SIZE)?;
        within("batch", batch, 1..=SIZE / length)?;
        let inputs: Vec<u32> = (0..batch * length).map(|_| random.within(0..2)).collect();
        let odd = |bits: &[u32]| {
            let so_far = bits.iter().scan(0, |odd, bit| {
                *odd ^= bit;
                Some(*odd)
            });
            so_far.collect::<Vec<_>>()
        };
        let answers = inputs.chunks(length).flat_map(odd).collect();
        Ok(Questions { batch, rows: (0..inputs.len() as u32).collect(), inputs, answers })
    }
}
