// What the token taught, (42) to (46), back to its key, value and the weights at the gradient point.
fn teach_back_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
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
        default: {
            return shape_if(is_mlp(), SWEEP, d, v);
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
        default: {
            // h̄ has gone into p̄; what is there now is W₁ ō.
            put_more(s.dpre + i, row(s.dh + i) * row(r.slope + i));
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

// dW₁ of (42) and (45).
fn teach_back_along(i: u32, c: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    let place = goal_of(dpoint) + first_weights() + i * args.call.value + c;
    let change = row(s.dback + i) * row(r.u_o + c) + row(r.h + i) * row(s.do_ + c);
    room[place] = kept_part() * room[place] + change;
    return vec4(0.0);
}
