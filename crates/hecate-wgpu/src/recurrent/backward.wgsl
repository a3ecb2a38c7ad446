// Lanes backward: span by span from the last, behind a forward that left the states and records of the span in `room`.
// `made` is dq, dk [rows,H,K], dv [rows,H,V], then the gradients of gates and of initial states.
//
// A span's ticks are its tokens, from the last. What a dispatch leaves in `room` is there for the next.

// [rows,H,V].
@group(0) @binding(8) var<storage, read> dout: array<f32>;

// The point of a token. Only groups that are units begin before their span.
fn point_at(t: u32, start: u32) -> u32 {
    if (args.call.frozen == 0u) {
        return states + (t - start) * args.call.state;
    }
    let group = t / args.call.frozen * args.call.frozen;
    if (group < start) {
        return spare;
    }
    return states + (group - start) * args.call.state;
}

// What token `i` of the span left, and the gradient of what it read; nothing yet is the gradient of its arguments.
fn load_record(own: u32, i: u32) {
    for (var j = me; j < args.call.value; j += THREADS) {
        put(out + j, dout[own * args.call.value + j]);
    }
    for (var j = me; j < args.call.record; j += THREADS) {
        put(record + j, room[records + i * args.call.record + j]);
    }
    for (var j = me; j < token_rows(); j += THREADS) {
        put(grads.q + j, 0.0);
    }
}

fn store_grads(own: u32) {
    let call = args.call;
    for (var i = me; i < call.key; i += THREADS) {
        made[own * call.key + i] = row(grads.q + i);
        made[call.dk + own * call.key + i] = row(grads.k + i);
    }
    for (var i = me; i < call.value; i += THREADS) {
        made[call.dv + own * call.value + i] = row(grads.v + i);
    }
    var from_row = grads.gates;
    for (var slot = 0u; slot < call.gate_slots; slot++) {
        let width = args.call.widths[slot];
        for (var i = me; i < width; i += THREADS) {
            made[args.call.dgates[slot] + own * width + i] = row(from_row + i);
        }
        from_row += width;
    }
}

// The gradient of the point joins that of the state.
fn join_point() {
    for (var i = me; i < args.call.state; i += THREADS) {
        room[dstate + i] += room[dpoint + i];
        room[dpoint + i] = 0.0;
    }
}

@compute @workgroup_size(THREADS)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    me = index;
    let size = args.call.state;
    let frozen = args.call.frozen;
    lay_out(group.x, true);
    let lane = args.call.lane + group.x;
    let at = lane_at(lane);
    let span = span_at(at);
    let last = min(args.call.end, span.tokens);
    if (args.call.begin == 0u && args.call.span == 0u) {
        load_state(dstate, args.call.dlast, lane);
        for (var i = me; i < dpoint - dstate; i += THREADS) {
            room[dpoint + i] = 0.0;
        }
    }
    for (var tick = args.call.begin; tick < last; tick++) {
        let i = span.tokens - 1u - tick;
        let t = span.first + i;
        let own = at.first + t * args.call.heads;
        old = states + i * size;
        next = old + size;
        point = point_at(t, span.first);
        load_rows(own);
        load_record(own, i);
        sync();
        run(0u, BACKWARD_END);
        store_grads(own);
        if (frozen != 0u && t % max(frozen, 1u) == 0u) {
            join_point();
        }
        sync();
    }
    if (args.call.span + 1u == at.spans && last == span.tokens && args.call.begin < last) {
        store_state(dstate, lane);
    }
}
