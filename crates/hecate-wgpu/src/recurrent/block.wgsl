// Rows and matrices of one workgroup, and how its invocations share them.
//
// Rows lie in workgroup memory, or, where they are too many for it, after all else in the workgroup's part of `workspace`;
// matrices lie in `workspace`, row by row. Either is named by the number of its first element, rows counted from the first row.
//
// Constants. THREADS is a power of two from 16. LANES is how many invocations share a row of a matrix. NEAR is the
// elements of rows in workgroup memory, 0 where they lie in `workspace`. RENORM says whether `renorm.wgsl` has anything to do.

// Sums of invocations that a second round adds up.
const SECOND: u32 = 16u;

// Four sums of each invocation, then the sixteen of the second round.
var<workgroup> partial: array<vec4<f32>, THREADS + SECOND>;
// Rows of one token: q, k, v, gates, results, gradients and intermediate rows.
var<workgroup> near: array<f32, max(NEAR, 1u)>;

// This invocation, and where rows begin in `workspace` if they lie there.
var<private> me: u32;
var<private> far: u32;

// Element `i` of the rows.
fn row(i: u32) -> f32 {
    if (NEAR == 0u) {
        return workspace[far + i];
    }
    return near[i];
}

// Writes element `i` of the rows.
fn put(i: u32, x: f32) {
    if (NEAR == 0u) {
        workspace[far + i] = x;
    } else {
        near[i] = x;
    }
}

// `add` to what is there.
fn put_more(i: u32, x: f32) {
    put(i, row(i) + x);
}

// Rows and matrices become visible.
fn sync() {
    workgroupBarrier();
    storageBarrier();
}

// Columns that a round takes: several invocations share one where there are fewer columns than invocations.
// With fewer columns than invocations, the rows of a column are shared out.
fn width_of(columns: u32) -> u32 {
    return min(columns, THREADS);
}

// The sum of this invocation's column over those that share it, or the largest; then NaN where there is one.
// Invocations of one column are `width` apart, so that neighbours read neighbouring elements of a matrix.
fn join(width: u32, top: bool) -> f32 {
    var joined = partial[me].x;
    for (var p = 1u; p < THREADS / width; p++) {
        let own = partial[me + p * width].x;
        joined = select(joined + own, larger(joined, own), top);
    }
    return joined;
}
