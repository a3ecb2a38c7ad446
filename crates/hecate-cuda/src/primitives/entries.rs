//! Many arrays in one call.

use crate::Cuda;
use hecate_core::{Result, Tensor};

/// Elements of a block; `BLOCK_ELEMENTS` in `entries.cuh`.
const BLOCK_ELEMENTS: usize = 8192;

/// A table of arrays that one call takes, entry by entry, in words of 64 bits; where each one's blocks begin is their last.
pub(super) struct Entries {
    words: Vec<u64>,
    pub(super) blocks: usize,
}

impl Entries {
    /// No arrays yet.
    pub(super) fn new() -> Self {
        Self { words: Vec::new(), blocks: 0 }
    }

    /// One array more, or several of one shape, of `count` elements.
    pub(super) fn add(&mut self, words: impl IntoIterator<Item = u64>, count: usize) {
        self.words.extend(words.into_iter().chain([count as u64, self.blocks as u64]));
        self.blocks += count.div_ceil(BLOCK_ELEMENTS);
    }

    /// On the device.
    pub(super) fn table(&self, device: &Cuda) -> Result<Tensor<Cuda>> {
        let halves = self.words.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]);
        device.table(&halves.collect::<Vec<_>>())
    }
}
