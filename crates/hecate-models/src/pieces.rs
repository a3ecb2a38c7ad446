//! How many tokens have their scores made at once.

/// Scores of 16 bits come in rows of a multiple of this many.
pub(crate) const ALIGNED: usize = 64;

/// Bytes of the scores that are made at once, of all rows together.
const BYTES: usize = 256 << 20;

/// A vocabulary of so many tokens is a large one.
const LARGE: usize = 1 << 15;

/// Pieces that many rows of a large vocabulary are made in, at least: scores of all tokens never exist at once.
const PIECES: usize = 4;

/// Rows of a piece, where `rows` of so many `columns` are made, each score of `size` bytes: pieces alike, at least a row each.
pub(crate) fn piece(rows: usize, columns: usize, size: usize) -> usize {
    let most = BYTES / size.saturating_mul(columns).max(1);
    alike(rows, if columns < LARGE { most } else { most.min(rows.div_ceil(PIECES)) })
}

/// Rows of pieces alike, at most so many each, and at least one.
pub(crate) fn alike(rows: usize, most: usize) -> usize {
    let pieces = rows.div_ceil(most.max(1));
    rows.div_ceil(pieces.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_by_bytes_and_by_a_share_of_tokens() {
        // A large vocabulary: a quarter of the tokens, however few there are.
        for (rows, expected) in [(0, 1), (1, 1), (2, 1), (24, 6), (1024, 256), (1073, 215), (1 << 20, 268)] {
            let found = piece(rows, 250_000, 4);
            assert!(found == expected || rows > 1073 && found <= expected, "{rows}: {found}, not {expected}");
            assert!(found == 1 || 4 * 250_000 * found <= BYTES && found < rows, "{rows}: {found}");
        }
        // Products of GPT-2's vocabulary in 16 bits stay large.
        assert_eq!(piece(22_528, 50_304, 2), 2504);
        // One of bytes is whole.
        assert_eq!(piece(1 << 18, 256, 4), 1 << 18);
        // Sizes beyond all memory are one row.
        assert_eq!(piece(usize::MAX, usize::MAX, 4), 1);
        assert_eq!([alike(36, usize::MAX), alike(36, 0), alike(36, 35), alike(7, 3)], [36, 1, 18, 3]);
    }
}
