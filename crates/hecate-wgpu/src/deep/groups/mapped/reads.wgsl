// What stands between sweeps, by token: a workgroup a token.

// The first workgroup has the group's gates, of which there is no gradient yet; the others its rows (`arrive.wgsl`).
@compute @workgroup_size(THREADS)
fn gates(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    if (group.x > 0u) {
        bring(group.x - 1u);
        return;
    }
    for (var t = me; t < plan.call.frozen; t += THREADS) {
        // Beyond the last token nothing is forgotten or written.
        var log_a = 0.0;
        var theta = 0.0;
        if (t < tokens) {
            log_a = bitcast<f32>(given[plan.call.gates.x + row_of(t)]);
            theta = bitcast<f32>(given[plan.call.gates.y + row_of(t)]);
        }
        put(GATE_A, t, exponential(log_a));
        put(READ_REST, t, rest(log_a));
        put(THETA, t, theta);
        put(D_A, t, 0.0);
        put(D_THETA, t, 0.0);
    }
}

// How far a token's write moves an element of a layer's state at most: tokens of the first layer, then of the second.
@compute @workgroup_size(THREADS)
fn reach(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x % plan.call.frozen;
    begin_layer(group.x / plan.call.frozen);
    var key = 0.0;
    var value = 0.0;
    for (var i = me; i < layer.rows; i += THREADS) {
        key = larger(key, abs(at(layer.key, t * layer.rows + i)));
    }
    for (var j = me; j < layer.wide; j += THREADS) {
        value = larger(value, abs(at(layer.value, t * layer.wide + j)));
    }
    // An outer product is no larger than this anywhere.
    let most = largest(key) * largest(value);
    if (me == 0u) {
        put(REACH + own_layer, t, most);
    }
}

// Of what sweeps left of a token's parts [8 blocks,G] the sum.
fn sum_of_parts(place: u32, t: u32) -> f32 {
    var own = 0.0;
    for (var i = me; i < PARTS * layer.blocks; i += THREADS) {
        own += at(place, i * plan.call.frozen + t);
    }
    return together(vec4(own)).x;
}

// What was read, by all columns' norm; and what the first layer hands to the second.
@compute @workgroup_size(THREADS)
fn looks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_layer(args.origin);
    let t = group.x;
    var factor = 1.0;
    if (RETENTION == LQ) {
        let unit = of_layer(UNIT, t);
        let norm = norm_of(sum_of_parts(layer.norms, t), unit);
        factor = factor_of(unit, norm);
        if (me == 0u) {
            put(NORM_OF + own_layer, t, norm);
            put(FACTOR + own_layer, t, factor);
        }
    }
    var sum = 0.0;
    for (var j = me; j < layer.wide; j += THREADS) {
        let i = t * layer.wide + j;
        var own = 0.0;
        if (t < tokens) {
            own = factor * at(layer.out, i);
        }
        // Rows beyond the last token are zero.
        workspace[base + layer.out + i] = own;
        if (own_layer == 0u) {
            let asked = activation(own).value;
            workspace[base + plan.layers[1].query + i] = asked;
            sum += asked;
        }
    }
    if (RETENTION == KL) {
        let all = together(vec4(sum)).x;
        if (me == 0u && own_layer == 0u) {
            put(MEAN + 1u, t, all / f32(layer.wide));
        }
    }
}

// (54) back of what a token read, as far as it is a number.
@compute @workgroup_size(THREADS)
fn slopes(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_layer(args.origin);
    let t = group.x;
    var own = 0.0;
    for (var i = t * layer.wide + me; i < (t + 1u) * layer.wide; i += THREADS) {
        own += at(layer.out, i) * at(layer.dout, i);
    }
    let along = together(vec4(own)).x;
    if (me == 0u && t < tokens) {
        let of_state = slopes_of(of_layer(UNIT, t), of_layer(NORM_OF, t), along);
        put(SLOPE + own_layer, t, of_state.x);
        put(SHARED + own_layer, t, of_state.y);
    }
}

// Gradients of queries and keys out of all columns' parts, and of a. The second layer's queries are an activation.
@compute @workgroup_size(THREADS)
fn gather(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_layer(args.origin);
    let t = group.x;
    let activated = own_layer == 1u && args.cell.hidden != 0u;
    var sum = 0.0;
    for (var r = me; r < layer.rows; r += THREADS) {
        var of_query = 0.0;
        var of_key = 0.0;
        if (t < tokens) {
            for (var b = 0u; b < layer.blocks; b++) {
                // Queries of a token, then its keys.
                let place = layer.parts + (b * plan.call.frozen + t) * 2u * layer.rows + r;
                of_query += at(place, 0u);
                of_key += at(place, layer.rows);
            }
        }
        let i = t * layer.rows + r;
        sum += of_query;
        workspace[base + layer.dquery + i] = of_query;
        workspace[base + layer.dkey + i] = of_key;
    }
    // Gradients through a norm sum to 0, and so do those of what is asked of distributions: what rounding gave all alike goes.
    let mean = select(0.0, together(vec4(sum)).x / f32(layer.rows), centres(t));
    for (var i = t * layer.rows + me; activated && i < (t + 1u) * layer.rows; i += THREADS) {
        workspace[base + layer.dquery + i] = (at(layer.dquery, i) - mean) * activation(at(plan.layers[0].out, i)).slope;
    }
    // Values beyond the last token were not written, nor were their parts.
    if (t >= tokens) {
        for (var j = me; j < layer.wide; j += THREADS) {
            workspace[base + layer.dvalue + t * layer.wide + j] = 0.0;
        }
    }
    // All invocations meet in the sum, so it is taken of any token.
    let own = select(0.0, sum_of_parts(layer.da, t), t < tokens);
    if (me == 0u) {
        put(D_A, t, number(D_A, t) + own);
    }
}

// Gradients of gates.
@compute @workgroup_size(THREADS)
fn gates_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    for (var t = me; t < tokens; t += THREADS) {
        // Gates crossed as logarithms: a is its own derivative.
        results[plan.call.dgates.x + row_of(t)] = number(GATE_A, t) * number(D_A, t);
        results[plan.call.dgates.y + row_of(t)] = number(D_THETA, t);
    }
}
