// Where every id of a vocabulary stands: a stable sort of positions by id, digit by digit of 8 bits. A tile is 256
// positions, one for each invocation.

struct Args {
    count: u32,
    // Larger keys count as this one.
    most: u32,
    shift: u32,
    tiles: u32,
}

@group(0) @binding(0) var<uniform> args: Args;
// [count]
@group(0) @binding(1) var<storage, read> keys: array<u32>;

const DIGITS = 256u;

var<workgroup> digits: array<u32, DIGITS>;

fn key_at(i: u32) -> u32 {
    return min(keys[i], args.most);
}

// The digit of a position; behind the end, one that is none.
fn digit_at(i: u32) -> u32 {
    if i >= args.count { return DIGITS; }
    return (key_at(i) >> args.shift) & (DIGITS - 1u);
}
