//! Fuzzy in-context recall.

use super::Sequence;
use crate::tasks::{Purpose, shuffle};
use hecate_models::Random;
use std::{collections::HashMap, ops::Range};

/// Keys are made of the first tokens, values of the others but the last, which fills what is left at the start.
pub(super) const VOCABULARY: usize = 16;
/// Tokens that keys are made of.
const KEYS: Range<u32> = 0..7;
/// Tokens that values are made of.
const VALUES: Range<u32> = 7..15;
/// Most tokens of a key or a value.
const MOTIF: usize = 3;
/// Tokens of a sequence, and one more that is only predicted.
const LENGTH: usize = 129;

/// Pairs of motifs, then the key of one of them and its value.
pub(super) fn draw(random: &mut Random, purpose: Purpose) -> Sequence {
    let probe = (key(random, purpose), motif(random, VALUES, 1));
    // Pairs of the greatest size and the probe have room after this.
    let end = LENGTH - 1 - 2 * MOTIF - probe.0.len() - probe.1.len();
    let place = random.within(0..end - 2 * MOTIF);
    let mut text = Text::default();
    while text.tokens.len() < end {
        let shown = text.values.contains_key(&probe.0);
        // Where it comes by chance, it is there.
        if text.tokens.len() >= place && !shown {
            text.append(probe.0.clone(), probe.1.clone());
        } else {
            text.append(key(random, purpose), motif(random, VALUES, 1));
        }
    }
    text.append(probe.0, probe.1);
    // The paper pads at the start.
    let pad = LENGTH - text.tokens.len();
    let tokens = [vec![VOCABULARY as u32 - 1; pad], text.tokens].concat();
    Sequence::predicting(tokens, text.places.iter().map(|place| pad + place).collect(), purpose)
}

/// What a sequence consists of so far.
#[derive(Default)]
struct Text {
    tokens: Vec<u32>,
    /// Places of values that can be known.
    places: Vec<usize>,
    /// Value of each key that was shown.
    values: HashMap<Vec<u32>, Vec<u32>>,
}

impl Text {
    /// A key, and this value unless it has one.
    fn append(&mut self, key: Vec<u32>, value: Vec<u32>) {
        let known = self.values.contains_key(&key);
        self.tokens.extend(&key);
        let value = self.values.entry(key).or_insert(value);
        if known {
            self.places.extend(self.tokens.len()..self.tokens.len() + value.len());
        }
        self.tokens.extend(&*value);
    }
}

/// A key of any size to learn from, of the greatest to be measured.
fn key(random: &mut Random, purpose: Purpose) -> Vec<u32> {
    motif(random, KEYS, if purpose == Purpose::Learning { 1 } else { MOTIF })
}

/// At least `least` different tokens in any order.
fn motif(random: &mut Random, tokens: Range<u32>, least: usize) -> Vec<u32> {
    let size = random.within(least..MOTIF + 1);
    let mut tokens: Vec<u32> = tokens.collect();
    shuffle(random, &mut tokens, size);
    tokens.truncate(size);
    tokens
}
