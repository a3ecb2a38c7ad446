// One token forward: equations (33) to (40).

const OPENED: u32 = 0u;
const BEGIN: u32 = 0u;
// The weights of the point, and f at the key.
const POINT: u32 = 1u;
const LEARN: u32 = 7u;
// The error, ψ, u_o, b, δ.
const ERROR: u32 = 12u;
const TEACH: u32 = 13u;
const OUTER: u32 = 14u;
const BACK: u32 = 15u;
const SLOPES: u32 = 16u;
// The write of both matrices, and, three phases a matrix, the log-softmax of their columns. Then the read; or, where tokens
// read before they write, the other way round, since `next` may be `old`.
const WRITE: u32 = 17u;
const WRITING: u32 = 8u;
const LOOK: u32 = 25u;
const LOOKING: u32 = 12u;
const FORWARD_END: u32 = 37u;

// What is done in a phase.
fn forward_phase(phase: u32) -> u32 {
    if (phase < WRITE || args.cell.read_after != 0u) {
        return phase;
    }
    return select(phase - LOOKING, phase + WRITING, phase < WRITE + LOOKING);
}

// The state that a token reads.
fn seen() -> u32 {
    return select(old, next, args.cell.read_after != 0u);
}

fn forward_shape(phase: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    if (phase >= POINT && phase < LEARN) {
        return expose_shape(phase - POINT);
    }
    if (phase >= LEARN && phase < ERROR) {
        return apply_shape(phase - LEARN);
    }
    if (phase >= LOOK) {
        return look_shape(phase - LOOK);
    }
    switch phase {
        case BEGIN: {
            return vec3(EACH, 1u, 1u);
        }
        case ERROR: {
            return each_of(v, BIAS == HUBER);
        }
        case TEACH: {
            return each_of(v, has_norm());
        }
        case OUTER: {
            return vec3(EACH, 1u, v);
        }
        case BACK: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case SLOPES: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        default: {
            return write_shape(phase - WRITE);
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

fn look_shape(at: u32) -> vec3<u32> {
    if (at < EXPOSING) {
        return expose_shape(at);
    }
    if (at < EXPOSING + APPLYING) {
        return apply_shape(at - EXPOSING);
    }
    return vec3(EACH, 1u, args.call.value);
}

fn forward_job(phase: u32) -> Job {
    let r = record_rows();
    if (phase >= LOOK) {
        return apply_job(phase - LOOK - EXPOSING, at_query(), weights_of(seen()));
    }
    if (phase == BACK) {
        return job(r.back, r.u_o, weights_of(point) + first_weights());
    }
    return apply_job(phase - LEARN, at_key(), weights_of(point));
}

// Gates come in the order log_a, [log_eta], theta, [delta].
fn begin_token() {
    know(A, exponential(gate(0u)));
    know(THETA, gate(1u + MOMENTUM));
    if (MOMENTUM == 1u) {
        know(ETA, exponential(gate(1u)));
    }
    if (BIAS == HUBER) {
        know(DELTA, gate(2u + MOMENTUM));
    }
}

fn forward_element(phase: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    if (phase >= POINT && phase < LEARN) {
        return expose_element(phase - POINT, point, i);
    }
    if (phase >= LEARN && phase < ERROR) {
        return apply_element(phase - LEARN, at_key(), i);
    }
    if (phase >= LOOK) {
        return look_element(phase - LOOK, i);
    }
    switch phase {
        case BEGIN: {
            begin_token();
        }
        case ERROR: {
            // (34)
            var y = row(r.error + i);
            if (has_norm()) {
                y /= row(r.deviation);
                put(r.normed + i, y);
            }
            if (is_residual()) {
                y += row(token.k + i);
            }
            let e = y - row(token.v + i);
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
        default: {
            put(r.delta + i, row(r.back + i) * row(r.slope + i));
        }
    }
    return vec4(0.0);
}

// Equation (38).
fn look_element(at: u32, i: u32) -> vec4<f32> {
    if (at < EXPOSING) {
        return expose_element(at, seen(), i);
    }
    if (at < EXPOSING + APPLYING) {
        return apply_element(at - EXPOSING, at_query(), i);
    }
    let r = record_rows();
    var y = row(out + i);
    if (has_norm()) {
        y /= row(r.read_deviation);
        put(r.read_normed + i, y);
    }
    if (is_residual()) {
        y += row(token.q + i);
    }
    put(out + i, y);
    return vec4(0.0);
}

fn forward_totalled(phase: u32, sums: vec4<f32>) {
    if (phase >= POINT && phase < LEARN) {
        expose_totalled(phase - POINT, sums.x);
    } else if (phase >= LEARN && phase < ERROR) {
        apply_totalled(phase - LEARN, at_key(), sums.x);
    } else if (phase >= LOOK + EXPOSING) {
        apply_totalled(phase - LOOK - EXPOSING, at_query(), sums.x);
    } else if (phase >= LOOK) {
        expose_totalled(phase - LOOK, sums.x);
    } else {
        know_sums(sums);
    }
}

// S = η S − θ xᵀ y, X = a X + S, or without momentum X = a X − θ xᵀ y: equations (36), (37). Then (55).
fn write_along(at: u32, i: u32, c: u32) -> vec4<f32> {
    let r = record_rows();
    let layer = select((at - 2u) / 3u, at, at < 2u);
    let place = begin_of(layer) + i * width_of_layer(layer) + c;
    if (at >= 2u) {
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
fn write_down(at: u32, i: u32, c: u32) -> f32 {
    let layer = (at - 2u) / 3u;
    let x = room[next + begin_of(layer) + i * width_of_layer(layer) + c];
    if ((at - 2u) % 3u == 0u) {
        return x;
    }
    return exponential(x - row(scratch_rows().columns + c));
}
