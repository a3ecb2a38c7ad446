// One token of Atlas: equations (80) to (87).
#include "newton_schulz.cuh"
#include "recurrent.cuh"

// Row `i` of a window, oldest first: those of a buffer `[c−1,width]`, then the token's own.
// `last` is c − 1.
__device__ __forceinline__ const float* window_row(const float* buffer, const float* own, u32 i, u32 last, u32 width) {
    return i < last ? buffer + (u64)i * width : own;
}

// The rows of the next window's buffer, which may lie where this one's does.
__device__ __forceinline__ void shift_window(float* next, const float* buffer, const float* own, u32 last, u32 width) {
    EACH(j, width) {
        for (u32 i = 0; i < last; i++) next[(u64)i * width + j] = window_row(buffer, own, i + 1, last, width)[j];
    }
}

// Gradients of the rows after a token, `[c−1,width]`, as those of the rows before it and of the token's own, which were
// rows `0 … c−2` and `c−1` of its window.
__device__ __forceinline__ void shift_window_vjp(float* buffer, float* own, u32 last, u32 width) {
    EACH(j, width) {
        float later = 0.0f;
        for (u32 i = 0; i < last; i++) {
            float next = buffer[(u64)i * width + j];
            buffer[(u64)i * width + j] = later;
            later = next;
        }
        own[j] = later;
    }
}

// The state is `M [K,V]`, `S [K,V]`, keys `[c−1,K]`, values `[c−1,V]`. A token leaves the errors of its window `[c,V]`.
// M and S come first, so that their addresses do not depend on the window.
struct Atlas {
    // c, whether a token reads after its own write, K, V.
    u32 window, after, key, value;
    // `(α, β, κ)` and ε² of Newton-Schulz.
    float alpha, beta, kappa, epsilon;
    // Of Newton-Schulz; 0: none.
    u32 steps;

    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    // Newton-Schulz at these sizes.
    __device__ NewtonSchulz newton_schulz() const {
        return {steps, key, value, alpha, beta, kappa, epsilon};
    }
    // Elements of M, and of S.
    __device__ u64 count() const { return (u64)key * value; }
    // Weight of row `i` of the window.
    // The gate `gamma [c]` counts back from the token; gates are `log_a`, `log_eta`, `theta`, `gamma`.
    __device__ float weight(const float* gates, u32 i) const { return gates[3 + window - 1 - i]; }

    // One token by a block: the memory [K,V] and the window lie wherever the arena placed them.
    // Scratch: the workspace of Newton-Schulz that keeps one step.
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        // Tokens of the buffers; row `last` of the window is the token's own.
        u32 last = window - 1;
        float a = expf(token.gates[0]), eta = expf(token.gates[1]), theta = token.gates[2];
        // The slots of the state, before and after.
        const float *m = old, *s = m + count(), *kbuf = s + count(), *vbuf = kbuf + (u64)last * key;
        float *new_m = next, *new_s = new_m + count(), *new_k = new_s + count(), *new_v = new_k + (u64)last * key;
        // (80)
        column_sums(
            key, window * value,
            [&](u32 r, u32 at) {
                return window_row(kbuf, token.k, at / value, last, key)[r] * point[(u64)r * value + at % value];
            },
            [&](u32 at, float sum) {
                // The error of row `at / value` of the window.
                record[at] = window_row(vbuf, token.v, at / value, last, value)[at % value] - sum;
            }
        );
        // (84), before the write
        if (!after) read(out, token.q, m, key, value);
        // (81), and (83) where the memory takes the momentum as it is
        ROWS(r, key) {
            LANES(j, value) {
                u64 at = (u64)r * value + j;
                // (81): the momentum, plus the rank-1 update of each row of the window.
                float sum = eta * s[at];
                for (u32 i = 0; i < window; i++) {
                    float k = window_row(kbuf, token.k, i, last, key)[r];
                    sum += weight(token.gates, i) * k * record[i * value + j];
                }
                new_s[at] = sum;
                if (steps == 0) new_m[at] = a * m[at] + theta * sum;
            }
        }
        if (steps > 0) {
            float inverse;
            __syncthreads();
            // (82): the orthogonalised momentum, for (83).
            const float* update = newton_schulz().forward(new_s, scratch, 1, inverse);
            for (u64 at = threadIdx.x; at < count(); at += blockDim.x) new_m[at] = a * m[at] + theta * update[at];
        }
        __syncthreads();
        if (after) read(out, token.q, new_m, key, value);
        // The oldest row falls out.
        // Each thread shifts its own column, oldest row first, so that it may be done in place.
        shift_window(new_k, kbuf, token.k, last, key);
        shift_window(new_v, vbuf, token.v, last, value);
        __syncthreads();
    }

    // Scratch: `g_j [c,V]`, then the workspace of Newton-Schulz that keeps all steps, and its spare.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        u32 last = window - 1;
        float eta = expf(token.gates[1]), theta = token.gates[2];
        const float *kbuf = states.old + 2 * count(), *new_s = states.next + count();
        float *dm = adjoint.state, *ds = dm + count(), *dkbuf = ds + count(), *dvbuf = dkbuf + (u64)last * key;
        float* g = scratch;
        float* workspace = g + (u64)window * value;
        shift_window_vjp(dkbuf, grads.k, last, key);
        shift_window_vjp(dvbuf, grads.v, last, value);
        // What θ was times: without steps S itself.
        const float* update = new_s;
        float inverse = 0.0f;
        if (steps > 0) update = newton_schulz().forward(new_s, workspace, steps, inverse);
        // dM is complete for the state after the token.
        GateSums sums = read_and_update_vjp(token, states, update, dout, dm, ds, grads.q);
        __syncthreads();
        if (steps > 0) {
            float* spare = workspace + newton_schulz().workspace_size(steps);
            // dS += NS′(S)ᵀ (θ dM), (85): all of dM must be there, hence the barrier above.
            newton_schulz().backward(theta, dm, ds, workspace, spare, inverse);
        }
        // (86); `g` without its weights
        column_sums(
            key, window * value,
            [&](u32 r, u32 at) {
                return window_row(kbuf, token.k, at / value, last, key)[r] * ds[(u64)r * value + at % value];
            },
            [&](u32 at, float sum) { g[at] = sum; }
        );
        values_vjp(token, record, g, dvbuf, grads);
        // A warp takes row `r` of all matrices: what is left of (86), and (87).
        ROWS(r, key) {
            keys_vjp(token, states.point, record, g, ds, dkbuf, r, grads.k);
            sums.deta += state_vjp(token, states, g, dout, eta, adjoint, r, grads.q);
        }
        float a = expf(token.gates[0]);
        // Over the block, in a fixed order: the same bits every time.
        sums.da = together(sums.da);
        sums.deta = together(sums.deta);
        sums.dtheta = together(sums.dtheta);
        if (threadIdx.x == 0) {
            grads.gates[0] = a * sums.da;
            grads.gates[1] = eta * sums.deta;
            grads.gates[2] = sums.dtheta;
        }
        __syncthreads();
    }

    // A thread's part of the gradients of a, η and θ.
    struct GateSums {
        float da, deta, dtheta;
    };

    // (85): dM of the read after the write, and what the update gives to a, θ and, without Newton-Schulz, to dS. A warp
    // takes a row; `update` is what θ is times.
    __device__ __forceinline__ GateSums read_and_update_vjp(
        const Token& token, const States& states, const float* update, const float* dout, float* dm, float* ds, float* dq
    ) const {
        const float *m = states.old, *new_m = states.next, theta = token.gates[2];
        GateSums sums = {};
        ROWS(r, key) {
            float dq_r = 0.0f;
            LANES(j, value) {
                u64 at = (u64)r * value + j;
                float d = dm[at];
                if (after) {
                    d += token.q[r] * dout[j];
                    dq_r += new_m[at] * dout[j];
                }
                sums.da += d * m[at];
                sums.dtheta += d * update[at];
                // U = S of (82).
                if (steps == 0) ds[at] += theta * d;
                dm[at] = d;
            }
            if (after) {
                dq_r = warp_sum(dq_r);
                if (first_lane()) dq[r] = dq_r;
            }
        }
        return sums;
    }

    // Of (86): the values of the window and the weights of its rows. A warp takes a row of the window.
    __device__ __forceinline__ void values_vjp(
        const Token& token, const float* record, const float* g, float* dvbuf, const TokenGrads& grads
    ) const {
        const u32 last = window - 1;
        ROWS(i, window) {
            float* dv = i < last ? dvbuf + (u64)i * value : grads.v;
            // ⟨g_j, e_j⟩: what the row of the window weighs.
            float dgamma = warp_dot(g + (u64)i * value, record + (u64)i * value, value);
            LANES(j, value) dv[j] += weight(token.gates, i) * g[(u64)i * value + j];
            if (first_lane()) grads.gates[3 + last - i] = dgamma;
        }
    }

    // Of (86): element `r` of every key of the window, by a warp.
    __device__ __forceinline__ void keys_vjp(
        const Token& token, const float* point, const float* record, const float* g, const float* ds, float* dkbuf, u32 r,
        float* dk
    ) const {
        const u32 last = window - 1;
        const u64 row = (u64)r * value;
        for (u32 i = 0; i < window; i++) {
            const float *e = record + (u64)i * value, *gi = g + (u64)i * value;
            float sum = 0.0f;
            LANES(j, value) sum += e[j] * ds[row + j] - gi[j] * point[row + j];
            sum = warp_sum(sum);
            if (first_lane()) (i < last ? dkbuf + (u64)i * key : dk)[r] += weight(token.gates, i) * sum;
        }
    }

    // (87): row `r` of dM, dS and of the gradient of the point, by a warp; a thread's part of dη is returned.
    __device__ __forceinline__ float state_vjp(
        const Token& token, const States& states, const float* g, const float* dout, float eta, const Adjoint& adjoint,
        u32 r, float* dq
    ) const {
        const float a = expf(token.gates[0]), *m = states.old, *s = m + count(), *kbuf = s + count();
        float *dm = adjoint.state, *ds = dm + count();
        const u32 last = window - 1;
        const u64 row = (u64)r * value;
        float dq_r = 0.0f, deta = 0.0f;
        LANES(j, value) {
            // What the errors of all rows of the window give to the point.
            float inner = 0.0f, d = a * dm[row + j];
            for (u32 i = 0; i < window; i++) {
                float k = window_row(kbuf, token.k, i, last, key)[r];
                inner += weight(token.gates, i) * k * g[(u64)i * value + j];
            }
            deta += ds[row + j] * s[row + j];
            // To the momentum before the token.
            ds[row + j] *= eta;
            if (!after) {
                d += token.q[r] * dout[j];
                dq_r += m[row + j] * dout[j];
            }
            // Both may be the same element.
            dm[row + j] = d;
            adjoint.point[row + j] -= inner;
        }
        if (!after) {
            dq_r = warp_sum(dq_r);
            if (first_lane()) dq[r] = dq_r;
        }
        return deta;
    }
};

// Fewer threads have more registers each. `rules::atlas` says so too.
#define ALONE 256, 1

// `atlas.rs`: what the launch hands over.
struct AtlasCall {
    RecurrentCall call;
    Atlas cell;
};

// A block has one sequence and head at a time; so has the backward.
KERNEL(atlas_forward, AtlasCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(atlas_backward, AtlasCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
