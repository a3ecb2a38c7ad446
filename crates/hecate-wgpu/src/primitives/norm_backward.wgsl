// [rows]
@group(0) @binding(3) var<storage, read> inverse: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;
// A gate and its gradient, [rows, width].
@group(0) @binding(6) var<storage, read> g: array<f32>;
@group(0) @binding(7) var<storage, read_write> dg: array<f32>;

// r w dy
// The gradient of the normalised row, times r.
fn slope(r: f32, row: u32, i: u32) -> f32 {
    if KIND == L2 { return r * dy[i]; }
    return r * dy[i] * factor(row, i);
}

// dx = g − x r² (x·g) share, g = r w dy
@compute @workgroup_size(INVOCATIONS)
// LANES invocations own a row, as in the forward.
fn normalise_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(id) * (INVOCATIONS / LANES) + lane / LANES;
    let end = select(0u, (row + 1u) * args.width, row < args.rows);
    let first = row * args.width + lane % LANES;
    var r = 0.0;
    if row < args.rows { r = inverse[row]; }
    var own = 0.0;
    for (var i = first; i < end; i += LANES) { own += x[i] * slope(r, row, i); }
    let along = (r * row_sum(lane, own)) * r * args.share;
    for (var i = first; i < end; i += LANES) { dx[i] = slope(r, row, i) - along * x[i] + beside(i); }
}

// What the gate lets through of dy, act(g) dy, in place of dx; and dg = act'(g) x r w dy. A number an invocation.
@compute @workgroup_size(256)
fn open_gate(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = 256u * group_index(id) + lane;
    if i >= args.rows * args.width { return; }
    let row = i / args.width;
    let s = sigmoids(g[i]);
    let normed = inverse[row] * x[i] * factor(row, i) * dy[i];
    if args.sigmoid == 1u {
        dx[i] = s.x * dy[i];
        dg[i] = s.x * s.y * normed;
    } else {
        dx[i] = g[i] * s.x * dy[i];
        dg[i] = s.x * (1.0 + g[i] * s.y) * normed;
    }
}
