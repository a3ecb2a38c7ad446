// The write, (56) to (58) and the first half of (59): gradients of the gates, and with Ḡ what (41) begins with: h̄, δ̄, ū_o,
// and dk. The first four phases a matrix are those of (55).

// Phases of the write, counted from its first: up to SOFTMAX_END those of the log-softmax of (55), four a matrix.
// The last of the softmax's phases: its sum joins that of a.
const WRITE_VJP_SOFTMAX_END: u32 = 7u;
// Sums for a and η over all weights; dS becomes dP.
const WRITE_VJP_GATES: u32 = 8u;
// Ḡ times what the key was written with [K].
const WRITE_VJP_KEY: u32 = 9u;
// k Ḡ: δ̄ [D], or ū_o [V] for a matrix memory.
const WRITE_VJP_INNER: u32 = 10u;
// Ḡ₁ u_o: h̄ [D].
const WRITE_VJP_HIDDEN: u32 = 11u;
// h Ḡ₁: ū_o [V].
const WRITE_VJP_OUTER: u32 = 12u;
// The sum for θ; dk, h̄ and δ̄ take the factor −θ.
const WRITE_VJP_THETA: u32 = 13u;
// ū_o takes the factor −θ [V].
const WRITE_VJP_SCALE: u32 = 14u;
// dX = a dX, dS = carry dP over all weights.
const WRITE_VJP_DECAY: u32 = 15u;

// In order: softmax of both layers, gates, products with Ḡ, sums for θ, scaling, decay.
fn write_vjp_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case WRITE_VJP_GATES: {
            return shape_if(RETENTION != KL, EACH | TOTAL, 1u, all_weights());
        }
        case WRITE_VJP_KEY: {
            return vec3(TRANSPOSED, args.call.key, inner());
        }
        case WRITE_VJP_INNER: {
            return vec3(TIMES, args.call.key, inner());
        }
        case WRITE_VJP_HIDDEN: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case WRITE_VJP_OUTER: {
            return shape_if(is_mlp(), TIMES, d, v);
        }
        case WRITE_VJP_THETA: {
            return vec3(EACH | TOTAL, 1u, max(args.call.key, d));
        }
        case WRITE_VJP_SCALE: {
            return vec3(EACH, 1u, v);
        }
        case WRITE_VJP_DECAY: {
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
// Ḡ is the gradient of S with momentum, else of X.
fn write_vjp_job(at: u32) -> Job {
    let r = record_rows();
    let s = scratch_rows();
    let first = dstate + MOMENTUM * all_weights();
    switch at {
        case WRITE_VJP_KEY: {
            return job(s.key, select(r.u_o, r.delta, is_mlp()), first);
        }
        case WRITE_VJP_INNER: {
            return job(select(s.du_o, s.ddelta, is_mlp()), token.k, first);
        }
        case WRITE_VJP_HIDDEN: {
            return job(s.dh, r.u_o, first + first_weights());
        }
        default: {
            return job(s.du_o, r.h, first + first_weights());
        }
    }
}

// Element `i` of all weights of the outer products xᵀ y that the token wrote.
fn written(i: u32) -> f32 {
    let r = record_rows();
    let layer = select(0u, 1u, is_mlp() && i >= first_weights());
    let place = i - begin_of(layer);
    let width = width_of_layer(layer);
    let x = row(select(token.k, r.h, layer == 1u) + place / width);
    return x * row(select(r.u_o, r.delta, layer == 0u && is_mlp()) + place % width);
}

// Elements count over all weights, over [V], or over the longer of [K] and [D].
fn write_vjp_element(at: u32, i: u32) -> vec4<f32> {
    let s = scratch_rows();
    let all = all_weights();
    let factor = -known(THETA);
    var sums = vec4(0.0);
    switch at {
        // da: dX·X of the state before; dη: dP·S, or where momentum looks ahead (dS − dX)·P, and dP·S is of a.
        case WRITE_VJP_GATES: {
            sums.x = workspace[dstate + i] * workspace[old + i];
            if (MOMENTUM == 1u) {
                let dx = workspace[dstate + i];
                let ds = workspace[dstate + all + i];
                let dp = known(KEEP) * ds + known(GAIN) * dx;
                let carried = dp * workspace[old + all + i];
                workspace[dstate + all + i] = dp;
                sums.y = carried;
                if (looks_ahead()) {
                    sums.x += carried;
                    sums.y = (ds - dx) * (known(CARRY) * workspace[old + all + i] + factor * written(i));
                }
            }
        }
        // -dθ is ⟨x, Ḡ y⟩ summed over both layers; products are scaled by -θ for what follows.
        case WRITE_VJP_THETA: {
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
        // ū_o = -θ x Ḡ.
        case WRITE_VJP_SCALE: {
            put(s.du_o + i, factor * row(s.du_o + i));
        }
        default: {
            // Where the gradients of the state and of the point are one array, forgetting (59) waits for what adds to it.
            if (RETENTION != DECAY || args.call.frozen != 0u || looks_ahead()) {
                workspace[dstate + i] *= known(A);
            }
            if (MOMENTUM == 1u) {
                workspace[dstate + all + i] *= known(CARRY);
            }
        }
    }
    return sums;
}

// Gradients of log a, log η and θ.
fn write_vjp_totalled(at: u32, sums: vec4<f32>) {
    if (at == WRITE_VJP_THETA) {
        put(grads.gates, known(A) * known(SUMS));
        put(grads.gates + 1u + MOMENTUM, -sums.x);
        if (MOMENTUM == 1u) {
            put(grads.gates + 1u, known(ETA) * known(SUMS + 1u));
        }
    } else if (at == WRITE_VJP_SOFTMAX_END) {
        know(SUMS, known(SUMS) + sums.x);
    } else {
        know_sums(sums);
    }
}

// Each column of dX sums to 0 after the first sweep. What is common to a column of X, nearly all of it, is taken off before
// the product of both, or its rounding would remain.
// Layers go one after the other, four phases each.
fn write_vjp_along(at: u32, i: u32, c: u32) -> vec4<f32> {
    let layer = at / 4u;
    let place = begin_of(layer) + i * width_of_layer(layer) + c;
    let sum = row(scratch_rows().columns + c);
    if (at % 4u == 1u) {
        workspace[dstate + place] -= exponential(workspace[next + place]) * sum;
        return vec4(0.0);
    }
    return vec4(workspace[dstate + place] * (workspace[old + place] - sum / f32(rows_of(layer))), 0.0, 0.0, 0.0);
}

// Even phases add up columns: of dX first, of X next.
fn write_vjp_down(at: u32, i: u32, c: u32) -> f32 {
    let layer = at / 4u;
    return workspace[select(old, dstate, at % 4u == 0u) + begin_of(layer) + i * width_of_layer(layer) + c];
}

