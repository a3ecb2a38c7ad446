// MLP memories token by token, with all weights in registers: one memory a block or cluster, and one or two barriers a token.
//
// Keys and values have 32 E elements, of which lane l holds l, l + 32, ... A warp holds UNITS hidden units: their columns of W0
// [K,D] and their rows of W1 [D,V]. A sum over hidden units is a thread's own sum and then one over warps. A sum over keys or
// values is one over the lanes of a warp. Each of BLOCKS blocks has an equal share of the units, and sums over warps are over
// all blocks' warps.
#pragma once
#include "activation.cuh"
#include "exact_matrices.cuh"
#include "exact_token.cuh"
#include "retention.cuh"

// Rows [UNITS] of each warp in shared memory, in which its lanes exchange per-unit scalars.
#define UNIT_ROWS 8
// Rows [WIDTH] of each warp's parts of sums over warps, and scalars after them: four of gates, and two each for a read's and a
// write's products with weights.
#define PART_ROWS 3
#define GATE_SUMS 4
#define NUMBERS (GATE_SUMS + 4)
// For both matrices of (54): a row of sums of fourth powers and one of largest magnitudes.
#define NORM_ROWS 4

// The block's arrays in shared memory.
template <u32 E, u32 UNITS, u32 BLOCKS> struct ExactPlaces {
    static constexpr u32 WIDTH = 32 * E;
    static constexpr u32 PART = PART_ROWS * WIDTH + NUMBERS;
    // The warp's rows of per-unit scalars; all warps' parts of sums, for even and odd tokens; NORM_ROWS rows of one number a warp;
    // whatever follows.
    float *own, *parts, *norms, *after;
    Exchange<BLOCKS> exchange;

    // Divides the block's shared memory at `near` into these arrays, and opens the exchange between blocks.
    __device__ __forceinline__ explicit ExactPlaces(float* near) : exchange(nullptr) {
        // In the order in which `Block::sums` counts them.
        const u32 warps = Exchange<BLOCKS>::warps();
        own = near + threadIdx.x / 32 * (UNIT_ROWS * UNITS);
        parts = near + blockDim.x / 32 * (UNIT_ROWS * UNITS);
        norms = parts + 2 * warps * PART;
        after = norms + NORM_ROWS * warps + 4;
        exchange.barriers = (u64*)(norms + NORM_ROWS * warps);
        exchange.open();
    }

    // Waits for all threads of all blocks of the memory.
    __device__ __forceinline__ void meet() { exchange.meet(); }
    // Sends row [WIDTH] as part `which` of this warp to all blocks, which have it after the next `meet`.
    __device__ __forceinline__ void tell(u32 parity, u32 which, const float (&row)[E]) {
        float* to = part(parity, which);
#pragma unroll
        for (u32 i = 0; i < E; i++) exchange.template tell<32>(to + threadIdx.x % 32 + 32 * i, row[i]);
    }
    // Sends COUNT scalars, which lie over the lanes in order, to all blocks as scalars `first` on of this warp.
    template <u32 COUNT> __device__ __forceinline__ void tell_numbers(u32 parity, u32 first, float x) {
        const u32 lane = threadIdx.x % 32;
        exchange.template tell<COUNT>(part(parity, PART_ROWS) + first + lane * COUNT / 32, x, lane % (32 / COUNT) == 0);
    }
    // Sends this warp's two numbers, in lanes 0 and 16, to all blocks for rows `row` and `row + 1` of the norms.
    __device__ __forceinline__ void tell_norms(u32 row, float x) {
        float* to = norms + (row + threadIdx.x % 32 / 16) * exchange.warps() + exchange.warp();
        exchange.template tell<2>(to, x, threadIdx.x % 16 == 0);
    }
    // Combines by `take` what all warps sent for row `row` of the norms, in the order of warps.
    template <class Take> __device__ __forceinline__ float norm(u32 row, Take take) const {
        return together(norms + row * exchange.warps(), 1, take);
    }
    // True for the leader block, which writes shared results.
    __device__ __forceinline__ bool is_leader() const { return exchange.block() == 0; }

    // Returns where this warp puts part `which` of the sums, for tokens of this parity.
    __device__ __forceinline__ float* part(u32 parity, u32 which) const {
        return parts + (parity * exchange.warps() + exchange.warp()) * PART + which * WIDTH;
    }
    // Combines by `take` all warps' part `which` at `column`.
    template <class Take> __device__ __forceinline__ float all(u32 parity, u32 which, u32 column, Take take) const {
        return together(parts + parity * exchange.warps() * PART + which * WIDTH + column, PART, take);
    }
    // Adds all warps' part `which` at `column`.
    __device__ __forceinline__ float sum(u32 parity, u32 which, u32 column) const { return all(parity, which, column, added); }
    // Combines by `take` what the warps sent, in the order of warps, so that two runs give the same bits.
    template <class Take> __device__ __forceinline__ float together(const float* from, u32 step, Take take) const {
        float all = from[0];
#pragma unroll 8
        for (u32 warp = 1; warp < exchange.warps(); warp++) all = take(all, from[warp * step]);
        return all;
    }
};

// What a forward keeps of a token for its backward: pre-activations [D] at the key and the query, b = W1 u [D], the error [V], and
// the factors of both matrices.
struct ExactRecord {
    float *pre, *read_pre, *back, *error, *factors;

    // Finds the record of `token`; `elements` is the record of token 0.
    __device__ __forceinline__ ExactRecord(float* elements, u32 hidden, u32 value, u32 token) {
        // Rows of a token lie one after another.
        pre = elements + (u64)token * (3 * hidden + value + 4);
        read_pre = pre + hidden;
        back = read_pre + hidden;
        error = back + hidden;
        factors = error + value;
    }
};

// Returns the weight that a state's element stands for, without its matrix's factor: x, or x³ for (54).
template <int RETENTION> __device__ __forceinline__ float weight(float x) { return RETENTION == LQ ? x * x * x : x; }

// A memory in registers, and the steps of a token.
template <u32 E, u32 UNITS, u32 BLOCKS, int BIAS, int RETENTION, bool MOMENTUM> struct Exact {
    static constexpr u32 WIDTH = 32 * E;
    using Row = TokenRow<E, BIAS, MOMENTUM>;
    using Asked = AskedToken<E, BIAS, MOMENTUM>;
    using Places = ExactPlaces<E, UNITS, BLOCKS>;

    Matrices<E, UNITS, BLOCKS, MOMENTUM> state;
    // Factors of both matrices of weights, ν^{2−q} of (54); 1 where weights are the state or its exponentials.
    float factors[2] = {1.0f, 1.0f};
    // For (54), carried from token to token: a power of two near 1/ν of each matrix, which keeps fourth powers in f32's range.
    float scales[2] = {1.0f, 1.0f};
    float exponentials[2][RETENTION == KL ? UNITS : 1][E];
    // Images of the anchors of both layers, to which they forget; null: zero.
    float* anchor;

    // Returns the weight of element (u, i) of matrix m, without the matrix's factor.
    __device__ __forceinline__ float element(u32 m, u32 u, u32 i) const {
        if constexpr (RETENTION == KL) return exponentials[m][u][i];
        else return weight<RETENTION>(state.x[m][u][i]);
    }

    // Computes the weights of the initial state, before the first token.
    __device__ __forceinline__ void open(const Options& o, Places& places) {
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

    // W0 = scale * softmax(X0, dim=0), with one hidden unit a column: x becomes log softmax. Uses rows 5 to 7 of `own`.
    __device__ __forceinline__ void settle_units(const Options& o, Places& places) {
        const u32 unit = threadIdx.x % 32 * UNITS / 32;
        float(&x)[UNITS][E] = state.x[0], sums[UNITS], logs[UNITS];
        exponentials_of(0, sums);
        float sum = lane_sums<UNITS>(sums);
        // A settled state has sums of 1; only a token's write or an initial state can be so far away that columns must be lowered.
        if (__any_sync(0xffffffffu, !is_near_one(sum))) {
            lower_units(places);
            exponentials_of(0, sums);
            sum = lane_sums<UNITS>(sums);
        }
        // The logarithm that a column loses, and the factor of its exponentials.
        places.own[6 * UNITS + unit] = logf(sum);
        places.own[7 * UNITS + unit] = o.scale / sum;
        __syncwarp();
        read_row(logs, places.own + 6 * UNITS);
        read_row(sums, places.own + 7 * UNITS);
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) x[u][i] -= logs[u], exponentials[0][u][i] *= sums[u];
    }
    // exponentials = exp(x) of matrix m, and sums [UNITS] = this lane's part of their sums over keys.
    __device__ __forceinline__ void exponentials_of(u32 m, float (&sums)[UNITS]) {
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            // One exponential an element and token: all else is made of it.
            sums[u] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < E; i++) sums[u] += exponentials[m][u][i] = expf(state.x[m][u][i]);
        }
    }
    // True if a sum of exponentials has neither overflowed nor lost an element.
    __device__ __forceinline__ static bool is_near_one(float sum) { return sum > 1e-20f && sum < 1e20f; }

    // x -= x.max(dim=0) for each column of W0.
    __device__ __forceinline__ void lower_units(Places& places) {
        float(&x)[UNITS][E] = state.x[0], tops[UNITS];
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            // This lane's part first, then over the warp.
            tops[u] = x[u][0];
#pragma unroll
            for (u32 i = 1; i < E; i++) tops[u] = larger(tops[u], x[u][i]);
        }
        const float top = over_lanes<UNITS>(tops, larger);
        places.own[5 * UNITS + threadIdx.x % 32 * UNITS / 32] = top;
        __syncwarp();
        read_row(tops, places.own + 5 * UNITS);
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) x[u][i] -= tops[u];
    }

    // W1 = scale * softmax(X1, dim=0), each column over the units of all warps; x becomes log softmax. Sums are sent as part 2. One
    // barrier, or five where columns are lowered.
    __device__ __forceinline__ void settle_outputs(const Options& o, Places& places, u32 parity) {
        float(&x)[UNITS][E] = state.x[1], sums[E];
        output_sums(places, parity, sums);
        bool near = true;
#pragma unroll
        for (u32 i = 0; i < E; i++) near &= is_near_one(sums[i]);
        // All warps have the same sums.
        if (__any_sync(0xffffffffu, !near)) {
            lower_outputs(places, parity);
            output_sums(places, parity, sums);
        }
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            const float log = logf(sums[i]), factor = o.scale / sums[i];
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) x[u][i] -= log, exponentials[1][u][i] *= factor;
        }
    }
    // exponentials = exp(x) of W1, and sums [E] = their sums over all units, by one barrier.
    __device__ __forceinline__ void output_sums(Places& places, u32 parity, float (&sums)[E]) {
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            sums[i] = 0.0f;
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) sums[i] += exponentials[1][u][i] = expf(state.x[1][u][i]);
        }
        places.tell(parity, 2, sums);
        places.meet();
#pragma unroll
        for (u32 i = 0; i < E; i++) sums[i] = places.sum(parity, 2, threadIdx.x % 32 + 32 * i);
    }
    // x -= x.max(dim=0) for each column of W1, by three barriers: its maxima take the place of the sums before and after it.
    __device__ __forceinline__ void lower_outputs(Places& places, u32 parity) {
        float(&x)[UNITS][E] = state.x[1], tops[E];
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            tops[i] = x[0][i];
#pragma unroll
            for (u32 u = 1; u < UNITS; u++) tops[i] = larger(tops[i], x[u][i]);
        }
        // Sums have been read.
        places.meet();
        places.tell(parity, 2, tops);
        places.meet();
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            const float top = places.all(parity, 2, threadIdx.x % 32 + 32 * i, larger);
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) x[u][i] -= top;
        }
        places.meet();
    }

    // factors = ν^{-2} of both matrices, with ν⁴ = Σ x⁴ + ε: equation (54) at q = 4. One barrier, or three with new scales.
    __device__ __forceinline__ void settle_norms(Places& places) {
        float sums[2];
        fourth_powers(places, sums);
        if (!is_counted(0, sums[0]) || !is_counted(1, sums[1])) {
            // All threads have the same sums.
            rescale(places);
            fourth_powers(places, sums);
        }
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            // Equation (54) at q = 4: ν to the power of minus two. Powers of two change no digit.
            const float square = scales[m] * scales[m];
            factors[m] = square / sqrtf(sums[m] + (float)LQ_EPSILON * (square * square));
            scales[m] = power_of_two(exponent(scales[m]) - (exponent(sums[m]) >> 2));
        }
    }
    // Returns 2^n, with n cut to [-126, 10]: 2^10 is about LQ_EPSILON^(-1/4), beside which smaller states do not count.
    __device__ __forceinline__ static float power_of_two(int n) {
        return __uint_as_float((u32)(max(min(n, 10), -126) + 127) << 23);
    }
    // Returns the binary exponent of x >= 0; -127 for zero.
    __device__ __forceinline__ static int exponent(float x) { return (int)(__float_as_uint(x) >> 23) - 127; }
    // True if a sum of scaled fourth powers has neither overflowed nor underflowed.
    __device__ __forceinline__ bool is_counted(u32 m, float sum) const {
        return sum < 1e30f && (sum > 1e-18f || scales[m] == power_of_two(10));
    }
    // sums[m] = Σ (scale * x)⁴ over the whole memory, for both matrices, by one barrier.
    __device__ __forceinline__ void fourth_powers(Places& places, float (&sums)[2]) const {
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            sums[m] = 0.0f;
#pragma unroll
            for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                for (u32 i = 0; i < E; i++) {
                    const float x = scales[m] * state.x[m][u][i], square = x * x;
                    sums[m] += square * square;
                }
        }
        places.tell_norms(0, lane_sums<2>(sums));
        places.meet();
#pragma unroll
        for (u32 m = 0; m < 2; m++) sums[m] = places.norm(m, added);
    }
    // scales = powers of two near one over each matrix's largest magnitude, by one barrier.
    __device__ __forceinline__ void rescale(Places& places) {
        float tops[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 m = 0; m < 2; m++)
#pragma unroll
            for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                for (u32 i = 0; i < E; i++) tops[m] = larger(tops[m], fabsf(state.x[m][u][i]));
        places.tell_norms(2, over_lanes<2>(tops, larger));
        places.meet();
#pragma unroll
        for (u32 m = 0; m < 2; m++) scales[m] = power_of_two(-exponent(fabsf(places.norm(2 + m, larger))));
    }

    // Computes the weights again after the state has changed: one barrier as a rule, none where weights are the state.
    __device__ __forceinline__ void settle(const Options& o, Places& places, u32 parity) {
        if constexpr (RETENTION == KL) settle_units(o, places), settle_outputs(o, places, parity);
        else if constexpr (RETENTION == LQ) settle_norms(places);
    }

    // Pre-activations k @ W0 and q @ W0 [UNITS] of the warp's units: lane l returns number l UNITS / 16 of [key's, query's].
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

    // This warp's part of h W1, part `which`.
    __device__ __forceinline__ void out(Places& places, const float (&h)[UNITS], u32 parity, u32 which) const {
        // Values lie over lanes, so a sum over units needs no exchange.
        float y[E] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) y[i] += h[u] * element(1, u, i);
#pragma unroll
        for (u32 i = 0; i < E; i++) y[i] *= factors[1];
        places.tell(parity, which, y);
    }

    // h = act(k @ W0) [UNITS] in every lane, and the warp's parts of h @ W1 at the key and, if it `reads`, at the query, which are
    // sent. Rows 0 and 1 of `own` hold h, rows 2 and 3 slopes. Returns the lane's own pre-activation.
    __device__ __forceinline__ float apply(const Options& o, Places& places, const float (&k)[E], const float (&q)[E],
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
        out(places, h, parity, 0);
        if (reads) {
            float read[UNITS];
            read_row(read, places.own + UNITS);
            out(places, read, parity, 1);
        }
        return sum;
    }

    // X = B + a (X - B) of both layers, with the anchor B.
    __device__ __forceinline__ void go_back(float a) {
        float* images = made_here(anchor);
#pragma unroll
        for (u32 m = 0; m < 2; m++)
            Image<E, UNITS>::each(images, m, [&](u32 u, u32 i, float to) {
                // From the block's own image, which the caches hold.
                state.x[m][u][i] = to + a * (state.x[m][u][i] - to);
            });
    }

    // S = η S - θ x ⊗ u and X = a X + S of both layers, (36) and (37); with an anchor X has forgotten already.
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

    // What follows the barrier: e = prediction - v, its inner gradient u, δ = (W1 u) ∘ act'(k @ W0), the write, the new weights.
    // Row 4 of `own` holds δ.
    __device__ __forceinline__ void learn(const Options& o, Places& places, const Row& row, u32 parity,
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
        own_inner_grad<BIAS>(o, e, row.delta, u_o);
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

// out[row] = q's prediction, summed over all warps' parts at `parity`, by the leader block's first threads.
template <class Places>
__device__ __forceinline__ void store_output(const Options& o, const RecurrentCall& call, Places& places, u32 parity, u64 row) {
    // A warp or two.
    if (places.is_leader() && threadIdx.x < Places::WIDTH) {
        const u64 at = row * Places::WIDTH + threadIdx.x;
        float y = places.sum(parity, 1, threadIdx.x);
        if (o.residual) y += load(call.q, at);
        store(call.out, at, y);
    }
}

// Takes all sequences and heads forward. Where a token reads after its write, its read is computed with the next token's key,
// since both see the same weights.
template <u32 E, u32 UNITS, u32 BLOCKS, int BIAS, int RETENTION, bool MOMENTUM>
__device__ __forceinline__ void exact_forward(const Options& o, const RecurrentCall& call, float* near) {
    using Memory = Exact<E, UNITS, BLOCKS, BIAS, RETENTION, MOMENTUM>;
    typename Memory::Places places(near);
    for (u64 index = blockIdx.x / BLOCKS; index < (u64)call.sequences * call.heads; index += gridDim.x / BLOCKS) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        Memory memory;
        memory.anchor = anchor_image<E, UNITS, BLOCKS>(call, sequence.head, call.workspace + blockIdx.x * call.workspace_each);
        // States stay in registers from here to the last token.
        memory.state.load(call, call.initial, index);
        memory.open(o, places);
        // Rows are asked for a token before they are used.
        typename Memory::Asked next;
        typename Memory::Row row;
        if (sequence.tokens) next.ask(call, sequence.row(call, 0));
        float h[UNITS], q[E] = {};
        u32 interval = 0, kept_at = 0, t = 0;
        for (; t < sequence.tokens; t++) {
            next.read(call, row);
            if (t + 1 < sequence.tokens) next.ask(call, sequence.row(call, t + 1));
            if (call.kept && t == kept_at) {
                memory.state.store(sequence.kept + (u64)interval++ * call.state);
                kept_at = intervals.start(interval);
            }
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = o.read_after ? q[i] : row.q[i];
            // The key of this token and the query of the one before see the same weights.
            memory.apply(o, places, row.k, q, t % 2, true, h);
            // Parts of the next token lie elsewhere: one barrier is enough.
            places.meet();
            if (!o.read_after || t > 0) store_output(o, call, places, t % 2, sequence.row(call, o.read_after ? t - 1 : t));
            memory.learn(o, places, row, t % 2, h, nullptr);
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = row.q[i];
        }
        if (o.read_after && sequence.tokens) {
            // The last token's read; its key is not needed any more.
            memory.apply(o, places, q, q, t % 2, true, h);
            places.meet();
            store_output(o, call, places, t % 2, sequence.row(call, t - 1));
        }
        memory.state.store(call, call.last, index);
        places.meet();
    }
}
