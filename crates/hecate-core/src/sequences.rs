//! How rows of tokens split into sequences.

use crate::{Error, Result, Shape, shape::product};
use std::{ops::Range, sync::Arc};

/// How the `B × T` rows of tokens in a call split into sequences, each with a state of its own.
///
/// A plain batch is `B` sequences of equal length. A *packed* call has `B = 1` and `T` the sum of the lengths.
/// Kernels see flattened rows either way: sequence `n` owns rows `range(n)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences(Lengths);

/// Lengths that are equal are always [`Lengths::Equal`], so that equal sequences compare as such.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lengths {
    /// `count` sequences of `tokens` tokens; no tokens where there is no sequence.
    Equal { count: usize, tokens: usize },
    /// First rows, and after them the number of rows.
    Starts(Arc<[usize]>),
}

impl Sequences {
    /// `batch` sequences of `tokens` tokens; as many rows as `usize::MAX`, which fit no array, where there are more.
    pub fn batch(batch: usize, tokens: usize) -> Self {
        Self(Lengths::Equal { count: batch, tokens: if batch == 0 { 0 } else { tokens } })
    }

    /// Sequences of these lengths, one after another; a sum over `usize::MAX` stays there, and fits no array.
    pub fn packed(lengths: &[usize]) -> Self {
        match lengths {
            [] => Self::batch(0, 0),
            [first, rest @ ..] if rest.iter().all(|length| length == first) => Self::batch(lengths.len(), *first),
            _ => {
                let mut end = 0;
                let ends = lengths.iter().map(|&n: &usize| {
                    end = n.saturating_add(end);
                    end
                });
                Self(Lengths::Starts(std::iter::once(0).chain(ends).collect()))
            }
        }
    }

    /// Number of sequences, `N`.
    pub fn count(&self) -> usize {
        match &self.0 {
            Lengths::Equal { count, .. } => *count,
            Lengths::Starts(starts) => starts.len() - 1,
        }
    }

    /// Whether all have one length.
    pub fn are_alike(&self) -> bool {
        matches!(self.0, Lengths::Equal { .. })
    }

    /// Number of token rows in all.
    pub fn rows(&self) -> usize {
        self.start(self.count())
    }

    /// First row of sequence `n`; the number of rows for `n = N` and above.
    #[inline]
    pub fn start(&self, n: usize) -> usize {
        match &self.0 {
            Lengths::Equal { count, tokens } => n.min(*count).saturating_mul(*tokens),
            Lengths::Starts(starts) => starts[n.min(starts.len() - 1)],
        }
    }

    /// Rows of sequence `n`; none, after the last row, for `n ≥ N`.
    #[inline]
    pub fn range(&self, n: usize) -> Range<usize> {
        self.start(n)..self.start(n.saturating_add(1))
    }

    /// The sequence that owns this row; `N` for rows that there are not.
    pub fn owner(&self, row: usize) -> usize {
        match &self.0 {
            Lengths::Equal { count, tokens } => row.checked_div(*tokens).unwrap_or(0).min(*count),
            Lengths::Starts(starts) => starts.partition_point(|&start| start <= row) - 1,
        }
    }

    /// Rows of every sequence, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (0..self.count()).map(|n| self.range(n))
    }

    /// First row of every sequence, and after them the number of rows: `N + 1` values (`cu_seqlens`).
    pub fn starts(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..=self.count()).map(|n| self.start(n))
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        match &self.0 {
            Lengths::Equal { tokens, .. } => *tokens,
            Lengths::Starts(_) => self.ranges().map(|rows| rows.len()).max().unwrap_or(0),
        }
    }

    /// The sum of `of` the length of every sequence; `usize::MAX` where it is larger.
    pub fn total(&self, of: impl Fn(usize) -> usize) -> usize {
        match &self.0 {
            Lengths::Equal { count, tokens } => count.saturating_mul(of(*tokens)),
            Lengths::Starts(_) => self.ranges().fold(0, |sum: usize, rows| sum.saturating_add(of(rows.len()))),
        }
    }

    /// Every sequence cut into tiles of `length` elements, from `first` to `end` of its tokens. They are jobs of a
    /// kernel: sequence, its first row, its tokens, first element of the tile. `first` is negative for what stands in
    /// front.
    pub fn tiles(&self, length: usize, first: i64, end: impl Fn(usize) -> usize) -> impl Iterator<Item = [i64; 4]> {
        self.ranges().enumerate().flat_map(move |(n, rows)| {
            let tiles = (first..end(rows.len()) as i64).step_by(length.max(1));
            tiles.map(move |at| [n as i64, rows.start as i64, rows.len() as i64, at])
        })
    }

    /// Refuses token arrays `[B,T,..]` that these sequences do not cover exactly: `B` sequences of `T` tokens, or any
    /// lengths that add up to `T` where `B = 1`.
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::Empty`] or [`Error::Shape`] naming `what` and `slot`.
    pub fn check(&self, what: &'static str, slot: &'static str, shape: &Shape) -> Result<()> {
        let [batch, tokens, ..] = *shape.axes() else {
            return Err(Error::Rank { what, slot, expected: "at least 2 ([B,T,..])", found: shape.clone() });
        };
        let covered = product(&[batch, tokens]) == self.rows();
        let aligned = batch == 1
            || match &self.0 {
                Lengths::Equal { tokens: length, .. } => *length == tokens,
                Lengths::Starts(_) => self.ranges().all(|rows| rows.len() == tokens),
            };
        // Lengths that do not add up are not called empty: where their sum saturates, the last ranges only look so.
        if self.count() == 0 || (covered && self.has_empty()) {
            return Err(Error::Empty { what, slot: "sequence lengths", found: self.lengths() });
        }
        if !covered || !aligned {
            let mut expected = vec![1, self.rows()];
            expected.extend(&shape.axes()[2..]);
            return Err(Error::Shape { what, slot, expected: expected.into(), found: shape.clone() });
        }
        Ok(())
    }

    /// Whether a sequence has no token.
    fn has_empty(&self) -> bool {
        match &self.0 {
            Lengths::Equal { tokens, .. } => *tokens == 0,
            Lengths::Starts(_) => self.ranges().any(|rows| rows.is_empty()),
        }
    }

    /// Lengths of the first few sequences, for messages.
    fn lengths(&self) -> Shape {
        const SHOWN: usize = 64;
        self.ranges().take(SHOWN).map(|rows| rows.len()).collect::<Vec<_>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lengths_are_a_batch() {
        assert_eq!(Sequences::packed(&[3, 3]), Sequences::batch(2, 3));
        assert_eq!(Sequences::packed(&[]), Sequences::batch(0, 7));
        assert!(Sequences::batch(2, 3).starts().eq([0, 3, 6]));
        assert!(Sequences::packed(&[2, 5, 1]).starts().eq([0, 2, 7, 8]));
        assert_eq!(Sequences::packed(&[2, 5, 1]).longest(), 5);
        assert!(Sequences::packed(&[3, 3]).are_alike() && !Sequences::packed(&[3, 2]).are_alike());
        assert_eq!([Sequences::batch(3, 2), Sequences::packed(&[2, 5])].map(|x| x.total(|n| n + 1)), [9, 9]);
    }

    #[test]
    fn rows_have_owners() {
        for sequences in [Sequences::batch(3, 2), Sequences::packed(&[1, 4, 2])] {
            for (n, rows) in sequences.ranges().enumerate() {
                assert!(rows.clone().all(|row| sequences.owner(row) == n), "{sequences:?}");
            }
            assert_eq!(sequences.owner(sequences.rows()), sequences.count());
        }
    }

    #[test]
    fn sizes_beyond_all_memory_cost_nothing() {
        let huge = Sequences::batch(usize::MAX, 1);
        assert_eq!((huge.count(), huge.rows(), huge.longest()), (usize::MAX, usize::MAX, 1));
        assert_eq!((huge.range(7), huge.range(usize::MAX)), (7..8, usize::MAX..usize::MAX));
        assert!(huge.check("a", "q", &[1, 4].into()).is_err() && huge.owner(9) == 9);
        assert_eq!(huge.total(|n| 2 * n), usize::MAX);
        for sequences in [Sequences::batch(2, 3), Sequences::packed(&[2, 4]), Sequences::packed(&[])] {
            let end = sequences.rows();
            assert_eq!([2, 3, usize::MAX].map(|n| sequences.range(n)), [0; 3].map(|_| end..end));
        }
    }
}
