// The sum over the first axis of partial results: out[i] = sum over p of parts[p, i], in the order of the parts.

// Defined in `sums.rs`.
@group(0) @binding(0) var<uniform> args: SumPartsArgs;
// [number, count]
@group(0) @binding(1) var<storage, read> parts: array<f32>;
// [count]
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// out [count] = parts [number,count].sum(0)
@compute @workgroup_size(64)
// An invocation adds up one element of all parts.
fn sum_parts(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    // Four sums at once, each a quarter of the parts: shorter chains of rounding, and reads that do not wait.
    var sums = vec4<f32>();
    var part = 0u;
    for (; part + 4u <= args.number; part += 4u) {
        let at = part * args.count + i;
        sums += vec4<f32>(parts[at], parts[at + args.count], parts[at + 2u * args.count], parts[at + 3u * args.count]);
    }
    var rest = 0.0;
    for (; part < args.number; part += 1u) { rest += parts[part * args.count + i]; }
    out[i] = ((sums.x + sums.y) + (sums.z + sums.w)) + rest;
}
