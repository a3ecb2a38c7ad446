// The share of a row of the last states in (31): ⟨dM_C, M₀⟩, ⟨dM_C, S₀⟩, ⟨dS_C, S₀⟩.

@group(0) @binding(2) var<storage, read> kept: array<f32>;        // [kept,H,M and S,K,V]
@group(0) @binding(3) var<storage, read> kept_grads: array<f32>;  // [kept,H,M and S,K,V]
@group(0) @binding(4) var<storage, read_write> space: array<f32>;

@compute @workgroup_size(64)
fn ends(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let chunk = thread / args.key;
    let row = thread % args.key;
    let here = span(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    let m = (here.kept * MATRICES * args.key + row) * args.value;
    let s = m + args.key * args.value;
    var sum = vec3<f32>();
    for (var c = 0u; c < args.value; c++) {
        sum.x += kept_grads[m + c] * kept[m + c];
        if MOMENTUM == 1u {
            sum.y += kept_grads[m + c] * kept[s + c];
            sum.z += kept_grads[s + c] * kept[s + c];
        }
    }
    space[end_at(chunk, 0u, row)] = sum.x;
    space[end_at(chunk, 1u, row)] = sum.y;
    space[end_at(chunk, 2u, row)] = sum.z;
}
