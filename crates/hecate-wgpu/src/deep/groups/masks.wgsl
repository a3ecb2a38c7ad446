// The recurrence of a group's gates as masks, and back.

// Gates come in the order log_a, [log_eta], theta, [delta]. Beyond the last token nothing is written or forgotten.
fn gate(slot: u32, t: u32) -> f32 {
    if (t >= tokens) {
        return 0.0;
    }
    return bitcast<f32>(given[plan.call.gates[slot] + row_of(t)]);
}

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
    put(A, t, a);
    put(ETA, t, eta);
    // Heavy ball: P = η S + Z is added to X and is S. Looking ahead: P = a S + Z, of which S keeps η, X gets 1 - η.
    let ahead = looks_ahead();
    put(M, t, select(0.0, select(eta, less * a, ahead), inside));
    put(S, t, select(1.0, eta * select(1.0, a, ahead), inside));
    put(X, t, select(0.0, select(1.0, less, ahead), inside));
    put(Y, t, select(0.0, select(1.0, eta, ahead), inside));
}

// What is left of the state before the group.
fn of_state() {
    var now = 1.0;
    var pushed = 0.0;
    var left = 1.0;
    for (var t = 0u; t < plan.call.frozen; t++) {
        now *= number(A, t);
        pushed = number(A, t) * pushed + number(M, t) * left;
        left *= number(S, t);
        put(ALL_A, t, now);
        put(ALL_B, t, pushed);
        put(ALL_E, t, left);
    }
}

// What is left of write j after each token.
fn of_write(j: u32) {
    let group = plan.call.frozen;
    var now = 0.0;
    var pushed = 0.0;
    for (var t = 0u; t < group; t++) {
        // Before the write itself both are zero, and stay so.
        now = number(A, t) * now + number(M, t) * pushed;
        pushed = number(S, t) * pushed;
        if (t == j) {
            now = number(X, t);
            pushed = number(Y, t);
        }
        workspace[base + plan.places.c + t * group + j] = now;
        workspace[base + plan.places.e + t * group + j] = pushed;
    }
    put(LAST_C, j, now);
    put(LAST_E, j, pushed);
}

// Tokens that read before their write find what the one before left.
fn of_read(t: u32) {
    let after = args.cell.read_after != 0u;
    let earlier = max(t, 1u) - 1u;
    let found_a = select(select(1.0, number(ALL_A, earlier), t > 0u), number(ALL_A, t), after);
    let found_b = select(select(0.0, number(ALL_B, earlier), t > 0u), number(ALL_B, t), after);
    let inside = t < tokens;
    put(READ_A, t, select(0.0, found_a, inside));
    put(READ_B, t, select(0.0, found_b, inside));
    put(READ_REST, t, select(0.0, 1.0 - found_a, inside));
}

@compute @workgroup_size(THREADS)
fn masks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    for (var t = me; t < plan.call.frozen; t += THREADS) {
        begin_token(t);
    }
    sync();
    // A write an invocation, and one for the state.
    for (var j = me; j <= plan.call.frozen; j += THREADS) {
        if (j == plan.call.frozen) {
            of_state();
        } else {
            of_write(j);
        }
    }
    sync();
    for (var t = me; t < plan.call.frozen; t += THREADS) {
        of_read(t);
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

// Gradients by a and η of each token, in the places of `dc` and `e`. Of write j, from the last token.
fn write_back(j: u32) {
    let group = plan.call.frozen;
    let ahead = looks_ahead();
    let after = args.cell.read_after != 0u;
    var now = 0.0;
    var pushed = 0.0;
    // What a token that reads before its write gives to the one before.
    var next = 0.0;
    for (var t = group; t > 0u;) {
        t--;
        let own = t * group + j;
        let earlier = (max(t, 1u) - 1u) * group + j;
        let inside = t < tokens && t >= j;
        let last = select(0.0, 1.0, t + 1u == tokens);
        let before = at(plan.places.c, earlier);
        let before_pushed = at(plan.places.e, earlier);
        let of_read = at(plan.places.dc, own);
        now = select(0.0, now + select(next, of_read, after) + last * number(D_LAST_C, j), inside);
        pushed = select(0.0, pushed + last * number(D_LAST_E, j), inside);
        next = of_read;
        // By the definitions of m, s, x and y in `begin_token`.
        let by = chain(t, vec3(now * before, now * before_pushed, pushed * before_pushed), ahead);
        let writes = t == j;
        workspace[base + plan.places.dc + own] = select(0.0, by.x, inside && !writes);
        let of_write = select(0.0, pushed - now, ahead);
        workspace[base + plan.places.e + own] = select(0.0, select(by.y, of_write, writes), inside);
        pushed = number(M, t) * now + number(S, t) * pushed;
        now *= number(A, t);
    }
}

// From gradients of a, m and s of X's recurrence to those of a and η.
fn chain(t: u32, d: vec3<f32>, ahead: bool) -> vec2<f32> {
    if (ahead) {
        return vec2(d.x + d.y * number(X, t) + d.z * number(ETA, t), number(A, t) * (d.z - d.y));
    }
    return vec2(d.x, d.y + d.z);
}

// The same of the state before the group; `last` are the gradients of A, B and E after it.
fn state_back(last: vec3<f32>) {
    let ahead = looks_ahead();
    // Which token reads what one left.
    let reader = select(1u, 0u, args.cell.read_after != 0u);
    var d = last;
    for (var t = plan.call.frozen; t > 0u;) {
        t--;
        if (t + reader < tokens) {
            d.x += number(D_READ_A, t + reader);
            d.y += number(D_READ_B, t + reader);
        }
        var before = vec3(1.0, 0.0, 1.0);
        if (t > 0u) {
            before = vec3(number(ALL_A, t - 1u), number(ALL_B, t - 1u), number(ALL_E, t - 1u));
        }
        let by = chain(t, vec3(d.x * before.x + d.y * before.y, d.y * before.z, d.z * before.z), ahead);
        put(D_A, t, by.x);
        put(D_ETA, t, by.y);
        d = vec3(d.x * number(A, t), d.y * number(A, t), number(M, t) * d.y + number(S, t) * d.z);
    }
}

@compute @workgroup_size(THREADS)
fn masks_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    // Of both layers.
    var own = vec4(0.0);
    for (var i = me; i < 2u * plan.places.tall; i += THREADS) {
        let from_row = plan.places.sums + 4u * i;
        own += vec4(at(from_row, 0u), at(from_row, 1u), at(from_row, 2u), 0.0);
    }
    let last = together(own).xyz;
    for (var j = me; j <= plan.call.frozen; j += THREADS) {
        if (j == plan.call.frozen) {
            state_back(last);
        } else {
            write_back(j);
        }
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
    results[plan.call.dgates[0] + row_of(t)] = number(A, t) * (sum.x + number(D_A, t));
    if (has_momentum()) {
        results[plan.call.dgates[1] + row_of(t)] = number(ETA, t) * (sum.y + number(D_ETA, t));
    }
    results[plan.call.dgates[1u + later] + row_of(t)] = number(D_THETA, t);
    if (BIAS == HUBER) {
        results[plan.call.dgates[2u + later] + row_of(t)] = number(D_DELTA, t);
    }
}
