// The read: what it adds to the gradients of the query and of the weights that it saw.

// Phases of the read, counted from its first. Those before make the weights and clear their gradients.
// dread = dy [V]; with a residual dq += dy.
const READ_VJP_UPSTREAM: u32 = 7u;
// dread = J dy [V].
const READ_VJP_NORM: u32 = 8u;
// dpre = W₁ dread [D].
const READ_VJP_HIDDEN: u32 = 9u;
// dpre = slope ∘ dpre [D].
const READ_VJP_ACTIVATION: u32 = 10u;
// dq += W₀ times dpre, or times dread for a matrix memory [K].
const READ_VJP_QUERY: u32 = 11u;
// dW₀ += qᵀ dpre [K,D], or dW += qᵀ dread [K,V].
const READ_VJP_W0: u32 = 12u;
// dW₁ += hᵀ dread [D,V].
const READ_VJP_W1: u32 = 13u;

// In order: dy, through the norm, to the hidden layer, through the activation, dq, dW₀, dW₁.
fn read_vjp_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case READ_VJP_UPSTREAM: {
            return each_of(v, has_norm());
        }
        case READ_VJP_NORM: {
            return shape_if(has_norm(), EACH, 1u, v);
        }
        case READ_VJP_HIDDEN: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case READ_VJP_ACTIVATION: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        case READ_VJP_QUERY: {
            return vec3(TRANSPOSED | ADD, args.call.key, inner());
        }
        case READ_VJP_W0: {
            return vec3(UPDATE, args.call.key, inner());
        }
        default: {
            return shape_if(is_mlp(), UPDATE, d, v);
        }
    }
}

// dq += W₀ inside; dW₀ += qᵀ inside; dW₁ += hᵀ dread.
fn read_vjp_job(p: Part) -> Job {
    let s = scratch_rows();
    let weights = weights_of(p.state);
    let goal = goal_of(p.gradient);
    let inside = select(s.dread, s.dpre, is_mlp());
    switch p.at {
        case READ_VJP_HIDDEN: {
            return job(s.dpre, s.dread, weights + first_weights());
        }
        case READ_VJP_QUERY: {
            return job(grads.q, inside, weights);
        }
        case READ_VJP_W0: {
            return job(inside, token.q, goal);
        }
        default: {
            return job(s.dread, record_rows().read_h, goal + first_weights());
        }
    }
}

// Elements count over [V], or over [D] for the activation.
fn read_vjp_element(at: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    switch at {
        // A residual passes dy on to the query as it is.
        case READ_VJP_UPSTREAM: {
            let dy = row(out + i);
            if (is_residual()) {
                put_more(grads.q + i, dy);
            }
            put(s.dread + i, dy);
            if (has_norm()) {
                return vec4(dy, row(r.read_normed + i) * dy, 0.0, 0.0);
            }
        }
        // J dy with the means that the phase before added up.
        case READ_VJP_NORM: {
            let means = sums_known().xy / f32(args.call.value);
            put(s.dread + i, jacobian(row(r.read_normed + i), row(out + i), means, row(r.read_deviation)));
        }
        default: {
            put(s.dpre + i, row(s.dpre + i) * row(r.read_slope + i));
        }
    }
    return vec4(0.0);
}

