//! A head tile: the unit of work of the linear engine.

use std::ops::Range;

/// One sequence, one head, one block of value columns.
///
/// Columns of a memory `[K,V]` never interact, so a tile runs by itself.
/// It owns its columns of `out`, `dv` and the states, and an own array for its part of `dq` and `dk`.
#[derive(Clone, Debug)]
pub(crate) struct HeadTile {
    pub(super) sequence: usize,
    /// The sequence's rows in arrays `[rows, H, width]`.
    pub(super) rows: Range<usize>,
    pub(super) head: usize,
    /// Columns of `v`, `out` and the states.
    pub(super) columns: Range<usize>,
}

impl HeadTile {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.rows.len()
    }

    /// Number of value columns.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }
}
