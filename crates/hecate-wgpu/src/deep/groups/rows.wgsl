// Inner gradients by token, and back: a workgroup a token.

// u = ψ(e) of (47), (50) to (52), then (94), and with what the second layer is written with.
@compute @workgroup_size(THREADS)
fn inner_grad_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x;
    let width = plan.call.value;
    let first = t * width;
    // Each invocation reads what it wrote itself, here and below.
    var predictions = plan.places.prediction;
    var deviation = 1.0;
    if (has_norm()) {
        predictions = plan.places.normed;
        deviation = normalise(plan.places.prediction + first, predictions + first, width);
    }
    // e = prediction − v in place of v; with a residual the keys are part of the prediction.
    var square = 0.0;
    for (var i = me; i < width; i += THREADS) {
        var error = at(predictions, first + i) - at(plan.places.v, first + i);
        if (args.cell.residual != 0u) {
            error += at(plan.places.k, first + i);
        }
        workspace[base + plan.places.v + first + i] = error;
        square += error * error;
    }
    var length = 0.0;
    if (BIAS == HUBER) {
        length = sqrt(together(vec4(square)).x);
    }
    // ψ by element; one bias also looks at the whole error's length.
    let inner_grads = plan.places.inner_grad + first;
    square = 0.0;
    for (var i = me; i < width; i += THREADS) {
        let own = inner_grad(at(plan.places.v, first + i), number(DELTA, t), length);
        workspace[base + inner_grads + i] = own;
        square += own * own;
    }
    // A gradient that is too long is shortened as a whole, and the backward needs by how much.
    var shrink = 1.0;
    if (clips()) {
        shrink = shrink_of(together(vec4(square)).x);
    }
    if (me == 0u) {
        put(SHRINK, t, shrink);
        put(DEVIATION, t, deviation);
    }
    var sums = vec4(0.0);
    for (var i = me; i < width; i += THREADS) {
        let own = shrink * at(inner_grads, i);
        workspace[base + inner_grads + i] = own;
        if (has_norm()) {
            sums += vec4(own, own * at(plan.places.normed, first + i), 0.0, 0.0);
        }
    }
    // u_o = J u.
    if (has_norm()) {
        let means = together(sums).xy / f32(width);
        for (var i = me; i < width; i += THREADS) {
            let own = jacobian(at(plan.places.normed, first + i), at(inner_grads, i), means, deviation);
            workspace[base + plan.places.u + first + i] = own;
        }
    }
    for (var i = me; i < width; i += THREADS) {
        workspace[base + plan.places.z1 + first + i] = -number(THETA, t) * at(plan.places.u, first + i);
    }
}

// To b = u W₁ᵀ in `dback`, where the gradient of z0 was, and to pre-activations in `dh`, where that of h was.
@compute @workgroup_size(THREADS)
fn hidden_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x;
    let theta = number(THETA, t);
    var along = 0.0;
    for (var i = me; i < args.cell.hidden; i += THREADS) {
        let own = t * args.cell.hidden + i;
        let curve = activation(at(plan.places.pre, own));
        let d = at(plan.places.dback, own);
        let b = at(plan.places.back, own);
        along += d * b * curve.slope;
        let ddelta = -theta * d;
        workspace[base + plan.places.dback + own] = ddelta * curve.slope;
        let dh = at(plan.places.dh, own);
        workspace[base + plan.places.dh + own] = ddelta * b * curve.second_derivative + dh * curve.slope;
    }
    let sum = together(vec4(along)).x;
    if (me == 0u) {
        put(D_THETA, t, -sum);
    }
}

// From u_o's gradient, of which `du` has what came through b, to that of what comes before a norm, in its place; to v, θ and δ.
@compute @workgroup_size(THREADS)
fn inner_grad_rows_vjp(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x;
    let width = plan.call.value;
    let first = t * width;
    let theta = number(THETA, t);
    var own = vec4(0.0);
    var of_norm = vec4(0.0);
    for (var i = me; i < width; i += THREADS) {
        let d = at(plan.places.dz1, first + i);
        let u_o = at(plan.places.u, first + i);
        let u = at(plan.places.inner_grad, first + i);
        let du = at(plan.places.du, first + i) - theta * d;
        workspace[base + plan.places.du + first + i] = du;
        own += vec4(d * u_o, du * u, du * u_o, 0.0);
        if (has_norm()) {
            let normed = at(plan.places.normed, first + i);
            of_norm += vec4(du, du * normed, u, u * normed);
        }
    }
    let along = together(own);
    var along_it = along.y;
    if (has_norm()) {
        along_it = jacobian_back(t, first, width, together(of_norm), along.zy);
    }
    // Back through clipping first, then what the bias has to sum over a token's elements.
    var sums = vec4(0.0);
    for (var i = me; i < width; i += THREADS) {
        var du = at(plan.places.du, first + i);
        if (clips()) {
            du = clip_vjp(at(plan.places.inner_grad, first + i), du, number(SHRINK, t), along_it);
            workspace[base + plan.places.du + first + i] = du;
        }
        if (BIAS == HUBER) {
            sums += sums_of_bias(at(plan.places.v, first + i), du, number(DELTA, t));
        }
    }
    if (BIAS == HUBER) {
        sums = together(sums);
    }
    // dv is the error's gradient with the other sign; rows after the last token are in the workspace alone.
    var of_error = vec4(0.0);
    for (var i = me; i < width; i += THREADS) {
        let error = at(plan.places.v, first + i);
        let du = inner_grad_vjp(error, at(plan.places.du, first + i), number(DELTA, t), sums);
        workspace[base + plan.places.du + first + i] = du;
        if (t < tokens) {
            results[args.to + row_of(t) * width + i] = -du;
        }
        if (has_norm()) {
            // Keys get it where inputs are added to outputs.
            workspace[base + plan.places.prediction + first + i] = du;
            of_error += vec4(du, du * at(plan.places.normed, first + i), 0.0, 0.0);
        }
    }
    if (has_norm()) {
        errors_back(t, first, width, together(of_error).xy);
    }
    if (me == 0u) {
        put(D_THETA, t, number(D_THETA, t) - along.x);
        if (BIAS == HUBER) {
            put(D_DELTA, t, delta_vjp(number(DELTA, t), sums));
        }
    }
}

// Inner products with the rows of a panel: what shares of both states, and the anchor's, have for gradients.
// `origin` has the panel, `to` the products with X, the anchor and S one after another, `plus` the first of the two numbers.
@compute @workgroup_size(THREADS)
fn shares_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let t = group.x;
    let first = t * args.width;
    let size = plan.call.frozen * args.width;
    let anchored = plan.call.anchor_slots > 0u && args.plus == D_READ_A;
    var own = vec4(0.0);
    for (var i = first + me; i < first + args.width; i += THREADS) {
        let x = at(args.origin, i);
        var kept_part = at(args.to, i);
        if (anchored) {
            kept_part -= at(args.to, size + i);
        }
        own.x += x * kept_part;
        if (has_momentum()) {
            own.y += x * at(args.to, 2u * size + i);
        }
    }
    let sum = together(own);
    if (me == 0u) {
        put(args.plus, t, number(args.plus, t) + sum.x);
        put(args.plus + 1u, t, number(args.plus + 1u, t) + sum.y);
    }
}

// Of a row of a matrix of weights: what A, B and E after the group have for gradients. `origin` is where the matrix begins in a
// state, `to` its first row among sums.
@compute @workgroup_size(THREADS)
fn state_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let first = args.origin + group.x * args.width;
    let weights = all_weights();
    var own = vec4(0.0);
    for (var i = first + me; i < first + args.width; i += THREADS) {
        let d = at(plan.places.dstate, i);
        var value = at(plan.places.state, i);
        if (plan.call.anchor_slots > 0u) {
            value -= at(plan.places.anchor, i);
        }
        own.x += d * value;
        if (has_momentum()) {
            let s = at(plan.places.state, weights + i);
            own.y += d * s;
            own.z += at(plan.places.dstate, weights + i) * s;
        }
    }
    let sum = together(own);
    if (me == 0u) {
        let to = base + plan.places.sums + 4u * (args.to + group.x);
        workspace[to] = sum.x;
        workspace[to + 1u] = sum.y;
        workspace[to + 2u] = sum.z;
    }
}
