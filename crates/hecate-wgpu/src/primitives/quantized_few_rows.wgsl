// y = x Wᵀ of few rows: a workgroup has a row of weights, an invocation every 64th part of it.

struct FewRowsArgs {
    // Rows of x.
    rows: u32,
    // Rows of weights.
    columns: u32,
    // Terms of a sum.
    inner: u32,
    unused: u32,
}

@group(0) @binding(0) var<uniform> args: FewRowsArgs;
// [rows, inner]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [rows, columns]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Most rows of x.
const TOGETHER = 8u;

@compute @workgroup_size(64)
fn few_rows(own: Member) {
    let column = group_index(own.group);
    if column >= args.columns { return; }
    let parts = args.inner / PART;
    let blocks = parts / block_parts();
    var sums: array<f32, 8>;
    for (var part = own.local; part < parts; part += 64u) {
        let block = (column * blocks + part / block_parts()) * block_bytes();
        let w = decode(block, part % block_parts());
        for (var n = 0u; n < args.rows; n += 1u) {
            let at = n * args.inner + PART * part;
            var plain = 0.0;
            var weighted = 0.0;
            for (var i = 0u; i < 16u; i += 1u) {
                let value = x[at + i];
                plain += value;
                weighted += f32(w.q[i]) * value;
            }
            sums[n] += w.scale * weighted - w.minimum * plain;
        }
    }
    for (var n = 0u; n < args.rows; n += 1u) {
        let sum = workgroup_sum(own, 64u, sums[n]);
        if own.local == 0u { y[n * args.columns + column] = sum; }
    }
}
