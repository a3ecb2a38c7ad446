//! Blocks of the 16-bit chunk form: how wide, how many threads, and how much shared memory each kernel needs.

use super::super::layout::CHUNK;
use crate::Cuda;
use hecate_core::Dims;

/// Threads of a block that prepares one chunk.
const THREADS: u32 = 128;
/// Warps that read ahead for those that go from chunk to chunk.
const READERS: u32 = 4;

/// Vectors and scalars of a chunk of a head.
pub(super) const ELEMENTS: usize = 8 * CHUNK + 8;
/// At most these bytes of shared memory kernels that work on one chunk have beside tiles, and with momentum the gradients
/// for tables.
pub(super) const OWN: usize = 23 << 10;
/// Bytes that tables of momentum take beside that.
const TABLES: usize = 45 << 10;

/// Sizes of tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    /// Columns of tiles of keys.
    pub(super) keys: usize,
    /// Pairs of warps of a block of the forward that goes from chunk to chunk, 16 value columns each.
    pub(super) pairs: usize,
    /// Chunks that lie in the shared memory of the first of each pair.
    pub(super) fronts: usize,
    /// Warps of a block of the backward that does.
    pub(super) warps: usize,
    /// Warps beside them.
    pub(super) others: usize,
    /// Chunks that lie in the shared memory of such a block: the one in work, and those read ahead.
    pub(super) stages: usize,
}

impl Tiles {
    /// The widest blocks of which there are enough, and for which there is room; or those of four warps, which multiply as
    /// a group.
    pub(super) fn new(device: &Cuda, dims: &Dims, matrices: usize) -> Self {
        let (properties, groups) = (device.properties(), device.groups());
        let keys = dims.key.next_power_of_two().max(64);
        let blocks = |warps: usize| dims.sequences.count() * dims.heads * dims.value.div_ceil(16 * warps);
        // Two thirds of the multiprocessors have a block at least.
        let enough = |warps: usize| 3 * blocks(warps) >= 2 * properties.multiprocessors as usize;
        // Half as wide a block would not hold all columns.
        let no_wider = |warps: usize| 16 * (warps / 2) < dims.value;
        let narrow = Self { keys, pairs: 2, fronts: 2, warps: 2, others: 4, stages: 2 };
        let fits = |tiles: &Self| tiles.shared(matrices)[1..3].iter().all(|&bytes| bytes <= properties.shared_memory);
        // Groups have eight warps beside those of the columns, and more chunks on their way.
        let (fronts, others) = if groups { (3, 8) } else { (2, 4) };
        // The widest first.
        let wide: &[Self] = match keys {
            64 => &[Self { keys, pairs: 4, fronts, warps: 4, others, stages: 3 }],
            128 if matrices == 1 => &[
                Self { keys, pairs: 4, fronts: 2, warps: 8, others: 4, stages: 2 },
                Self { keys, pairs: 4, fronts, warps: 4, others, stages: 3 },
            ],
            128 => &[Self { keys, pairs: 4, fronts: 2, warps: 4, others, stages: 2 }],
            _ => &[],
        };
        let chosen = |warps: usize| if groups { warps == 4 } else { enough(warps) && no_wider(warps) };
        let good = |tiles: &Self| chosen(tiles.warps) && fits(tiles);
        // Three chunks in shared memory where they fit.
        let three = Self { stages: 3, ..narrow };
        let or_narrow = if fits(&three) { three } else { narrow };
        wide.iter().copied().find(good).unwrap_or(or_narrow)
    }

    /// Blocks of columns of the kernels from chunk to chunk.
    pub(super) fn blocks(self, kernel: usize, dims: &Dims) -> usize {
        dims.value.div_ceil(16 * if kernel == 1 { self.pairs } else { self.warps })
    }

    /// Threads of a block of each kernel. Where two wide matrices leave no registers for more warps, and groups cannot give
    /// theirs away, the second of each pair reads ahead.
    pub(super) fn threads(self, kernel: usize, matrices: usize) -> u32 {
        match kernel {
            0 => THREADS,
            1 if matrices == 2 && self.keys * self.pairs >= 512 && self.others == 4 => 64 * self.pairs as u32,
            1 => 64 * self.pairs as u32 + 32 * READERS,
            2 => 32 * (self.warps + self.others) as u32,
            _ if self.keys == 256 || self.keys == 128 && matrices == 2 => 512,
            _ => 256,
        }
    }

    /// Bytes of shared memory of the four kernels, as they lay it out.
    pub(super) fn shared(self, matrices: usize) -> [usize; 4] {
        // Elements from row to row, of rows of keys and of squares.
        let (row, side) = (self.keys + 8, CHUNK + 8);
        let narrow = |warps: usize| 16 * warps + 8;
        // Keys and queries; then parts of L and of T in their place.
        let prepare = (2 * 2 * CHUNK * row).max(2 * CHUNK * (2 * side + 2 * 24) + 4 * CHUNK * 20);
        // Keys, values, T, vectors.
        let front = 2 * CHUNK * (row + narrow(self.pairs) + side) + 4 * ELEMENTS;
        // Queries, Y ∘ Q Kᵀ, vectors.
        let back = 2 * CHUNK * (row + side) + 4 * ELEMENTS;
        // Left factors and their scales.
        let left_factors = (32 * 16 * (self.keys / 16 * matrices + 4) + 4 * 16) * self.pairs;
        // Keys, queries, dO or Λ, both squares, vectors.
        let stage = 2 * CHUNK * (2 * row + narrow(self.warps) + 2 * side) + 4 * ELEMENTS + 16;
        let kept = (32 * 16 * self.keys / 16 * matrices + 4 * 16) * self.warps + 4 * READERS as usize;
        // Value columns of a slab.
        let slab = self.threads(3, matrices) as usize / 8;
        let slabs = 2 * 2 * (2 * CHUNK * (slab + 8) + matrices * slab * row) + 2 * 2 * CHUNK * side;
        let values = 2 * 3 * CHUNK * (self.keys.min(128) + 8);
        let gradients = 2 * 2 * CHUNK * row + slabs.max(values) + OWN + (matrices - 1) * TABLES;
        [prepare + OWN, self.fronts * front + 2 * (back + left_factors), self.stages * stage + 2 * kept, gradients]
    }
}
