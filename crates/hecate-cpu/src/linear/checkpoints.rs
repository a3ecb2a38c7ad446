//! How tokens are cut into chunks, and which of their states are kept for the backward.

use std::ops::Range;

/// Tokens between kept states, and of a chunk's matrix products.
///
/// The products of a chunk cost `O(n² (K + V))`, the passes over its memory `O(K V)`.
/// At 64 tokens neither outweighs the other for heads of 64 to 128 columns, and tables of 65² fit the nearest cache.
pub(crate) const CHUNK: usize = 64;

/// Tokens of one sequence that are computed at once.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Tokens, counted from the sequence's first.
    pub(crate) tokens: Range<usize>,
    /// Whether a frozen group starts here.
    pub(crate) starts_group: bool,
    /// Whether the state at its start is kept for the backward: whether a checkpoint interval starts here.
    pub(crate) kept: bool,
}

/// `tokens` tokens in chunks of at most `chunk`, never across the edge of a frozen group.
///
/// States are kept at the start of as many whole groups as fit into [`CHUNK`] tokens.
/// Where groups are longer, they are kept every [`CHUNK`] tokens of each.
pub(crate) fn cut(tokens: usize, frozen: Option<usize>, chunk: usize) -> Vec<Chunk> {
    let (group, chunk) = (frozen.unwrap_or(tokens).min(tokens), chunk.min(tokens));
    let together = group * (CHUNK / group).max(1);
    let mut chunks = Vec::new();
    for first in (0..tokens).step_by(group) {
        let end = (first + group).min(tokens);
        for start in (first..end).step_by(chunk) {
            let starts_group = start == first;
            let kept = match starts_group {
                true => first.is_multiple_of(together),
                // The first chunk that starts in another run of 64 tokens than the chunk before it.
                false => group >= CHUNK && (start - first) / CHUNK > (start - chunk - first) / CHUNK,
            };
            chunks.push(Chunk { tokens: start..(start + chunk).min(end), starts_group, kept });
        }
    }
    chunks
}
