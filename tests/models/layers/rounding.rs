//! What rounding makes of a gradient: how far it moves in 64 bits when what it is taken at is rounded as 32 bits round.
//!
//! A memory that writes what it reads itself, levels that feed each other and keys near zero that are brought to one length
//! can make a thousand roundings of one. There the order of a machine's sums would decide a test, so such draws are passed by.

use hecate_conformance::{
    Array, Random, error,
    oracle::{Forward, Leaf, differentiate},
};

/// How often a draw may be passed by before that is an error of its own.
const DRAWS: u64 = 64;
/// What part of a limit rounding the arguments once may use up: what is computed with them rounds more than once.
const PART: f64 = 0.5;

/// Runs `check` on draws by number until one is sound; it gives `None` for a draw that it passes by.
pub(super) fn first_sound(what: &str, check: impl FnMut(u64) -> Option<()>) {
    (0..DRAWS).find_map(check).unwrap_or_else(|| panic!("{what}: rounding would decide in each of {DRAWS} draws"));
}

/// `None` where rounding moves a gradient so far that a limit of `limit` says nothing of the code.
pub(super) fn is_sound(moved: &[f64], limit: f64) -> Option<()> {
    moved.iter().all(|&moved| moved <= PART * limit).then_some(())
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
