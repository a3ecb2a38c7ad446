// What goes into a memory's part of `workspace`, and out of it.

// Rows of the group out of `x`; zeros beyond its last token.
@compute @workgroup_size(THREADS)
fn load(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    let t = i / args.width;
    if (t < plan.call.frozen) {
        var own = 0.0;
        if (t < tokens) {
            own = x[row_of(t) * args.width + i % args.width];
        }
        workspace[base + args.to + i] = own;
    }
}

// Rows of the group to results, with what joins them.
@compute @workgroup_size(THREADS)
fn store(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    let t = i / args.width;
    if (t < tokens) {
        var own = at(args.origin, i);
        if (args.plus != NOTHING) {
            own += at(args.plus, i);
        }
        results[args.to + row_of(t) * args.width + i % args.width] = own;
    }
}

// The slot that element `i` of a state is in, and its number there.
fn slot_of(i: u32) -> vec2<u32> {
    var slot = 0u;
    var own = i;
    while (slot < 3u && own >= plan.call.sizes[slot]) {
        own -= plan.call.sizes[slot];
        slot++;
    }
    return vec2(slot, own);
}

// States from `given`, initial ones with anchors, or gradients of final ones, beside which those of anchors are zero.
@compute @workgroup_size(THREADS)
fn open(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    if (i >= plan.call.state) {
        return;
    }
    let own = slot_of(i);
    let size = plan.call.sizes[own.x];
    let initial = args.to == plan.places.state;
    let first = select(plan.call.dlast[own.x], plan.call.initial[own.x], initial);
    workspace[base + args.to + i] = bitcast<f32>(given[first + sequence_head * size + own.y]);
    if (own.x < plan.call.anchor_slots) {
        // Anchors [H,size] come after the initial states.
        let before = plan.call.sequence_heads * plan.call.state + plan.call.heads * (i - own.y);
        let anchor = plan.call.initial.x + before + sequence_head % plan.call.heads * size + own.y;
        workspace[base + plan.places.anchor + i] = bitcast<f32>(given[anchor]);
        if (!initial) {
            workspace[base + plan.places.danchor + i] = 0.0;
        }
    }
}

// States from the panel `origin`, or gradients of them, to results; behind those, where they are, gradients of anchors.
@compute @workgroup_size(THREADS)
fn close(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    if (i >= plan.call.state) {
        return;
    }
    let own = slot_of(i);
    let size = plan.call.sizes[own.x];
    results[plan.call.last[own.x] + sequence_head * size + own.y] = at(args.origin, i);
    if (own.x < plan.call.anchor_slots && args.origin == plan.places.dstate) {
        let to = plan.call.last.x + plan.call.sequence_heads * (plan.call.state + i - own.y) + sequence_head * size + own.y;
        results[to] = at(plan.places.danchor, i);
    }
}

// Where a kept state is, or none: every interval begins with a group.
fn kept_place() -> u32 {
    return kept + args.start / plan.call.unit * plan.call.state;
}

// The state before the group is kept, where the sequence has a group there.
@compute @workgroup_size(THREADS)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    if (i < plan.call.state && tokens > 0u) {
        results[kept_place() + i] = at(plan.places.state, i);
    }
}

// And comes back; zeros where it has none.
@compute @workgroup_size(THREADS)
fn recall(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    if (i < plan.call.state) {
        var own = 0.0;
        if (tokens > 0u) {
            own = results[kept_place() + i];
        }
        workspace[base + plan.places.state + i] = own;
    }
}

// `width` elements from one place to another.
@compute @workgroup_size(THREADS)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let i = group.x * THREADS + me;
    if (i < args.width) {
        workspace[base + args.to + i] = at(args.origin, i);
    }
}
