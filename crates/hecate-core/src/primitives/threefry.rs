//! Random words that every device makes for itself.

/// Rounds of the generator.
const ROUNDS: usize = 20;
/// Rotations of its rounds, over and over.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
/// Joins the words of a key into a third.
const PARITY: u32 = 0x1BD1_1BDA;

/// Two random words of a key and a counter: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy
/// as 1, 2, 3"). Sums, rotations and exclusive ors of 32-bit words are the same on all devices.
#[inline]
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
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
}
