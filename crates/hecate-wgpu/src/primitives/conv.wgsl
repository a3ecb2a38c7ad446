// Short causal convolution, each channel by itself. In every sequence, rows 0..W-1 are the state's, then come the
// tokens: u[t, d] = sum over j of weight[d, j] row[t + j, d], and y is u, or SiLU of it.

struct Args {
    rows: u32,
    channels: u32,
    sequences: u32,
    // W
    width: u32,
    // Rows of a part of the gradient of the weights, and whether there is a gradient of the final state.
    stretch: u32,
    dfinal: u32,
    // Invocations that have work.
    count: u32,
    silu: u32,
}

@group(0) @binding(0) var<uniform> args: Args;
// First row of every sequence, and the end.
@group(0) @binding(1) var<storage, read> starts: array<u32>;

// Consecutive rows that an invocation takes.
const STRETCH = 8u;

// A sequence: its number, its first row and its tokens.
struct Range {
    n: u32,
    start: u32,
    length: u32,
}

fn sequence(n: u32) -> Range {
    let start = starts[n];
    return Range(n, start, starts[n + 1u] - start);
}

// The sequence that owns a row.
fn owner(row: u32) -> Range {
    var low = 0u;
    var high = args.sequences;
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if starts[middle] <= row { low = middle; } else { high = middle; }
    }
    return sequence(low);
}

// `range`, or the next one where `row` is behind it.
fn advance(range: Range, row: u32) -> Range {
    if row < range.start + range.length { return range; }
    return sequence(range.n + 1u);
}
