//! Many arrays in one call.

use crate::{Cuda, device::Buffer};
use hecate_core::Result;
use std::sync::Arc;

/// Elements of a block; `BLOCK_ELEMENTS` in `entries.cuh`. A small model's parameters are to fill a GPU, and a large
/// one's blocks are to look for their array seldom.
const BLOCK_ELEMENTS: usize = 4096;

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
    pub(super) fn table(&self, device: &Cuda) -> Result<Arc<Buffer>> {
        let halves = self.words.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]);
        // A captured step leaves gradients where they were, so that its update has the same table every time.
        device.recent_table(&halves.collect::<Vec<_>>())
    }
}
