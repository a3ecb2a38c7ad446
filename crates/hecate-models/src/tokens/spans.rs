//! How many bytes of its text each token stands for.

use std::ops::Range;

/// Tokens from one sum that is kept to the next.
const BLOCK: usize = 1024;

/// A byte a token, and some more for tokens of 255 bytes or more of text. What lies between two tokens belongs to the second, what
/// comes after the last to the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    /// Bytes of each token, at most 255.
    lengths: Vec<u8>,
    /// Tokens of more, and what they have over 255.
    long: Vec<(usize, u64)>,
    /// Bytes of all tokens before each block.
    sums: Vec<u64>,
    /// Bytes of all tokens.
    total: u64,
}

impl Spans {
    /// One token more.
    pub(super) fn push(&mut self, bytes: u64) {
        if self.lengths.len().is_multiple_of(BLOCK) {
            self.sums.push(self.total);
        }
        self.lengths.push(bytes.min(u8::MAX.into()) as u8);
        if bytes > u8::MAX.into() {
            self.long.push((self.lengths.len() - 1, bytes - u64::from(u8::MAX)));
        }
        self.total += bytes;
    }

    /// Bytes after the last token, which become its own.
    pub(super) fn extend_last(&mut self, bytes: u64) {
        if bytes == 0 || self.lengths.is_empty() {
            return;
        }
        let last = self.lengths.len() - 1;
        let own = self.before(last + 1) - self.before(last);
        self.lengths.pop();
        self.long.pop_if(|(token, _)| *token == last);
        if last.is_multiple_of(BLOCK) {
            self.sums.pop();
        }
        self.total -= own;
        self.push(own + bytes);
    }

    /// Bytes of these tokens together.
    pub(super) fn sum(&self, tokens: Range<usize>) -> u64 {
        self.before(tokens.end) - self.before(tokens.start)
    }

    /// Bytes of the tokens before this one.
    fn before(&self, token: usize) -> u64 {
        if token >= self.lengths.len() {
            return self.total;
        }
        let block = token / BLOCK;
        let start = block * BLOCK;
        let short: u64 = self.lengths[start..token].iter().map(|&length| u64::from(length)).sum();
        let first = self.long.partition_point(|&(long, _)| long < start);
        let more = self.long[first..].iter().take_while(|&&(long, _)| long < token);
        self.sums[block] + short + more.map(|(_, more)| more).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of any range are those of the single lengths, of tokens of no byte to those of many.
    #[test]
    fn sums_are_of_single_tokens() {
        let length = |token: u64| [0, 1, 4, 254, 255, 256, 70_000][(token * token % 7) as usize] + token % 3;
        let mut lengths: Vec<u64> = (0..3 * BLOCK as u64 + 7).map(length).collect();
        let mut spans = Spans::default();
        lengths.iter().for_each(|&length| spans.push(length));
        for more in [0, 9, 300] {
            spans.extend_last(more);
            *lengths.last_mut().unwrap() += more;
            for start in (0..lengths.len()).step_by(97) {
                for end in (start..=lengths.len()).step_by(61).chain([start, lengths.len()]) {
                    assert_eq!(spans.sum(start..end), lengths[start..end].iter().sum::<u64>(), "{start}..{end}");
                }
            }
        }
        // The last token may be the first of a block.
        let mut spans = Spans::default();
        (0..=BLOCK).for_each(|_| spans.push(1));
        spans.extend_last(5);
        assert_eq!((spans.sum(BLOCK..BLOCK + 1), spans.sum(0..BLOCK + 1)), (6, BLOCK as u64 + 6));
    }
}
