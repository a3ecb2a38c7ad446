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
    /// Threads of a block.
    pub(super) threads: usize,
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
        Self { lanes, threads, kept, grid: Grid::blocks(blocks, threads as u32) }
    }
}
