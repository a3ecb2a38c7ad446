//! Compression.

use super::Sequence;
use hecate_models::Random;

/// The last token asks.
pub(super) const VOCABULARY: usize = 16;
/// Tokens to be given back.
const LENGTH: usize = 31;

/// `x1 … x31 c c … c`: after each `c` the next of the tokens.
pub(super) fn draw(random: &mut Random) -> Sequence {
    let ask = VOCABULARY as u32 - 1;
    let text: Vec<u32> = (0..LENGTH).map(|_| random.within(0..ask)).collect();
    let questions = text.iter().enumerate().map(|(i, &token)| (LENGTH + i, token)).collect();
    Sequence { tokens: [text, vec![ask; LENGTH]].concat(), questions }
}
