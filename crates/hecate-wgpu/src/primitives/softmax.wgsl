// Softmax of rows, and its gradient.

// [rows, width]: x forward; the shares y backward.
@group(0) @binding(1) var<storage, read> x: array<f32>;
// [rows, width]: y forward; dx backward.
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
// [rows, width], backward alone.
@group(0) @binding(3) var<storage, read> dy: array<f32>;

// y = e^{x − top} / Σ e^{x − top}; every power is made twice, since arrays are read faster than kept.
@compute @workgroup_size(INVOCATIONS)
fn softmax(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = own_elements(id, lane);
    // The lowest number: WGSL has no constant for −∞.
    var most = -infinity();
    for (var i = own.first; i < own.end; i += LANES) { most = larger(most, x[i]); }
    let top = row_max(lane, most);
    var sum = 0.0;
    for (var i = own.first; i < own.end; i += LANES) { sum += exponential(x[i] - top); }
    let share = 1.0 / row_sum(lane, sum);
    for (var i = own.first; i < own.end; i += LANES) { y[i] = exponential(x[i] - top) * share; }
}

// dx = y (dy − y·dy), with y as x and dx as y
@compute @workgroup_size(INVOCATIONS)
fn softmax_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = own_elements(id, lane);
    var sum = 0.0;
    for (var i = own.first; i < own.end; i += LANES) { sum += x[i] * dy[i]; }
    let mean = row_sum(lane, sum);
    for (var i = own.first; i < own.end; i += LANES) { y[i] = x[i] * (dy[i] - mean); }
}
