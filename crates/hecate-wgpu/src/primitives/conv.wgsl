// Short causal convolution, each channel by itself. In every sequence, rows 0..W-1 are the state's, then come the
// tokens: u[t, d] = sum over j of weight[d, j] row[t + j, d]. y is u, or SiLU of it.

// Defined in `conv.rs`.
@group(0) @binding(0) var<uniform> args: ConvArgs;
// First row of every sequence, and the end.
@group(0) @binding(1) var<storage, read> starts: array<u32>;

// Consecutive rows that an invocation takes.
const ROWS_PER_INVOCATION = 8u;

// A sequence: its number, its first row and its tokens.
struct Range {
    n: u32,
    start: u32,
    length: u32,
}

// Sequence `n` by the table of first rows.
fn sequence(n: u32) -> Range {
    let start = starts[n];
    return Range(n, start, starts[n + 1u] - start);
}

// The sequence that owns a row.
// By bisection, once an invocation; `advance` follows from there.
fn owner(row: u32) -> Range {
    var low = 0u;
    var high = args.sequences;
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if starts[middle] <= row { low = middle; } else { high = middle; }
    }
    return sequence(low);
}

// The rows of an invocation: one channel of ROWS_PER_INVOCATION rows, neighbours having neighbouring channels. `range` is
// the sequence of the first.
struct OwnRows {
    channel: u32,
    first: u32,
    end: u32,
    range: Range,
}

// Those of invocation `i`.
fn own_rows(i: u32) -> OwnRows {
    let first = i / args.channels * ROWS_PER_INVOCATION;
    return OwnRows(i % args.channels, first, min(first + ROWS_PER_INVOCATION, args.rows), owner(first));
}

// `range`, or the next one where `row` is after it.
// Sequences have at least one row, so that one step is enough.
fn advance(range: Range, row: u32) -> Range {
    if row < range.start + range.length { return range; }
    return sequence(range.n + 1u);
}
