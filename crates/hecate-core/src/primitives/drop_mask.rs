//! Masks of dropout, which every device makes for itself.

use super::threefry::threefry;

/// Which elements of an array are dropped, and what the others are multiplied by.
///
/// Element `i` has a random word of its own, word `i mod 2` of block `⌊i/2⌋`. So devices make the same mask in whatever
/// order they make it. The generator is Threefry-2x32 with 20 rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropMask {
    /// Key of the generator: another makes another mask.
    pub key: [u32; 2],
    /// Elements whose word is under it are dropped: the share of them times `2³²`.
    pub dropped: u32,
    /// Factor of the others.
    pub kept: f32,
}

impl DropMask {
    /// The mask of this key that drops a share of elements in `[0, 1)`, and divides the others by `1 − share`.
    pub fn new(key: [u32; 2], share: f32) -> Self {
        let share = f64::from(share);
        Self { key, dropped: (share * 2f64.powi(32)) as u32, kept: (1.0 - share).recip() as f32 }
    }

    /// What element `i` is multiplied by.
    #[inline]
    pub fn factor(&self, i: u64) -> f32 {
        let block = i / 2;
        let words = threefry(self.key, [block as u32, (block >> 32) as u32]);
        if words[(i % 2) as usize] < self.dropped { 0.0 } else { self.kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_keep_the_mean() {
        const COUNT: u64 = 100_000;
        for share in [0.1, 0.5, 0.9] {
            let mask = DropMask::new([3, 5], share);
            let sum = (0..COUNT).map(|i| f64::from(mask.factor(i))).sum::<f64>();
            let mean = sum / COUNT as f64;
            // Four standard deviations.
            let share = f64::from(share);
            let allowed = 4.0 * (share / (1.0 - share) / COUNT as f64).sqrt();
            assert!((mean - 1.0).abs() < allowed, "{share}: a mean of {mean}");
        }
        // Blocks past 32 bits have words of their own.
        let word = |i| threefry([3, 5], [i as u32, (i >> 32) as u32]);
        assert_ne!(word(7u64), word(7 + (1 << 32)));
    }
}
