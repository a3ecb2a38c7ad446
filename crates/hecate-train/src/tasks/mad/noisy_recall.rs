//! Noisy in-context recall.

use super::{Sequence, context_recall};
use crate::tasks::Purpose;
use hecate_models::Random;

/// Keys, values, and as many tokens of noise as both.
pub(super) const VOCABULARY: usize = 2 * context_recall::VOCABULARY;
/// Share of pairs that are noise.
const NOISE: f64 = 0.2;

/// Pairs, a fifth of them noise.
pub(super) fn draw(random: &mut Random, purpose: Purpose) -> Sequence {
    let token = |random: &mut Random| random.within(context_recall::VOCABULARY as u32..VOCABULARY as u32);
    context_recall::pairs(random, purpose, |random| (random.unit() < NOISE).then(|| [token(random), token(random)]))
}
