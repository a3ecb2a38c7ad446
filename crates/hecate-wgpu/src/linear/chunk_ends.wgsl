// The share of a column of the last states in (31): ⟨dM_C, M₀⟩, ⟨dM_C, S₀⟩, ⟨dS_C, S₀⟩.

@group(0) @binding(2) var<storage, read> kept: array<f32>;        // [kept,H,M and S,K,V]
@group(0) @binding(3) var<storage, read> kept_grads: array<f32>;  // [kept,H,M and S,K,V]
@group(0) @binding(4) var<storage, read_write> space: array<f32>;

// An invocation owns one column of one chunk, and sums over the K rows of it.
@compute @workgroup_size(64)
fn ends(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    // Invocations are numbered chunk by chunk, column by column.
    let chunk = thread / args.value;
    let column = thread % args.value;
    let here = segment(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    // `kept` and `kept_grads` have one layout: M, then S, of every kept state.
    let first = here.kept * args.matrices * args.key * args.value + column;
    var sum = vec3<f32>();
    for (var i = 0u; i < args.key; i++) {
        let m = first + i * args.value;
        let dm = kept_grads[m];
        sum.x += dm * kept[m];
        // S follows M after K V elements.
        if args.matrices == 2u {
            let s = m + args.key * args.value;
            sum.y += dm * kept[s];
            sum.z += kept_grads[s] * kept[s];
        }
    }
    // `chunk_tables` adds these up over the columns.
    space[end_at(chunk, 0u, column)] = sum.x;
    space[end_at(chunk, 1u, column)] = sum.y;
    space[end_at(chunk, 2u, column)] = sum.z;
}
