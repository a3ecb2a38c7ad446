// Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.
#pragma once
#include "activation.cuh"
#include "layer_norm.cuh"
#include "recurrent.cuh"
#include "retention.cuh"

// What a token leaves for its backward.
// Rows of one token, one after another in the order of the constructor.
struct Record {
    // At the key, [D] each: pre-activation, activation, slope, b = W₁ u_o, δ.
    float *pre, *h, *slope, *back, *delta;
    // At the query, [D] each.
    float *read_h, *read_slope;
    // [V] each: error, ψ, u_o; with a norm what it made, at the key and at the query.
    float *error, *u, *u_o, *normed, *read_normed;
    // Deviations of the two norms, and s of (94).
    float *deviations, *shrink;

    // `elements` is the token's record, as long as `deep::workspace` says.
    __device__ Record(const Options& o, float* elements) {
        // Rows one after another.
        auto take = [&](u32 width) {
            float* own = elements;
            elements += width;
            return own;
        };
        u32 d = o.hidden, v = o.value, n = o.norm ? v : 0;
        pre = take(d), h = take(d), slope = take(d), back = take(d), delta = take(d);
        read_h = take(d), read_slope = take(d);
        error = take(v), u = take(v), u_o = take(v), normed = take(n), read_normed = take(n);
        deviations = take(2), shrink = take(1);
    }
};

// Rows for one token.
struct Scratch {
    // Weights, and their gradient before it is pulled back to the state; empty where the state is the weights.
    float *weights, *dweights;
    // [D] each.
    float *dh, *ddelta, *dpre, *dback, *dact;
    // [V] each.
    float *du_o, *du, *do_, *de, *dout, *spare;
    // [K]
    float* key;
    // A number a column of the widest matrix.
    float* columns;

    // `mapped`: the weights are not the state and need places.
    __device__ Scratch(const Options& o, bool mapped, float* elements) {
        auto take = [&](u64 width) {
            float* own = elements;
            elements += width;
            return own;
        };
        u32 d = o.hidden, v = o.value;
        u64 all = mapped ? o.all() : 0;
        weights = take(all), dweights = take(all);
        dh = take(d), ddelta = take(d), dpre = take(d), dback = take(d), dact = take(d);
        du_o = take(v), du = take(v), do_ = take(v), de = take(v), dout = take(v), spare = take(v);
        key = take(o.key);
        columns = take(d > v ? d : v);
    }
};

// One token's gates. They come in the order log_a, [log_eta], theta, [delta].
//
// With a write W, P = carry S + W; of it S gets `keep`, X `gain`. Heavy ball: η, 1, 1. Looking ahead: a, η, 1 - η.
struct Gates {
    float a, eta, theta, delta;
    float carry, keep, gain;
};

// The cell of the family: BIAS is the inner loss, RETENTION how the state becomes the weights.
//
// A state is the weights one matrix after another, [K,D] and [D,V] or [K,V], in the form that retention gives them; with
// momentum the same again.
template <int BIAS, int RETENTION, bool MOMENTUM> struct Deep {
    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;
    static constexpr bool MAPPED = RETENTION != DECAY;
    static constexpr bool RENORMS = !MAPPED;

    // Sizes and options of this call.
    Options o;

    // `row` has logarithms of a and η; θ and δ as they are.
    __device__ Gates gates(const float* row) const {
        // Gates after η move on by one.
        u32 after = MOMENTUM ? 1 : 0;
        float a = expf(row[0]), eta = MOMENTUM ? expf(row[1]) : 0.0f;
        Gates g = {a, eta, row[1 + after], BIAS == HUBER ? row[2 + after] : 0.0f, eta, 1.0f, 1.0f};
        if (MOMENTUM && o.look_ahead) g.carry = a, g.keep = eta, g.gain = -expm1f(row[1]);
        return g;
    }

    // The weights of a state: itself, or written to `weights`.
    __device__ const float* to_weights(const float* state, float* weights) const {
        if (!MAPPED) return state;
        // Both matrices, each by itself.
        u64 first = o.first(), all = o.all();
        ::to_weights<RETENTION>(o, state, weights, first);
        if (first < all) ::to_weights<RETENTION>(o, state + first, weights + first, all - first);
        return weights;
    }

    // f(W; x) without the residual, into `out`; pre (where it is wanted), h and slope are left where there is a hidden
    // layer, and the norm's deviation is returned.
    __device__ float apply(const float* weights, const float* x, float* pre, float* h, float* slope, float* out) const {
        if (o.hidden) {
            column_sums(
                o.key, o.hidden, [&](u32 r, u32 c) { return x[r] * weights[(u64)r * o.hidden + c]; },
                [&](u32 c, float sum) {
                    // Value and slope; the second derivative is made again in the backward.
                    Curve at = activation(o.activation, sum);
                    if (pre) pre[c] = sum;
                    h[c] = at.value;
                    slope[c] = at.slope;
                });
            read(out, h, weights + o.first(), o.hidden, o.value);
        } else {
            read(out, x, weights, o.key, o.value);
        }
        return o.norm ? normalise(out, o.value) : 1.0f;
    }

    // The inner gradient at the gradient point, left in the record: equations (34), (35), (39), (40).
    __device__ void inner_grad(const float* weights, const Token& token, float delta, const Record& r) const {
        // f(W; k), and what the backward needs of it.
        float deviation = apply(weights, token.k, r.pre, r.h, r.slope, r.error);
        EACH(i, o.value) {
            float out = r.error[i];
            if (o.norm) r.normed[i] = out;
            r.error[i] = (o.residual ? out + token.k[i] : out) - token.v[i];
            r.u_o[i] = 0.0f;
        }
        if (threadIdx.x == 0) r.deviations[0] = deviation;
        __syncthreads();
        ::inner_grad<BIAS>(o, r.error, delta, r.u);
        float shrink = clip(o, r.u);
        if (threadIdx.x == 0) r.shrink[0] = shrink;
        if (o.norm) add_jacobian(r.normed, deviation, r.u, r.u_o, o.value);
        else copy(r.u_o, r.u, o.value);
        if (o.hidden) {
            along_rows(r.u_o, weights + o.first(), o.hidden, o.value, [&](u32 row, float sum) {
                r.back[row] = sum;
                r.delta[row] = sum * r.slope[row];
            });
        }
    }

    // P = carry S − θ xᵀ y, S = keep P, X = a X + gain P, or without momentum X = a X − θ xᵀ y, for one matrix.
    __device__ void descend(const Gates& g, const float* old, const float* old_s, float* next, float* next_s,
                            const float* x, const float* y, u32 rows, u32 columns) const {
        // A warp takes a row of the matrix.
        ROWS(r, rows) {
            // The row's factor of the gradient step.
            float step = -g.theta * x[r];
            LANES(c, columns) {
                u64 i = (u64)r * columns + c;
                float move = step * y[c];
                if (MOMENTUM) {
                    move += g.carry * old_s[i];
                    next_s[i] = g.keep * move;
                    move *= g.gain;
                }
                next[i] = g.a * old[i] + move;
            }
        }
        __syncthreads();
    }

    // The state after the write: equations (36), (37).
    __device__ void write(const Token& token, const Gates& g, const float* old, float* next, const Record& r,
                          float* columns) const {
        u64 first = o.first(), all = o.all();
        u32 width = o.hidden ? o.hidden : o.value;
        descend(g, old, old + all, next, next + all, token.k, o.hidden ? r.delta : r.u_o, o.key, width);
        if (o.hidden)
            descend(g, old + first, old + all + first, next + first, next + all + first, r.h, r.u_o, o.hidden, o.value);
        if (RETENTION == KL) {
            normalise_columns(next, o.key, width, columns);
            if (o.hidden) normalise_columns(next + first, o.hidden, o.value, columns);
        }
    }

    // One token: `old` and `point` are states, `next` is written, `out [V]` too.
    __device__ void forward(const Token& token, const float* old, const float* point, float* next, float* record,
                            float* scratch, float* out) const {
        // The gradient is taken at the point, and written onto the old state.
        Gates g = gates(token.gates);
        Record r(o, record);
        Scratch s(o, MAPPED, scratch);
        inner_grad(to_weights(point, s.weights), token, g.delta, r);
        // What is read before the write is read first: `next` may be `old`.
        if (!o.read_after) read_query(token, old, r, s, out);
        write(token, g, old, next, r, s.columns);
        if (o.read_after) read_query(token, next, r, s, out);
    }

    // Equation (38). Pre-activations are needed for the second derivative alone, which a read does not have.
    __device__ void read_query(const Token& token, const float* seen, const Record& r, const Scratch& s, float* out) const {
        const float* weights = to_weights(seen, s.weights);
        // f(W; q).
        float deviation = apply(weights, token.q, nullptr, r.read_h, r.read_slope, out);
        if (threadIdx.x == 0) r.deviations[1] = deviation;
        EACH(i, o.value) {
            if (o.norm) r.read_normed[i] = out[i];
            if (o.residual) out[i] += token.q[i];
        }
        __syncthreads();
    }

    // One token back; `deep_backward.cuh` has these.
    __device__ void backward(const Token& token, const States& states, const float* record, const float* dout,
                             const Adjoint& adjoint, float* scratch, const TokenGrads& grads) const;

    // Adds the read's gradients to dq and to those of the state that it saw.
    __device__ void read_vjp(const Token& token, const float* seen, const Record& r, const float* dout, float* dstate,
                           const Scratch& s, float* dq) const;
    // Takes gradients back through a token's write: to its gates, its key and the inner gradient.
    __device__ void write_vjp(const Token& token, const Gates& g, const States& states, const Record& r, float* dstate,
                            bool scaled, const Scratch& s, const TokenGrads& grads) const;
    // Takes gradients back through the token's inner gradient: to its key, its value and the gradient point.
    __device__ void inner_grad_vjp(const Token& token, const Gates& g, const float* point, const Record& r, float* dpoint,
                            float keep, const Scratch& s, const TokenGrads& grads) const;
    // This thread's part of ⟨dS − dX, P⟩ for one matrix: the gradient of η where momentum looks ahead.
    __device__ float keep_vjp(const Gates& g, const float* dx, const float* ds, const float* old_s, const float* x,
                              const float* y, u32 rows, u32 columns) const;
    // Returns ⟨x, D y⟩ and leaves D y in `left` and x D in `right`.
    __device__ float sandwich(const float* x, const float* d, const float* y, float* left, float* right, u32 rows,
                              u32 columns) const;
    // Takes gradients of the weights back to those of the state, where the two differ.
    __device__ void pullback(const float* state, const float* dweights, float* dstate) const;
};
