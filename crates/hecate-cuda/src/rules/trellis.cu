// Slots for keys and for values, taught to give the same code: equations (70) to (79).
#include "activation.cuh"
#include "recurrent.cuh"

enum { L2_SILU, LN_SILU, IDENTITY };

// `φ` at one place: rows `[m]` in scratch, each number held by one lane of the warp that calls.
struct PhiPlace {
    float *f, *slope, *bend;
    float n;
};

// Rows `[m]` of a place and of what goes through it.
#define PLACE_ROWS 3
#define ROOM_ROWS 6

// `φ` over `m` slots, by one warp.
struct Phi {
    u32 kind, slots;
    float epsilon;

    __device__ float share() const { return kind == LN_SILU ? 1.0f / (float)slots : 1.0f; }

    // What `C` takes off.
    __device__ float mean(const float* x) const { return kind == LN_SILU ? warp_total(x, slots) * share() : 0.0f; }

    // (70), in the rows that start at `rows`.
    __device__ PhiPlace at(const float* z, float* rows) const {
        PhiPlace p = {rows, rows + slots, rows + 2 * slots, 1.0f};
        LANES(i, slots) {
            if (kind == IDENTITY) {
                p.f[i] = z[i];
                continue;
            }
            Curve s = silu(z[i]);
            p.f[i] = s.value;
            p.slope[i] = s.slope;
            p.bend[i] = s.bend;
        }
        if (kind == IDENTITY) return p;
        float centre = mean(p.f), square = 0.0f;
        LANES(i, slots) {
            p.f[i] -= centre;
            square += p.f[i] * p.f[i];
        }
        p.n = sqrtf(share() * warp_sum(square) + epsilon);
        LANES(i, slots) p.f[i] /= p.n;
        return p;
    }

    // `out = N e` of (71); they may be the same.
    __device__ void turn(const PhiPlace& p, const float* e, float* out) const {
        float centre = mean(e), along = share() * warp_dot(p.f, e, slots);
        LANES(i, slots) out[i] = (e[i] - centre - along * p.f[i]) / p.n;
    }

    // `e ← J(z)ᵀ e` of (71).
    __device__ void pull(const PhiPlace& p, float* e) const {
        if (kind == IDENTITY) return;
        turn(p, e, e);
        LANES(i, slots) e[i] *= p.slope[i];
    }

    // `u` of (72).
    __device__ void gradient(const PhiPlace& p, const float* code, float* u) const {
        LANES(i, slots) u[i] = p.f[i] - code[i];
        pull(p, u);
    }

    // (73), (74): `du` becomes `dz`, and `dcode` is set; `room` holds 6 rows.
    __device__ void bend(const PhiPlace& p, const float* code, float* du, float* dcode, float* room) const {
        if (kind == IDENTITY) {
            LANES(i, slots) dcode[i] = -du[i];
            return;
        }
        float *e = room, *g = e + slots, *w = g + slots, *nw = w + slots, *df = nw + slots, *ds = df + slots;
        LANES(i, slots) {
            e[i] = p.f[i] - code[i];
            w[i] = p.slope[i] * du[i];
        }
        turn(p, e, g);
        turn(p, w, nw);
        float factor = -share() / p.n, fe = warp_dot(p.f, e, slots), fw = warp_dot(p.f, w, slots);
        LANES(i, slots) {
            dcode[i] = -nw[i];
            df[i] = factor * (fe * w[i] + fw * e[i]);
        }
        float dn = -(warp_dot(w, g, slots) + warp_dot(df, p.f, slots)) / p.n;
        turn(p, nw, ds);
        float centre = mean(df);
        LANES(i, slots) {
            float s = ds[i] + (df[i] - centre) / p.n + share() * dn * p.f[i];
            du[i] = p.bend[i] * g[i] * du[i] + p.slope[i] * s;
        }
    }
};

// The state is `S_K [m,K]`, then `S_V [m,V]`. A token leaves `R_K kᵀ`, `R_V vᵀ`, `S_K qᵀ`, each `[m]`.
struct Trellis {
    u32 kind, slots, key, value;
    float epsilon;

    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    __device__ Phi phi() const { return {kind, slots, epsilon}; }

    // Scratch: `u [2,m]`, places `[2,3,m]`.
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        float a = expf(token.gates[0]), theta = token.gates[1];
        const float* code = token.gates + 2;
        u64 keys = (u64)slots * key;
        float *u = scratch, *places = u + 2 * slots, *read = record + 2 * slots;
        ROWS(i, 2 * slots) {
            bool second = i >= slots;
            float z = second ? warp_dot(point + keys + (u64)(i - slots) * value, token.v, value)
                             : warp_dot(point + (u64)i * key, token.k, key);
            if (first_lane()) record[i] = z;
        }
        __syncthreads();
        ROWS(side, 2) {
            PhiPlace place = phi().at(record + side * slots, places + side * PLACE_ROWS * slots);
            phi().gradient(place, code, u + side * slots);
        }
        __syncthreads();
        // (75), (76)
        ROWS(i, slots) {
            const float *sk = old + (u64)i * key, *sv = old + keys + (u64)i * value;
            float *nk = next + (u64)i * key, *nv = next + keys + (u64)i * value;
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
        if (first_warp()) phi().at(read, places);
        __syncthreads();
        column_sums(
            slots, value, [&](u32 i, u32 j) { return places[i] * next[keys + (u64)i * value + j]; },
            [&](u32 j, float sum) { out[j] = sum; }
        );
    }

    // Scratch: places `[3,3,m]`, and rows `[m]`: `u [2]`, `dz [3]`, `da [2]`, what both memories ask of the code `[2]`,
    // room `[2,6]`; then `[4]` sums. Where there are two or three of something: keys, values, query.
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        float a = expf(token.gates[0]), theta = token.gates[1];
        const float* code = token.gates + 2;
        u64 keys = (u64)slots * key;
        float *u = scratch + 3 * PLACE_ROWS * slots, *dz = u + 2 * slots, *da = dz + 3 * slots;
        float *dcode = da + 2 * slots, *room = dcode + 2 * slots;
        float* totals = room + 2 * ROOM_ROWS * slots;
        float *dz_v = dz + slots, *dz_q = dz + 2 * slots;
        ROWS(which, 3) {
            PhiPlace place = phi().at(record + which * slots, scratch + which * PLACE_ROWS * slots);
            if (which < 2) phi().gradient(place, code, u + which * slots);
        }
        __syncthreads();
        const float* read = scratch + 2 * PLACE_ROWS * slots;
        // (77), and (78) of the values
        ROWS(i, slots) {
            u64 row = keys + (u64)i * value;
            const float *fresh = states.next + row, *s = states.old + row;
            float* ds = adjoint.state + row;
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
                dz_q[i] = of_read;
                dz_v[i] = of_write;
                da[slots + i] = kept;
            }
        }
        __syncthreads();
        if (first_warp()) {
            PhiPlace place = phi().at(record + 2 * slots, scratch + 2 * PLACE_ROWS * slots);
            phi().pull(place, dz_q);
        }
        __syncthreads();
        ROWS(i, slots) {
            u64 row = (u64)i * key;
            const float* s = states.old + row;
            float* ds = adjoint.state + row;
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
                dz[i] = of_write;
                da[i] = kept;
            }
        }
        __syncthreads();
        // (78), (79): `dz` becomes the gradient of what a memory answered with.
        ROWS(side, 2) {
            float *own = dz + side * slots, *step = u + side * slots, *spare = room + side * ROOM_ROWS * slots;
            PhiPlace place = phi().at(record + side * slots, scratch + side * PLACE_ROWS * slots);
            float dtheta = -warp_dot(step, own, slots), kept = warp_total(da + side * slots, slots);
            LANES(i, slots) {
                own[i] *= -theta;
                step[i] *= -theta;
            }
            phi().bend(place, code, own, dcode + side * slots, spare);
            if (first_lane()) {
                totals[side] = kept;
                totals[2 + side] = dtheta;
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            grads.gates[0] = a * (totals[0] + totals[1]);
            grads.gates[1] = totals[2] + totals[3];
        }
        EACH(i, slots) grads.gates[2 + i] = dcode[i] + dcode[slots + i];
        column_sums(
            slots, key, [&](u32 i, u32 j) { return dz_q[i] * states.next[(u64)i * key + j]; },
            [&](u32 j, float sum) { grads.q[j] = sum; }
        );
        unwrite(a, token.k, u, dz, states.point, adjoint.state, adjoint.point, key, grads.k);
        float *dstate = adjoint.state + keys, *dpoint = adjoint.point + keys;
        unwrite(a, token.v, u + slots, dz_v, states.point + keys, dstate, dpoint, value, grads.v);
    }

    // What (78), (79) leave in one memory of this width, and in what went through it.
    __device__ void unwrite(
        float a, const float* x, const float* u, const float* dz, const float* point, float* dstate, float* dpoint,
        u32 width, float* dx
    ) const {
        column_sums(
            slots, width,
            [&](u32 i, u32 j) {
                u64 at = (u64)i * width + j;
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

struct TrellisCall {
    Call call;
    Trellis cell;
};

KERNEL(trellis_forward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

KERNEL(trellis_backward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
