//! Long sequences of few heads in segments. Blocks that go from chunk to chunk leave multiprocessors idle; these work on the
//! chunks of another segment meanwhile.

use crate::arguments::arguments;

arguments! {
    /// Chunks of every sequence, from `first` on.
    #[derive(PartialEq, Eq)]
    pub(super) struct Segment {
        /// The first of them.
        pub(super) first: u32,
        /// How many.
        pub(super) chunks: u32,
    }
}

/// A segment has at least so many chunks, beside which starting its kernels takes little.
const SHORTEST: usize = 32;

/// At most so many: the first is prepared, and the last differentiated, with nothing beside it.
const MOST: usize = 8;

/// The segments of sequences of up to `chunks` chunks: one, unless `blocks` blocks, one to a multiprocessor, leave a quarter
/// of these idle.
pub(super) fn segments(chunks: usize, blocks: usize, multiprocessors: usize) -> Vec<Segment> {
    // Multiprocessors of all rounds of blocks.
    let rounds = blocks.div_ceil(multiprocessors.max(1)) * multiprocessors;
    let count = if 4 * blocks <= 3 * rounds { (chunks / SHORTEST).clamp(1, MOST) } else { 1 };
    let each = chunks.div_ceil(count);
    (0..count).map(|i| Segment { first: (i * each) as u32, chunks: each as u32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_all_chunks_once() {
        // Around the shortest segment and its multiples.
        for chunks in [0, 1, 63, 64, 65, 100, 256, 257, 5000] {
            let of = segments(chunks, 64, 132);
            let mut next = 0;
            for segment in &of {
                assert_eq!(segment.first, next, "{chunks}");
                next += segment.chunks;
            }
            assert!(next as usize >= chunks && (next as usize) < chunks + of.len().max(1), "{chunks}: {of:?}");
            assert_eq!(of.len(), (chunks / 32).clamp(1, 8), "{chunks}");
        }
    }

    #[test]
    fn blocks_that_fill_the_device_go_in_one() {
        // 99 of 132 leave a quarter idle, 100 do not; 133 need a second round.
        for (blocks, count) in [(1, 8), (64, 8), (99, 8), (100, 1), (132, 1), (133, 8), (192, 8), (200, 1), (512, 1)] {
            assert_eq!(segments(256, blocks, 132).len(), count, "{blocks}");
        }
    }
}
