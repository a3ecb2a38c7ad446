// Layer norm of rows. `first_of(i)` is an element when it is read first, and `kept(i)` afterwards: of x, or of a sum.

// [rows, width]
@group(0) @binding(1) var<storage, read> x: array<f32>;
// [width]
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
// [rows, width]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
// [rows]
@group(0) @binding(5) var<storage, read_write> mean: array<f32>;
@group(0) @binding(6) var<storage, read_write> inverse: array<f32>;

// y = (x − m) r w + b; the mean first, so that a large one costs the variance no digits.
@compute @workgroup_size(INVOCATIONS)
fn layer_norm(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = own_elements(id, lane);
    let width = f32(args.width);
    var sum = 0.0;
    for (var i = own.first; i < own.end; i += LANES) { sum += first_of(i); }
    let m = row_sum(lane, sum) / width;
    var square = 0.0;
    for (var i = own.first; i < own.end; i += LANES) { square += (kept(i) - m) * (kept(i) - m); }
    let r = 1.0 / sqrt(row_sum(lane, square) / width + args.epsilon);
    for (var i = own.first; i < own.end; i += LANES) {
        let column = i - own.row * args.width;
        y[i] = (kept(i) - m) * r * weight[column] + bias[column];
    }
    if own.row < args.rows && lane % LANES == 0u {
        mean[own.row] = m;
        inverse[own.row] = r;
    }
}
