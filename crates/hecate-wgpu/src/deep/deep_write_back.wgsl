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

