// Sums and maxima over a workgroup of `size` invocations, a multiple of 16, at most 256. Every invocation takes part and
// has the result.

// What an invocation knows of itself; the variant with subgroups has more fields under the same names.
struct Member {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

// One value of each invocation, then 16 partial sums in its first places.
var<workgroup> partials: array<f32, 256>;

// Σ x, in an order that `size` alone decides.
// The first barrier waits until nobody reads the sums of the call before.
// The second makes all values visible, the third the 16 partial sums.
fn workgroup_sum(own: Member, size: u32, x: f32) -> f32 {
    let local = own.local;
    workgroupBarrier();
    partials[local] = x;
    workgroupBarrier();
    // Sixteen invocations add up strided parts; every invocation then adds the sixteen in the same order.
    if local < 16u {
        var sum = 0.0;
        for (var i = local; i < size; i += 16u) {
            sum += partials[i];
        }
        partials[local] = sum;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        sum += partials[i];
    }
    return sum;
}

// The largest x; NaN where one is.
// Barriers as in `workgroup_sum`.
fn workgroup_max(own: Member, size: u32, x: f32) -> f32 {
    let local = own.local;
    workgroupBarrier();
    partials[local] = x;
    workgroupBarrier();
    if local < 16u {
        var top = partials[local];
        for (var i = local + 16u; i < size; i += 16u) {
            top = larger(top, partials[i]);
        }
        partials[local] = top;
    }
    workgroupBarrier();
    var top = partials[0];
    for (var i = 1u; i < 16u; i++) {
        top = larger(top, partials[i]);
    }
    return top;
}
