// Sums over the parts of a column, on any adapter: through workgroup memory, an exchange every token, on two sides in turn,
// so that one barrier is enough.

struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

// Which of the workgroup's invocations it is; neighbours share a column.
fn number(it: Member) -> u32 {
    return it.local;
}

// Two sides of one pair of values an invocation: while one side is read, the next token writes the other.
var<workgroup> shared_sums: array<vec2<f32>, 2u * THREADS>;

// The sum of `x` over the PARTS invocations of a column; all of them have it.
// Two values are summed at once, since a barrier costs as much for one.
fn column_sum(x: vec2<f32>, side: u32, local: u32) -> vec2<f32> {
    if PARTS == 1u {
        return x;
    }
    // A column's invocations are neighbours, so that its sums lie side by side.
    shared_sums[side * THREADS + local] = x;
    workgroupBarrier();
    // Invocations beyond the last column read the last column's, and nobody uses their sums.
    let first = side * THREADS + min(local / PARTS, COLUMNS - 1u) * PARTS;
    var sum = shared_sums[first] + shared_sums[first + 1u];
    // The first ones written out: in a loop each read waits for the one before.
    if PARTS > 2u {
        sum += shared_sums[first + 2u];
    }
    if PARTS > 3u {
        sum += shared_sums[first + 3u];
    }
    for (var i = 4u; i < PARTS; i++) {
        sum += shared_sums[first + i];
    }
    return sum;
}
