//! The shape of a scan's workgroups: how many invocations share a column, and how their sums meet.

use crate::Wgpu;
use hecate_core::Dims;

/// Rows of a column that an invocation may hold; for each there is a text.
const ROWS: [usize; 2] = [16, 32];

/// Most invocations that share a column by subgroups.
const NEIGHBOURS: usize = 8;

/// Most invocations of a workgroup, everywhere.
const THREADS: usize = 256;

/// Rows of the longest column.
pub(super) const LONGEST: usize = 32 * THREADS;

/// A workgroup of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Which of [`ROWS`].
    pub(super) rows: usize,
    /// Invocations that share a column.
    pub(super) parts: usize,
    /// Whether their sums go through subgroups, and not through workgroup memory.
    pub(super) subgroups: bool,
    /// Invocations in all.
    pub(super) threads: usize,
    /// Tokens in its memory; none where each is read when its turn comes.
    pub(super) tile: usize,
}

impl Shape {
    /// For this adapter; none where a column is too long.
    pub(super) fn new(device: &Wgpu, dims: &Dims) -> Option<Self> {
        let adapter = device.adapter();
        // A subgroup adds up to eight neighbours without a barrier.
        let neighbours = if device.has_subgroups() { adapter.smallest_subgroup.min(NEIGHBOURS) } else { 1 };
        let (rows, parts) = rows_and_parts(dims.key, neighbours);
        let subgroups = (2..=neighbours).contains(&parts);
        // The smallest workgroup that holds 32 columns, or all there are.
        let threads = [32, 64, 128, THREADS].into_iter().find(|&n| n >= (parts * dims.value.min(32)).min(THREADS))?;
        if parts > threads {
            return None;
        }
        // Software has no slower memory to save an invocation from, and compiles kernels without barriers in a tenth of
        // the time. Where sums go through workgroup memory there are some anyway.
        let free = adapter.kind == "CPU" && (parts == 1 || subgroups);
        let tile = if free { 0 } else { tile(dims, rows, parts, threads) };
        Some(Self { rows, parts, subgroups, threads, tile })
    }
}

/// Few rows an invocation where a sum over neighbours costs no barrier, since a token takes as long as its longest chain of
/// sums; many where it does.
fn rows_and_parts(key: usize, neighbours: usize) -> (usize, usize) {
    match ROWS.into_iter().find(|rows| rows * neighbours >= key) {
        Some(rows) => (rows, key.div_ceil(rows).next_power_of_two()),
        None => (32, key.div_ceil(32)),
    }
}

/// Tokens that a workgroup has in its memory. 8 KiB hold their keys and queries. An invocation brings four fours of
/// keys and eight values at most.
fn tile(dims: &Dims, rows: usize, parts: usize, threads: usize) -> usize {
    // Workgroup memory, fours of keys, values an invocation, and sixteen tokens.
    let most = [8192 / (8 * rows * parts), 16 * threads / (rows * parts), 8 * parts, 16];
    if dims.sequences.longest() < 8 { 0 } else { most.into_iter().min().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_held() {
        for (key, neighbours, shape) in [
            (12, 1, (16, 1)),
            (17, 1, (32, 1)),
            (64, 1, (32, 2)),
            (70, 1, (32, 3)),
            (12, 8, (16, 1)),
            (33, 8, (16, 4)),
            (64, 4, (16, 4)),
            (128, 4, (32, 4)),
            (128, 8, (16, 8)),
            (256, 8, (32, 8)),
            (257, 8, (32, 9)),
        ] {
            assert_eq!(rows_and_parts(key, neighbours), shape, "{key} {neighbours}");
        }
    }
}
