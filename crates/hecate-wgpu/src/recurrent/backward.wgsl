// Lanes backward: span by span from the last, the states inside computed again. `made` is dq, dk [rows,H,K],
// dv [rows,H,V], then the gradients of gates and of initial states.
//
// A span's ticks are its tokens, forward, and the same back. What a dispatch leaves in `room` is there for the next.

const GOES_BACK: bool = true;

// [rows,H,V].
@group(0) @binding(8) var<storage, read> dout: array<f32>;

// In `room`, for the tokens of a span: what they leave for the backward, and states; a frozen group's first state.
var<private> records: u32;
var<private> states: u32;
var<private> spare: u32;

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

// Out of `kept`; `count` numbers.
fn load_kept(to: u32, origin: u32, count: u32) {
    for (var i = me; i < count; i += THREADS) {
        room[to + i] = kept[origin + i];
    }
}

// What a token's forward left, `i` of its span.
fn store_record(i: u32) {
    for (var j = me; j < args.call.record; j += THREADS) {
        room[records + i * args.call.record + j] = row(record + j);
    }
}

// That, and the gradient of what the token read; nothing yet is the gradient of its arguments.
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
    dstate = group.x * (args.call.room + args.call.rows);
    far = dstate + args.call.room;
    let apart = select(0u, size, frozen != 0u);
    dpoint = dstate + apart;
    spare = dpoint + apart;
    states = spare + size;
    records = states + (min(args.call.unit, KEPT_EVERY) + 1u) * size;
    matrices = records + min(args.call.unit, KEPT_EVERY) * args.call.record;
    token = token_at(0u);
    grads = token_at(token_rows());
    out = 2u * token_rows();
    scratch = out + args.call.value;
    record = scratch + args.call.scratch;
    let lane = args.call.lane + group.x;
    let at = lane_at(lane);
    let span = at.spans - min(args.call.span + 1u, at.spans);
    let start = span_start(span);
    let tokens = select(0u, span_end(span, at.tokens) - start, args.call.span < at.spans);
    let last = min(args.call.end, 2u * tokens);
    if (args.call.begin == 0u && args.call.span == 0u) {
        load_state(dstate, args.call.dlast, lane);
        for (var i = me; i < apart; i += THREADS) {
            room[dpoint + i] = 0.0;
        }
    }
    if (args.call.begin == 0u && args.call.span < at.spans) {
        load_kept(states, at.kept + span * size, size);
        load_kept(spare, at.kept + span_of_unit(start) * size, apart);
    }
    for (var tick = args.call.begin; tick < last; tick++) {
        let back = tick >= tokens;
        let i = select(tick, 2u * tokens - 1u - tick, back);
        let own = at.first + (start + i) * args.call.heads;
        old = states + i * size;
        next = old + size;
        point = point_at(start + i, start);
        load_rows(own);
        if (back) {
            load_record(own, i);
        }
        sync();
        run(select(OPENED, FORWARD_END, back), select(FORWARD_END, BACKWARD_END, back));
        if (!back) {
            store_record(i);
        } else {
            store_grads(own);
            if (frozen != 0u && (start + i) % max(frozen, 1u) == 0u) {
                join_point();
            }
        }
        sync();
    }
    if (args.call.span + 1u == at.spans && last == 2u * tokens && args.call.begin < last) {
        store_state(dstate, lane);
    }
}
