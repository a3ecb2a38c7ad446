// One token backward: equations (41) to (46), (56) to (59).

// Parts of the backward: the token's numbers; the read; the write; what was taught. Where tokens read before they write,
// the read comes last.
const READ_BACK: u32 = 1u;
const READING_BACK: u32 = 18u;
const WRITE_BACK: u32 = 19u;
const WRITING_BACK: u32 = 16u;
const TEACH_BACK: u32 = 35u;
const TEACHING_BACK: u32 = 23u;
const BACKWARD_END: u32 = 95u;

// What is done in a phase, counted from the first one of the backward.
fn backward_phase(phase: u32) -> u32 {
    let at = phase - FORWARD_END;
    if (at < READ_BACK || args.cell.read_after != 0u) {
        return at;
    }
    let others = WRITING_BACK + TEACHING_BACK;
    return select(at - others, at + READING_BACK, at < READ_BACK + others);
}

// Where gradients of weights are cleared, and, in two phases a matrix, become those of the state that was exposed last.
const PULLING: u32 = 4u;

fn clear_shape() -> vec3<u32> {
    return shape_if(RETENTION != DECAY, EACH, 1u, all_weights());
}

fn pull_shape(at: u32) -> vec3<u32> {
    let layer = at / 2u;
    let kind = select(EACH | TOTAL, EACH, at % 2u == 1u);
    let wanted = RETENTION == LQ || (RETENTION == KL && at % 2u == 1u);
    return shape_if(wanted && has_layer(layer), kind, 1u, count_of(layer));
}

fn pull_element(at: u32, state: u32, gradient: u32, i: u32) -> vec4<f32> {
    let layer = at / 2u;
    let place = begin_of(layer) + i;
    let x = room[state + place];
    let dw = room[goal_of(gradient) + place];
    let norm = known(NORMS + layer);
    if (at % 2u == 0u) {
        return vec4(along_pulled(x, dw, norm), 0.0, 0.0, 0.0);
    }
    room[gradient + place] += pulled(x, dw, norm, known(ALONG + layer));
    return vec4(0.0);
}

// The read: what it adds to the gradients of the query and of the state that it saw.
fn read_back_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case 6u: {
            return clear_shape();
        }
        case 7u: {
            return each_of(v, has_norm());
        }
        case 8u: {
            return shape_if(has_norm(), EACH, 1u, v);
        }
        case 9u: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case 10u: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        case 11u: {
            return vec3(TRANSPOSED | ADD, args.call.key, inner());
        }
        case 12u: {
            return vec3(UPDATE, args.call.key, inner());
        }
        case 13u: {
            return shape_if(is_mlp(), UPDATE, d, v);
        }
        default: {
            if (at < EXPOSING) {
                return expose_shape(at);
            }
            return pull_shape(at - 14u);
        }
    }
}

fn read_back_job(at: u32) -> Job {
    let s = scratch_rows();
    let weights = weights_of(seen());
    let goal = goal_of(dstate);
    let inside = select(s.dread, s.dpre, is_mlp());
    switch at {
        case 9u: {
            return job(s.dpre, s.dread, weights + first_weights());
        }
        case 11u: {
            return job(grads.q, inside, weights);
        }
        case 12u: {
            return job(inside, token.q, goal);
        }
        default: {
            return job(s.dread, record_rows().read_h, goal + first_weights());
        }
    }
}

fn read_back_element(at: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    switch at {
        case 6u: {
            room[goal_of(dstate) + i] = 0.0;
        }
        case 7u: {
            let dy = row(out + i);
            if (is_residual()) {
                put_more(grads.q + i, dy);
            }
            put(s.dread + i, dy);
            if (has_norm()) {
                return vec4(dy, row(r.read_normed + i) * dy, 0.0, 0.0);
            }
        }
        case 8u: {
            let means = sums_known().xy / f32(args.call.value);
            put(s.dread + i, jacobian(row(r.read_normed + i), row(out + i), means, row(r.read_deviation)));
        }
        case 10u: {
            put(s.dpre + i, row(s.dpre + i) * row(r.read_slope + i));
        }
        default: {
            if (at < EXPOSING) {
                return expose_element(at, seen(), i);
            }
            return pull_element(at - 14u, seen(), dstate, i);
        }
    }
    return vec4(0.0);
}

// The write, (56) to (58) and the first half of (59): gradients of the gates, and with Ḡ what (41) begins with: h̄, δ̄, ū_o,
// and dk. The first four phases a matrix are those of (55).
fn write_back_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case 8u: {
            return shape_if(RETENTION != KL, EACH | TOTAL, 1u, all_weights());
        }
        case 9u: {
            return vec3(TRANSPOSED, args.call.key, inner());
        }
        case 10u: {
            return vec3(TIMES, args.call.key, inner());
        }
        case 11u: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case 12u: {
            return shape_if(is_mlp(), TIMES, d, v);
        }
        case 13u: {
            return vec3(EACH | TOTAL, 1u, max(args.call.key, d));
        }
        case 14u: {
            return vec3(EACH, 1u, v);
        }
        case 15u: {
            return vec3(EACH, 1u, all_weights());
        }
        default: {
            let layer = at / 4u;
            let kind = select(COLUMNS, select(SWEEP, SWEEP | TOTAL, at % 4u == 3u), at % 2u == 1u);
            return shape_if(RETENTION == KL && has_layer(layer), kind, rows_of(layer), width_of_layer(layer));
        }
    }
}

// ⟨x, D y⟩, D y and x D, for a gradient D of a matrix written as xᵀ y.
fn write_back_job(at: u32) -> Job {
    let r = record_rows();
    let s = scratch_rows();
    let first = dstate + MOMENTUM * all_weights();
    switch at {
        case 9u: {
            return job(s.key, select(r.u_o, r.delta, is_mlp()), first);
        }
        case 10u: {
            return job(select(s.du_o, s.ddelta, is_mlp()), token.k, first);
        }
        case 11u: {
            return job(s.dh, r.u_o, first + first_weights());
        }
        default: {
            return job(s.du_o, r.h, first + first_weights());
        }
    }
}

fn write_back_element(at: u32, i: u32) -> vec4<f32> {
    let s = scratch_rows();
    let all = all_weights();
    let factor = -known(THETA);
    var sums = vec4(0.0);
    switch at {
        case 8u: {
            sums.x = room[dstate + i] * room[old + i];
            if (MOMENTUM == 1u) {
                let ds = room[dstate + all + i] + room[dstate + i];
                room[dstate + all + i] = ds;
                sums.y = ds * room[old + all + i];
            }
        }
        case 13u: {
            if (i < args.call.key) {
                sums.x += row(token.k + i) * row(s.key + i);
                put_more(grads.k + i, factor * row(s.key + i));
            }
            if (i < args.cell.hidden) {
                sums.x += row(record_rows().h + i) * row(s.dh + i);
                put(s.dh + i, factor * row(s.dh + i));
                put(s.ddelta + i, factor * row(s.ddelta + i));
            }
        }
        case 14u: {
            put(s.du_o + i, factor * row(s.du_o + i));
        }
        default: {
            // Where the gradients of the state and of the point are one array, forgetting (59) waits for what adds to it.
            if (RETENTION != DECAY || args.call.frozen != 0u) {
                room[dstate + i] *= known(A);
            }
            if (MOMENTUM == 1u) {
                room[dstate + all + i] *= known(ETA);
            }
        }
    }
    return sums;
}

fn write_back_totalled(at: u32, sums: vec4<f32>) {
    if (at == 13u) {
        put(grads.gates, known(A) * known(SUMS));
        put(grads.gates + 1u + MOMENTUM, -sums.x);
        if (MOMENTUM == 1u) {
            put(grads.gates + 1u, known(ETA) * known(SUMS + 1u));
        }
    } else if (at == 7u) {
        know(SUMS, known(SUMS) + sums.x);
    } else {
        know_sums(sums);
    }
}

// Each column of dX sums to 0 behind the first sweep. What is common to a column of X, nearly all of it, is taken off before
// the product of both, or it would leave its rounding behind.
fn write_back_along(at: u32, i: u32, c: u32) -> vec4<f32> {
    let layer = at / 4u;
    let place = begin_of(layer) + i * width_of_layer(layer) + c;
    let sum = row(scratch_rows().columns + c);
    if (at % 4u == 1u) {
        room[dstate + place] -= exponential(room[next + place]) * sum;
        return vec4(0.0);
    }
    return vec4(room[dstate + place] * (room[old + place] - sum / f32(rows_of(layer))), 0.0, 0.0, 0.0);
}

fn write_back_down(at: u32, i: u32, c: u32) -> f32 {
    let layer = at / 4u;
    return room[select(old, dstate, at % 4u == 0u) + begin_of(layer) + i * width_of_layer(layer) + c];
}

// What the token taught, (42) to (46), back to its key, value and the weights at the gradient point.
fn teach_back_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case 6u: {
            return clear_shape();
        }
        case 7u, 15u: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        case 8u: {
            return shape_if(is_mlp(), TIMES | ADD, d, v);
        }
        case 9u: {
            return shape_if(has_norm(), EACH | TOTAL, 1u, v);
        }
        case 10u, 12u: {
            return each_of(v, has_norm());
        }
        case 11u: {
            return each_of(v, BIAS == HUBER);
        }
        case 13u: {
            return shape_if(has_norm(), EACH, 1u, v);
        }
        case 14u: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case 16u: {
            return vec3(TRANSPOSED | ADD, args.call.key, inner());
        }
        case 17u: {
            return vec3(UPDATE, args.call.key, inner());
        }
        case 18u: {
            return shape_if(is_mlp(), SWEEP, d, v);
        }
        default: {
            if (at < EXPOSING) {
                return expose_shape(at);
            }
            return pull_shape(at - 19u);
        }
    }
}

// How much of what is in the gradient of the point counts there: see `write_back_element`.
fn kept_part() -> f32 {
    return select(1.0, known(A), RETENTION == DECAY && args.call.frozen == 0u);
}

fn teach_back_job(at: u32) -> Job {
    let s = scratch_rows();
    let weights = weights_of(point);
    let inside = select(s.do_, s.dpre, is_mlp());
    switch at {
        case 8u: {
            return job(s.du_o, s.dback, weights + first_weights());
        }
        case 14u: {
            return job(s.dh, s.do_, weights + first_weights());
        }
        case 16u: {
            return job(grads.k, inside, weights);
        }
        default: {
            return Job(inside, token.k, goal_of(dpoint), kept_part());
        }
    }
}

fn teach_back_element(at: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    switch at {
        case 6u: {
            room[goal_of(dpoint) + i] = 0.0;
        }
        case 7u: {
            // (42)
            let bent = activation(row(r.pre + i)).bend;
            put(s.dpre + i, row(r.back + i) * bent * row(s.ddelta + i) + row(s.dh + i) * row(r.slope + i));
            put(s.dback + i, row(s.ddelta + i) * row(r.slope + i));
        }
        case 9u: {
            let x = row(r.normed + i);
            let du = row(s.du_o + i);
            return vec4(du, x * du, x * row(r.u + i), du * row(r.u_o + i));
        }
        case 10u, 11u, 12u: {
            return error_back(at, r, s, i);
        }
        case 13u: {
            let means = sums_known().xy / f32(args.call.value);
            put_more(s.do_ + i, jacobian(row(r.normed + i), row(s.de + i), means, row(r.deviation)));
        }
        case 15u: {
            // h̄ has gone into p̄; what is there now is W₁ ō.
            put_more(s.dpre + i, row(s.dh + i) * row(r.slope + i));
        }
        default: {
            if (at < EXPOSING) {
                return expose_element(at, point, i);
            }
            return pull_element(at - 19u, point, dpoint, i);
        }
    }
    return vec4(0.0);
}

// (43), (44): ū and half of ō; ō; ē, and what it adds to dv, dk.
fn error_back(at: u32, r: Record, s: Scratch, i: u32) -> vec4<f32> {
    let d = f32(args.call.value);
    let sums = sums_known();
    let e = row(r.error + i);
    switch at {
        case 10u: {
            let du_o = row(s.du_o + i);
            if (!has_norm()) {
                put(s.du + i, du_o);
                return vec4(0.0);
            }
            let x = row(r.normed + i);
            put(s.du + i, jacobian(x, du_o, sums.xy / d, row(r.deviation)));
            let bent = -(sums.z * du_o + sums.y * row(r.u + i)) / (row(r.deviation) * d);
            put(s.spare + i, bent);
            return vec4(bent, x * bent, 0.0, 0.0);
        }
        case 11u: {
            var gradient = 0.0;
            if (has_norm()) {
                let ds = -(sums.w + known(ALONG)) / row(r.deviation);
                gradient = (row(s.spare + i) - known(MEAN) / d) / row(r.deviation) + ds * row(r.normed + i) / d;
            }
            put(s.do_ + i, gradient);
            return sums_of_bias(e, row(s.du + i), known(DELTA));
        }
        default: {
            let de = taught_back(e, row(s.du + i), known(DELTA), sums);
            put(s.de + i, de);
            put_more(grads.v + i, -de);
            if (is_residual()) {
                put_more(grads.k + i, de);
            }
            if (BIAS == HUBER && i == 0u) {
                put(grads.gates + 2u + MOMENTUM, bound_back(known(DELTA), sums));
            }
            if (!has_norm()) {
                put_more(s.do_ + i, de);
                return vec4(0.0);
            }
            return vec4(de, row(r.normed + i) * de, 0.0, 0.0);
        }
    }
}

fn teach_back_totalled(at: u32, sums: vec4<f32>) {
    if (at == 10u) {
        know(MEAN, sums.x);
        know(ALONG, sums.y);
    } else {
        know_sums(sums);
    }
}

// dW₁ of (42) and (45).
fn teach_back_along(i: u32, c: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    let place = goal_of(dpoint) + first_weights() + i * args.call.value + c;
    let change = row(s.dback + i) * row(r.u_o + c) + row(r.h + i) * row(s.do_ + c);
    room[place] = kept_part() * room[place] + change;
    return vec4(0.0);
}
