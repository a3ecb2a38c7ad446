// Where every id of a vocabulary stands: a stable sort of positions by id, digit by digit of 8 bits. A tile is 256
// positions, one for each invocation.

// Defined in `embedding.rs`.
@group(0) @binding(0) var<uniform> args: SortPassArgs;
// [count]
@group(0) @binding(1) var<storage, read> keys: array<u32>;

const DIGITS = 256u;

// Digits of a tile, or running counts.
var<workgroup> digits: array<u32, DIGITS>;

// Ids over the vocabulary are sorted to the end.
fn key_at(i: u32) -> u32 {
    return min(keys[i], args.most);
}

// The digit of a position; after the end, one that is none.
fn digit_at(i: u32) -> u32 {
    if i >= args.count { return DIGITS; }
    return (key_at(i) >> args.shift) & (DIGITS - 1u);
}
