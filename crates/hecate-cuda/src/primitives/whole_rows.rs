//! How rows that are read as a whole are spread over threads.

use crate::launch::Grid;

/// Threads of a block at most.
const THREADS: usize = 256;

/// Runs of 16 bytes that a thread keeps; `KEPT` in the kernels.
const KEPT: usize = 4;

/// Threads of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeRows {
    /// Threads of a row: a warp, or a block.
    pub(super) lanes: usize,
    /// Whether threads keep a row from its sums to its result, so that it is read once.
    pub(super) kept: bool,
    /// A row, or several, a block.
    pub(super) grid: Grid,
}

impl WholeRows {
    /// For `rows` of `width` elements, `wide` of which have 16 bytes.
    pub(super) fn new(rows: usize, width: usize, wide: usize) -> Self {
        let runs = width.div_ceil(wide);
        // Runs begin at multiples of their length.
        let kept = width.is_multiple_of(wide) && runs <= THREADS * KEPT;
        let lanes = match runs {
            // A warp needs no barrier; more rows fit a block.
            _ if runs <= 32 * KEPT => 32,
            // As many as keep the row: more blocks fit a processor.
            _ if kept => runs.div_ceil(KEPT).next_power_of_two(),
            _ => THREADS,
        };
        let threads = if lanes == 32 { THREADS } else { lanes };
        let blocks = rows.div_ceil(threads / lanes);
        // Rows that are not kept are taken in turn, where there are more than blocks.
        let blocks = if kept { blocks } else { blocks.min(65_535) };
        Self { lanes, kept, grid: Grid::blocks(blocks, threads as u32) }
    }
}

/// How rows are spread whose gradients a block makes, one row after another, while it keeps its part of sums over rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBlocks {
    /// Threads of a block, and so of a row.
    pub(super) threads: usize,
    /// Blocks, each of which leaves a part of the sums.
    pub(super) blocks: usize,
    /// Whether a thread has up to four runs instead of two, which takes more registers.
    pub(super) larger: bool,
}

impl RowBlocks {
    /// For `rows` of 129 to 1,024 runs of 16 bytes.
    pub(super) fn new(rows: usize, runs: usize) -> Self {
        let larger = runs > 2 * THREADS;
        // Runs that a thread keeps of each array.
        let kept = if larger { 4 } else { 2 };
        // Two blocks of 256 for each of 132 multiprocessors: parts of sums are to stay few.
        let full = 2 * 132 * THREADS;
        let threads = runs.div_ceil(kept).next_power_of_two();
        // A longer sum than 32 in 32 bits would lose digits; more blocks than 2¹⁴ are not worth their parts.
        let blocks = rows.div_ceil(32).clamp(full / threads, 1 << 14).min(rows);
        Self { threads, blocks, larger }
    }
}
