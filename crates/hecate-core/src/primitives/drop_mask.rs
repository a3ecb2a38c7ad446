//! Masks of dropout, which every device makes for itself.

/// Rounds of the generator.
const ROUNDS: usize = 20;
/// Rotations of its rounds, over and over.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
/// Joins the words of a key into a third.
const PARITY: u32 = 0x1BD1_1BDA;

/// Which elements of an array are dropped, and what the others are multiplied by.
///
/// Element `i` has a random word of its own, word `i mod 2` of block `⌊i/2⌋`. So devices make the same mask in whatever
/// order they make it. The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1,
/// 2, 3"): sums, rotations and exclusive ors of 32-bit words, which all of them have.
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

/// Two random words of a key and a counter.
#[inline]
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let [mut x, mut y] = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for round in 0..ROUNDS {
        x = x.wrapping_add(y);
        y = y.rotate_left(ROTATIONS[round % 8]) ^ x;
        // The key comes in again after every fourth round.
        if round % 4 == 3 {
            let n = round / 4 + 1;
            x = x.wrapping_add(keys[n % 3]);
            y = y.wrapping_add(keys[(n + 1) % 3]).wrapping_add(n as u32);
        }
    }
    [x, y]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors' own: zeros, ones, and digits of pi.
    #[test]
    fn words_are_those_that_were_published() {
        assert_eq!(threefry([0; 2], [0; 2]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        let (key, counter) = ([0x13198a2e, 0x03707344], [0x243f6a88, 0x85a308d3]);
        assert_eq!(threefry(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }

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
