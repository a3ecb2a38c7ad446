//! What is dropped while a model learns, so that it does not learn a small text by heart.

use crate::{Error, Random, Result};
use hecate_core::primitives::DropMask;
use std::cell::Cell;

/// Shares of elements that layers drop while they learn, each in `[0, 1)`. Evaluation and generation drop nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// Of what attention saw and memories read, before it is projected back to the stream.
    pub attention: f32,
    /// Of the elements inside MLPs.
    pub activation: f32,
    /// Of what mixers and MLPs add to the stream.
    pub hidden: f32,
}

impl Dropout {
    /// Refuses shares that cannot be.
    ///
    /// # Errors
    /// [`Error::Config`] naming the share as configurations do.
    pub fn check(&self) -> Result<()> {
        let Self { attention, activation, hidden } = *self;
        let shares = [("attention_dropout", attention), ("activation_dropout", activation), ("hidden_dropout", hidden)];
        shares.into_iter().try_for_each(|(field, share)| check_share(field, share))
    }
}

/// Refuses what is no share of elements to be dropped: all of them leave nothing to learn from. NaN too.
pub(crate) fn check_share(field: &str, share: f32) -> Result<()> {
    if (0.0..1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::config(field, share, "at least 0 and under 1, the share of elements that is dropped"))
}

/// Which masks a pass drops by. The same numbers give the same masks, wherever a run was stopped in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the run.
    pub step: u64,
    /// Pass of the step, from 0.
    pub pass: u64,
}

/// The masks of one pass, each drawn from a stream of its own.
#[derive(Debug)]
pub(crate) struct Draws {
    masks: Masks,
    /// Masks drawn. A model's layers ask for them in the same order in each pass.
    count: Cell<u64>,
}

impl Draws {
    /// None drawn yet.
    pub(crate) fn new(masks: Masks) -> Self {
        Self { masks, count: Cell::new(0) }
    }

    /// The next mask: it drops elements with the probability `share`.
    pub(crate) fn mask(&self, share: f32) -> DropMask {
        let Masks { seed, step, pass } = self.masks;
        let mut random = Random::keyed([seed, step, pass, self.count.replace(self.count.get() + 1)]);
        DropMask::new([random.word(), random.word()], share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKS: Masks = Masks { seed: 3, step: 5, pass: 0 };

    #[test]
    fn each_seed_step_pass_and_use_has_its_own() {
        let mask = |masks| Draws::new(masks).mask(0.5);
        let first = mask(MASKS);
        assert_eq!(first, mask(MASKS));
        for other in [Masks { seed: 4, ..MASKS }, Masks { step: 6, ..MASKS }, Masks { pass: 1, ..MASKS }] {
            assert_ne!(first, mask(other), "{other:?}");
        }
        let draws = Draws::new(MASKS);
        let mask = || draws.mask(0.5);
        assert_eq!((mask() == first, mask() == first), (true, false));
    }

    #[test]
    fn shares_are_under_one() {
        assert!(Dropout { attention: 0.0, activation: 0.5, hidden: 0.999 }.check().is_ok());
        for share in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
            let told = Dropout { activation: share, ..Dropout::default() }.check().unwrap_err().to_string();
            assert!(told.contains("activation_dropout"), "{told}");
        }
    }
}
