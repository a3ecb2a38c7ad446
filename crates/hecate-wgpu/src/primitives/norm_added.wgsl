@group(0) @binding(3) var<storage, read_write> y: array<f32>;
// [rows]
@group(0) @binding(4) var<storage, read_write> inverse: array<f32>;
// [rows, width]: what is added to x, and the sum of both
@group(0) @binding(5) var<storage, read> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> total: array<f32>;

// s = x + residual, and y = s r w with r of s: one pass over a residual stream.
@compute @workgroup_size(INVOCATIONS)
// LANES invocations own a row, and take its elements in turn, as in the norm of one array.
fn add_and_normalise(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(id) * (INVOCATIONS / LANES) + lane / LANES;
    let end = select(0u, (row + 1u) * args.width, row < args.rows);
    let first = row * args.width + lane % LANES;
    var own = 0.0;
    for (var i = first; i < end; i += LANES) {
        let sum = x[i] + residual[i];
        total[i] = sum;
        own += sum * sum;
    }
    let r = 1.0 / sqrt(row_sum(lane, own) * args.share + args.epsilon);
    // What an invocation reads here it has written itself.
    for (var i = first; i < end; i += LANES) { y[i] = total[i] * r * factor(row, i); }
    if row < args.rows && lane % LANES == 0u { inverse[row] = r; }
}
