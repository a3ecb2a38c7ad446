// One token forward: equations (33) to (40).

const OPENED: u32 = 0u;
const BEGIN: u32 = 0u;
// The weights of the point, and f at the key.
const POINT: u32 = 1u;
// The error, ψ, u_o, b, δ.
const ERROR: u32 = 12u;
const TEACH: u32 = 13u;
const OUTER: u32 = 14u;
const BACK: u32 = 15u;
const SLOPES: u32 = 16u;
// The write of both matrices, and, three phases a matrix, the log-softmax of their columns. Then the read, whose phases are
// those at the key and one more; or, where tokens read before they write, the other way round, since `next` may be `old`.
const WRITE: u32 = 17u;
const WRITING: u32 = 8u;
const LOOK: u32 = 25u;
const LOOKING: u32 = 12u;
const FORWARD_END: u32 = 37u;

// What is done in a phase.
fn done_in(phase: u32) -> u32 {
    if (phase < WRITE || args.cell.read_after != 0u) {
        return phase;
    }
    return select(phase - LOOKING, phase + WRITING, phase < WRITE + LOOKING);
}

// Which phase of f at the key or at the query that is, if it is one.
fn answering(at: u32) -> u32 {
    return at - select(POINT, LOOK, at >= LOOK);
}

// The state that a token reads.
fn seen() -> u32 {
    return select(old, next, args.cell.read_after != 0u);
}

fn shape_of(phase: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    let at = done_in(phase);
    if (answering(at) < EXPOSING) {
        return expose_shape(answering(at));
    }
    if (answering(at) < EXPOSING + APPLYING) {
        return apply_shape(answering(at) - EXPOSING);
    }
    if (at >= WRITE && at < LOOK) {
        return write_shape(at - WRITE);
    }
    switch at {
        case BEGIN: {
            return vec3(EACH, 1u, 1u);
        }
        case ERROR: {
            return each_of(v, BIAS == HUBER);
        }
        case TEACH: {
            return each_of(v, has_norm());
        }
        case BACK: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case SLOPES: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        default: {
            return vec3(EACH, 1u, v);
        }
    }
}

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

// f(W; x) without the residual, from weights that are there, in five phases. It leaves h and slope, at the key also pre,
// where there is a hidden layer, and x̂ in place of the output where there is a norm: `y` is its row, `deviation` s.
const APPLYING: u32 = 5u;

struct Apply {
    x: u32,
    pre: u32,
    h: u32,
    slope: u32,
    y: u32,
    deviation: u32,
}

fn apply_shape(at: u32) -> vec3<u32> {
    let v = args.call.value;
    switch at {
        case 0u: {
            return vec3(TIMES, args.call.key, inner());
        }
        case 1u: {
            return shape_if(is_mlp(), EACH, 1u, args.cell.hidden);
        }
        case 2u: {
            return shape_if(is_mlp(), TIMES, args.cell.hidden, v);
        }
        default: {
            return shape_if(has_norm(), EACH | TOTAL, 1u, v);
        }
    }
}

fn apply_element(at: u32, p: Apply, i: u32) -> vec4<f32> {
    switch at {
        case 1u: {
            let curve = activation(row(p.pre + i));
            put(p.h + i, curve.value);
            put(p.slope + i, curve.slope);
            return vec4(0.0);
        }
        case 3u: {
            return vec4(row(p.y + i), 0.0, 0.0, 0.0);
        }
        default: {
            let x = row(p.y + i) - known(MEAN);
            put(p.y + i, x);
            return vec4(x * x, 0.0, 0.0, 0.0);
        }
    }
}

fn apply_totalled(at: u32, p: Apply, sum: f32) {
    let mean = sum / f32(args.call.value);
    if (at == 3u) {
        know(MEAN, mean);
    } else {
        put(p.deviation, sqrt(mean + NORM_EPSILON));
    }
}

// At the key or at the query. Pre-activations are needed for the second derivative alone, which a read does not have.
fn applied(looks: bool) -> Apply {
    let r = record_rows();
    if (looks) {
        return Apply(token.q, r.read_h, r.read_h, r.read_slope, out, r.read_deviation);
    }
    return Apply(token.k, r.pre, r.h, r.slope, r.error, r.deviation);
}

fn job_at(phase: u32) -> Job {
    let r = record_rows();
    let at = done_in(phase);
    let p = applied(at >= LOOK);
    let weights = weights_of(select(point, seen(), at >= LOOK));
    if (at == BACK) {
        return job(r.back, r.u_o, weights + first_weights());
    }
    if (answering(at) == EXPOSING) {
        return job(select(p.y, p.pre, is_mlp()), p.x, weights);
    }
    return job(p.y, p.h, weights + first_weights());
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let at = done_in(phase);
    if (answering(at) < EXPOSING) {
        return expose_element(answering(at), select(point, seen(), at >= LOOK), i);
    }
    if (answering(at) < EXPOSING + APPLYING) {
        return apply_element(answering(at) - EXPOSING, applied(at >= LOOK), i);
    }
    switch at {
        case BEGIN: {
            begin_token();
        }
        case ERROR: {
            // (34)
            let e = answer(r.error, r.normed, r.deviation, token.k, i) - row(token.v + i);
            put(r.error + i, e);
            return vec4(e * e, 0.0, 0.0, 0.0);
        }
        case TEACH: {
            let u = taught(row(r.error + i), known(DELTA), sqrt(known(SUMS)));
            put(r.u + i, u);
            if (has_norm()) {
                return vec4(u, row(r.normed + i) * u, 0.0, 0.0);
            }
        }
        case OUTER: {
            let u = row(r.u + i);
            let means = sums_known().xy / f32(args.call.value);
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
            put(out + i, answer(out, r.read_normed, r.read_deviation, token.q, i));
        }
    }
    return vec4(0.0);
}

// An element of f(W; x), of what the matrices made of x.
fn answer(made_of: u32, normed: u32, deviation: u32, x: u32, i: u32) -> f32 {
    var y = row(made_of + i);
    if (has_norm()) {
        y /= row(deviation);
        put(normed + i, y);
    }
    if (is_residual()) {
        y += row(x + i);
    }
    return y;
}

fn totalled(phase: u32, sums: vec4<f32>) {
    let at = done_in(phase);
    if (answering(at) < EXPOSING) {
        expose_totalled(answering(at), sums.x);
    } else if (answering(at) < EXPOSING + APPLYING) {
        apply_totalled(answering(at) - EXPOSING, applied(at >= LOOK), sums.x);
    } else {
        know_sums(sums);
    }
}

// S = η S − θ xᵀ y, X = a X + S, or without momentum X = a X − θ xᵀ y: equations (36), (37). Then (55).
fn along(phase: u32, i: u32, c: u32) -> vec4<f32> {
    let at = done_in(phase) - WRITE;
    let r = record_rows();
    let layer = select((at - 2u) / 3u, at, at < 2u);
    let place = begin_of(layer) + i * width_of_layer(layer) + c;
    if (RETENTION == KL && at >= 2u) {
        room[next + place] -= row(scratch_rows().columns + c);
        return vec4(0.0);
    }
    let x = row(select(token.k, r.h, layer == 1u) + i);
    let y = row(select(r.u_o, r.delta, layer == 0u && is_mlp()) + c);
    var change = -known(THETA) * x * y;
    if (MOMENTUM == 1u) {
        change += known(ETA) * room[old + all_weights() + place];
        room[next + all_weights() + place] = change;
    }
    room[next + place] = known(A) * room[old + place] + change;
    return vec4(0.0);
}

// Of each column the largest, then the sum of exponentials.
fn down(phase: u32, i: u32, c: u32) -> f32 {
    if (RETENTION != KL) {
        return 0.0;
    }
    let at = done_in(phase) - WRITE - 2u;
    let layer = at / 3u;
    let x = room[next + begin_of(layer) + i * width_of_layer(layer) + c];
    if (at % 3u == 0u) {
        return x;
    }
    return exponential(x - row(scratch_rows().columns + c));
}

// The logarithm of a column's sum joins what was taken out of it before.
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
