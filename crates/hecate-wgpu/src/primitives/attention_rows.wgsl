// Sums and maxima over the 8 invocations of four rows, on any adapter: through workgroup memory. All call them, and a
// barrier is between one call and the next.

// What an invocation knows of itself; the variant with subgroups has more fields.
struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

// Which of the workgroup's invocations it is; eight neighbours share four rows.
fn number(it: Member) -> u32 {
    return it.local;
}

// Partial sums and maxima of rows.
var<workgroup> reduced: array<vec4<f32>, 64>;

// Eight invocations share four rows; all have the result.
fn row_sums(lane: u32, own: vec4<f32>) -> vec4<f32> {
    reduced[lane] = own;
    workgroupBarrier();
    let first = lane - lane % 8u;
    return ((reduced[first] + reduced[first + 1u]) + (reduced[first + 2u] + reduced[first + 3u]))
        + ((reduced[first + 4u] + reduced[first + 5u]) + (reduced[first + 6u] + reduced[first + 7u]));
}

// The same with the maximum.
fn row_tops(lane: u32, own: vec4<f32>) -> vec4<f32> {
    reduced[lane] = own;
    workgroupBarrier();
    let first = lane - lane % 8u;
    let low = max(max(reduced[first], reduced[first + 1u]), max(reduced[first + 2u], reduced[first + 3u]));
    let high = max(max(reduced[first + 4u], reduced[first + 5u]), max(reduced[first + 6u], reduced[first + 7u]));
    return max(low, high);
}
