//! In-context recall.

use super::Sequence;
use crate::tasks::Purpose;
use hecate_models::Random;

/// The lower half are keys, the upper half values.
pub(super) const VOCABULARY: usize = 16;
/// Pairs of a sequence, the last of which is asked for.
const PAIRS: usize = 64;

/// `k v k v …` without noise.
pub(super) fn draw(random: &mut Random, purpose: Purpose) -> Sequence {
    pairs(random, purpose, |_| None)
}

/// Pairs, in place of some of which is what `noise` draws.
pub(super) fn pairs(
    random: &mut Random,
    purpose: Purpose,
    mut noise: impl FnMut(&mut Random) -> Option<[u32; 2]>,
) -> Sequence {
    let keys = VOCABULARY as u32 / 2;
    let mut values: Vec<Option<u32>> = vec![None; keys as usize];
    let (mut text, mut places) = (Vec::with_capacity(2 * PAIRS), Vec::new());
    // Some pair is no noise, so that there is a key to ask for.
    let certain = random.within(0..PAIRS - 1);
    for pair in 0..PAIRS - 1 {
        match noise(random).filter(|_| pair != certain) {
            Some(noise) => text.extend(noise),
            None => {
                let key = random.within(0..keys);
                append(random, key, &mut values, &mut text, &mut places);
            }
        }
    }
    let shown: Vec<u32> = (0..keys).filter(|&key| values[key as usize].is_some()).collect();
    let key = shown[random.within(0..shown.len())];
    append(random, key, &mut values, &mut text, &mut places);
    Sequence::predicting(text, places, purpose)
}

/// A key with its value, whose place is noted if it was shown before.
fn append(random: &mut Random, key: u32, values: &mut [Option<u32>], text: &mut Vec<u32>, places: &mut Vec<usize>) {
    if values[key as usize].is_some() {
        places.push(text.len() + 1);
    }
    let value = *values[key as usize].get_or_insert_with(|| random.within(VOCABULARY as u32 / 2..VOCABULARY as u32));
    text.extend([key, value]);
}
