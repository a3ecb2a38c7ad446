// [rows, features]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// y = (√c₀, √c₁ x_i, √c₂ w_ij x_i x_j), w_ii = 1, else √2
@compute @workgroup_size(64)
// A workgroup makes one row; its invocations share the pairs of each first index.
fn poly2(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(id);
    if row >= args.rows { return; }
    let start = row * args.width;
    let to = row * args.features;
    if lane == 0u { y[to] = args.zeroth; }
    for (var i = 0u; i < args.width; i += 1u) {
        let own = x[start + i];
        if lane == i % 64u { y[to + 1u + i] = args.first * own; }
        // Neighbours write neighbouring pairs.
        let pairs = to + 1u + args.width + row_start(i) - i;
        for (var j = i + lane; j < args.width; j += 64u) {
            let factor = select(args.second * ROOT2, args.second, i == j);
            y[pairs + j] = factor * own * x[start + j];
        }
    }
}
