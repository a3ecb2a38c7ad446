//! The 6-bit scales and minima of a block of `q4_k` and `q5_k`, 16 of them in 12 bytes.

/// Groups of a block, each of 32 values.
const GROUPS: usize = 8;

/// Bytes that they take.
pub(super) const BYTES: usize = 12;

/// Scales `s` and minima `m` of the eight groups of 32 values, each under 64.
///
/// Of the first four groups, bytes 0 to 3 have the scales and bytes 4 to 7 the minima in their lower six bits. Of the last
/// four, bytes 8 to 11 have the lower four bits of both, scales first. Their upper two bits are those of bytes 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KScales {
    /// Scales.
    pub scales: [u8; GROUPS],
    /// What is subtracted.
    pub minima: [u8; GROUPS],
}

impl KScales {
    /// From the bytes of a block. Four groups are read at a time, as the bytes of a word.
    #[inline(always)]
    pub fn unpack(bytes: &[u8; BYTES]) -> Self {
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let (first, second, last) = (word(0), word(4), word(8));
        let (six, four) = (0x3f3f_3f3f, 0x0f0f_0f0f);
        // The upper two bits of a byte become bits 4 and 5.
        let upper = |word: u32| word >> 2 & 0x3030_3030;
        let joined = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Self {
            scales: joined(first & six, last & four | upper(first)).to_le_bytes(),
            minima: joined(second & six, last >> 4 & four | upper(second)).to_le_bytes(),
        }
    }

    /// The bytes of a block.
    pub fn pack(&self) -> [u8; BYTES] {
        let Self { scales, minima } = self;
        std::array::from_fn(|i| match i {
            0..4 => scales[i] | scales[i + 4] >> 4 << 6,
            4..8 => minima[i - 4] | minima[i] >> 4 << 6,
            _ => scales[i - 4] & 15 | minima[i - 4] << 4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout in words, group by group: what packing and unpacking are both held to.
    fn by_group(bytes: &[u8; BYTES], j: usize) -> (u8, u8) {
        match j {
            0..4 => (bytes[j] & 63, bytes[j + 4] & 63),
            _ => (bytes[j + 4] & 15 | bytes[j - 4] >> 6 << 4, bytes[j + 4] >> 4 | bytes[j] >> 6 << 4),
        }
    }

    /// All 64 × 64 pairs of a scale and a minimum in each of the eight groups, the others holding something else.
    #[test]
    fn every_pattern_of_six_bits_in_every_group() {
        for (j, scale, minimum) in
            (0..GROUPS).flat_map(|j| (0..64).flat_map(move |scale| (0..64).map(move |minimum| (j, scale, minimum))))
        {
            let mut whole = KScales {
                scales: std::array::from_fn(|i| ((7 * i + 5 * usize::from(minimum)) % 64) as u8),
                minima: std::array::from_fn(|i| ((11 * i + 3 * usize::from(scale)) % 64) as u8),
            };
            (whole.scales[j], whole.minima[j]) = (scale, minimum);
            let bytes = whole.pack();
            assert_eq!(KScales::unpack(&bytes), whole);
            for i in 0..GROUPS {
                assert_eq!(by_group(&bytes, i), (whole.scales[i], whole.minima[i]), "group {i}");
            }
        }
    }

    /// Every value of every byte: none is refused, and each of the 96 bits is kept.
    #[test]
    fn every_byte_comes_back() {
        for (i, value) in (0..BYTES).flat_map(|i| (0..=255u8).map(move |value| (i, value))) {
            let mut bytes: [u8; BYTES] = std::array::from_fn(|k| (37 * k + 11) as u8);
            bytes[i] = value;
            assert_eq!(KScales::unpack(&bytes).pack(), bytes);
        }
    }
}
