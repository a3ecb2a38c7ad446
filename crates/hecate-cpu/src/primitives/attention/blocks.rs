//! Blocks of queries, and the runs of keys that they see.
//!
//! A block is the queries of consecutive tokens under one key-value head: `m` rows of (token, query head).
//! A run is consecutive rows of one array: of the prefix, of the cache where its slots hold tokens, or of the tokens.
//! Scores of a block and a run are `[m, n]`. What a query does not see of a run is hidden in them.

use super::KeySource;
use hecate_core::{Sequences, primitives::AttentionDims};
use std::ops::Range;

/// Fewest and most tokens in a block. Longer blocks make larger products, and waste more of them on corners.
const BLOCK: [usize; 2] = [32, 64];

/// Most rows of a run: scores of a block then stay in a processor's second cache.
const RUN: usize = 512;

/// Most scores of a block and a run, for one query head of a group.
pub(super) const BLOCK_SCORES: usize = BLOCK[1] * RUN;

/// Runs have a multiple of this many rows, where there are as many: `gemm`'s tiles then have no edge.
const GRAIN: usize = 16;

/// Tokens of a block: as many as the window, within the bounds.
pub(super) fn block_length(dims: &AttentionDims) -> usize {
    dims.options.window.clamp(BLOCK[0], BLOCK[1])
}

/// Queries of consecutive tokens of one sequence under one key-value head.
#[derive(Clone)]
pub(super) struct QueryBlock {
    pub(super) sequence: usize,
    /// The key-value head.
    pub(super) head: usize,
    /// Counted from the sequence's first.
    pub(super) tokens: Range<usize>,
}

impl QueryBlock {
    /// The blocks of a sequence under one head, in order.
    pub(super) fn of_head(dims: &AttentionDims, sequence: usize, head: usize) -> impl Iterator<Item = Self> + use<> {
        let (length, tokens) = (block_length(dims), dims.sequences.range(sequence).len());
        // The last block of a sequence may be shorter.
        let block = move |start: usize| Self { sequence, head, tokens: start..tokens.min(start + length) };
        (0..tokens).step_by(length).map(block)
    }

    /// Where its queries, outputs and their like stand: one unit is the rows of all query heads of a group.
    pub(super) fn units(&self, dims: &AttentionDims) -> impl Iterator<Item = usize> + use<> {
        let (start, heads, head) = (dims.sequences.range(self.sequence).start, dims.heads, self.head);
        self.tokens.clone().map(move |t| (start + t) * heads + head)
    }

    /// The tokens of the sequence that some query of the block sees.
    pub(super) fn near(&self, dims: &AttentionDims) -> Range<usize> {
        self.tokens.start.saturating_sub(dims.kept())..self.tokens.end
    }
}

/// Sequences under each key-value head: what shares neither queries nor keys, but for the prefix.
pub(super) fn heads_of(dims: &AttentionDims) -> Vec<(usize, usize)> {
    (0..dims.sequences.count()).flat_map(|sequence| (0..dims.heads).map(move |head| (sequence, head))).collect()
}

/// Consecutive rows of one array of keys, or of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyRun {
    pub(super) source: KeySource,
    /// Rows of the array, whatever the head.
    pub(super) rows: Range<usize>,
    /// The first row's position, counted from the first slot of the sequence's cache. The prefix has none: all see it.
    pub(super) at: Option<usize>,
}

impl KeyRun {
    /// The run in pieces of at most [`RUN`] rows.
    pub(super) fn pieces(self) -> impl Iterator<Item = Self> {
        let Self { source, rows, at } = self;
        let first = rows.start;
        rows.clone().step_by(RUN).map(move |start| {
            let at = at.map(|at| at + start - first);
            Self { source, rows: start..rows.end.min(start + RUN), at }
        })
    }

    /// Tokens `tokens` of a sequence as rows of the array.
    pub(super) fn of_tokens(dims: &AttentionDims, sequence: usize, tokens: Range<usize>) -> Self {
        let start = dims.sequences.range(sequence).start;
        let rows = start + tokens.start..start + tokens.end;
        Self { source: KeySource::Tokens, rows, at: Some(tokens.start + dims.kept()) }
    }

    /// Slots `slots` of a sequence's cache as rows of the array.
    pub(super) fn of_cache(dims: &AttentionDims, sequence: usize, slots: Range<usize>) -> Self {
        let start = sequence * dims.kept();
        Self { source: KeySource::Cache, rows: start + slots.start..start + slots.end, at: Some(slots.start) }
    }

    /// The persistent tokens.
    pub(super) fn of_prefix(dims: &AttentionDims) -> Self {
        Self { source: KeySource::Prefix, rows: 0..dims.prefix, at: None }
    }

    /// Sets scores `[m, n]` of keys that a query of `block` does not see to −∞; `group` rows are of one token.
    pub(super) fn hide(&self, block: &QueryBlock, kept: usize, group: usize, scores: &mut [f32]) {
        let (Some(at), n) = (self.at, self.rows.len()) else { return };
        // Token `t` sees positions `t ..= t + P`: all of the run, where the block's first and last do.
        if block.tokens.end <= at + 1 && at + n <= block.tokens.start + kept + 1 {
            return;
        }
        for (t, rows) in block.tokens.clone().zip(scores.chunks_exact_mut(group * n)) {
            // Columns of the run that the token sees; none where it lies outside of the window.
            let seen = t.saturating_sub(at).min(n)..(t + kept + 1).saturating_sub(at).min(n);
            for row in rows.chunks_exact_mut(n) {
                row[..seen.start].fill(f32::NEG_INFINITY);
                row[seen.end..].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// Slots of each sequence's cache that hold tokens, as runs; `valid [N,P]` is empty without a cache.
///
/// What lies in other slots is never read: it may be NaN.
pub(super) fn filled_slots(sequences: &Sequences, kept: usize, valid: &[f32]) -> Vec<Vec<Range<usize>>> {
    let runs = |valid: &[f32]| {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for at in (0..valid.len()).filter(|&at| valid[at] > 0.5) {
            match runs.last_mut() {
                // Caches fill from the back, so there is mostly one run.
                Some(run) if run.end == at => run.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    };
    // As many lists as sequences, with a cache or without.
    (0..sequences.count()).map(|n| runs(valid.get(n * kept..(n + 1) * kept).unwrap_or_default())).collect()
}

/// What `range` and `other` have in common; empty where they do not meet.
pub(super) fn common(range: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = range.start.max(other.start);
    start..range.end.min(other.end).max(start)
}

/// The runs that a block sees, in the order prefix, cache, tokens; `filled` are slots of its sequence's cache.
pub(super) fn seen(dims: &AttentionDims, block: &QueryBlock, filled: &[Range<usize>]) -> Vec<KeyRun> {
    let cache = filled.iter().map(|slots| common(slots, &(block.tokens.start..dims.kept())));
    let cache = cache.map(|slots| KeyRun::of_cache(dims, block.sequence, slots));
    // Tokens go last, in the order of positions.
    // The prefix goes first, since every token sees it.
    let near = whole_grains(block.near(dims), 0);
    let runs = std::iter::once(KeyRun::of_prefix(dims)).chain(cache);
    let runs = runs.chain([KeyRun::of_tokens(dims, block.sequence, near)]);
    runs.filter(|run| !run.rows.is_empty()).flat_map(KeyRun::pieces).collect()
}

/// `rows` with more in front, down to row `first`, so that they are a multiple of [`GRAIN`].
pub(super) fn whole_grains(rows: Range<usize>, first: usize) -> Range<usize> {
    // At the start of a sequence there may be fewer.
    let length = rows.len().next_multiple_of(GRAIN);
    rows.end.saturating_sub(length).max(first)..rows.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_core::primitives::AttentionOptions;

    /// One head over a window of `window` tokens.
    fn dims(tokens: usize, window: usize, prefix: usize) -> AttentionDims {
        // Two sequences, so that rows of the second do not begin at 0.
        let options = AttentionOptions { window, scale: 1.0 };
        let sequences = Sequences::batch(2, tokens);
        AttentionDims { sequences, query_heads: 1, heads: 1, key: 1, value: 1, prefix, options }
    }

    /// For every token, the rows that its scores do not hide: what the definition says, each once.
    #[test]
    fn a_token_sees_its_window_and_no_key_twice() {
        for (tokens, window, prefix) in [(1, 2, 0), (70, 5, 3), (200, 130, 0), (100, 700, 600)] {
            let dims = dims(tokens, window, prefix);
            let kept = dims.kept();
            // Every fifth slot is empty, and so are the first.
            let valid: Vec<f32> = (0..2 * kept).map(|i| f32::from(i % kept > 1 && i % 5 != 0)).collect();
            let filled = filled_slots(&dims.sequences, kept, &valid);
            for block in QueryBlock::of_head(&dims, 1, 0) {
                let mut found = vec![Vec::new(); block.tokens.len()];
                for run in seen(&dims, &block, &filled[1]) {
                    // Scores of 0: what is hidden becomes −∞, all else is seen.
                    let mut scores = vec![0.0; block.tokens.len() * run.rows.len()];
                    run.hide(&block, kept, 1, &mut scores);
                    for (found, row) in found.iter_mut().zip(scores.chunks(run.rows.len())) {
                        let seen = run.rows.clone().zip(row).filter(|(_, score)| **score == 0.0);
                        found.extend(seen.map(|(i, _)| (run.source as usize, i)));
                    }
                }
                for (t, found) in block.tokens.clone().zip(found) {
                    // The definition: the prefix, the filled slots of its window, and the tokens up to itself.
                    let prefix = (0..prefix).map(|i| (KeySource::Prefix as usize, i));
                    let slots = (t..kept).map(|at| kept + at).filter(|&i| valid[i] > 0.5);
                    let near = (t.saturating_sub(kept)..=t).map(|i| (KeySource::Tokens as usize, tokens + i));
                    let expected = prefix.chain(slots.map(|i| (KeySource::Cache as usize, i))).chain(near);
                    assert_eq!(found, expected.collect::<Vec<_>>(), "token {t} of {dims:?}");
                }
            }
        }
    }
}
