// The recurrence of a group's gates as masks, and back.

// Gates come in the order log_a, [log_eta], theta, [delta]. Beyond the last token nothing is written or forgotten.
fn gate(slot: u32, t: u32) -> f32 {
    if (t >= tokens) {
        return 0.0;
    }
    return bitcast<f32>(given[plan.call.gates[slot] + row_of(t)]);
}

// Stores the scalars of token t: θ, δ, a, η, and m, s, x, y of the recurrence.
fn begin_token(t: u32) {
    let inside = t < tokens;
    let momentum = has_momentum();
    let later = select(0u, 1u, momentum);
    let a = exponential(gate(0u, t));
    var eta = 0.0;
    var less = 1.0;
    if (momentum) {
        eta = exponential(gate(1u, t));
        less = rest(gate(1u, t));
    }
    put(THETA, t, gate(1u + later, t));
    var delta = 0.0;
    if (BIAS == HUBER) {
        delta = gate(2u + later, t);
    }
    put(DELTA, t, delta);
    put(GATE_A, t, a);
    put(ETA, t, eta);
    // Heavy ball: P = η S + Z is added to X and is S. Looking ahead: P = a S + Z, of which S keeps η, X gets 1 - η.
    let ahead = looks_ahead();
    put(M, t, select(0.0, select(eta, less * a, ahead), inside));
    put(S, t, select(1.0, eta * select(1.0, a, ahead), inside));
    put(X, t, select(0.0, select(1.0, less, ahead), inside));
    put(Y, t, select(0.0, select(1.0, eta, ahead), inside));
}

// What is left of write `me` after each token, and of the state before the group. Both are the same recurrence, from other beginnings:
// of the state (now, pushed) comes from (1, 0), of the momentum from (0, 1). `partial` has a, m, s and 1 - a of all tokens.
fn of_writes() {
    let group = plan.call.frozen;
    // What X and S have of the write at its own token. Invocations beyond the group have none.
    let own = vec2(number(X, min(me, group - 1u)), number(Y, min(me, group - 1u)));
    var write = vec2(0.0);
    var state = vec2(1.0, 0.0);
    var momentum = vec2(0.0, 1.0);
    // A sum of positive numbers: where nearly all is kept, 1 - A as a difference would be rounding.
    var lost = 0.0;
    for (var t = 0u; t < group; t++) {
        let by = partial[t];
        // Before the write itself it is zero, and stays so.
        write = select(step_on(write, by), own, t == me);
        lost += state.x * by.w;
        state = step_on(state, by);
        momentum = step_on(momentum, by);
        if (me < group) {
            workspace[base + plan.places.c + t * group + me] = write.x;
            workspace[base + plan.places.e + t * group + me] = write.y;
        }
        // Everybody has the state's; one puts it by.
        if (t == me) {
            put(ALL_A, t, state.x);
            put(ALL_B, t, momentum.x);
            put(ALL_E, t, momentum.y);
            put(ALL_REST, t, lost);
        }
    }
    if (me < group) {
        put(LAST_C, me, write.x);
        put(LAST_E, me, write.y);
    }
}

// A token's step of what is added to X and what is left of S: `by` has a, m and s.
fn step_on(x: vec2<f32>, by: vec4<f32>) -> vec2<f32> {
    return vec2(by.x * x.x + by.y * x.y, by.z * x.y);
}

// Tokens that read before their write find what the one before left.
fn of_read(t: u32) {
    let after = args.cell.read_after != 0u;
    let earlier = max(t, 1u) - 1u;
    let found_a = select(select(1.0, number(ALL_A, earlier), t > 0u), number(ALL_A, t), after);
    let found_b = select(select(0.0, number(ALL_B, earlier), t > 0u), number(ALL_B, t), after);
    let found_rest = select(select(0.0, number(ALL_REST, earlier), t > 0u), number(ALL_REST, t), after);
    let inside = t < tokens;
    put(READ_A, t, select(0.0, found_a, inside));
    put(READ_B, t, select(0.0, found_b, inside));
    put(READ_REST, t, select(0.0, found_rest, inside));
}

// The first workgroup has the group's gates, a token an invocation; the others its rows (`arrive.wgsl`).
@compute @workgroup_size(THREADS)
fn masks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    if (group.x > 0u) {
        bring(group.x - 1u);
        return;
    }
    if (me < plan.call.frozen) {
        begin_token(me);
        // Everybody needs all of these, token after token.
        partial[me] = vec4(number(GATE_A, me), number(M, me), number(S, me), rest(gate(0u, me)));
    }
    workgroupBarrier();
    of_writes();
    sync();
    if (me < plan.call.frozen) {
        of_read(me);
    }
}

// Before a group goes back: no gradient yet.
@compute @workgroup_size(THREADS)
fn clear(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let size = plan.call.frozen;
    for (var t = me; t < size; t += THREADS) {
        for (var which = D_READ_A; which <= D_ETA; which++) {
            put(which, t, 0.0);
        }
    }
    for (var i = me; i < size * size; i += THREADS) {
        workspace[base + plan.places.dc + i] = 0.0;
    }
    // The shorter matrix fills a part of its sums only.
    for (var i = me; i < 8u * plan.places.tall; i += THREADS) {
        workspace[base + plan.places.sums + i] = 0.0;
    }
}

// By token, for all invocations: η and what reads give to A and B; A, B and E before it. `partial` has a, m, s and x.
var<workgroup> told: array<vec4<f32>, THREADS>;
var<workgroup> before: array<vec4<f32>, THREADS>;

// This invocation's token of `partial` and `told`, which `together` leaves free. Tokens read what the one `reader` before them left.
fn tell_token(reader: u32) {
    let t = me;
    if (t < plan.call.frozen) {
        partial[t] = vec4(number(GATE_A, t), number(M, t), number(S, t), number(X, t));
        var reads = vec2(0.0);
        if (t + reader < tokens) {
            reads = vec2(number(D_READ_A, t + reader), number(D_READ_B, t + reader));
        }
        told[t] = vec4(number(ETA, t), reads, 0.0);
        before[t] = vec4(1.0, 0.0, 1.0, 0.0);
        if (t > 0u) {
            before[t] = vec4(number(ALL_A, t - 1u), number(ALL_B, t - 1u), number(ALL_E, t - 1u), 0.0);
        }
    }
    workgroupBarrier();
}

// What token t has of write j: its share after the token before, momentum's, and the gradient of the mask.
fn share_of(t: u32, j: u32) -> vec3<f32> {
    let earlier = (max(t, 1u) - 1u) * plan.call.frozen + j;
    return vec3(at(plan.places.c, earlier), at(plan.places.e, earlier), at(plan.places.dc, t * plan.call.frozen + j));
}

// Gradients by a and η of each token, in the places of `dc` and `e`. Of write j, from the last token.
fn write_back(j: u32) {
    let group = plan.call.frozen;
    let ahead = looks_ahead();
    let after = args.cell.read_after != 0u;
    let of_last = vec2(number(D_LAST_C, j), number(D_LAST_E, j));
    var now = 0.0;
    var pushed = 0.0;
    // What a token that reads before its write gives to the one before.
    var next = 0.0;
    var coming = share_of(group - 1u, j);
    for (var t = group; t > 0u;) {
        t--;
        let own = t * group + j;
        let inside = t < tokens && t >= j;
        let last = select(0.0, 1.0, t + 1u == tokens);
        // The next token's are asked for before this one's are written over.
        let share = coming;
        coming = share_of(max(t, 1u) - 1u, j);
        now = select(0.0, now + select(next, share.z, after) + last * of_last.x, inside);
        pushed = select(0.0, pushed + last * of_last.y, inside);
        next = share.z;
        // By the definitions of m, s, x and y in `begin_token`.
        let by = chain(t, vec3(now * share.x, now * share.y, pushed * share.y), ahead);
        let writes = t == j;
        workspace[base + plan.places.dc + own] = select(0.0, by.x, inside && !writes);
        let of_write = select(0.0, pushed - now, ahead);
        workspace[base + plan.places.e + own] = select(0.0, select(by.y, of_write, writes), inside);
        pushed = partial[t].y * now + partial[t].z * pushed;
        now *= partial[t].x;
    }
}

// From gradients of a, m and s of X's recurrence to those of a and η.
fn chain(t: u32, d: vec3<f32>, ahead: bool) -> vec2<f32> {
    if (ahead) {
        return vec2(d.x + d.y * partial[t].w + d.z * told[t].x, partial[t].x * (d.z - d.y));
    }
    return vec2(d.x, d.y + d.z);
}

// The same of the state before the group, by one invocation; `last` are the gradients of A, B and E after it.
fn state_back(last: vec3<f32>) {
    let ahead = looks_ahead();
    var d = last;
    for (var t = plan.call.frozen; t > 0u;) {
        t--;
        let by = partial[t];
        let was = before[t];
        d += vec3(told[t].yz, 0.0);
        let own = chain(t, vec3(d.x * was.x + d.y * was.y, d.y * was.z, d.z * was.z), ahead);
        before[t] = vec4(own, 0.0, 0.0);
        d = vec3(d.x * by.x, d.y * by.x, by.y * d.y + by.z * d.z);
    }
}

// The first workgroup has the writes, the second the state.
@compute @workgroup_size(THREADS)
fn masks_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let reader = select(1u, 0u, args.cell.read_after != 0u);
    if (group.x == 0u) {
        tell_token(reader);
        if (me < plan.call.frozen) {
            write_back(me);
        }
        return;
    }
    // Of both layers.
    var own = vec4(0.0);
    for (var i = me; i < 2u * plan.places.tall; i += THREADS) {
        let from_row = plan.places.sums + 4u * i;
        own += vec4(at(from_row, 0u), at(from_row, 1u), at(from_row, 2u), 0.0);
    }
    let last = together(own).xyz;
    tell_token(reader);
    if (me == 0u) {
        state_back(last);
    }
    workgroupBarrier();
    if (me < plan.call.frozen) {
        put(D_A, me, before[me].x);
        put(D_ETA, me, before[me].y);
    }
}

// Gradients of a token's gates.
@compute @workgroup_size(THREADS)
fn gates_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x;
    var own = vec4(0.0);
    for (var j = me; j < plan.call.frozen; j += THREADS) {
        let i = t * plan.call.frozen + j;
        own += vec4(at(plan.places.dc, i), at(plan.places.e, i), 0.0, 0.0);
    }
    let sum = together(own);
    if (me > 0u || t >= tokens) {
        return;
    }
    let later = select(0u, 1u, has_momentum());
    results[plan.call.dgates[0] + row_of(t)] = number(GATE_A, t) * (sum.x + number(D_A, t));
    if (has_momentum()) {
        results[plan.call.dgates[1] + row_of(t)] = number(ETA, t) * (sum.y + number(D_ETA, t));
    }
    results[plan.call.dgates[1u + later] + row_of(t)] = number(D_THETA, t);
    if (BIAS == HUBER) {
        results[plan.call.dgates[2u + later] + row_of(t)] = number(D_DELTA, t);
    }
}
