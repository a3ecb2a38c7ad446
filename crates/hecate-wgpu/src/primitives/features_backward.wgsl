// [rows, features]
@group(0) @binding(2) var<storage, read> dy: array<f32>;
// [rows, width]
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;

// dx_i = √c₁ dy_i + √c₂ (2 x_i dy_ii + √2 Σ_{j≠i} x_j dy_ij)
@compute @workgroup_size(64)
// A workgroup makes one row; an invocation makes every 64th element.
fn poly2_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(id);
    if row >= args.rows { return; }
    let start = row * args.width;
    let linear = row * args.features + 1u;
    let pairs = linear + args.width;
    for (var i = lane; i < args.width; i += 64u) {
        var others = 0.0;
        for (var j = 0u; j < args.width; j += 1u) {
            let low = min(i, j);
            let slope = dy[pairs + row_start(low) + (max(i, j) - low)];
            if j != i { others += x[start + j] * slope; }
        }
        let own = 2.0 * x[start + i] * dy[pairs + row_start(i)];
        dx[start + i] = args.first * dy[linear + i] + args.second * (own + ROOT2 * others);
    }
}
