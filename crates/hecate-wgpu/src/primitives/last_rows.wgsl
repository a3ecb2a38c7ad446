// The last `kept` rows of each sequence, oldest first, and their gradients' way back.
//
// Constants: BEFORE, ROWS: 1 where there is an array in front of the tokens, and one of the tokens.

// Defined in `sequences.rs`.
@group(0) @binding(0) var<uniform> args: LastRowsArgs;
// First row of every sequence, and the end.
@group(0) @binding(1) var<storage, read> starts: array<u32>;
// [N, kept, width]; anything where there is none.
@group(0) @binding(2) var<storage, read> before: array<f32>;
// [rows, width]; anything where there is none.
@group(0) @binding(3) var<storage, read> rows: array<f32>;
// [N, kept, width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Of `rows` and, in front of them, of `before`. Without `before` those are zeros; without `rows` they are ones.
@compute @workgroup_size(64)
// An invocation copies one element.
fn last_rows(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    let row = i / args.width;
    let n = row / args.kept;
    let start = starts[n];
    let at = starts[n + 1u] - start + row % args.kept;
    var value = 0.0;
    if at >= args.kept {
        value = 1.0;
        if ROWS == 1u { value = rows[(start + at - args.kept) * args.width + i % args.width]; }
    } else if BEFORE == 1u {
        value = before[(n * args.kept + at) * args.width + i % args.width];
    }
    out[i] = value;
}
