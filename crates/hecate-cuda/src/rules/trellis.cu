// Slots for keys and for values, trained to give the same code: equations (70) to (79).
#include "phi.cuh"
#include "recurrent.cuh"

// The state is `S_K [m,K]`, then `S_V [m,V]`. A token leaves `R_K kᵀ`, `R_V vᵀ`, `S_K qᵀ`, each `[m]`.
struct Trellis {
    // φ, m, K, V.
    u32 kind, slots, key, value;
    float epsilon;

    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    // φ at these sizes.
    __device__ Phi phi() const { return {kind, slots, 32, epsilon}; }

    // Scratch: `u [2,m]`, places `[2,3,m]`.
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        float a = expf(token.gates[0]), theta = token.gates[1];
        const float* code = token.gates + 2;
        // Where S_V begins.
        u64 keys = (u64)slots * key;
        // Both memories' gradients and points, side by side; then `read` is S_K qᵀ.
        float *u = scratch, *places = u + 2 * slots, *read = record + 2 * slots;
        // R_K kᵀ and R_V vᵀ; a warp takes a slot of either memory.
        ROWS(i, 2 * slots) {
            // Keys first, then values.
            bool second = i >= slots;
            float z = second ? warp_dot(point + keys + (u64)(i - slots) * value, token.v, value)
                             : warp_dot(point + (u64)i * key, token.k, key);
            if (first_lane()) record[i] = z;
        }
        __syncthreads();
        // One warp for keys, one for values.
        // A warp has φ of all slots, since its norm is over them; the others wait.
        ROWS(side, 2) {
            PhiPoint place = phi().at(record + side * slots, places + side * POINT_ROWS * slots);
            phi().inner_grad(place, code, u + side * slots);
        }
        __syncthreads();
        // (75), (76)
        ROWS(i, slots) {
            const float *sk = old + (u64)i * key, *sv = old + keys + (u64)i * value;
            float *nk = next + (u64)i * key, *nv = next + keys + (u64)i * value;
            // Both memories write: S = a S − θ uᵀ x.
            float steps[2] = {theta * u[i], theta * u[slots + i]}, z = 0.0f;
            LANES(j, key) {
                float s = a * sk[j] - steps[0] * token.k[j];
                nk[j] = s;
                z += s * token.q[j];
            }
            LANES(j, value) nv[j] = a * sv[j] - steps[1] * token.v[j];
            z = warp_sum(z);
            if (first_lane()) read[i] = z;
        }
        __syncthreads();
        // φ(S_K qᵀ): the code by which S_V is read.
        if (first_warp()) phi().at(read, places);
        __syncthreads();
        column_sums(
            slots, value, [&](u32 i, u32 j) { return places[i] * next[keys + (u64)i * value + j]; },
            [&](u32 j, float sum) { out[j] = sum; }
        );
    }

    // Rows of scratch. Where there are two or three of something: keys, values, query.
    struct BackwardRows {
        // Points `[3,3,m]`, then rows `[m]`: `u [2]`, `dz [3]`, `da [2]`, what both memories ask of the code `[2]`.
        float *points, *u, *dz, *da, *dcode;
        // `[2,6,m]`, and `[4]` sums.
        float *workspace, *totals;

        // Divides `scratch` into the rows of a backward.
        __device__ BackwardRows(float* scratch, u32 slots)
            : points(scratch), u(points + 3 * POINT_ROWS * slots), dz(u + 2 * slots), da(dz + 3 * slots),
              dcode(da + 2 * slots), workspace(dcode + 2 * slots), totals(workspace + 2 * WORKSPACE_ROWS * slots) {}
    };

    // One token back, from the record of its forward.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        float a = expf(token.gates[0]);
        u64 keys = (u64)slots * key;
        const BackwardRows rows(scratch, slots);
        // Gradients of predictions: keys, values, query.
        const float *dz_v = rows.dz + slots, *dz_q = rows.dz + 2 * slots;
        ROWS(which, 3) {
            PhiPoint place = phi().at(record + which * slots, rows.points + which * POINT_ROWS * slots);
            if (which < 2) phi().inner_grad(place, token.gates + 2, rows.u + which * slots);
        }
        __syncthreads();
        // The read comes last in the token, so that its adjoint comes first.
        values_vjp(token, states, dout, adjoint.state + keys, rows);
        __syncthreads();
        if (first_warp()) {
            PhiPoint place = phi().at(record + 2 * slots, rows.points + 2 * POINT_ROWS * slots);
            phi().pullback(place, rows.dz + 2 * slots);
        }
        __syncthreads();
        keys_vjp(token, states, adjoint.state, rows);
        __syncthreads();
        ROWS(side, 2) codes_vjp(token, record, rows, side);
        __syncthreads();
        // Sums of both memories, each made by one warp and seen after the barrier.
        if (threadIdx.x == 0) {
            grads.gates[0] = a * (rows.totals[0] + rows.totals[1]);
            grads.gates[1] = rows.totals[2] + rows.totals[3];
        }
        // Both memories ask for the same code.
        EACH(i, slots) grads.gates[2 + i] = rows.dcode[i] + rows.dcode[slots + i];
        column_sums(
            slots, key, [&](u32 i, u32 j) { return dz_q[i] * states.next[(u64)i * key + j]; },
            [&](u32 j, float sum) { grads.q[j] = sum; }
        );
        write_vjp(a, token.k, rows.u, rows.dz, states.point, adjoint.state, adjoint.point, key, grads.k);
        float *dstate = adjoint.state + keys, *dpoint = adjoint.point + keys;
        write_vjp(a, token.v, rows.u + slots, dz_v, states.point + keys, dstate, dpoint, value, grads.v);
    }

    // (77), and (78) of the values: a warp takes a slot of `dS_V [m,V]`.
    __device__ __forceinline__ void values_vjp(
        const Token& token, const States& states, const float* dout, float* dstate, const BackwardRows& rows
    ) const {
        const float* read = rows.points + 2 * POINT_ROWS * slots;
        const u64 keys = (u64)slots * key;
        ROWS(i, slots) {
            u64 row = (u64)i * value;
            const float *fresh = states.next + keys + row, *s = states.old + keys + row;
            float* ds = dstate + row;
            // Inner products of the slot: with dout, with v, with the slot before.
            float of_read = 0.0f, of_write = 0.0f, kept = 0.0f;
            LANES(j, value) {
                of_read += dout[j] * fresh[j];
                float d = ds[j] + read[i] * dout[j];
                ds[j] = d;
                of_write += d * token.v[j];
                kept += d * s[j];
            }
            of_read = warp_sum(of_read);
            of_write = warp_sum(of_write);
            kept = warp_sum(kept);
            if (first_lane()) {
                rows.dz[2 * slots + i] = of_read;
                rows.dz[slots + i] = of_write;
                rows.da[slots + i] = kept;
            }
        }
    }

    // (78) of the keys: a warp takes a slot of `dS_K [m,K]`.
    __device__ __forceinline__ void keys_vjp(
        const Token& token, const States& states, float* dstate, const BackwardRows& rows
    ) const {
        const float* dz_q = rows.dz + 2 * slots;
        ROWS(i, slots) {
            u64 row = (u64)i * key;
            const float* s = states.old + row;
            float* ds = dstate + row;
            // u·dS xᵀ element by element of u, and ⟨dS, S⟩.
            float of_write = 0.0f, kept = 0.0f;
            LANES(j, key) {
                float d = ds[j] + dz_q[i] * token.q[j];
                ds[j] = d;
                of_write += d * token.k[j];
                kept += d * s[j];
            }
            of_write = warp_sum(of_write);
            kept = warp_sum(kept);
            if (first_lane()) {
                rows.dz[i] = of_write;
                rows.da[i] = kept;
            }
        }
    }

    // (78), (79) of keys (0) or values (1), by a warp: `dz` becomes the gradient of that memory's prediction.
    __device__ __forceinline__ void codes_vjp(const Token& token, const float* record, const BackwardRows& rows, u32 side) const {
        const float theta = token.gates[1], *code = token.gates + 2;
        float *own = rows.dz + side * slots, *step = rows.u + side * slots;
        float* spare = rows.workspace + side * WORKSPACE_ROWS * slots;
        PhiPoint place = phi().at(record + side * slots, rows.points + side * POINT_ROWS * slots);
        // Before both rows are scaled by −θ.
        float dtheta = -warp_dot(step, own, slots), kept = warp_total(rows.da + side * slots, slots);
        LANES(i, slots) {
            own[i] *= -theta;
            step[i] *= -theta;
        }
        phi().second_derivative(place, code, own, rows.dcode + side * slots, spare);
        if (first_lane()) {
            rows.totals[side] = kept;
            rows.totals[2 + side] = dtheta;
        }
    }

    // What (78), (79) leave in one memory of this width, and in what went through it.
    __device__ void write_vjp(
        float a, const float* x, const float* u, const float* dz, const float* point, float* dstate, float* dpoint,
        u32 width, float* dx
    ) const {
        column_sums(
            slots, width,
            [&](u32 i, u32 j) {
                u64 at = (u64)i * width + j;
                // The old gradient is needed for dx before it is scaled.
                float d = dstate[at];
                dstate[at] = a * d;
                dpoint[at] += dz[i] * x[j];
                return u[i] * d + dz[i] * point[at];
            },
            [&](u32 j, float sum) { dx[j] = sum; }
        );
    }
};

// One block at a time is enough: for more, the compiler would move registers into memory.
#define ALONE MOST_THREADS, 1

// `trellis.rs`: what the launch hands over.
struct TrellisCall {
    RecurrentCall call;
    Trellis cell;
};

// A block has one sequence and head at a time; so has the backward.
KERNEL(trellis_forward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(trellis_backward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
