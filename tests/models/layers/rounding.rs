//! What rounding makes of a gradient: how far it moves in 64 bits when what it is taken at is rounded as 32 bits round.
//!
//! Most gradients move by less than fixed limits leave. A memory that writes what it reads itself, levels that feed each
//! other and keys near zero that are brought to one length make more of the same rounding, on every column alike.

use crate::column::Column;
use hecate_conformance::{
    Array, Random, error,
    oracle::{Forward, Leaf, differentiate},
    require::say,
};
use hecate_core::Device as _;

/// How much further than by one rounding of its arguments a gradient may be off. Where the fixed limit was too narrow,
/// 1.1 was the most that was found: on a GPU, before attention, with a titans memory frozen in groups.
const ROUNDINGS: f64 = 2.0;
/// How far over the fixed limit rounding may ever carry; what needs more tests nothing.
const MOST: f64 = 4.0;

/// Largest error of a gradient that moves so far by rounding, where others have the limit `fixed`. Where it is wider, that is
/// said. The CPU's column has no need of it.
pub(super) fn limit(what: &str, fixed: f64, moved: f64) -> f64 {
    let limit = (ROUNDINGS * moved).clamp(fixed, MOST * fixed);
    if Column::NAME == "cpu" || limit <= fixed {
        return fixed;
    }
    say(&format!("{what}: rounding moves its gradient by {moved:.1e}, its limit is {limit:.1e}"));
    limit
}

/// For each leaf, how far its gradient moves when every element of all leaves is half a unit in the last place of 32 bits off:
/// the largest of four draws of signs. `truth` holds the gradients at the leaves themselves.
pub(super) fn moved(leaves: &[Leaf], upstream: &[Array], forward: &Forward, truth: &[Vec<f64>]) -> Vec<f64> {
    let mut random = Random::new(31);
    let mut most = vec![0f64; truth.len()];
    for _ in 0..4 {
        let mut rounded = leaves.to_vec();
        for x in rounded.iter_mut().flat_map(|leaf| &mut leaf.array.values) {
            let half = f64::from(f32::EPSILON) / 2.0;
            *x *= if random.below(2) == 0 { 1.0 + half } else { 1.0 - half };
        }
        let (_, found) = differentiate(&rounded, upstream, forward);
        for ((most, truth), found) in most.iter_mut().zip(truth).zip(&found) {
            *most = most.max(error(truth, found));
        }
    }
    most
}
