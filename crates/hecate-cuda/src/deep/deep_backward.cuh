// One token backward: equations (41)–(46), (56)–(59).
#pragma once
#include "deep.cuh"

// All threads of the block call every function here; vectors lie in scratch, matrices in the state's own layout.
#define DEEP template <int BIAS, int RETENTION, bool MOMENTUM> __device__
#define OF_DEEP Deep<BIAS, RETENTION, MOMENTUM>

// The read comes last of a token that reads after its write, so that its adjoint comes first.
DEEP void OF_DEEP::backward(const Token& token, const States& states, const float* record, const float* dout,
                            const Adjoint& adjoint, float* scratch, const TokenGrads& grads) const {
    Gates g = gates(token.gates);
    // Nothing is written to it.
    Record r(o, const_cast<float*>(record));
    Scratch s(o, MAPPED, scratch);
    if (o.read_after) read_vjp(token, states.next, r, dout, adjoint.state, s, grads.q);
    // Where the gradients of the state and of the point are one array, forgetting (59) waits for the pass that adds to it.
    bool later = !MAPPED && adjoint.point == adjoint.state;
    write_vjp(token, g, states, r, adjoint.state, !later, s, grads);
    inner_grad_vjp(token, g, states.point, r, adjoint.point, later ? g.a : 1.0f, s, grads);
    if (!o.read_after) read_vjp(token, states.old, r, dout, adjoint.state, s, grads.q);
}

// Gradients of weights to those of the state, where the two differ.
DEEP void OF_DEEP::pullback(const float* state, const float* dweights, float* dstate) const {
    // Then the weights are the state.
    if (!MAPPED) return;
    u64 first = o.first(), all = o.all();
    ::pullback<RETENTION>(o, state, dweights, dstate, first);
    if (first < all) ::pullback<RETENTION>(o, state + first, dweights + first, dstate + first, all - first);
}

// What the read adds to the gradients of the query and of the state that it saw.
DEEP void OF_DEEP::read_vjp(const Token& token, const float* seen, const Record& r, const float* dout, float* dstate,
                          const Scratch& s, float* dq) const {
    u64 first = o.first();
    const float* weights = to_weights(seen, s.weights);
    // Where the state is the weights, their gradient adds up in place.
    float *out = s.dout, *target = MAPPED ? s.dweights : dstate;
    EACH(i, o.value) {
        if (o.residual) dq[i] += dout[i];
        out[i] = o.norm ? 0.0f : dout[i];
    }
    if (MAPPED) fill(target, 0.0f, o.all());
    __syncthreads();
    // Back through the norm of the output.
    if (o.norm) add_jacobian(r.read_normed, r.deviations[1], dout, out, o.value);
    if (o.hidden) {
        along_rows(out, weights + first, o.hidden, o.value,
                   [&](u32 row, float sum) { s.dpre[row] = sum * r.read_slope[row]; });
        add_transposed(dq, s.dpre, weights, o.key, o.hidden);
        add_outer(target, 1.0f, token.q, s.dpre, o.key, o.hidden);
        add_outer(target + first, 1.0f, r.read_h, out, o.hidden, o.value);
    } else {
        add_transposed(dq, out, weights, o.key, o.value);
        add_outer(target, 1.0f, token.q, out, o.key, o.value);
    }
    // Nothing to do where weights are the state: `target` was the state's gradient itself.
    pullback(seen, s.dweights, dstate);
}

// ⟨x, D y⟩ with D y left in `left` and x D in `right`, for a gradient D of a matrix written as xᵀ y.
DEEP float OF_DEEP::sandwich(const float* x, const float* d, const float* y, float* left, float* right, u32 rows,
                             u32 columns) const {
    // Both products go through D once each, by rows and by columns.
    read_transposed(left, y, d, rows, columns);
    read(right, x, d, rows, columns);
    return dot(x, left, rows);
}

// ⟨dS − dX, P⟩ of one matrix, this thread's part: the gradient of η where momentum looks ahead.
DEEP float OF_DEEP::keep_vjp(const Gates& g, const float* dx, const float* ds, const float* old_s, const float* x,
                             const float* y, u32 rows, u32 columns) const {
    float sum = 0.0f;
    ROWS(r, rows) {
        float step = -g.theta * x[r];
        LANES(c, columns) {
            u64 i = (u64)r * columns + c;
            // P is made again, as `descend` made it.
            sum += (ds[i] - dx[i]) * (step * y[c] + g.carry * old_s[i]);
        }
    }
    return sum;
}

// Equations (56)–(58) and the first half of (59): gradients of the gates, and with Ḡ what (41) begins with: h̄, δ̄, ū_o,
// and dk.
DEEP void OF_DEEP::write_vjp(const Token& token, const Gates& g, const States& states, const Record& r, float* dstate,
                           bool scaled, const Scratch& s, const TokenGrads& grads) const {
    u64 first = o.first(), all = o.all();
    u32 width = o.hidden ? o.hidden : o.value;
    // Of X, and with momentum of S, which becomes that of P.
    float *dx = dstate, *ds = dstate + all;
    float da, deta = 0.0f;
    if (RETENTION == KL) {
        normalise_columns_vjp(states.next, dx, o.key, width, s.columns);
        // Each column of dX now sums to 0. What is common to a column of X, nearly all of it, is taken off first: it
        // would leave its rounding.
        da = centred_dot(dx, states.old, o.key, width, s.columns);
        if (o.hidden) {
            normalise_columns_vjp(states.next + first, dx + first, o.hidden, o.value, s.columns);
            da += centred_dot(dx + first, states.old + first, o.hidden, o.value, s.columns);
        }
    } else {
        da = 0.0f;
        if (MOMENTUM && o.look_ahead) {
            const float* old_s = states.old + all;
            deta = keep_vjp(g, dx, ds, old_s, token.k, o.hidden ? r.delta : r.u_o, o.key, width);
            if (o.hidden) deta += keep_vjp(g, dx + first, ds + first, old_s + first, r.h, r.u_o, o.hidden, o.value);
            // The loop below takes elements as other threads than these read them.
            __syncthreads();
        }
        for (u64 i = threadIdx.x; i < all; i += blockDim.x) {
            // ⟨dX, X⟩ and ⟨dP, S⟩.
            da += dx[i] * states.old[i];
            if (MOMENTUM) {
                ds[i] = g.keep * ds[i] + g.gain * dx[i];
                // What is carried: by η, or where momentum looks ahead by a.
                float carried = ds[i] * states.old[all + i];
                (o.look_ahead ? da : deta) += carried;
            }
        }
        da = together(da);
        if (MOMENTUM) deta = together(deta);
    }
    // The step −θ xᵀ y went into S, or without momentum into X.
    float* source = MOMENTUM ? ds : dx;
    float along;
    if (o.hidden) {
        // ⟨dSource, xᵀ y⟩ of both layers, and its gradients by x and y.
        along = sandwich(token.k, source, r.delta, s.key, s.ddelta, o.key, o.hidden);
        along += sandwich(r.h, source + first, r.u_o, s.dh, s.du_o, o.hidden, o.value);
    } else {
        along = sandwich(token.k, source, r.u_o, s.key, s.du_o, o.key, o.value);
    }
    EACH(i, o.hidden) {
        s.dh[i] *= -g.theta;
        s.ddelta[i] *= -g.theta;
    }
    EACH(i, o.value) s.du_o[i] *= -g.theta;
    EACH(i, o.key) grads.k[i] -= g.theta * s.key[i];
    // Gates are scalars: one thread writes them.
    if (threadIdx.x == 0) {
        grads.gates[0] = g.a * da;
        if (MOMENTUM) grads.gates[1] = g.eta * deta;
        grads.gates[MOMENTUM ? 2 : 1] = -along;
    }
    // (59): what is left for the state before the token.
    // Otherwise `update` multiplies what it finds by a, and adds to it, in one pass over the matrix.
    if (scaled) scale(dx, g.a, all);
    if (MOMENTUM) scale(ds, g.carry, all);
    __syncthreads();
}

// Equations (42)–(46): the token's inner gradient, back to its key, value and the weights at the gradient point.
// What is in `dpoint` already counts `keep` times.
DEEP void OF_DEEP::inner_grad_vjp(const Token& token, const Gates& g, const float* point, const Record& r, float* dpoint,
                           float keep, const Scratch& s, const TokenGrads& grads) const {
    u64 first = o.first();
    const float* weights = to_weights(point, s.weights);
    float* target = MAPPED ? s.dweights : dpoint;
    if (MAPPED) fill(target, 0.0f, o.all());
    if (o.hidden) {
        // δ = b ∘ σ′(pre), with b = W₁ u_o.
        EACH(i, o.hidden) {
            float second = activation(o.activation, r.pre[i]).second;
            s.dpre[i] = r.back[i] * second * s.ddelta[i] + s.dh[i] * r.slope[i];
            // b̄ of (42), and p̄ in `dpre`.
            s.dback[i] = s.ddelta[i] * r.slope[i];
        }
        __syncthreads();
        // b = W₁ u_o gives to u_o.
        add_read(s.du_o, s.dback, weights + first, o.hidden, o.value);
    }
    EACH(i, o.value) {
        s.du[i] = o.norm ? 0.0f : s.du_o[i];
        s.do_[i] = 0.0f;
        s.de[i] = 0.0f;
    }
    __syncthreads();
    if (o.norm) {
        add_jacobian(r.normed, r.deviations[0], s.du_o, s.du, o.value);
        second_derivative(r.normed, r.deviations[0], r.u, r.u_o, s.du_o, s.spare, s.do_, o.value);
    }
    clip_vjp(o, r.u, r.shrink[0], s.du);
    // Back through ψ to the error, which is minus the gradient of v.
    float ddelta = ::inner_grad_vjp<BIAS>(o, r.error, g.delta, s.du, s.de);
    if (BIAS == HUBER && threadIdx.x == 0) grads.gates[MOMENTUM ? 3 : 2] = ddelta;
    EACH(i, o.value) {
        grads.v[i] -= s.de[i];
        if (o.residual) grads.k[i] += s.de[i];
        if (!o.norm) s.do_[i] += s.de[i];
    }
    __syncthreads();
    if (o.norm) add_jacobian(r.normed, r.deviations[0], s.de, s.do_, o.value);
    if (o.hidden) {
        along_rows(s.do_, weights + first, o.hidden, o.value,
                   [&](u32 row, float sum) { s.dpre[row] += sum * r.slope[row]; });
        add_transposed(grads.k, s.dpre, weights, o.key, o.hidden);
        // The first layer's weights; the second's follow, with what b gives them.
        update(target, keep, token.k, s.dpre, o.key, o.hidden);
        float* high = target + first;
        ROWS(row, o.hidden) {
            // Of the row: what b and what the output give.
            float dback = s.dback[row], h = r.h[row];
            LANES(c, o.value) {
                u64 i = (u64)row * o.value + c;
                high[i] = keep * high[i] + (dback * r.u_o[c] + h * s.do_[c]);
            }
        }
        __syncthreads();
    } else {
        add_transposed(grads.k, s.do_, weights, o.key, o.value);
        update(target, keep, token.k, s.do_, o.key, o.value);
    }
    pullback(point, s.dweights, dpoint);
}

#undef DEEP
#undef OF_DEEP

// A rule's two kernels; the names are those that `step_kernels!` is given.
// The launch hands this over: sequences and arrays, then the rule's options.
struct DeepArgs {
    RecurrentCall call;
    Options cell;
};

#define DEEP_KERNELS(name, bias, retention, momentum)                               \
    KERNEL(name##_forward, DeepArgs, MOST_THREADS) {                                \
        DYNAMIC_SHARED(float, near);                                                \
        run_forward(Deep<bias, retention, momentum>{args.cell}, args.call, near);   \
    }                                                                               \
    KERNEL(name##_backward, DeepArgs, MOST_THREADS) {                               \
        DYNAMIC_SHARED(float, near);                                                \
        run_backward(Deep<bias, retention, momentum>{args.cell}, args.call, near);  \
    }
