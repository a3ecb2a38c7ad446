// What becomes of sums that cooperative matrices made, each in PARTS: an invocation an element.

// By memory as `workspace`: [PARTS, rows, columns].
@group(0) @binding(2) var<storage, read> sums: array<f32>;

// Adds the PARTS of each element of sums [PARTS,rows,columns], and hands the sum to `finish`.
@compute @workgroup_size(64)
fn finish_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) me: u32) {
    base = group.y * args.each;
    let at = 64u * group.x + me;
    let count = args.rows * args.columns;
    if (at < count) {
        var sum = sums[base + at];
        for (var part = 1u; part < PARTS; part++) {
            sum += sums[base + part * count + at];
        }
        finish(sum, at / args.columns, at % args.columns);
    }
}
