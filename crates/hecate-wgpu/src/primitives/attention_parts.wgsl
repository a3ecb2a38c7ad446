// The results of parts of the keys put together: with w_p = exp(lse_p - top), y = sum of w_p y_p / sum of w_p and
// lse = top + log(sum of w_p), in the order of the parts.

// Defined in `attention.rs`.
@group(0) @binding(0) var<uniform> args: PartsArgs;
// [number, rows, width]
@group(0) @binding(1) var<storage, read> part_y: array<f32>;
// [number, rows]
@group(0) @binding(2) var<storage, read> part_lse: array<f32>;
// [rows, width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
// [rows]
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

// An invocation makes one element of the result.
@compute @workgroup_size(64)
fn attention_parts(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.rows * args.width { return; }
    let row = i / args.width;
    // A NaN of any part becomes the maximum, and with it every weight.
    var top = part_lse[row];
    for (var part = 1u; part < args.number; part += 1u) { top = larger(top, part_lse[part * args.rows + row]); }
    var sum = 0.0;
    var out = 0.0;
    for (var part = 0u; part < args.number; part += 1u) {
        let at = part * args.rows + row;
        let weight = exponential(part_lse[at] - top);
        sum += weight;
        out += weight * part_y[at * args.width + i % args.width];
    }
    y[i] = out / sum;
    // The first element's invocation of a row also writes its sum.
    if i % args.width == 0u { lse[row] = top + logarithm(sum); }
}
