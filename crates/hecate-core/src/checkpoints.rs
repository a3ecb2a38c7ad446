//! Which states a forward keeps for its backward.

use crate::Sequences;

/// States are kept every [`Checkpoints::INTERVAL`] tokens of each period; those between are computed again.
///
/// Nothing is kept a token: a call keeps `⌈T/64⌉` states of a sequence, or somewhat more where groups are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    period: usize,
}

impl Checkpoints {
    /// Tokens from one kept state to the next, at most.
    pub const INTERVAL: usize = 64;

    /// Of a rule with frozen groups of this many tokens. A period is a group, or as many short ones as fit into an interval.
    pub fn new(frozen: Option<u32>) -> Self {
        let period = match frozen.map(|group| (group as usize).max(1)) {
            None => Self::INTERVAL,
            Some(group) => group * (Self::INTERVAL / group).max(1),
        };
        Self { period }
    }

    /// Tokens after which intervals are counted anew.
    pub fn period(self) -> usize {
        self.period
    }

    /// Kept states of a sequence of this many tokens.
    pub fn count(self, tokens: usize) -> usize {
        let intervals = |tokens: usize| tokens.div_ceil(Self::INTERVAL);
        tokens / self.period * intervals(self.period) + intervals(tokens % self.period)
    }

    /// First kept state of each sequence and the end, `[N + 1]`.
    fn starts(self, sequences: &Sequences) -> Vec<usize> {
        let mut starts = vec![0];
        for range in sequences.ranges() {
            starts.push(starts.last().unwrap_or(&0) + self.count(range.len()));
        }
        starts
    }

    /// Kept states of all sequences.
    pub fn total(self, sequences: &Sequences) -> usize {
        sequences.total(|tokens| self.count(tokens))
    }

    /// First row of each sequence and the end, then first kept states and the end: `[2 (N + 1)]`, as kernels read them.
    pub fn table(self, sequences: &Sequences) -> Vec<u32> {
        sequences.starts().chain(self.starts(sequences)).map(|x| x as u32).collect()
    }

    /// The table, where places are no products: where sequences differ in length.
    pub fn table_if_unlike(self, sequences: &Sequences) -> Option<Vec<u32>> {
        (!sequences.are_alike()).then(|| self.table(sequences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_states_are_few() {
        // Groups of 5 fit 12 times into an interval; groups of 100 have two checkpoints.
        for (frozen, tokens, count) in [
            (None, 1, 1),
            (None, 64, 1),
            (None, 65, 2),
            (Some(5), 60, 1),
            (Some(5), 61, 2),
            (Some(33), 66, 2),
            (Some(64), 130, 3),
            (Some(100), 100, 2),
            (Some(100), 101, 3),
        ] {
            assert_eq!(Checkpoints::new(frozen).count(tokens), count, "{frozen:?} {tokens}");
        }
    }

    #[test]
    fn sequences_follow_each_other() {
        let table = Checkpoints::new(None).table(&Sequences::packed(&[65, 1, 64]));
        assert_eq!(table, [0, 65, 66, 130, 0, 2, 3, 4]);
        assert_eq!(Checkpoints::new(None).total(&Sequences::packed(&[65, 1, 64])), 4);
        assert!(Checkpoints::new(None).table_if_unlike(&Sequences::packed(&[65, 65])).is_none());
    }
}
