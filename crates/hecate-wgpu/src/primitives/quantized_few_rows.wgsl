// y = x Wᵀ of few rows: a workgroup has a row of weights, an invocation every 64th part of it.

// Defined in `quantized.rs`.
@group(0) @binding(0) var<uniform> args: FewRowsArgs;
// [rows, inner]
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
// [rows, columns]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Most rows of x.
const TOGETHER = 8u;

// y [rows,columns] = x [rows,inner] @ weights.T, a workgroup a column, for at most TOGETHER rows.
@compute @workgroup_size(64)
fn few_rows(own: Member) {
    let column = group_index(own.group);
    if column >= args.columns { return; }
    let parts = args.inner / PART;
    var sums: array<f32, 8>;
    for (var part = own.local; part < parts; part += 64u) {
        let w = decode(column, parts, part);
        for (var n = 0u; n < args.rows; n += 1u) {
            let at = 4u * (n * parts + part);
            let values = mat4x4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
            let plain = dot((values[0] + values[1]) + (values[2] + values[3]), vec4<f32>(1.0));
            let weighted = (dot(w.q[0], values[0]) + dot(w.q[1], values[1]))
                + (dot(w.q[2], values[2]) + dot(w.q[3], values[3]));
            sums[n] += w.scale * weighted - w.minimum * plain;
        }
    }
    for (var n = 0u; n < args.rows; n += 1u) {
        let sum = workgroup_sum(own, 64u, sums[n]);
        if own.local == 0u { y[n * args.columns + column] = sum; }
    }
}
