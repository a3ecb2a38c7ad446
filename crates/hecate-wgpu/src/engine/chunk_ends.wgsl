// The share of a column of the last states in (31): ⟨dM_C, M₀⟩, ⟨dM_C, S₀⟩, ⟨dS_C, S₀⟩.

@group(0) @binding(2) var<storage, read> kept: array<f32>;        // [kept,H,M and S,K,V]
@group(0) @binding(3) var<storage, read> kept_grads: array<f32>;  // [kept,H,M and S,K,V]
@group(0) @binding(4) var<storage, read_write> space: array<f32>;

@compute @workgroup_size(64)
fn ends(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let chunk = thread / args.value;
    let column = thread % args.value;
    let here = span(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    let first = here.kept * args.matrices * args.key * args.value + column;
    var sum = vec3<f32>();
    for (var i = 0u; i < args.key; i++) {
        let m = first + i * args.value;
        let dm = kept_grads[m];
        sum.x += dm * kept[m];
        if args.matrices == 2u {
            let s = m + args.key * args.value;
            sum.y += dm * kept[s];
            sum.z += kept_grads[s] * kept[s];
        }
    }
    space[end_at(chunk, 0u, column)] = sum.x;
    space[end_at(chunk, 1u, column)] = sum.y;
    space[end_at(chunk, 2u, column)] = sum.z;
}
