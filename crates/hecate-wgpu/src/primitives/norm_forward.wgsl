@group(0) @binding(3) var<storage, read_write> y: array<f32>;
// [rows]
@group(0) @binding(4) var<storage, read_write> inverse: array<f32>;
// [rows, width]; not read without a gate
@group(0) @binding(5) var<storage, read> g: array<f32>;

// 1/√(a² + b²) of numbers over zero, whose squares may overflow or vanish in 32 bits. A NaN stays one.
fn inverse_length(a: f32, b: f32) -> f32 {
    let large = select(b, a, a > b);
    let ratio = select(a, b, a > b) / large;
    return 1.0 / (large * sqrt(1.0 + ratio * ratio));
}

// y [rows,width] = x / sqrt(|x|² + ε²) for L2, else x / sqrt(mean(x²) + ε) * weight * gate; `inverse` [rows] is kept.
@compute @workgroup_size(INVOCATIONS)
// LANES invocations own a row, and take its elements in turn.
fn normalise(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(id) * (INVOCATIONS / LANES) + lane / LANES;
    // Workgroups may have room for rows after the last: those have no elements, and reach the barriers all the same.
    let end = select(0u, (row + 1u) * args.width, row < args.rows);
    let first = row * args.width + lane % LANES;
    var own = 0.0;
    for (var i = first; i < end; i += LANES) { 
        let value = first_of(i);
        own += value * value;
    }
    let square = row_sum(lane, own);
    var r = 1.0;
    if KIND == L2 { r = inverse_length(sqrt(square), args.epsilon); } else { r = 1.0 / sqrt(square * args.share + args.epsilon); }
    for (var i = first; i < end; i += LANES) {
        var value = kept(i) * r;
        if KIND != L2 { value *= factor(row, i); }
        if KIND == GATED { value *= sigmoids(g[i]).x * select(g[i], 1.0, args.sigmoid == 1u); }
        y[i] = value;
    }
    if row < args.rows && lane % LANES == 0u { inverse[row] = r; }
}
