// Sums and maxima over a workgroup of at most 256 invocations, on an adapter with subgroups, of whatever size they are.
// Every invocation takes part and has the result.
//
// A sum and a maximum have memory of their own: two of either need one of the other, or a barrier, in between.

struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

// The sum of each subgroup; 256 places, because a subgroup may be a single invocation.
var<workgroup> partial_sums: array<f32, 256>;
// The largest of each subgroup, as an ordered word.
var<workgroup> partial_tops: array<u32, 256>;

// Σ x, in an order that the adapter alone decides.
// One barrier: the first lane of each subgroup writes, then every invocation reads all.
fn workgroup_sum(own: Member, size: u32, x: f32) -> f32 {
    let part = subgroupAdd(x);
    if own.lane == 0u {
        partial_sums[own.subgroup] = part;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < own.subgroups; i++) {
        sum += partial_sums[i];
    }
    return sum;
}

// A number for every float, in their order, NaN on top: what becomes of that in a maximum of floats is left to the adapter.
// Negative floats have all bits flipped, the others the sign bit alone, so that words compare as floats do.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if is_nan(x) {
        return 0xffffffffu;
    }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

// The float of such a number.
fn float_at(number: u32) -> f32 {
    return bitcast<f32>(select(~number, number & 0x7fffffffu, number >= 0x80000000u));
}

// The largest x; NaN where one is.
// The maximum is taken of words, where NaN is the largest word and cannot be swallowed.
fn workgroup_max(own: Member, size: u32, x: f32) -> f32 {
    let part = subgroupMax(ordered(x));
    if own.lane == 0u {
        partial_tops[own.subgroup] = part;
    }
    workgroupBarrier();
    var top = 0u;
    for (var i = 0u; i < own.subgroups; i++) {
        top = max(top, partial_tops[i]);
    }
    return float_at(top);
}
