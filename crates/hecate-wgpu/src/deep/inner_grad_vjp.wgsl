// The token's inner gradient, (42) to (46), back to its key, value and the weights at the gradient point.

// Between two phases stands a barrier of the workgroup, so each reads what all invocations of the one before wrote.
// Phases of the inner gradient, counted from its first. Those before make the weights and clear their gradients.
// p̄ = b ∘ φ″ ∘ δ̄ + h̄ ∘ φ′ and b̄ = δ̄ ∘ φ′ [D].
const INNER_GRAD_VJP_SECOND: u32 = 7u;
// ū_o += b̄ W₁ [V].
const INNER_GRAD_VJP_OUTER: u32 = 8u;
// Sums of ū_o, x̂ ∘ ū_o, x̂ ∘ u and ū_o ∘ u_o over [V].
const INNER_GRAD_VJP_NORM_SUMS: u32 = 9u;
// ū = J ū_o, x̂'s own gradient, and the sum u·ū [V].
const INNER_GRAD_VJP_U: u32 = 10u;
// ψ̄ of (94), ō from the norm, and the sums that the bias needs [V].
const INNER_GRAD_VJP_OUTPUT: u32 = 11u;
// ē = ψ′(e)ᵀ ū, dv −= ē, dδ [V].
const INNER_GRAD_VJP_ERROR: u32 = 12u;
// ō += J ē [V].
const INNER_GRAD_VJP_NORM: u32 = 13u;
// h̄ = W₁ ō [D].
const INNER_GRAD_VJP_HIDDEN: u32 = 14u;
// p̄ += h̄ ∘ φ′ [D].
const INNER_GRAD_VJP_ACTIVATION: u32 = 15u;
// dk += W₀ p̄ [K].
const INNER_GRAD_VJP_KEY: u32 = 16u;
// dW₀ += kᵀ p̄ [K,D].
const INNER_GRAD_VJP_W0: u32 = 17u;
// dW₁ += b̄ᵀ u_o + hᵀ ō [D,V].
const INNER_GRAD_VJP_W1: u32 = 18u;

// In order: second derivative, ū_o, sums of the norm, ū, ō, ē, then back through f at the key.
fn inner_grad_vjp_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case INNER_GRAD_VJP_SECOND, INNER_GRAD_VJP_ACTIVATION: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        case INNER_GRAD_VJP_OUTER: {
            return shape_if(is_mlp(), TIMES | ADD, d, v);
        }
        case INNER_GRAD_VJP_NORM_SUMS: {
            return shape_if(has_norm(), EACH | TOTAL, 1u, v);
        }
        case INNER_GRAD_VJP_U: {
            return each_of(v, has_norm() || clips());
        }
        case INNER_GRAD_VJP_ERROR: {
            return each_of(v, has_norm());
        }
        case INNER_GRAD_VJP_OUTPUT: {
            return each_of(v, BIAS == HUBER);
        }
        case INNER_GRAD_VJP_NORM: {
            return shape_if(has_norm(), EACH, 1u, v);
        }
        case INNER_GRAD_VJP_HIDDEN: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case INNER_GRAD_VJP_KEY: {
            return vec3(TRANSPOSED | ADD, args.call.key, inner());
        }
        case INNER_GRAD_VJP_W0: {
            return vec3(UPDATE, args.call.key, inner());
        }
        default: {
            return shape_if(is_mlp(), SWEEP, d, v);
        }
    }
}

// How much of what is in the gradient of the point counts there: see `write_vjp_element`.
// Without frozen groups dX and the point's gradient are one array, which forgets here.
fn kept_part() -> f32 {
    return select(1.0, known(A), RETENTION == DECAY && args.call.frozen == 0u && !looks_ahead());
}

// ū_o += W₁ b̄; h̄ = W₁ ō; dk += W₀ inside; dW₀ += kᵀ inside.
fn inner_grad_vjp_job(at: u32) -> Job {
    let s = scratch_rows();
    let weights = weights_of(point);
    let inside = select(s.do_, s.dpre, is_mlp());
    switch at {
        case INNER_GRAD_VJP_OUTER: {
            return job(s.du_o, s.dback, weights + first_weights());
        }
        case INNER_GRAD_VJP_HIDDEN: {
            return job(s.dh, s.do_, weights + first_weights());
        }
        case INNER_GRAD_VJP_KEY: {
            return job(grads.k, inside, weights);
        }
        default: {
            return Job(inside, token.k, goal_of(dpoint), kept_part());
        }
    }
}

// Elements count over [D] or [V], as the phase's shape says.
fn inner_grad_vjp_element(at: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    switch at {
        case INNER_GRAD_VJP_SECOND: {
            // (42)
            let second = activation(row(r.pre + i)).second_derivative;
            put(s.dpre + i, row(r.back + i) * second * row(s.ddelta + i) + row(s.dh + i) * row(r.slope + i));
            put(s.dback + i, row(s.ddelta + i) * row(r.slope + i));
        }
        // Four sums over V that (43) needs.
        case INNER_GRAD_VJP_NORM_SUMS: {
            let x = row(r.normed + i);
            let du = row(s.du_o + i);
            return vec4(du, x * du, x * row(r.u + i), du * row(r.u_o + i));
        }
        case INNER_GRAD_VJP_U, INNER_GRAD_VJP_OUTPUT, INNER_GRAD_VJP_ERROR: {
            return error_back(at, r, s, i);
        }
        case INNER_GRAD_VJP_NORM: {
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
// U: ū = J ū_o. OUTPUT: ō from the norm's own derivative. ERROR: ē = ψ′(e)ᵀ ū.
fn error_back(at: u32, r: Record, s: Scratch, i: u32) -> vec4<f32> {
    let d = f32(args.call.value);
    let sums = sums_known();
    let e = row(r.error + i);
    switch at {
        case INNER_GRAD_VJP_U: {
            let du_o = row(s.du_o + i);
            if (!has_norm()) {
                put(s.du + i, du_o);
                return vec4(0.0, 0.0, row(r.u + i) * du_o, 0.0);
            }
            let x = row(r.normed + i);
            let du = jacobian(x, du_o, sums.xy / d, row(r.deviation));
            put(s.du + i, du);
            let second = -(sums.z * du_o + sums.y * row(r.u + i)) / (row(r.deviation) * d);
            put(s.spare + i, second);
            return vec4(second, x * second, row(r.u + i) * du, 0.0);
        }
        case INNER_GRAD_VJP_OUTPUT: {
            var gradient = 0.0;
            if (has_norm()) {
                // (43): through the deviation, and through x̂ itself.
                let ds = -(sums.w + known(ALONG)) / row(r.deviation);
                gradient = (row(s.spare + i) - known(MEAN) / d) / row(r.deviation) + ds * row(r.normed + i) / d;
            }
            put(s.do_ + i, gradient);
            var du = row(s.du + i);
            if (clips()) {
                du = clip_vjp(row(r.u + i), du, row(r.shrink), known(CLIPPED_ALONG));
                put(s.du + i, du);
            }
            return sums_of_bias(e, du, known(DELTA));
        }
        default: {
            let de = inner_grad_vjp(e, row(s.du + i), known(DELTA), sums);
            put(s.de + i, de);
            // The error is f(W; k) − v.
            put_more(grads.v + i, -de);
            if (is_residual()) {
                put_more(grads.k + i, de);
            }
            // The gate `delta` comes last, after `log_a`, `log_eta` where there is one, and `theta`.
            if (BIAS == HUBER && i == 0u) {
                put(grads.gates + 2u + MOMENTUM, delta_vjp(known(DELTA), sums));
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
// Element (i, c) of W₁: b̄ᵀ u_o + hᵀ ō.
fn inner_grad_vjp_along(i: u32, c: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    let place = goal_of(dpoint) + first_weights() + i * args.call.value + c;
    let change = row(s.dback + i) * row(r.u_o + c) + row(r.h + i) * row(s.do_ + c);
    workspace[place] = kept_part() * workspace[place] + change;
    return vec4(0.0);
}
