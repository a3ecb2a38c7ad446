// Slots of unit norm: equations (60) to (69).
#include "recurrent.cuh"

enum { DECODE, SIMILARITY, ENCODE };

// A slot is a row of the state `[K,V]`; a warp takes one slot at a time. A token leaves `h [V]`, `b [K]`, `g [K]`,
// `n [K]`.
struct Lattice {
    // One of the enumeration; whether a token reads after its own write; K, V.
    u32 variant, after, key, value;
    // Least retention; how far the norm of an initial slot may be from 1.
    float floor, tolerance;

    // `recurrent.cuh` says what both mean: slots are read to the end before they are written.
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
            // NaN in a slot fails the comparison too, and stays NaN.
            if (fabsf(norm - 1.0f) <= tolerance) continue;
            LANES(j, value) s[j] = NOT_A_NUMBER;
        }
        __syncthreads();
    }

    // `record` holds h [V], b, g and n [K]; scratch is not used.
    // All threads of the block call it. `old`, `point` and `next` are slots [K,V]; rows of one warp are never
    // another's.
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
            // The other variants write the value itself.
            EACH(j, value) h[j] = token.v[j];
            __syncthreads();
        }
        // (64), before the write
        if (!after) read(out, token.q, old, key, value);
        ROWS(i, key) {
            // The slot before the token, and where the gradient is taken.
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
            // (63): back to norm 1.
            // Every lane has the sum, so each scales what it wrote itself: no barrier is needed in between.
            float ni = sqrtf(warp_sum(square)), scale = 1.0f / ni;
            LANES(j, value) x[j] *= scale;
            if (first_lane()) {
                b[i] = bi;
                g[i] = gi;
                n[i] = ni;
            }
        }
        __syncthreads();
        // A barrier stands before it: the read goes over slots of all warps.
        if (after) read(out, token.q, next, key, value);
    }

    // Rows of scratch: `θ g_i [K]`, `db_i [K]`, `g_i U_i·dX_i [K]`, `dh [V]`.
    struct BackwardRows {
        // A warp writes the element of its slot; after a barrier all threads read them.
        float *du, *db, *gained, *dh;
    };

    // One token back, from the record of its forward.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        float a = retention(token.gates), theta = token.gates[1];
        BackwardRows rows = {scratch, scratch + key, scratch + 2 * key, scratch + 3 * key};
        // dX of all slots first: `dh` sums over them.
        ROWS(i, key) norm_vjp(token, states, record, dout, adjoint.state, rows, i, grads);
        __syncthreads();
        column_sums(
            key, value,
            [&](u32 i, u32 j) {
                u64 at = (u64)i * value + j;
                return rows.du[i] * adjoint.state[at] + rows.db[i] * states.point[at];
            },
            [&](u32 j, float sum) {
                rows.dh[j] = sum;
                grads.v[j] = sum;
            }
        );
        // Gates are scalars: one warp adds up what the slots give.
        if (first_warp()) {
            float dtheta = warp_total(rows.gained, key);
            if (first_lane()) {
                // (67): only θ/a matters. At the floor a does not move, and NaN must not become 0.
                grads.gates[0] = a > floor || a != a ? -theta * dtheta : 0.0f;
                grads.gates[1] = dtheta;
            }
        }
        // Needs `dh`; `column_sums` ends with a barrier.
        ROWS(i, key) slot_vjp(a, token, states, record, dout, adjoint, rows, i, grads);
        __syncthreads();
    }

    // (65) to (68) of slot `i`, but for what they add up to, by a warp: dX becomes the gradient of the slot before its norm.
    __device__ __forceinline__ void norm_vjp(
        const Token& token, const States& states, const float* record, const float* dout, float* dstate, const BackwardRows& rows,
        u32 i, const TokenGrads& grads
    ) const {
        const float theta = token.gates[1], *h = record, *b = h + value, *g = b + key, *n = g + key;
        u64 row = (u64)i * value;
        const float *r = states.point + row, *fresh = states.next + row;
        float* dx = dstate + row;
        // (65), and the projection of (66)
        // ⟨dX, X⟩, which the norm takes away, and the read's part of dq.
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
        // Back through the norm; then ⟨h − b R, dX⟩ and ⟨dX, R⟩.
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
            rows.du[i] = theta * g[i];
            rows.db[i] = -theta * g[i] * across - (variant == ENCODE ? theta * gain : 0.0f);
            rows.gained[i] = g[i] * gain;
        }
    }

    // Gradients of slot `i` before the token and of the point, (69) and what the key of DECODE gets, by a warp.
    __device__ __forceinline__ void slot_vjp(
        float a, const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        const BackwardRows& rows, u32 i, const TokenGrads& grads
    ) const {
        const float *h = record, *b = h + value;
        u64 row = (u64)i * value;
        const float *s = states.old + row, *r = states.point + row;
        float *ds = adjoint.state + row, *dr = adjoint.point + row;
        float dk = 0.0f, dq = 0.0f;
        LANES(j, value) {
            float inner = rows.db[i] * h[j] - b[i] * rows.du[i] * ds[j];
            // (69)
            if (variant == DECODE) {
                dk += r[j] * rows.dh[j];
                inner -= token.k[i] * rows.dh[j];
            }
            float d = a * ds[j];
            if (!after) {
                d += token.q[i] * dout[j];
                dq += dout[j] * s[j];
            }
            // Both may be the same element.
            ds[j] = d;
            dr[j] += inner;
        }
        if (variant == DECODE) dk = warp_sum(dk);
        if (!after) dq = warp_sum(dq);
        if (first_lane()) {
            if (variant == DECODE) grads.k[i] -= dk;
            if (!after) grads.q[i] = dq;
        }
    }
};

// One block at a time is enough: for more, the compiler would move registers into memory.
#define ALONE MOST_THREADS, 1

// `lattice.rs`: what the launch hands over.
struct LatticeCall {
    RecurrentCall call;
    Lattice cell;
};

// A block has one sequence and head at a time; so has the backward.
KERNEL(lattice_forward, LatticeCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(lattice_backward, LatticeCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
