// Factors of products as cooperative matrices take them: a workgroup a block of SIDE rows of a left factor, or SIDE columns of a
// right one, and STEPS matrices along their terms.
//
// A number x becomes two halves, x ≈ (high + low) / scale: together they have about 21 bits. The scale is a power of two that
// brings the largest of the block near the largest half. Numbers below 2^-17 of that have fewer bits: the last is 2^-39 of it.
// A block with a number that is not finite gets NaN for a scale: sums of all its rows or columns become NaN.
//
// Tiles are [SIDE, SIDE] high halves, terms fastest, then as many low ones. A factor is [sides / SIDE, terms / SIDE] of them.

// Defined in `packs.rs`.
@group(0) @binding(0) var<uniform> args: PackArgs;
@group(0) @binding(1) var<storage, read> workspace: array<f32>;
// [memories, tiles, 2, SIDE, SIDE], four halves each.
@group(0) @binding(2) var<storage, read_write> halves: array<vec2<u32>>;
// What sums are multiplied with: [memories, tiles], of which the first of every block has one.
@group(0) @binding(3) var<storage, read_write> scales: array<f32>;

// Terms of a block, and elements between its sides: one more, so that neighbours lie in different banks.
const DEEP: u32 = SIDE * STEPS;
const APART: u32 = DEEP + 1u;
var<workgroup> block: array<f32, SIDE * APART>;
// The largest of each subgroup by its bits: their order is that of sizes, and NaN comes last.
var<workgroup> tops: array<u32, 256>;

// The exponent that the largest number gets, and the bits of infinity.
const TOP: i32 = 14;
const INFINITE: u32 = 0x7f800000u;

// The power of two that brings a number with these bits to 2^TOP; both it and its inverse are normal numbers.
fn exponent(bits: u32) -> i32 {
    return clamp(TOP + 127 - i32(bits >> 23u), -113, 126);
}

// A half's digits by the bits: compilers take a number that became a half and back for the number itself.
fn high(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4(0xffffe000u));
}

// Four halves.
fn packed(x: vec4<f32>) -> vec2<u32> {
    return vec2(pack2x16float(x.xy), pack2x16float(x.zw));
}

// Splits factors into halves: x = (high + low) * scale. A workgroup packs SIDE rows or columns, STEPS matrices along the terms.
@compute @workgroup_size(256)
fn pack(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) me: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let base = group.y * args.each;
    var n = 0u;
    var index = group.x;
    while (index >= args.factors[n].blocks) {
        index -= args.factors[n].blocks;
        n++;
    }
    let own = args.factors[n];
    let first_side = index / own.chunks * SIDE;
    let first_term = index % own.chunks * DEEP;
    // Neighbouring invocations read neighbouring elements, whichever way a matrix lies.
    let lies = own.by_term == 1u;
    var most = 0u;
    for (var i = me; i < SIDE * DEEP; i += 256u) {
        let side = select(i % SIDE, i / DEEP, lies);
        let term = select(i / SIDE, i % DEEP, lies);
        var x = workspace[base + own.at + (first_side + side) * own.by_side + (first_term + term) * own.by_term];
        if (own.by != 0u) {
            x *= workspace[base + own.by + select(first_side + side, first_term + term, own.by_depth != 0u)];
        }
        block[side * APART + term] = x;
        most = max(most, bitcast<u32>(x) & 0x7fffffffu);
    }
    most = subgroupMax(most);
    if (lane == 0u) {
        tops[subgroup] = most;
    }
    workgroupBarrier();

    var bits = 0u;
    for (var i = 0u; i < subgroups; i++) {
        bits = max(bits, tops[i]);
    }
    let lost = bits >= INFINITE;
    let power = exponent(bits);
    let tile = group.y * args.tiles + own.origin + index * STEPS;
    if (me == 0u) {
        scales[tile] = select(power_of_two(-power), not_a_number(), lost);
    }
    let scale = power_of_two(power);
    // Invocations write four neighbouring halves of either part.
    const FOURS = SIDE * SIDE / 4u;
    for (var i = me; i < STEPS * FOURS; i += 256u) {
        let step = i / FOURS;
        let within = i % FOURS;
        let at = within / (SIDE / 4u) * APART + step * SIDE + within % (SIDE / 4u) * 4u;
        let scaled = scale * vec4(block[at], block[at + 1u], block[at + 2u], block[at + 3u]);
        let x = select(scaled, vec4(0.0), vec4(lost));
        let to = (tile + step) * 2u * FOURS + within;
        halves[to] = packed(high(x));
        halves[to + FOURS] = packed(x - high(x));
    }
}
