// Sequences and heads forward; states are kept where a backward will come. `made` is out [rows,H,V], then the final states.
//
// A sequence and head's ticks are one that opens its state, then its tokens. Or, for a backward, they are a segment's tokens, whose states
// and records stay in `workspace`; nothing is made. What a dispatch leaves there is there for the next.

// Out of `kept`; `count` elements.
// Kept states lie as `workspace` has them: no slots to be taken apart.
fn load_kept(to: u32, origin: u32, count: u32) {
    for (var i = me; i < count; i += THREADS) {
        workspace[to + i] = kept[origin + i];
    }
}

// What a token leaves for its backward, `i` of its segment.
// The record's rows move to `workspace`, since the next token uses the same rows.
fn store_record(i: u32) {
    for (var j = me; j < args.call.record; j += THREADS) {
        workspace[records + i * args.call.record + j] = row(record + j);
    }
}

// Takes a sequence and head through the dispatch's ticks: out [rows,H,V] and states, or states and records for a backward.
@compute @workgroup_size(THREADS)
// Loops over ticks are uniform: `args` and the workgroup's number decide them.
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    // Rows and matrices find their places first; then ticks `begin … end` run.
    me = index;
    let size = args.call.state;
    let frozen = args.call.frozen;
    // `again`: this forward restores a segment for the backward that follows.
    let again = args.call.again != 0u;
    lay_out(group.x, again);
    let sequence_head = args.call.sequence_head + group.x;
    let head = sequence_head % args.call.heads;
    let at = sequence_head_at(sequence_head);
    let segment = segment_at(at);
    // The first dispatch brings the initial state.
    if (args.call.begin == 0u && !again) {
        load_state(states, args.call.initial, sequence_head);
    }
    // Or the kept state of the segment, and the first one of its frozen unit.
    if (args.call.begin == 0u && again && segment.tokens > 0u) {
        load_kept(states, at.kept + segment.index * size, size);
        load_kept(spare, at.kept + segment_of_unit(segment.first) * size, select(0u, size, frozen != 0u));
        // What was left before that unit, as its first group starts with it.
        if (RENORM == 1u) {
            begin_group(spare, head);
        }
    }
    let ticks = select(at.tokens + 1u, segment.tokens, again);
    let last = min(args.call.end, ticks);
    for (var tick = args.call.begin; tick < last; tick++) {
        // A forward's first tick looks at the initial state; its token ticks are one later.
        let opens = tick == 0u && !again;
        let i = tick - select(1u, 0u, opens || again);
        let t = i + select(0u, segment.first, again);
        let own = at.first + t * args.call.heads;
        // The state before the first token of each segment is kept.
        let keeps = !opens && args.call.keep != 0u && t == segment_start(segment_of(t));
        let group_starts = !opens && frozen != 0u && t % max(frozen, 1u) == 0u;
        // A plain forward overwrites one state; a restoring one has a state for each token.
        old = states + select(0u, i * size, again);
        next = old + select(0u, size, again);
        point = select(old, spare, frozen != 0u);
        for (var j = me; j < size && keeps; j += THREADS) {
            kept[at.kept + segment_of(t) * size + j] = workspace[old + j];
        }
        if (RENORM == 1u && group_starts) {
            begin_group(old, head);
            old = spare;
        }
        for (var j = me; j < size && group_starts && RENORM == 0u; j += THREADS) {
            workspace[spare + j] = workspace[old + j];
        }
        // What is loaded must be seen by all before the phases run.
        load_rows(own);
        sync();
        point = lead(point);
        if (args.call.anchor_slots != 0u && !opens) {
            go_back(old, head);
            old = found;
        }
        run(select(OPENED, 0u, opens), select(FORWARD_END, OPENED, opens));
        if (again) {
            store_record(i);
        } else {
            for (var j = me; j < args.call.value && !opens; j += THREADS) {
                made[own * args.call.value + j] = row(out + j);
            }
        }
    }
    // The dispatch with the last tick writes the final state.
    if (last == ticks && args.call.begin < last && !again) {
        store_state(states, sequence_head);
    }
}
