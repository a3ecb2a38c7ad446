// One token of Atlas: equations (80) to (87).
#include "newton_schulz.cuh"
#include "recurrent.cuh"

// Row `i` of a window, oldest first: those of a buffer `[c−1,width]`, then the token's own.
__device__ __forceinline__ const float* window_row(const float* buffer, const float* own, u32 i, u32 last, u32 width) {
    return i < last ? buffer + (u64)i * width : own;
}

// The rows of the next window's buffer, which may lie where this one's does.
__device__ __forceinline__ void move_on(float* next, const float* buffer, const float* own, u32 last, u32 width) {
    EACH(j, width) {
        for (u32 i = 0; i < last; i++) next[(u64)i * width + j] = window_row(buffer, own, i + 1, last, width)[j];
    }
}

// Gradients of the rows behind a token, `[c−1,width]`, as those of the rows before it and of the token's own, which were
// rows `0 … c−2` and `c−1` of its window.
__device__ __forceinline__ void hand_back(float* buffer, float* own, u32 last, u32 width) {
    EACH(j, width) {
        float behind = 0.0f;
        for (u32 i = 0; i < last; i++) {
            float next = buffer[(u64)i * width + j];
            buffer[(u64)i * width + j] = behind;
            behind = next;
        }
        own[j] = behind;
    }
}

// The state is `M [K,V]`, `S [K,V]`, keys `[c−1,K]`, values `[c−1,V]`. A token leaves the errors of its window `[c,V]`.
struct Atlas {
    u32 window, after, key, value;
    // `(α, β, κ)` and ε² of Newton-Schulz.
    float alpha, beta, kappa, epsilon;
    u32 steps;

    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    __device__ NewtonSchulz newton_schulz() const {
        return {steps, key, value, alpha, beta, kappa, epsilon};
    }
    __device__ u64 count() const { return (u64)key * value; }
    // Weight of row `i` of the window.
    __device__ float weight(const float* gates, u32 i) const { return gates[3 + window - 1 - i]; }

    // Scratch: the room of Newton-Schulz that keeps one step.
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        u32 last = window - 1;
        float a = expf(token.gates[0]), eta = expf(token.gates[1]), theta = token.gates[2];
        const float *m = old, *s = m + count(), *kbuf = s + count(), *vbuf = kbuf + (u64)last * key;
        float *new_m = next, *new_s = new_m + count(), *new_k = new_s + count(), *new_v = new_k + (u64)last * key;
        // (80)
        column_sums(
            key, window * value,
            [&](u32 r, u32 at) {
                return window_row(kbuf, token.k, at / value, last, key)[r] * point[(u64)r * value + at % value];
            },
            [&](u32 at, float sum) {
                record[at] = window_row(vbuf, token.v, at / value, last, value)[at % value] - sum;
            }
        );
        // (84), before the write
        if (!after) read(out, token.q, m, key, value);
        // (81), and (83) where the memory takes the momentum as it is
        ROWS(r, key) {
            LANES(j, value) {
                u64 at = (u64)r * value + j;
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
            const float* update = newton_schulz().forward(new_s, scratch, 1, inverse);
            for (u64 at = threadIdx.x; at < count(); at += blockDim.x) new_m[at] = a * m[at] + theta * update[at];
        }
        __syncthreads();
        if (after) read(out, token.q, new_m, key, value);
        move_on(new_k, kbuf, token.k, last, key);
        move_on(new_v, vbuf, token.v, last, value);
        __syncthreads();
    }

    // Scratch: `g_j [c,V]`, then the room of Newton-Schulz that keeps all steps, and its spare.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        u32 last = window - 1;
        float a = expf(token.gates[0]), eta = expf(token.gates[1]), theta = token.gates[2];
        const float *m = states.old, *s = m + count(), *kbuf = s + count();
        const float *new_m = states.next, *new_s = new_m + count();
        float *dm = adjoint.state, *ds = dm + count(), *dkbuf = ds + count(), *dvbuf = dkbuf + (u64)last * key;
        float* g = scratch;
        float* room = g + (u64)window * value;
        hand_back(dkbuf, grads.k, last, key);
        hand_back(dvbuf, grads.v, last, value);
        const float* update = new_s;
        float inverse = 0.0f;
        if (steps > 0) update = newton_schulz().forward(new_s, room, steps, inverse);
        // (85)
        float da = 0.0f, deta = 0.0f, dtheta = 0.0f;
        ROWS(r, key) {
            float dq = 0.0f;
            LANES(j, value) {
                u64 at = (u64)r * value + j;
                float d = dm[at];
                if (after) {
                    d += token.q[r] * dout[j];
                    dq += new_m[at] * dout[j];
                }
                da += d * m[at];
                dtheta += d * update[at];
                if (steps == 0) ds[at] += theta * d;
                dm[at] = d;
            }
            if (after) {
                dq = warp_sum(dq);
                if (first_lane()) grads.q[r] = dq;
            }
        }
        __syncthreads();
        if (steps > 0) {
            float* spare = room + newton_schulz().room(steps);
            newton_schulz().backward(theta, dm, ds, room, spare, inverse);
        }
        // (86); `g` without its weights
        column_sums(
            key, window * value,
            [&](u32 r, u32 at) {
                return window_row(kbuf, token.k, at / value, last, key)[r] * ds[(u64)r * value + at % value];
            },
            [&](u32 at, float sum) { g[at] = sum; }
        );
        ROWS(i, window) {
            float* dv = i < last ? dvbuf + (u64)i * value : grads.v;
            float dgamma = warp_dot(g + (u64)i * value, record + (u64)i * value, value);
            LANES(j, value) dv[j] += weight(token.gates, i) * g[(u64)i * value + j];
            if (first_lane()) grads.gates[3 + last - i] = dgamma;
        }
        // A warp takes row `r` of all matrices: what is left of (86), and (87).
        ROWS(r, key) {
            u64 row = (u64)r * value;
            for (u32 i = 0; i < window; i++) {
                const float *e = record + (u64)i * value, *gi = g + (u64)i * value;
                float sum = 0.0f;
                LANES(j, value) sum += e[j] * ds[row + j] - gi[j] * states.point[row + j];
                sum = warp_sum(sum);
                if (first_lane()) (i < last ? dkbuf + (u64)i * key : grads.k)[r] += weight(token.gates, i) * sum;
            }
            float dq = 0.0f;
            LANES(j, value) {
                float taught = 0.0f, d = a * dm[row + j];
                for (u32 i = 0; i < window; i++) {
                    float k = window_row(kbuf, token.k, i, last, key)[r];
                    taught += weight(token.gates, i) * k * g[(u64)i * value + j];
                }
                deta += ds[row + j] * s[row + j];
                ds[row + j] *= eta;
                if (!after) {
                    d += token.q[r] * dout[j];
                    dq += m[row + j] * dout[j];
                }
                // Both may be the same number.
                dm[row + j] = d;
                adjoint.point[row + j] -= taught;
            }
            if (!after) {
                dq = warp_sum(dq);
                if (first_lane()) grads.q[r] = dq;
            }
        }
        da = together(da);
        deta = together(deta);
        dtheta = together(dtheta);
        if (threadIdx.x == 0) {
            grads.gates[0] = a * da;
            grads.gates[1] = eta * deta;
            grads.gates[2] = dtheta;
        }
        __syncthreads();
    }
};

// Fewer threads have more registers each. `rules::atlas` says so too.
#define ALONE 256, 1

struct AtlasCall {
    Call call;
    Atlas cell;
};

KERNEL(atlas_forward, AtlasCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

KERNEL(atlas_backward, AtlasCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
