//! Memorisation.

use super::{STREAM, Sequence};
use crate::tasks::shuffle;
use hecate_models::Random;

/// Keys, values, and a token that asks.
pub(super) const VOCABULARY: usize = 256;
/// The last token asks; of the others the lower half are keys.
const ASK: u32 = VOCABULARY as u32 - 1;
/// Keys of a sequence.
const PAIRS: usize = 16;

/// `k ? k ? …`: after each `?` the value of the key before.
pub(super) fn draw(random: &mut Random) -> Sequence {
    let values = values();
    let keys: Vec<u32> = (0..PAIRS).map(|_| random.within(0..ASK / 2)).collect();
    let tokens = keys.iter().flat_map(|&key| [key, ASK]).collect();
    let questions = keys.iter().enumerate().map(|(i, &key)| (2 * i + 1, values[key as usize])).collect();
    Sequence { tokens, questions }
}

/// The value of each key, the same in every sequence.
fn values() -> Vec<u32> {
    let mut values: Vec<u32> = (ASK / 2..ASK).collect();
    let count = values.len();
    shuffle(&mut Random::keyed([STREAM, 0, 0, 1]), &mut values, count);
    values
}
