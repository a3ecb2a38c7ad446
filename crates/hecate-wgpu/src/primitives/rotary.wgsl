// Rotary positions. Angles count in turns. What a token turns is a fraction of 64 bits; the product with a position
// keeps 32 bits after the point. So no position is too far for 32-bit floats.

// Defined in `rotary.rs`.
@group(0) @binding(0) var<uniform> args: RotaryArgs;
// Turns a token [half] in 2^-64, the lower word first; position minus row, modulo 2^32, and first row [sequences].
@group(0) @binding(1) var<storage, read> table: array<u32>;
// [rows, heads, 2 half]
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// The upper word of a product.
// WGSL has no wide product: four products of 16-bit halves, with their carries.
fn upper(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let b_low = b & 0xffffu;
    let a_high = a >> 16u;
    let b_high = b >> 16u;
    let middle = a_high * b_low + ((a_low * b_low) >> 16u);
    return a_high * b_high + (middle >> 16u) + ((a_low * b_high + (middle & 0xffffu)) >> 16u);
}

// (cos, sin) of an angle in 2^-32 turns. Quarters of a turn are taken off in whole numbers. What is left, at most an
// eighth either way, goes into the power series. The first term left out is under 2^-25.
fn direction(turns: u32) -> vec2<f32> {
    let quarter = (turns + 0x20000000u) >> 30u;
    let angle = f32(bitcast<i32>(turns - (quarter << 30u))) * 1.4629180792671596e-9;
    let s = angle * angle;
    let sine = angle * (1.0 + s * (-0.16666667 + s * (0.0083333333 + s * (-0.00019841270 + s * 2.7557319e-6))));
    let cosine = 1.0 + s * (-0.5 + s * (0.041666667 + s * (-0.0013888889 + s * 2.4801587e-5)));
    let turned = select(vec2<f32>(cosine, sine), vec2<f32>(-sine, cosine), (quarter & 1u) == 1u);
    return select(turned, -turned, (quarter & 2u) == 2u);
}

// A pair of a row: all heads turn by the same angle.
@compute @workgroup_size(64)
fn rotary(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.rows * args.half { return; }
    let row = i / args.half;
    let pair = i % args.half;
    let shifts = 2u * args.half;
    let starts = shifts + args.sequences;
    // The sequence of the row, by bisection of the first rows.
    var low = 0u;
    var high = args.sequences;
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if table[starts + middle] <= row { low = middle; } else { high = middle; }
    }
    let position = row + table[shifts + low];
    // Bits 32 to 63 of the position times the 64-bit fraction: whole turns fall away above.
    let turns = position * table[2u * pair + 1u] + upper(position, table[2u * pair]);
    let to = direction(turns);
    for (var head = 0u; head < args.heads; head += 1u) {
        let first = (row * args.heads + head) * 2u * args.half + pair;
        let u = x[first];
        let v = x[first + args.half];
        y[first] = u * to.x - v * to.y;
        y[first + args.half] = u * to.y + v * to.x;
    }
}
