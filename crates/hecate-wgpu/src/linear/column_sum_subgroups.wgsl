// Sums over the parts of a column, a power of two, on an adapter whose subgroups are no smaller: no barrier.

struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) block: u32,
}

// Which of the workgroup's invocations it is; neighbours in a subgroup share a column.
fn number(it: Member) -> u32 {
    return it.subgroup * it.size + it.block;
}

// A butterfly over 1, 2 and 4 neighbours: after it every invocation of the column has the sum.
// PARTS is 8 at most here, and columns never cross a subgroup.
fn column_sum(x: vec2<f32>, side: u32, local: u32) -> vec2<f32> {
    var sum = x;
    if PARTS > 1u {
        sum += subgroupShuffleXor(sum, 1u);
    }
    if PARTS > 2u {
        sum += subgroupShuffleXor(sum, 2u);
    }
    if PARTS > 4u {
        sum += subgroupShuffleXor(sum, 4u);
    }
    return sum;
}
