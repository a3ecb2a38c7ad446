// MLP memories token by token with all weights in registers: a block a memory, one barrier a token.
//
// Keys and values have 32 E elements, of which lane l has l, l + 32, ... A warp has UNITS hidden units: their columns of W0
// and their rows of W1. So sums over hidden units are a thread's own and then one over warps, sums over keys or values
// are one over the lanes of a warp.
#pragma once
#include "activation.cuh"
#include "exact_matrices.cuh"
#include "exact_token.cuh"
#include "retention.cuh"

// Numbers of a warp's hidden units in shared memory, by which its lanes tell each other.
#define UNIT_ROWS 8
// Rows of a warp's parts of sums over warps, and numbers: four of gates, two of a read's and two of a write's products with weights.
#define PART_ROWS 4
#define GATE_SUMS 4
#define NUMBERS (GATE_SUMS + 4)

// What a block has in shared memory.
template <u32 E, u32 UNITS> struct ExactPlaces {
    static constexpr u32 WIDTH = 32 * E;
    static constexpr u32 PART = PART_ROWS * WIDTH + NUMBERS;
    // The warp's rows of numbers by unit; parts of sums over warps for two tokens; of both norms; what comes after.
    float *own, *parts;
    double* norms;
    float* after;

    __device__ __forceinline__ explicit ExactPlaces(float* near) {
        // In the order in which `Block::sums` counts them.
        const u32 warps = blockDim.x / 32;
        own = near + threadIdx.x / 32 * (UNIT_ROWS * UNITS);
        parts = near + warps * (UNIT_ROWS * UNITS);
        norms = (double*)(parts + 2 * warps * PART);
        after = (float*)(norms + 2 * warps);
    }

    // Part `which` of this warp, and the sum of all warps' at `column`, in their order.
    __device__ __forceinline__ float* part(u32 parity, u32 which) const {
        return parts + (parity * (blockDim.x / 32) + threadIdx.x / 32) * PART + which * WIDTH;
    }
    __device__ __forceinline__ float sum(u32 parity, u32 which, u32 column) const {
        const float* from = parts + parity * (blockDim.x / 32) * PART + which * WIDTH + column;
        // Always in the order of warps, so that two runs give the same bits.
        float sum = 0.0f;
#pragma unroll 8
        for (u32 warp = 0; warp < blockDim.x / 32; warp++) sum += from[warp * PART];
        return sum;
    }
};

// What a forward leaves by token for its backward: pre-activations at the key and the query and b = W1 u, [D]; the error, [V];
// and factors of both matrices.
struct ExactRecord {
    float *pre, *read_pre, *back, *error, *factors;

    // `elements` is the first token's.
    __device__ __forceinline__ ExactRecord(float* elements, u32 hidden, u32 value, u32 token) {
        // Rows of a token lie one after another.
        pre = elements + (u64)token * (3 * hidden + value + 4);
        read_pre = pre + hidden;
        back = read_pre + hidden;
        error = back + hidden;
        factors = error + value;
    }
};

// The weight of an element, without the factor of its matrix: itself, or of (54) its third power.
template <int RETENTION> __device__ __forceinline__ float weight(float x) { return RETENTION == LQ ? x * x * x : x; }

// A memory in registers, and what a token does with it.
template <u32 E, u32 UNITS, int BIAS, int RETENTION, bool MOMENTUM> struct Exact {
    static constexpr u32 WIDTH = 32 * E;
    using Row = TokenRow<E, BIAS, MOMENTUM>;
    using Places = ExactPlaces<E, UNITS>;

    Matrices<E, UNITS, MOMENTUM> state;
    // What weights of both matrices are multiplied by: ν^{2−q} of (54). Weights themselves where they are exponentials.
    float factors[2] = {1.0f, 1.0f};
    float exponentials[2][RETENTION == KL ? UNITS : 1][E];
    // Images of what both layers go back to as they forget; null: zero.
    float* anchor;

    // A weight without the factor of its matrix.
    __device__ __forceinline__ float element(u32 m, u32 u, u32 i) const {
        if constexpr (RETENTION == KL) return exponentials[m][u][i];
        else return weight<RETENTION>(state.x[m][u][i]);
    }

    // Before the first token: what the first state's weights need.
    __device__ __forceinline__ void open(const Options& o, const Places& places) {
        if constexpr (RETENTION == KL) {
#pragma unroll
            for (u32 m = 0; m < 2; m++)
#pragma unroll
                for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                    for (u32 i = 0; i < E; i++) exponentials[m][u][i] = o.scale * expf(state.x[m][u][i]);
        } else {
            settle(o, places, 0);
        }
    }

    // Columns of W0, each a unit: logarithms of a distribution, and the distribution. Rows 5 to 7 of `own`.
    __device__ __forceinline__ void settle_units(const Options& o, const Places& places) {
        const u32 unit = threadIdx.x % 32 * UNITS / 32;
        float(&x)[UNITS][E] = state.x[0], tops[UNITS], sums[UNITS];
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            // This lane's part first, then over the warp.
            tops[u] = x[u][0];
#pragma unroll
            for (u32 i = 1; i < E; i++) tops[u] = larger(tops[u], x[u][i]);
        }
        const float top = over_lanes<UNITS>(tops, larger);
        places.own[5 * UNITS + unit] = top;
        __syncwarp();
        // The largest of a column first, so that no exponential overflows.
        read_row(tops, places.own + 5 * UNITS);
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            // One exponential an element and token: all else is made of it.
            sums[u] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < E; i++) sums[u] += exponentials[0][u][i] = expf(x[u][i] - tops[u]);
        }
        const float sum = lane_sums<UNITS>(sums);
        // What a column's logarithms lose, and what its exponentials are times.
        places.own[6 * UNITS + unit] = top + logf(sum);
        places.own[7 * UNITS + unit] = o.scale / sum;
        __syncwarp();
        read_row(tops, places.own + 6 * UNITS);
        read_row(sums, places.own + 7 * UNITS);
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) x[u][i] -= tops[u], exponentials[0][u][i] *= sums[u];
    }

    // Columns of W1, each over all warps: the same. Warps tell each other their largest and their sums in rows 2 and 3.
    __device__ __forceinline__ void settle_outputs(const Options& o, const Places& places, u32 parity) {
        const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
        float(&x)[UNITS][E] = state.x[1], tops[E];
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            // Of this warp's units; the largest of all is not known yet.
            float top = x[0][i], sum = 0.0f;
#pragma unroll
            for (u32 u = 1; u < UNITS; u++) top = larger(top, x[u][i]);
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) sum += exponentials[1][u][i] = expf(x[u][i] - top);
            tops[i] = top;
            places.part(parity, 2)[lane + 32 * i] = top;
            places.part(parity, 3)[lane + 32 * i] = sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            // Of the first warp; others lie `PART` further.
            const float* first = places.parts + parity * warps * Places::PART + 2 * WIDTH + lane + 32 * i;
            float top = first[0], sum = 0.0f;
            for (u32 warp = 1; warp < warps; warp++) top = larger(top, first[warp * Places::PART]);
            for (u32 warp = 0; warp < warps; warp++)
                sum += first[warp * Places::PART + WIDTH] * expf(first[warp * Places::PART] - top);
            // Exponentials were taken below the warp's own largest.
            const float log = top + logf(sum), factor = o.scale / sum * expf(tops[i] - top);
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) x[u][i] -= log, exponentials[1][u][i] *= factor;
        }
    }

    // After the state has changed: its weights. Of (54) factors, from sums of fourth powers in 64 bits. One barrier.
    __device__ __forceinline__ void settle(const Options& o, const Places& places, u32 parity) {
        if constexpr (RETENTION == KL) {
            settle_units(o, places);
            settle_outputs(o, places, parity);
        } else if constexpr (RETENTION == LQ) {
            // Fourth powers of 32-bit numbers can be out of their range.
            const u32 warps = blockDim.x / 32;
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                double sum = 0.0;
#pragma unroll
                for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                    for (u32 i = 0; i < E; i++) {
                        const double square = (double)state.x[m][u][i] * (double)state.x[m][u][i];
                        sum += square * square;
                    }
                for (u32 mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
                if (threadIdx.x % 32 == 0) places.norms[m * warps + threadIdx.x / 32] = sum;
            }
            __syncthreads();
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                double sum = 0.0;
                for (u32 warp = 0; warp < warps; warp++) sum += places.norms[m * warps + warp];
                // Equation (54) at q = 4: ν to the power of minus two.
                factors[m] = (float)(1.0 / sqrt(sum + LQ_EPSILON));
            }
        }
    }

    // Pre-activations at a key and a query: of units in order at the key, then at the query. Lane l has number l UNITS / 16.
    __device__ __forceinline__ float pre(const float (&k)[E], const float (&q)[E]) const {
        float sums[2 * UNITS] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) {
                // A weight is read once for both.
                const float w = element(0, u, i);
                sums[u] += k[i] * w;
                sums[UNITS + u] += q[i] * w;
            }
        return factors[0] * lane_sums<2 * UNITS>(sums);
    }

    // This warp's part of h W1, into `part`.
    __device__ __forceinline__ void out(const float (&h)[UNITS], float* part) const {
        // Values lie over lanes, so a sum over units needs no exchange.
        float y[E] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) y[i] += h[u] * element(1, u, i);
#pragma unroll
        for (u32 i = 0; i < E; i++) part[threadIdx.x % 32 + 32 * i] = factors[1] * y[i];
    }

    // Hidden layers at a key and a query, for all lanes; parts of both outputs are left. Rows 0 and 1 of `own` are h, 2 and 3
    // slopes. The lane's own pre-activation is returned.
    __device__ __forceinline__ float apply(const Options& o, const Places& places, const float (&k)[E], const float (&q)[E],
                                           u32 parity, bool reads, float (&h)[UNITS]) const {
        // Lower lanes have numbers at the key, upper ones at the query.
        const u32 lane = threadIdx.x % 32, number = lane * UNITS / 16;
        const float sum = pre(k, q);
        const Curve at = activation(o.activation, sum);
        places.own[number] = at.value;
        // Slopes at the query are not used.
        places.own[2 * UNITS + number] = at.slope;
        __syncwarp();
        read_row(h, places.own);
        out(h, places.part(parity, 0));
        if (reads) {
            float read[UNITS];
            read_row(read, places.own + UNITS);
            out(read, places.part(parity, 1));
        }
        return sum;
    }

    // X = B + a (X − B), both layers.
    __device__ __forceinline__ void go_back(float a) {
        float* images = made_here(anchor);
#pragma unroll
        for (u32 m = 0; m < 2; m++)
            Image<E, UNITS>::each(images, m, [&](u32 u, u32 i, float to) {
                // From the block's own image, which the caches hold.
                state.x[m][u][i] = to + a * (state.x[m][u][i] - to);
            });
    }

    // X = a X + step, S too, for both layers: equations (36), (37). With an anchor X has forgotten before.
    __device__ __forceinline__ void write(const Row& row, const float (&h)[UNITS], const float (&delta)[UNITS],
                                          const float (&u_o)[E]) {
        const float eta = MOMENTUM ? expf(row.log_eta) : 0.0f;
        float a = expf(row.log_a);
        if (anchor) go_back(a), a = 1.0f;
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) {
                // Of W0 the row is a key's element, of W1 a unit.
                float move[2] = {-row.theta * row.k[i] * delta[u], -row.theta * h[u] * u_o[i]};
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    if constexpr (MOMENTUM) move[m] += eta * state.x[2 + m][u][i], state.x[2 + m][u][i] = move[m];
                    state.x[m][u][i] = a * state.x[m][u][i] + move[m];
                }
            }
    }

    // What follows the barrier: the error, what it teaches, the write. Row 4 of `own` is δ.
    __device__ __forceinline__ void learn(const Options& o, const Places& places, const Row& row, u32 parity,
                                          const float (&h)[UNITS], const ExactRecord* record) {
        const u32 lane = threadIdx.x % 32, unit = lane * UNITS / 32;
        float e[E], u_o[E];
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            // Every warp adds up all parts, and so has the whole error.
            e[i] = places.sum(parity, 0, lane + 32 * i) - row.v[i];
            if (o.residual) e[i] += row.k[i];
            // All warps have the same.
            if (record && threadIdx.x < 32) record->error[lane + 32 * i] = e[i];
        }
        taught<BIAS>(o, e, row.delta, u_o);
        // b = W1 u_o.
        // Gradients go back through the weights before the write.
        float sums[UNITS] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) sums[u] += u_o[i] * element(1, u, i);
        const float back = factors[1] * lane_sums<UNITS>(sums);
        places.own[4 * UNITS + unit] = back * places.own[2 * UNITS + unit];
        if (record) record->back[threadIdx.x / 32 * UNITS + unit] = back;
        __syncwarp();
        float delta[UNITS];
        read_row(delta, places.own + 4 * UNITS);
        write(row, h, delta, u_o);
        settle(o, places, parity);
    }
};

// Outputs of row `row`, by the first threads; parts are at `parity`.
template <class Places>
__device__ __forceinline__ void store_output(const Options& o, const RecurrentCall& call, const Places& places, u32 parity, u64 row) {
    // A warp or two.
    if (threadIdx.x < Places::WIDTH) {
        const u64 at = row * Places::WIDTH + threadIdx.x;
        float y = places.sum(parity, 1, threadIdx.x);
        if (o.residual) y += load(call.q, at);
        store(call.out, at, y);
    }
}

// All sequences and heads forward. A token's read goes with the next one's key, whose weights it sees, where it comes
// after the write.
template <u32 E, u32 UNITS, int BIAS, int RETENTION, bool MOMENTUM>
__device__ __forceinline__ void exact_forward(const Options& o, const RecurrentCall& call, float* near) {
    using Memory = Exact<E, UNITS, BIAS, RETENTION, MOMENTUM>;
    const typename Memory::Places places(near);
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        Memory memory;
        memory.anchor = anchor_image<E, UNITS>(call, sequence.head, call.workspace + blockIdx.x * call.workspace_each);
        // States stay in registers from here to the last token.
        memory.state.load(call, call.initial, index);
        memory.open(o, places);
        // Rows are asked for a token before they are used.
        typename Memory::Row next, row;
        if (sequence.tokens) next.load(call, sequence.row(call, 0));
        float h[UNITS], q[E] = {};
        u32 interval = 0, t = 0;
        for (; t < sequence.tokens; t++) {
            row = next;
            if (t + 1 < sequence.tokens) next.load(call, sequence.row(call, t + 1));
            if (call.kept && t == intervals.start(interval)) memory.state.store(sequence.kept + (u64)interval++ * call.state);
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = o.read_after ? q[i] : row.q[i];
            // The key of this token and the query of the one before see the same weights.
            memory.apply(o, places, row.k, q, t % 2, true, h);
            // Parts of the next token lie elsewhere: one barrier is enough.
            __syncthreads();
            if (!o.read_after || t > 0) store_output(o, call, places, t % 2, sequence.row(call, o.read_after ? t - 1 : t));
            memory.learn(o, places, row, t % 2, h, nullptr);
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = row.q[i];
        }
        if (o.read_after && sequence.tokens) {
            // The last token's read; its key is not needed any more.
            memory.apply(o, places, q, q, t % 2, true, h);
            __syncthreads();
            store_output(o, call, places, t % 2, sequence.row(call, t - 1));
        }
        memory.state.store(call, call.last, index);
        __syncthreads();
    }
}
