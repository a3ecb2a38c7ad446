// One token forward: equations (33) to (40).

const OPENED: u32 = 0u;
// Where each part's phases begin; the parts stand in the order in which a token that reads after its write takes them.
const BEGIN: u32 = 0u;
// The weights of the point, and f at the key.
const POINT: u32 = 1u;
// The error, ψ, u_o, b, δ.
// e = f(W; k) − v [V].
const ERROR: u32 = 12u;
// ψ(e) [V].
const INNER_GRAD: u32 = 13u;
// u = s ψ(e) of (94), u_o = J u [V].
const OUTER: u32 = 14u;
const BACK: u32 = 15u;
const SLOPES: u32 = 16u;
// The write of both matrices, and, three phases a matrix, the log-softmax of their columns. Then the read, whose phases are
// those at the key and one more; or, where tokens read before they write, the other way round, since `next` may be `old`.
const WRITE: u32 = 17u;
const WRITE_PHASES: u32 = 8u;
const READ: u32 = 25u;
const READ_PHASES: u32 = 12u;
const FORWARD_END: u32 = 37u;

// What is done in a phase.
// A token that reads before its write takes the read's phases first: numbers are swapped here.
fn done_in(phase: u32) -> u32 {
    if (phase < WRITE || args.cell.read_after != 0u) {
        return phase;
    }
    return select(phase - READ_PHASES, phase + WRITE_PHASES, phase < WRITE + READ_PHASES);
}

// Which phase of f at the key or at the query that is, if it is one.
// Counted from the first phase of the weights.
// x̂ = y / s with a norm, plus the input where there is a residual.
fn answering(at: u32) -> u32 {
    return at - select(POINT, READ, at >= READ);
}

// The state that a token reads.
// `next` after the write, `old` before it.
fn seen() -> u32 {
    return select(old, next, args.cell.read_after != 0u);
}

// Options of the rule leave phases out: those take no round.
fn shape_of(phase: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    let at = done_in(phase);
    if (answering(at) < TO_WEIGHTS_PHASES) {
        return to_weights_shape(answering(at));
    }
    if (answering(at) < TO_WEIGHTS_PHASES + APPLY_PHASES) {
        return apply_shape(answering(at) - TO_WEIGHTS_PHASES);
    }
    if (at >= WRITE && at < READ) {
        return write_shape(at - WRITE);
    }
    switch at {
        case BEGIN: {
            return vec3(EACH, 1u, 1u);
        }
        // Huber needs the length of the error.
        case ERROR: {
            return each_of(v, BIAS == HUBER);
        }
        // A norm needs two means of the gradient, a clip its length.
        case INNER_GRAD: {
            return each_of(v, has_norm() || clips());
        }
        // b = W₁ u_o [D].
        case BACK: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        // δ = b ∘ slope [D].
        case SLOPES: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        default: {
            return vec3(EACH, 1u, v);
        }
    }
}

// Two sweeps write the matrices; three phases a matrix normalise the columns for KL.
fn write_shape(at: u32) -> vec3<u32> {
    let layer = select((at - 2u) / 3u, at, at < 2u);
    let rows = rows_of(layer);
    let columns = width_of_layer(layer);
    if (at < 2u) {
        return shape_if(has_layer(layer), SWEEP, rows, columns);
    }
    let part = (at - 2u) % 3u;
    let kind = select(select(COLUMNS, COLUMNS | TOP, part == 0u), SWEEP, part == 2u);
    return shape_if(RETENTION == KL && has_layer(layer), kind, rows, columns);
}

// f(W; x) without the residual, from weights that are there, in five phases. Where there is a hidden layer it leaves h
// and slope, at the key also pre. It leaves x̂ in place of the output where there is a norm: `y` is its row, `deviation`
// s.
const APPLY_PHASES: u32 = 5u;
// x W₀ [D], or x W [V].
const APPLY_FIRST: u32 = 0u;
// h and the slope [D].
const APPLY_ACTIVATION: u32 = 1u;
// h W₁ [V].
const APPLY_SECOND: u32 = 2u;
// The mean over [V].
const APPLY_MEAN: u32 = 3u;
// The centred output, and its variance over [V].
const APPLY_VARIANCE: u32 = 4u;

// Row numbers of one application of f.
struct Apply {
    x: u32,
    pre: u32,
    h: u32,
    slope: u32,
    y: u32,
    deviation: u32,
}

// x W₀, activation, h W₁, then mean and variance of the output.
fn apply_shape(at: u32) -> vec3<u32> {
    let v = args.call.value;
    switch at {
        // [K] times [K,D], or [K,V] for a matrix memory.
        case APPLY_FIRST: {
            return vec3(TIMES, args.call.key, inner());
        }
        case APPLY_ACTIVATION: {
            return shape_if(is_mlp(), EACH, 1u, args.cell.hidden);
        }
        // [D] times [D,V].
        case APPLY_SECOND: {
            return shape_if(is_mlp(), TIMES, args.cell.hidden, v);
        }
        default: {
            return shape_if(has_norm(), EACH | TOTAL, 1u, v);
        }
    }
}

// Elements count over [D] for the activation, over [V] for the norm.
fn apply_element(at: u32, p: Apply, i: u32) -> vec4<f32> {
    switch at {
        case APPLY_ACTIVATION: {
            let curve = activation(row(p.pre + i));
            put(p.h + i, curve.value);
            put(p.slope + i, curve.slope);
            return vec4(0.0);
        }
        // The first pass of the norm adds the outputs up.
        case APPLY_MEAN: {
            return vec4(row(p.y + i), 0.0, 0.0, 0.0);
        }
        default: {
            let x = row(p.y + i) - known(MEAN);
            put(p.y + i, x);
            return vec4(x * x, 0.0, 0.0, 0.0);
        }
    }
}

// The second pass, after the mean, gives the deviation s.
fn apply_totalled(at: u32, p: Apply, sum: f32) {
    let mean = sum / f32(args.call.value);
    if (at == APPLY_MEAN) {
        know(MEAN, mean);
    } else {
        put(p.deviation, sqrt(mean + NORM_EPSILON));
    }
}

// At the key or at the query. Pre-activations are needed for the second derivative alone, which a read does not have.
fn applied(reads: bool) -> Apply {
    let r = record_rows();
    if (reads) {
        return Apply(token.q, r.read_h, r.read_h, r.read_slope, out, r.read_deviation);
    }
    return Apply(token.k, r.pre, r.h, r.slope, r.error, r.deviation);
}

// y, x and the matrix of each product.
fn job_at(phase: u32) -> Job {
    let r = record_rows();
    let at = done_in(phase);
    let p = applied(at >= READ);
    let weights = weights_of(select(point, seen(), at >= READ));
    // b of (40): the gradient at the hidden layer.
    if (at == BACK) {
        return job(r.back, r.u_o, weights + first_weights());
    }
    // The first product of f, at the key or at the query.
    if (answering(at) == TO_WEIGHTS_PHASES) {
        return job(select(p.y, p.pre, is_mlp()), p.x, weights);
    }
    return job(p.y, p.h, weights + first_weights());
}

// ψ, then the gradient through the norm, then δ: one row each.
fn element(phase: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let at = done_in(phase);
    if (answering(at) < TO_WEIGHTS_PHASES) {
        return to_weights_element(answering(at), select(point, seen(), at >= READ), i);
    }
    if (answering(at) < TO_WEIGHTS_PHASES + APPLY_PHASES) {
        return apply_element(answering(at) - TO_WEIGHTS_PHASES, applied(at >= READ), i);
    }
    switch at {
        case BEGIN: {
            begin_token();
        }
        // f(W; k) - v; with a norm or residual `prediction` completes f.
        case ERROR: {
            // (34)
            let e = prediction(r.error, r.normed, r.deviation, token.k, i) - row(token.v + i);
            put(r.error + i, e);
            return vec4(e * e, 0.0, 0.0, 0.0);
        }
        // ψ(e), with its square and the two sums that the norm's Jacobian needs.
        case INNER_GRAD: {
            let u = inner_grad(row(r.error + i), known(DELTA), sqrt(known(SUMS)));
            put(r.u + i, u);
            if (has_norm()) {
                return vec4(u, row(r.normed + i) * u, u * u, 0.0);
            }
            return vec4(0.0, 0.0, u * u, 0.0);
        }
        // u = s ψ, and u_o = J u with a norm, else u.
        case OUTER: {
            let shrink = shrink_of(known(SUMS + 2u));
            let u = shrink * row(r.u + i);
            put(r.u + i, u);
            if (i == 0u) {
                put(r.shrink, shrink);
            }
            let means = shrink * sums_known().xy / f32(args.call.value);
            if (has_norm()) {
                put(r.u_o + i, jacobian(row(r.normed + i), u, means, row(r.deviation)));
            } else {
                put(r.u_o + i, u);
            }
        }
        case SLOPES: {
            put(r.delta + i, row(r.back + i) * row(r.slope + i));
        }
        default: {
            // (38)
            put(out + i, prediction(out, r.read_normed, r.read_deviation, token.q, i));
        }
    }
    return vec4(0.0);
}

// An element of f(W; x), of what the matrices made of x.
fn prediction(made_of: u32, normed: u32, deviation: u32, x: u32, i: u32) -> f32 {
    var y = row(made_of + i);
    if (has_norm()) {
        // x̂ = (o − mean o) / s: the mean was taken off in the phase before.
        y /= row(deviation);
        put(normed + i, y);
    }
    if (is_residual()) {
        y += row(x + i);
    }
    return y;
}

// Sums go to the scalars of the token.
fn totalled(phase: u32, sums: vec4<f32>) {
    let at = done_in(phase);
    if (answering(at) < TO_WEIGHTS_PHASES) {
        to_weights_totalled(answering(at), sums.x);
    } else if (answering(at) < TO_WEIGHTS_PHASES + APPLY_PHASES) {
        apply_totalled(answering(at) - TO_WEIGHTS_PHASES, applied(at >= READ), sums.x);
    } else {
        know_sums(sums);
    }
}

// P = carry S − θ xᵀ y, S = keep P, X = a X + gain P, or without momentum X = a X − θ xᵀ y: equations (36), (37). Then (55).
// Element (i, c) of layer 0 or 1; the outer product is of the layer's input and the gradient of its output.
fn along(phase: u32, i: u32, c: u32) -> vec4<f32> {
    let at = done_in(phase) - WRITE;
    let r = record_rows();
    let layer = select((at - 2u) / 3u, at, at < 2u);
    let place = begin_of(layer) + i * width_of_layer(layer) + c;
    if (RETENTION == KL && at >= 2u) {
        workspace[next + place] -= row(scratch_rows().columns + c);
        return vec4(0.0);
    }
    // xᵀ y of (39), or of either layer of (40).
    let x = row(select(token.k, r.h, layer == 1u) + i);
    let y = row(select(r.u_o, r.delta, layer == 0u && is_mlp()) + c);
    var change = -known(THETA) * x * y;
    if (MOMENTUM == 1u) {
        // (37): the momentum lies after the weights in the state.
        change += known(CARRY) * workspace[old + all_weights() + place];
        workspace[next + all_weights() + place] = known(KEEP) * change;
        change *= known(GAIN);
    }
    // `next` may be `old`: each element is read and written by one invocation, in one phase.
    workspace[next + place] = known(A) * workspace[old + place] + change;
    return vec4(0.0);
}

// Of each column the largest, then the sum of exponentials.
// X is the dual variable; its columns are log-probabilities for KL.
fn down(phase: u32, i: u32, c: u32) -> f32 {
    if (RETENTION != KL) {
        return 0.0;
    }
    let at = done_in(phase) - WRITE - 2u;
    let layer = at / 3u;
    let x = workspace[next + begin_of(layer) + i * width_of_layer(layer) + c];
    if (at % 3u == 0u) {
        return x;
    }
    return exponential(x - row(scratch_rows().columns + c));
}

// The logarithm of a column's sum joins what was taken out of it before.
// The largest first, then the logarithm of the sum.
fn landed(phase: u32, c: u32, sum: f32) {
    if (RETENTION != KL) {
        return;
    }
    let to = scratch_rows().columns + c;
    if ((done_in(phase) - WRITE - 2u) % 3u == 0u) {
        put(to, sum);
    } else {
        put_more(to, logarithm(sum));
    }
}
