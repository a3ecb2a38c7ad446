//! A block of queries against the keys that it sees.
//!
//! Scores are laid out `[m, columns]`: `m` rows of (token, query head), and a column for each key.
//! The prefix takes the first columns, the window's rows the others.
//! The products compute the corners outside the window too; [`VisibleKeys::hide`] sets them to −∞ afterwards.

use super::Segment;
use crate::{
    primitives::{
        exp::exp,
        loss::{largest, sum_of},
    },
    product::{Mat, MatMut, product},
    rows::dot,
};
use std::ops::Range;

/// Fewest and most tokens in a block; between them, the window.
/// Longer blocks make larger products, and waste more of them on corners.
const BLOCK: [usize; 2] = [32, 64];

/// Blocks see a multiple of this many keys, where there are as many: `gemm`'s tiles then have no edge.
const GRAIN: usize = 16;

/// Rows `range` of `x [.., width]`.
pub(super) fn rows_of<'a>(x: &'a [f32], width: usize, range: &Range<usize>) -> Mat<'a> {
    Mat::new(&x[range.start * width..range.end * width], range.len(), width)
}

/// What a segment's queries look at: the prefix first, then positions from `first` on.
pub(super) struct VisibleKeys {
    /// Position of the first row after the prefix.
    pub(super) first: usize,
    /// Rows of the prefix.
    pub(super) prefix: usize,
    /// `P`, rows of the cache and of the window before a token.
    pub(super) kept: usize,
    /// Query heads that share these keys.
    pub(super) group: usize,
    /// Rows that do not count.
    pub(super) hidden: Vec<usize>,
    /// `[n,K]`.
    pub(super) keys: Vec<f32>,
    /// `[n,V]`.
    pub(super) values: Vec<f32>,
}

/// Queries of consecutive tokens, and the keys that they see.
pub(super) struct QueryBlock {
    /// Counted from the sequence's first.
    pub(super) tokens: Range<usize>,
    /// Rows `(token, query head)` of the segment's queries.
    pub(super) queries: Range<usize>,
    /// Rows of the keys after the prefix, which all tokens of the block together see.
    pub(super) window_rows: Range<usize>,
    /// Columns of its scores: prefix and window.
    pub(super) columns: usize,
}

impl VisibleKeys {
    /// The blocks of a segment, in order.
    pub(super) fn blocks<'a>(&'a self, segment: &'a Segment, window: usize) -> impl Iterator<Item = QueryBlock> + 'a {
        let (all, length) = (segment.tokens.clone(), window.clamp(BLOCK[0], BLOCK[1]));
        all.clone().step_by(length).map(move |start| {
            let tokens = start..all.end.min(start + length);
            let end = self.prefix + tokens.end + self.kept - self.first;
            // A few rows more than are seen, where there are any: products of round sizes are much faster.
            let length = (tokens.end + self.kept - start.max(self.first)).next_multiple_of(GRAIN);
            let window_rows = end.saturating_sub(length).max(self.prefix)..end;
            // Query heads of a group are neighbouring rows.
            let queries = (start - all.start) * self.group..(tokens.end - all.start) * self.group;
            QueryBlock { queries, columns: self.prefix + window_rows.len(), window_rows, tokens }
        })
    }

    /// Rows of keys and the columns of scores that they make: prefix and window, unless empty.
    fn key_ranges(&self, block: &QueryBlock) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let (prefix, window_rows) = (0..self.prefix, block.window_rows.clone());
        let columns = [prefix.clone(), prefix.end..block.columns];
        [prefix, window_rows].into_iter().zip(columns).filter(|(rows, _)| !rows.is_empty())
    }

    /// `factor x keysᵀ [m, columns]`, for `x [m, width]` and any array like the keys.
    pub(super) fn scores(&self, block: &QueryBlock, x: Mat<'_>, keys: &[f32], factor: f32) -> Vec<f32> {
        let mut scores = vec![0.0; x.rows * block.columns];
        for (rows, columns) in self.key_ranges(block) {
            let out = MatMut::with_stride(&mut scores[columns.start..], x.rows, columns.len(), block.columns);
            product(out, 0.0, factor, x, rows_of(keys, x.columns, &rows).t());
        }
        scores
    }

    /// `out [m, width] = factor weights keys`, for weights `[m, columns]`.
    pub(super) fn weigh(&self, block: &QueryBlock, weights: Mat<'_>, keys: &[f32], factor: f32, out: &mut [f32]) {
        // The first range sets the output, the second adds to it.
        let width = out.len() / weights.rows;
        let mut beta = 0.0;
        for (rows, columns) in self.key_ranges(block) {
            let weights = weights.block(0..weights.rows, columns);
            product(MatMut::new(out, weights.rows, width), beta, factor, weights, rows_of(keys, width, &rows));
            beta = 1.0;
        }
    }

    /// `dkeys += factor weightsᵀ x`, the adjoint of [`Self::weigh`].
    pub(super) fn spread(&self, block: &QueryBlock, weights: Mat<'_>, x: Mat<'_>, factor: f32, dkeys: &mut [f32]) {
        for (rows, columns) in self.key_ranges(block) {
            let out = &mut dkeys[rows.start * x.columns..rows.end * x.columns];
            let weights = weights.block(0..weights.rows, columns);
            product(MatMut::new(out, rows.len(), x.columns), 1.0, factor, weights.t(), x);
        }
    }

    /// Sets scores `[m, columns]` of keys that a query does not see to −∞.
    pub(super) fn hide(&self, block: &QueryBlock, scores: &mut [f32]) {
        // Position of the window_rows's first row.
        let start = block.window_rows.start - self.prefix + self.first;
        let hidden = self.hidden.iter().filter(|row| block.window_rows.contains(row));
        let hidden: Vec<usize> = hidden.map(|row| row - block.window_rows.start + self.prefix).collect();
        let tokens = block.tokens.clone().flat_map(|t| std::iter::repeat_n(t, self.group));
        for (t, row) in tokens.zip(scores.chunks_exact_mut(block.columns)) {
            // Before the token's window, after its own position, and slots that hold no token.
            row[self.prefix..self.prefix + t.saturating_sub(start)].fill(f32::NEG_INFINITY);
            row[self.prefix + t + self.kept + 1 - start..].fill(f32::NEG_INFINITY);
            hidden.iter().for_each(|&column| row[column] = f32::NEG_INFINITY);
        }
    }
}

/// Turns rows of scores `[m, columns]` into `e^{s − max}`.
/// Returns their sums `[m]`; sets `log Σ eˢ` in `lse [m]`.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32], columns: usize, lse: &mut [f32]) -> Vec<f32> {
    let mut sums = vec![0.0; lse.len()];
    for ((row, lse), out) in scores.chunks_exact_mut(columns).zip(lse).zip(&mut sums) {
        // Every query sees at least itself, so the maximum is a score.
        let top = largest(row);
        for x in row.iter_mut() {
            *x = exp(*x - top);
        }
        *out = sum_of(
            row,
            #[inline(always)]
            |x| x,
        );
        *lse = top + out.ln();
    }
    sums
}

/// From scores and `dy·v`, the weights `p = e^{s − lse}` and `ds = p (dy·v − D)`, all `[m, columns]`.
///
/// `D = dy·y` is taken as `Σ p (dy·v)`: the same but for the rounding of a `y` kept in 16 bits.
#[inline(always)]
pub(super) fn softmax_backward(p: &mut [f32], ds: &mut [f32], columns: usize, lse: &[f32]) {
    for ((p, ds), lse) in p.chunks_exact_mut(columns).zip(ds.chunks_exact_mut(columns)).zip(lse) {
        for p in p.iter_mut() {
            *p = exp(*p - lse);
        }
        // The softmax's gradient takes off the mean under its own weights.
        let along = dot(p, ds);
        for (p, ds) in p.iter().zip(ds) {
            *ds = p * (*ds - along);
        }
    }
}
