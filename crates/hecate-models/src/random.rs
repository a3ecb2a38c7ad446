//! Random numbers that are the same everywhere.

use crate::{Error, Result};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A stream of random numbers (ChaCha with 8 rounds): the same seed gives the same numbers on every machine and in every
/// version. Saved and loaded, it goes on where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream that belongs to a seed: weights and samples are drawn from it.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// As [`Random::new`], another of the seed's streams, none of which overlap; `stream` 0 is that of [`Random::new`].
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut random = Self::new(seed);
        random.0.set_stream(stream);
        random
    }

    /// The stream that belongs to these four numbers together; no two of them share one.
    pub fn keyed(key: [u64; 4]) -> Self {
        let mut seed = [0; 32];
        for (bytes, part) in seed.chunks_exact_mut(8).zip(key) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// The same stream, `count` calls of [`Random::unit`] further on.
    pub(crate) fn after_units(&self, count: usize) -> Self {
        let mut random = self.clone();
        // A unit takes two words of 32 bits.
        random.0.set_word_pos(self.0.get_word_pos() + 2 * count as u128);
        random
    }

    /// 32 random bits.
    pub(crate) fn word(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform over `0..count`.
    ///
    /// # Errors
    /// [`Error::Config`] for a `count` of 0.
    pub fn below(&mut self, count: usize) -> Result<usize> {
        if count == 0 {
            return Err(Error::config("count", count, "at least 1 number to choose from"));
        }
        Ok(self.within(0..count))
    }

    /// Uniform over a range; of one that is empty its start. Integers of different widths take different bits from the stream.
    pub fn within<T: Whole>(&mut self, range: Range<T>) -> T {
        if range.is_empty() { range.start } else { T::drawn(self, range) }
    }

    /// Uniform in `[0, 1)`: the upper 53 of 64 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Whole numbers that [`Random::within`] draws.
pub trait Whole: Copy + PartialOrd {
    /// Uniform over a range that is not empty.
    #[doc(hidden)]
    fn drawn(random: &mut Random, range: Range<Self>) -> Self;
}

macro_rules! whole {
    ($($integer:ty),*) => {
        $(impl Whole for $integer {
            fn drawn(random: &mut Random, range: Range<Self>) -> Self {
                random.0.random_range(range)
            }
        })*
    };
}

whole!(u32, u64, usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights and windows of published runs depend on these.
    #[test]
    fn streams_are_what_they_were() {
        let mut chacha = ChaCha8Rng::seed_from_u64(5);
        assert_eq!(Random::new(5).unit(), chacha.random::<f64>());
        assert_eq!(Random::new(5).below(1000).unwrap(), ChaCha8Rng::seed_from_u64(5).random_range(0..1000));
        assert!(Random::new(5).below(0).is_err());
        assert_eq!(Random::new(5).within(7..7), 7u32);
        assert_eq!(Random::new(5).within(std::ops::Range { start: 7, end: 3 }), 7usize);
        let mut chacha = ChaCha8Rng::seed_from_u64(5);
        chacha.set_stream(2);
        assert_eq!(Random::stream(5, 2).unit(), chacha.random::<f64>());
        assert_ne!(Random::stream(5, 2).unit(), Random::new(5).unit());
    }

    #[test]
    fn streams_go_on_from_anywhere() {
        let mut random = Random::stream(7, 1);
        // An odd number of words before, so that units lie across the generator's blocks.
        random.word();
        for count in [0, 1, 7, 8, 100] {
            let (start, ahead) = (random.clone(), random.after_units(count));
            (0..count).for_each(|_| _ = random.unit());
            assert_eq!(ahead, random, "{count} units after {start:?}");
            assert_eq!(ahead.clone().unit(), random.clone().unit());
        }
    }

    /// What a checkpoint of before kept is what one keeps now.
    #[test]
    fn saved_streams_are_those_of_the_generator() {
        let mut random = Random::stream(7, 1);
        random.below(10).unwrap();
        let text = serde_json::to_string(&random).unwrap();
        let mut generator: ChaCha8Rng = serde_json::from_str(&text).unwrap();
        assert_eq!(generator.random::<f64>(), random.unit());
    }
}
