// The values of a quantized matrix: an invocation has 16 of them.

struct DequantizeArgs {
    // Parts of 16 values.
    parts: u32,
    unused: vec3<u32>,
}

@group(0) @binding(0) var<uniform> args: DequantizeArgs;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn dequantize(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = group_index(id) * 64u + lane;
    if part >= args.parts { return; }
    let w = decode(part / block_parts() * block_bytes(), part % block_parts());
    for (var i = 0u; i < 16u; i += 1u) {
        out[PART * part + i] = w.scale * f32(w.q[i]) - w.minimum;
    }
}
