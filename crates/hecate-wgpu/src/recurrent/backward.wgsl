// A sequence and head backward: segment by segment from the last. A forward before it left the states and records of the
// segment in `workspace`.
// `made` is dq, dk [rows,H,K], dv [rows,H,V], then the gradients of gates and of initial states.
//
// A segment's ticks are its tokens, from the last. What a dispatch leaves in `workspace` is there for the next.

// [rows,H,V].
// The gradient of what each token read.
@group(0) @binding(8) var<storage, read> dout: array<f32>;

// The point of a token. Only groups that are units begin before their segment.
// The state at which a token's inner gradient was taken.
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

// What token `i` of the segment left, and the gradient of what it read; nothing yet is the gradient of its arguments.
// Called before the phases of every token; gradients of arguments start from zero.
fn load_record(own: u32, i: u32) {
    for (var j = me; j < args.call.value; j += THREADS) {
        put(out + j, dout[own * args.call.value + j]);
    }
    for (var j = me; j < args.call.record; j += THREADS) {
        put(record + j, workspace[records + i * args.call.record + j]);
    }
    for (var j = me; j < token_rows(); j += THREADS) {
        put(grads.q + j, 0.0);
    }
}

// dq, dk, dv and the gradients of the gates of row `own`, each to its place in `made`.
fn store_grads(own: u32) {
    let call = args.call;
    for (var i = me; i < call.key; i += THREADS) {
        made[own * call.key + i] = row(grads.q + i);
        made[call.dk + own * call.key + i] = row(grads.k + i);
    }
    for (var i = me; i < call.value; i += THREADS) {
        made[2u * call.dk + own * call.value + i] = row(grads.v + i);
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
// At the first token of a frozen group its point is the state itself.
fn join_point() {
    let ahead = args.call.ahead;
    for (var i = me; i < select(args.call.state, ahead, ahead != 0u); i += THREADS) {
        let d = workspace[dpoint + i];
        workspace[dstate + i] += d;
        // The point was a sum of weights and momentum: both get its gradient.
        if (ahead != 0u) {
            workspace[dstate + ahead + i] += d;
        }
        workspace[dpoint + i] = 0.0;
    }
}

// From the gradient of what the token found, `dstate`, to that of the state at `origin`, in place; adds to that of the anchor.
// The gradient of log a, which the rule was not told of, takes its place.
fn go_back_vjp(decay: vec2<f32>, origin: u32, head: u32) {
    let a = decay.x;
    var sum = 0.0;
    var at = 0u;
    for (var slot = 0u; slot < args.call.anchor_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = anchor_at(at, size, head);
        for (var i = me; i < size; i += THREADS) {
            let d = workspace[dstate + at + i];
            sum += d * (workspace[origin + at + i] - bitcast<f32>(given[begin + i]));
            workspace[danchor + at + i] += decay.y * d;
            workspace[dstate + at + i] = a * d;
        }
        at += size;
    }
    for (var i = at + me; i < at + args.call.ahead; i += THREADS) {
        sum += workspace[dstate + i] * workspace[origin + i];
        workspace[dstate + i] *= a;
    }
    partial[me] = vec4(sum, 0.0, 0.0, 0.0);
    sync();
    if (me < SECOND) {
        for (var i = me + SECOND; i < THREADS; i += SECOND) {
            sum += partial[i].x;
        }
        partial[THREADS + me].x = sum;
    }
    sync();
    if (me == 0u) {
        for (var i = 1u; i < SECOND; i++) {
            sum += partial[THREADS + i].x;
        }
        put(grads.gates, a * sum);
    }
    sync();
}

// From the gradient of what a group starts with, `dstate`, to that of the state at `origin` before, in place; adds to that of
// the anchor.
fn begin_group_vjp(origin: u32, head: u32) {
    sync();
    var at = 0u;
    for (var slot = 0u; slot < args.call.anchor_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = anchor_at(at, size, head);
        let columns = columns_of(slot);
        for (var c = me; c < columns; c += THREADS) {
            let both = lengths(begin + c, origin + at + c, size - c, columns);
            let factor = sqrt(both.x / both.y);
            var along = 0.0;
            for (var i = at + c; i < at + size; i += columns) {
                along += workspace[origin + i] * workspace[dstate + i];
            }
            // What joins along the anchor's column, and what is taken off along the state's.
            let shares = factor * along / both;
            for (var i = c; i < size; i += columns) {
                let place = at + i;
                workspace[dstate + place] = factor * workspace[dstate + place] - shares.y * workspace[origin + place];
                workspace[danchor + place] += shares.x * bitcast<f32>(given[begin + i]);
            }
        }
        at += size;
    }
    sync();
}

// Gradients of the anchor, slot by slot, to `made`.
fn store_anchor(sequence_head: u32) {
    var at = 0u;
    for (var slot = 0u; slot < args.call.anchor_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = args.call.last.x + args.call.sequence_heads * (args.call.state + at) + sequence_head * size;
        for (var i = me; i < size; i += THREADS) {
            made[begin + i] = workspace[danchor + at + i];
        }
        at += size;
    }
}

// Takes a sequence and head back through the dispatch's ticks, and stores gradients of arguments and of initial states.
@compute @workgroup_size(THREADS)
// Loops over ticks are uniform, as in the forward.
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    me = index;
    let size = args.call.state;
    let frozen = args.call.frozen;
    let anchored = args.call.anchor_slots != 0u;
    lay_out(group.x, true);
    let sequence_head = args.call.sequence_head + group.x;
    let head = sequence_head % args.call.heads;
    let at = sequence_head_at(sequence_head);
    let segment = segment_at(at);
    let last = min(args.call.end, segment.tokens);
    // The first dispatch brings the gradient of the final state, and clears that of the point.
    if (args.call.begin == 0u && args.call.segment == 0u) {
        load_state(dstate, args.call.dlast, sequence_head);
        for (var i = me; i < dpoint - dstate; i += THREADS) {
            workspace[dpoint + i] = 0.0;
        }
        for (var i = me; i < size && anchored; i += THREADS) {
            workspace[danchor + i] = 0.0;
        }
    }
    for (var tick = args.call.begin; tick < last; tick++) {
        // Ticks count from the segment's last token.
        let i = segment.tokens - 1u - tick;
        let t = segment.first + i;
        let own = at.first + t * args.call.heads;
        // The forward left a state before each token and one after the last.
        old = states + i * size;
        next = old + size;
        point = point_at(t, segment.first);
        if (RENORM == 1u) {
            // The forward left the start of the segment's last group; those before are made again, at their last tokens.
            if ((t + 1u) % max(frozen, 1u) == 0u && point != spare) {
                begin_group(point, head);
            }
            point = spare;
            old = select(old, spare, t % max(frozen, 1u) == 0u);
        }
        let origin = old;
        // Rows become visible to all before the phases run.
        load_rows(own);
        load_record(own, i);
        sync();
        var decay = vec2(1.0, 0.0);
        point = lead(point);
        if (anchored) {
            decay = go_back(origin, head);
            old = found;
        }
        run(0u, BACKWARD_END);
        if (anchored) {
            go_back_vjp(decay, origin, head);
        }
        store_grads(own);
        // Gradients of the point gather over the group, and join at its first token.
        if ((frozen != 0u || anchored || args.call.ahead != 0u) && t % max(frozen, 1u) == 0u) {
            join_point();
        }
        if (RENORM == 1u && t % max(frozen, 1u) == 0u) {
            begin_group_vjp(states + i * size, head);
        }
        sync();
    }
    // Before the first token, `dstate` is the gradient of the initial state.
    if (args.call.segment + 1u == at.segments && last == segment.tokens && args.call.begin < last) {
        store_state(dstate, sequence_head);
        store_anchor(sequence_head);
    }
}
