// Weights as images of states, (54) and (55), and their gradients back: a workgroup SLAB rows of a matrix.
//
// With y = x / σ, and ν = σ n, a weight of (54) is f y |y|^{q-2}, or f y for the literal map. Powers are of numbers up to 1.

// The slab of this workgroup in its layer; where its elements begin in a matrix, and where they end.
var<private> slab: u32;
var<private> first: u32;
var<private> end: u32;

// The last one may have fewer rows.
fn slabs(rows: u32) -> u32 {
    return (rows + SLAB - 1u) / SLAB;
}

// Slabs of both layers come one after another.
fn begin_slab(x: u32) {
    let of_first = slabs(plan.layers[0].rows);
    begin_layer(select(1u, 0u, x < of_first));
    slab = x - select(of_first, 0u, x < of_first);
    first = slab * SLAB * layer.wide;
    end = min((slab + 1u) * SLAB, layer.rows) * layer.wide;
}

// The largest of the workgroup's numbers.
fn largest(own: f32) -> f32 {
    partial[me] = vec4(own);
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (me < half) {
            partial[me].x = larger(partial[me].x, partial[me + half].x);
        }
        workgroupBarrier();
    }
    let most = partial[0].x;
    // As in `together`.
    workgroupBarrier();
    return most;
}

// Of list `which` of the layer's slabs: the largest number, or the sum.
fn largest_by_slab(which: u32) -> f32 {
    let count = slabs(layer.rows);
    var own = 0.0;
    for (var i = me; i < count; i += THREADS) {
        own = larger(own, at(layer.by_slab, which * count + i));
    }
    return largest(own);
}
// Returns the sum over slabs of their number `which`, in every invocation.
fn sum_by_slab(which: u32) -> f32 {
    let count = slabs(layer.rows);
    var own = 0.0;
    for (var i = me; i < count; i += THREADS) {
        own += at(layer.by_slab, which * count + i);
    }
    return together(vec4(own)).x;
}
// One invocation writes.
fn put_by_slab(which: u32, x: f32) {
    if (me == 0u) {
        workspace[base + layer.by_slab + which * slabs(layer.rows) + slab] = x;
    }
}

// |y|^{q-2}.
fn raise(y: f32) -> f32 {
    if (POWER == 2u) {
        return 1.0;
    }
    if (POWER == 3u) {
        return abs(y);
    }
    if (POWER == 4u) {
        return y * y;
    }
    return steepness(y);
}

// n, from the sum of |y|^q.
fn norm_of(sum: f32, unit: f32) -> f32 {
    return power(sum + to_the_q(least_unit() / unit), 1.0 / args.cell.q);
}
// ε^{1/q}: what a norm is no less than.
fn least_unit() -> f32 {
    return power(LQ_EPSILON, 1.0 / args.cell.q);
}

// f, by σ and n.
fn factor_of(unit: f32, norm: f32) -> f32 {
    // Mirror: σ n^{2-q}. Literal: σ ν^{2-q}.
    let by_map = select(norm, unit * norm, LITERAL == 1u);
    return unit * power(by_map, 2.0 - args.cell.q);
}
// What a weight's gradient is multiplied by for the state's, with |y|^{q-2} for the mirror map; and what y |y|^{q-2} has of
// `along`, which is ⟨W, W̄⟩.
fn slopes_of(unit: f32, norm: f32, along: f32) -> vec2<f32> {
    let q = args.cell.q;
    // The gradient of an element alone, and what comes by the norm.
    let own = select((q - 1.0) * power(norm, 2.0 - q), power(unit * norm, 2.0 - q), LITERAL == 1u);
    return vec2(own, (2.0 - q) * along * power(norm, -q) / unit);
}

// Largest elements of states and anchors.
@compute @workgroup_size(THREADS)
fn tops(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_slab(group.x);
    var top = 0.0;
    var far = 0.0;
    for (var i = first + me; i < end; i += THREADS) {
        top = larger(top, abs(at(layer.state, i)));
        if (ANCHORED == 1u) {
            far = larger(far, abs(at(layer.anchor, i)));
        }
    }
    put_by_slab(TOP, largest(top));
    put_by_slab(FAR, largest(far));
}

// Sums of |y|^q.
@compute @workgroup_size(THREADS)
fn powers(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_slab(group.x);
    let unit = lq_size(largest_by_slab(TOP));
    var own = 0.0;
    for (var i = first + me; i < end; i += THREADS) {
        own += to_the_q(abs(at(layer.state, i)) / unit);
    }
    put_by_slab(SUM, together(vec4(own)).x);
}

// Weights.
@compute @workgroup_size(THREADS)
fn images(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_slab(group.x);
    var unit = 1.0;
    var factor = args.cell.scale;
    if (RETENTION == LQ) {
        unit = lq_size(largest_by_slab(TOP));
        factor = factor_of(unit, norm_of(sum_by_slab(SUM), unit));
    }
    for (var i = first + me; i < end; i += THREADS) {
        let x = at(layer.state, i);
        if (RETENTION == KL) {
            // scale eˣ of the state as it is.
            workspace[base + layer.weights + i] = factor * exponential(x);
        } else {
            let y = x / unit;
            workspace[base + layer.weights + i] = factor * y * select(raise(y), 1.0, LITERAL == 1u);
        }
    }
}

// ⟨W, W̄⟩ of a slab.
@compute @workgroup_size(THREADS)
fn alongs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_slab(group.x);
    var own = 0.0;
    for (var i = first + me; i < end; i += THREADS) {
        own += at(layer.weights, i) * at(layer.dweights, i);
    }
    put_by_slab(ALONG, together(vec4(own)).x);
}

// The gradient of weights to that of the state before the group.
@compute @workgroup_size(THREADS)
fn pull(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_slab(group.x);
    var unit = 1.0;
    var slopes = vec2(0.0);
    if (RETENTION == LQ) {
        unit = lq_size(largest_by_slab(TOP));
        slopes = slopes_of(unit, norm_of(sum_by_slab(SUM), unit), sum_by_slab(ALONG));
    }
    for (var i = first + me; i < end; i += THREADS) {
        let d = at(layer.dweights, i);
        // (55): a weight is its own derivative.
        var own = at(layer.weights, i) * d;
        if (RETENTION == LQ) {
            let y = at(layer.state, i) / unit;
            let steep = raise(y);
            own = slopes.x * d * select(steep, 1.0, LITERAL == 1u) + slopes.y * steep * y;
        }
        workspace[base + layer.dstate + i] += own;
    }
}
