// A token of a memory whose weights lie in registers: its arguments, its error and what that teaches. Lane l of a warp has
// elements l, l + 32, ... of rows; every warp has all of a row.
#pragma once
#include "bias.cuh"
#include "recurrent.cuh"

// x + y, as a function object.
__device__ __forceinline__ float added(float x, float y) { return x + y; }
// The larger of two; NaN stays.
__device__ __forceinline__ float larger(float x, float y) { return x > y || x != x ? x : y; }

// What `take` makes over lanes of N numbers, a power of two up to 32. Lane l has that of number l N / 32.
// Halves change places, so that N numbers take about N exchanges.
template <u32 N, u32 MASK = 16, u32 ALL, class Take>
__device__ __forceinline__ float over_lanes(float (&x)[ALL], Take take) {
    if constexpr (N > 1) {
        // A lane keeps the half that its bit names.
        const bool upper = threadIdx.x & MASK;
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) {
            // What this lane gives away is what the other one keeps.
            const float low = x[n], high = x[n + N / 2], given = upper ? low : high;
            x[n] = take(upper ? high : low, shuffle_xor(given, MASK));
        }
    } else {
        // Lanes that are left have the same number.
        x[0] = take(x[0], shuffle_xor(x[0], MASK));
    }
    if constexpr (MASK > 1) return over_lanes<(N > 1 ? N / 2 : 1), MASK / 2>(x, take);
    else return x[0];
}
// Sums N numbers over the lanes of a warp; lane l returns the sum of number l N / 32.
template <u32 N, u32 ALL> __device__ __forceinline__ float lane_sums(float (&x)[ALL]) {
    return over_lanes<N>(x, added);
}

// A warp's row in shared memory, N numbers, in every lane.
template <u32 N> __device__ __forceinline__ void read_row(float (&x)[N], const float* row) {
#pragma unroll
    for (u32 n = 0; n < N; n += 4) {
        // All lanes read the same address, which costs one access.
        float4 four = *(const float4*)(row + n);
        x[n] = four.x, x[n + 1] = four.y, x[n + 2] = four.z, x[n + 3] = four.w;
    }
}

// x·y over a warp, in every lane.
template <u32 E> __device__ __forceinline__ float warp_product(const float (&x)[E], const float (&y)[E]) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < E; i++) sum += x[i] * y[i];
    return warp_sum(sum);
}

// An element as it lies in memory, and the numbers that E of them are. Whoever makes numbers of them waits until they have come.
__device__ __forceinline__ u32 ask(Array x, u64 i) {
    return x.type == 0 ? ((const u32*)x.data)[i] : ((const u16*)x.data)[i];
}
// row [E] = the floats that raw bits of elements stand for, by the array's type.
template <u32 E> __device__ __forceinline__ void numbers(Array x, const u32 (&bits)[E], float (&row)[E]) {
    const u32 shift = x.type == 1 ? 16 : 0;
#pragma unroll
    for (u32 i = 0; i < E; i++) row[i] = __uint_as_float(bits[i] << shift);
    if (x.type != 2) return;
    // Only halves have to be looked at one by one.
#pragma unroll
    for (u32 i = 0; i < E; i++) row[i] = from_f16((u16)bits[i]);
}
// A lane's part of a row that is asked for, so that it comes beside other work.
template <u32 E> struct AskedRow {
    u32 bits[E];

    // Starts loading this lane's E elements of row `row` of x [rows, 32 * E].
    __device__ __forceinline__ void ask(Array x, u64 row) {
#pragma unroll
        // Neighbouring lanes have neighbouring elements, so that a warp reads whole lines.
        for (u32 i = 0; i < E; i++) bits[i] = ::ask(x, row * (32 * E) + threadIdx.x % 32 + 32 * i);
    }
    // Converts what was loaded to floats, which waits for the loads.
    __device__ __forceinline__ void read(Array x, float (&row)[E]) const { numbers(x, bits, row); }
};

// A token's arguments, this lane's part, and its gates as they are given.
template <u32 E, int BIAS, bool MOMENTUM> struct TokenRow {
    float k[E], q[E], v[E];
    float log_a, log_eta, theta, delta;
};

// The same on their way.
template <u32 E, int BIAS, bool MOMENTUM> struct AskedToken {
    static constexpr u32 GATES = (MOMENTUM ? 3 : 2) + (BIAS == HUBER ? 1 : 0);
    AskedRow<E> k, q, v;
    // Lane n has gate n, lanes beyond the last one gate 0. What all lanes ask for alike comes by a register that they share,
    // for which the compiler waits at once.
    float gate;

    // Starts loading a token's keys, queries, values and gates.
    __device__ __forceinline__ void ask(const RecurrentCall& call, u64 row) {
        k.ask(call.k, row), q.ask(call.q, row), v.ask(call.v, row);
        const u32 lane = threadIdx.x % 32;
        const float* from = call.gates[0];
#pragma unroll
        for (u32 n = 1; n < GATES; n++) from = lane == n ? call.gates[n] : from;
        gate = from[row];
    }
    // Converts what was loaded; every lane gets all gates.
    __device__ __forceinline__ void read(const RecurrentCall& call, TokenRow<E, BIAS, MOMENTUM>& row) const {
        k.read(call.k, row.k), q.read(call.q, row.q), v.read(call.v, row.v);
        // In the order of the rule's gates.
        constexpr u32 AFTER = MOMENTUM ? 1 : 0;
        row.log_a = gate_of(0);
        row.log_eta = MOMENTUM ? gate_of(1) : 0.0f;
        row.theta = gate_of(1 + AFTER);
        row.delta = BIAS == HUBER ? gate_of(2 + AFTER) : 0.0f;
    }
    // Returns gate n from the lane that loaded it.
    __device__ __forceinline__ float gate_of(u32 n) const { return __shfl_sync(0xffffffffu, gate, n); }
};

// u = ψ(e), clipped, of a whole row in each warp. The factor of (94) is returned.
template <int BIAS, u32 E>
__device__ __forceinline__ float own_inner_grad(const Options& o, const float (&e)[E], float delta, float (&u)[E]) {
    // The length of the whole error matters to two of Huber's forms.
    const float length = BIAS == HUBER && o.huber != COORDINATE ? sqrtf(warp_product(e, e)) : 0.0f;
#pragma unroll
    for (u32 i = 0; i < E; i++) {
        if constexpr (BIAS == L2) u[i] = e[i];
        else if constexpr (BIAS == LP) u[i] = power_grad(o, e[i]);
        else if (o.huber == COORDINATE) u[i] = fabsf(e[i]) <= delta ? e[i] : delta * sign(e[i]);
        else u[i] = length <= delta ? e[i] : o.huber == NORM ? delta / length * e[i] : delta * sign(e[i]);
    }
    if (o.per_clip == 0.0f) return 1.0f;
    // The ratio first, as in `clip`.
    const float ratio = sqrtf(warp_product(u, u)) * o.per_clip, shrink = 1.0f / sqrtf(1.0f + ratio * ratio);
#pragma unroll
    for (u32 i = 0; i < E; i++) u[i] *= shrink;
    return shrink;
}

// From the gradient of u to that of e, in place; that of δ is returned.
template <int BIAS, u32 E>
__device__ __forceinline__ float own_inner_grad_vjp(const Options& o, const float (&e)[E], float delta, const float (&u)[E],
                                            float shrink, float (&d)[E]) {
    if (o.per_clip != 0.0f) {
        const float along = warp_product(u, d) * o.per_clip * o.per_clip;
#pragma unroll
        for (u32 i = 0; i < E; i++) d[i] = shrink * (d[i] - along * u[i]);
    }
    if constexpr (BIAS == LP) {
#pragma unroll
        for (u32 i = 0; i < E; i++) d[i] *= power_grad_slope(o, e[i]);
    }
    if constexpr (BIAS != HUBER) return 0.0f;
    if (o.huber == COORDINATE) {
        float outside = 0.0f;
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            // Quadratic inside δ, linear outside.
            const bool inside = fabsf(e[i]) <= delta;
            outside += inside ? 0.0f : d[i] * sign(e[i]);
            d[i] = inside ? d[i] : 0.0f;
        }
        return warp_sum(outside);
    }
    // Inside δ the inner gradient is the whole error, whatever the form.
    const float length = sqrtf(warp_product(e, e));
    if (length <= delta) return 0.0f;
    if (o.huber == NORM) {
        // u = δ e / |e|.
        const float ddelta = warp_product(e, d) / length;
        const float own = delta / length, along = -delta / (length * length) * ddelta;
#pragma unroll
        for (u32 i = 0; i < E; i++) d[i] = own * d[i] + along * e[i];
        return ddelta;
    }
    // Beyond δ only the sign of an error counts, which has no slope.
    float outside = 0.0f;
#pragma unroll
    for (u32 i = 0; i < E; i++) outside += sign(e[i]) * d[i], d[i] = 0.0f;
    return warp_sum(outside);
}
