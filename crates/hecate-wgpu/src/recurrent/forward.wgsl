// Lanes forward; states are kept where a backward will come. `made` is out [rows,H,V], then the final states.
//
// A lane's ticks are one that opens its state, then its tokens. What a dispatch leaves in `room` is there for the next.

const GOES_BACK: bool = false;

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    me = index;
    let size = args.call.state;
    let state = group.x * (args.call.room + args.call.rows);
    let frozen = args.call.frozen;
    far = state + args.call.room;
    old = state;
    next = state;
    point = state + select(0u, size, frozen != 0u);
    matrices = point + size;
    token = token_at(0u);
    out = token_rows();
    scratch = out + args.call.value;
    record = scratch + args.call.scratch;
    let lane = args.call.lane + group.x;
    let at = lane_at(lane);
    if (args.call.begin == 0u) {
        load_state(state, args.call.initial, lane);
    }
    let last = min(args.call.end, at.tokens + 1u);
    for (var tick = args.call.begin; tick < last; tick++) {
        let t = max(tick, 1u) - 1u;
        let own = at.first + t * args.call.heads;
        let keeps = tick > 0u && args.call.keep != 0u && t == span_start(span_of(t));
        let group_starts = tick > 0u && frozen != 0u && t % max(frozen, 1u) == 0u;
        for (var i = me; i < size && keeps; i += THREADS) {
            kept[at.kept + span_of(t) * size + i] = room[state + i];
        }
        for (var i = me; i < size && group_starts; i += THREADS) {
            room[point + i] = room[state + i];
        }
        load_rows(own);
        sync();
        run(select(OPENED, 0u, tick == 0u), select(FORWARD_END, OPENED, tick == 0u));
        for (var i = me; i < args.call.value && tick > 0u; i += THREADS) {
            made[own * args.call.value + i] = row(out + i);
        }
    }
    if (last == at.tokens + 1u && args.call.begin < last) {
        store_state(state, lane);
    }
}
