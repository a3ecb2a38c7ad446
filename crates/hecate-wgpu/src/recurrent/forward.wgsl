// Lanes forward; states are kept where a backward will come. `made` is out [rows,H,V], then the final states.
//
// A lane's ticks are one that opens its state, then its tokens. Or, for a backward, they are a span's tokens, whose states
// and records stay in `room`; nothing is made. What a dispatch leaves there is there for the next.

// Out of `kept`; `count` numbers.
fn load_kept(to: u32, origin: u32, count: u32) {
    for (var i = me; i < count; i += THREADS) {
        room[to + i] = kept[origin + i];
    }
}

// What a token leaves for its backward, `i` of its span.
fn store_record(i: u32) {
    for (var j = me; j < args.call.record; j += THREADS) {
        room[records + i * args.call.record + j] = row(record + j);
    }
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    me = index;
    let size = args.call.state;
    let frozen = args.call.frozen;
    let again = args.call.again != 0u;
    lay_out(group.x, again);
    let lane = args.call.lane + group.x;
    let at = lane_at(lane);
    let span = span_at(at);
    if (args.call.begin == 0u && !again) {
        load_state(states, args.call.initial, lane);
    }
    if (args.call.begin == 0u && again && span.tokens > 0u) {
        load_kept(states, at.kept + span.index * size, size);
        load_kept(spare, at.kept + span_of_unit(span.first) * size, select(0u, size, frozen != 0u));
    }
    let ticks = select(at.tokens + 1u, span.tokens, again);
    let last = min(args.call.end, ticks);
    for (var tick = args.call.begin; tick < last; tick++) {
        let opens = tick == 0u && !again;
        let i = tick - select(1u, 0u, opens || again);
        let t = i + select(0u, span.first, again);
        let own = at.first + t * args.call.heads;
        let keeps = !opens && args.call.keep != 0u && t == span_start(span_of(t));
        let group_starts = !opens && frozen != 0u && t % max(frozen, 1u) == 0u;
        old = states + select(0u, i * size, again);
        next = old + select(0u, size, again);
        point = select(old, spare, frozen != 0u);
        for (var j = me; j < size && keeps; j += THREADS) {
            kept[at.kept + span_of(t) * size + j] = room[old + j];
        }
        for (var j = me; j < size && group_starts; j += THREADS) {
            room[spare + j] = room[old + j];
        }
        load_rows(own);
        sync();
        run(select(OPENED, 0u, opens), select(FORWARD_END, OPENED, opens));
        if (again) {
            store_record(i);
        } else {
            for (var j = me; j < args.call.value && !opens; j += THREADS) {
                made[own * args.call.value + j] = row(out + j);
            }
        }
    }
    if (last == ticks && args.call.begin < last && !again) {
        store_state(states, lane);
    }
}
