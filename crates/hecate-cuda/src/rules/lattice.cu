// Slots of unit norm: equations (60) to (69).
#include "recurrent.cuh"

enum { DECODE, SIMILARITY, ENCODE };

// A slot is a row of the state `[K,V]`; a warp takes one slot at a time. A token leaves `h [V]`, `b [K]`, `g [K]`,
// `n [K]`.
struct Lattice {
    u32 variant, after, key, value;
    float floor, tolerance;

    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    // `a` above its floor; NaN stays.
    __device__ float retention(const float* gates) const {
        float a = expf(gates[0]);
        return a <= floor ? floor : a;
    }

    // A slot whose norm is not 1 makes its sequence and head NaN, since the host does not look.
    __device__ void open(float* state) const {
        ROWS(i, key) {
            float* s = state + (u64)i * value;
            float norm = sqrtf(warp_dot(s, s, value));
            if (fabsf(norm - 1.0f) <= tolerance) continue;
            LANES(j, value) s[j] = NOT_A_NUMBER;
        }
        __syncthreads();
    }

    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        float a = retention(token.gates), theta = token.gates[1];
        float *h = record, *b = h + value, *g = b + key, *n = g + key;
        // (60)
        if (variant == DECODE) {
            column_sums(
                key, value, [&](u32 i, u32 j) { return token.k[i] * point[(u64)i * value + j]; },
                [&](u32 j, float sum) { h[j] = token.v[j] - sum; }
            );
        } else {
            EACH(j, value) h[j] = token.v[j];
            __syncthreads();
        }
        // (64), before the write
        if (!after) read(out, token.q, old, key, value);
        ROWS(i, key) {
            const float *s = old + (u64)i * value, *r = point + (u64)i * value;
            float* x = next + (u64)i * value;
            // (61)
            float bi = warp_dot(h, r, value);
            float gi = variant == ENCODE ? token.k[i] - bi : token.k[i];
            // (62), (63)
            float written = theta * gi, square = 0.0f;
            LANES(j, value) {
                float xj = a * s[j] + written * (h[j] - bi * r[j]);
                square += xj * xj;
                x[j] = xj;
            }
            float ni = sqrtf(warp_sum(square)), scale = 1.0f / ni;
            LANES(j, value) x[j] *= scale;
            if (first_lane()) {
                b[i] = bi;
                g[i] = gi;
                n[i] = ni;
            }
        }
        __syncthreads();
        if (after) read(out, token.q, next, key, value);
    }

    // Scratch: `θ g_i [K]`, `db_i [K]`, `g_i U_i·dX_i [K]`, `dh [V]`.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        float a = retention(token.gates), theta = token.gates[1];
        const float *h = record, *b = h + value, *g = b + key, *n = g + key;
        float *du = scratch, *db = du + key, *gained = db + key, *dh = gained + key;
        ROWS(i, key) {
            u64 row = (u64)i * value;
            const float *r = states.point + row, *fresh = states.next + row;
            float* dx = adjoint.state + row;
            // (65), and the projection of (66)
            float along = 0.0f, dq = 0.0f;
            LANES(j, value) {
                if (after) {
                    dx[j] += token.q[i] * dout[j];
                    dq += dout[j] * fresh[j];
                }
                along += fresh[j] * dx[j];
            }
            along = warp_sum(along);
            if (after) dq = warp_sum(dq);
            // (66) to (68), but for what they add up to
            float scale = 1.0f / n[i], gain = 0.0f, across = 0.0f;
            LANES(j, value) {
                dx[j] = (dx[j] - along * fresh[j]) * scale;
                gain += (h[j] - b[i] * r[j]) * dx[j];
                across += dx[j] * r[j];
            }
            gain = warp_sum(gain);
            across = warp_sum(across);
            if (first_lane()) {
                if (after) grads.q[i] = dq;
                grads.k[i] = theta * gain;
                du[i] = theta * g[i];
                db[i] = -theta * g[i] * across - (variant == ENCODE ? theta * gain : 0.0f);
                gained[i] = g[i] * gain;
            }
        }
        __syncthreads();
        column_sums(
            key, value,
            [&](u32 i, u32 j) {
                u64 at = (u64)i * value + j;
                return du[i] * adjoint.state[at] + db[i] * states.point[at];
            },
            [&](u32 j, float sum) {
                dh[j] = sum;
                grads.v[j] = sum;
            }
        );
        if (first_warp()) {
            float dtheta = warp_total(gained, key);
            if (first_lane()) {
                grads.gates[0] = a > floor || a != a ? -theta * dtheta : 0.0f;
                grads.gates[1] = dtheta;
            }
        }
        ROWS(i, key) {
            u64 row = (u64)i * value;
            const float *s = states.old + row, *r = states.point + row;
            float *ds = adjoint.state + row, *dr = adjoint.point + row;
            float dk = 0.0f, dq = 0.0f;
            LANES(j, value) {
                float taught = db[i] * h[j] - b[i] * du[i] * ds[j];
                // (69)
                if (variant == DECODE) {
                    dk += r[j] * dh[j];
                    taught -= token.k[i] * dh[j];
                }
                float d = a * ds[j];
                if (!after) {
                    d += token.q[i] * dout[j];
                    dq += dout[j] * s[j];
                }
                // Both may be the same number.
                ds[j] = d;
                dr[j] += taught;
            }
            if (variant == DECODE) dk = warp_sum(dk);
            if (!after) dq = warp_sum(dq);
            if (first_lane()) {
                if (variant == DECODE) grads.k[i] -= dk;
                if (!after) grads.q[i] = dq;
            }
        }
        __syncthreads();
    }
};

// One block at a time is enough: for more, the compiler would move registers into memory.
#define ALONE MOST_THREADS, 1

struct LatticeCall {
    Call call;
    Lattice cell;
};

KERNEL(lattice_forward, LatticeCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

KERNEL(lattice_backward, LatticeCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
