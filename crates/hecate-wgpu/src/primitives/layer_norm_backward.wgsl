// Gradients of a layer norm by its rows. `beside(i)` is what is added to an element of dx, which may be nothing.

// [rows, width]
@group(0) @binding(1) var<storage, read> x: array<f32>;
// [width]
@group(0) @binding(2) var<storage, read> weight: array<f32>;
// [rows]
@group(0) @binding(3) var<storage, read> mean: array<f32>;
@group(0) @binding(4) var<storage, read> inverse: array<f32>;
// [rows, width]
@group(0) @binding(5) var<storage, read> dy: array<f32>;
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;
// n = (x − m) r, of which the gradient of the weight is made.
@group(0) @binding(7) var<storage, read_write> normed: array<f32>;

// dx = r (h − mean h − n mean (n h)), h = w dy
@compute @workgroup_size(INVOCATIONS)
fn layer_norm_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = own_elements(id, lane);
    var m = 0.0;
    var r = 0.0;
    if own.row < args.rows {
        m = mean[own.row];
        r = inverse[own.row];
    }
    var level = 0.0;
    var along = 0.0;
    for (var i = own.first; i < own.end; i += LANES) {
        let h = weight[i - own.row * args.width] * dy[i];
        normed[i] = (x[i] - m) * r;
        level += h;
        along += h * normed[i];
    }
    level = row_sum(lane, level) / f32(args.width);
    along = row_sum(lane, along) / f32(args.width);
    for (var i = own.first; i < own.end; i += LANES) {
        dx[i] = r * (weight[i - own.row * args.width] * dy[i] - level - normed[i] * along) + beside(i);
    }
}
