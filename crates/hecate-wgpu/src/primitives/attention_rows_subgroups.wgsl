// Sums and maxima over the 8 invocations of four rows, on an adapter with subgroups of at least NEIGHBOURS, 4 or 8. All
// call them, and a barrier is between one call and the next. Sums are added in the order of the variant without.

struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) block: u32,
}

// Which of the workgroup's invocations it is; neighbours in a subgroup share four rows.
fn number(it: Member) -> u32 {
    return it.subgroup * it.size + it.block;
}

// Halves of rows meet here where a subgroup may be too small for a whole one.
var<workgroup> reduced: array<vec4<f32>, 64>;

// A butterfly over 1, 2 and 4 neighbours: after it all eight have the sum.
fn row_sums(lane: u32, own: vec4<f32>) -> vec4<f32> {
    var sum = own;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    if NEIGHBOURS >= 8u { return sum + subgroupShuffleXor(sum, 4u); }
    reduced[lane] = sum;
    workgroupBarrier();
    let first = lane - lane % 8u;
    return reduced[first] + reduced[first + 4u];
}

// The same with the maximum.
fn row_tops(lane: u32, own: vec4<f32>) -> vec4<f32> {
    var top = own;
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    if NEIGHBOURS >= 8u { return max(top, subgroupShuffleXor(top, 4u)); }
    reduced[lane] = top;
    workgroupBarrier();
    let first = lane - lane % 8u;
    return max(reduced[first], reduced[first + 4u]);
}
