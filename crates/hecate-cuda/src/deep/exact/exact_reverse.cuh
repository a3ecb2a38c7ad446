// MLP memories token by token, backward: gradients of weights and momentum in registers, one barrier a token.
//
// States inside an interval are computed again from the kept one and lie in the workspace as threads hold them. A thread
// copies its own part of the next one to shared memory while it works on this one.
#pragma once
#include "exact.cuh"

// A thread's part of matrices as it lies in memory: four elements at a time, neighbours by thread.
template <u32 E, u32 UNITS> struct Image {
    static constexpr u32 FOURS = UNITS * E / 4;

    // Elements n.. of matrix `m` of an image that begins at `from`.
    __device__ __forceinline__ static float4* four(float* from, u32 m, u32 n) {
        return (float4*)from + (u64)(m * FOURS + n) * blockDim.x + threadIdx.x;
    }
    // All of matrix `m` there.
    __device__ __forceinline__ static void store(float* to, u32 m, const float (&x)[UNITS][E]) {
        auto at = [&](u32 j) { return x[j / E][j % E]; };
#pragma unroll
        for (u32 n = 0; n < FOURS; n++)
            *four(to, m, n) = make_float4(at(4 * n), at(4 * n + 1), at(4 * n + 2), at(4 * n + 3));
    }
    // Begins to copy `count` matrices from the first one on.
    __device__ __forceinline__ static void copy(float* to, float* from, u32 count) {
#pragma unroll 8
        for (u32 n = 0; n < count * FOURS; n++) copy_16(four(to, 0, n), four(from, 0, n), true);
        copies_commit();
    }
    __device__ __forceinline__ static void load(float* from, u32 m, float (&x)[UNITS][E]) {
        each(from, m, [&](u32 u, u32 i, float element) { x[u][i] = element; });
    }
    // Calls `done(u, i, element)` for all of matrix `m`.
    template <class Done> __device__ __forceinline__ static void each(float* from, u32 m, Done done) {
#pragma unroll
        for (u32 n = 0; n < FOURS; n++) {
            const float4 x = *four(from, m, n);
            const float all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (u32 j = 0; j < 4; j++) done((4 * n + j) / E, (4 * n + j) % E, all[j]);
        }
    }
};

// Σ over units of x[u] W[u], this warp's part, joins `y`; and W y, the sums of a unit in the lanes that `lane_sums` names.
// Both without the factor of the matrix.
template <u32 E, u32 UNITS, int RETENTION>
__device__ __forceinline__ void add_units(float* from, u32 m, const float (&x)[UNITS], float (&y)[E]) {
    Image<E, UNITS>::each(from, m, [&](u32 u, u32 i, float w) { y[i] += x[u] * weight<RETENTION>(w); });
}
// The same of matrices in registers, x in shared memory.
template <u32 E, u32 UNITS>
__device__ __forceinline__ void add_rows(const float* x, const float (&m)[UNITS][E], float (&y)[E]) {
#pragma unroll
    for (u32 first = 0; first < UNITS; first += 4) {
        float four[4];
        read_row(four, x + first);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 i = 0; i < E; i++) y[i] += four[j] * m[first + j][i];
    }
}
template <u32 E, u32 UNITS, int RETENTION> __device__ __forceinline__ float by_unit(float* from, u32 m, const float (&y)[E]) {
    float sums[UNITS] = {};
    Image<E, UNITS>::each(from, m, [&](u32 u, u32 i, float w) { sums[u] += y[i] * weight<RETENTION>(w); });
    return lane_sums<UNITS>(sums);
}

// A memory's backward.
template <u32 E, u32 UNITS, int BIAS, int RETENTION, bool MOMENTUM> struct ExactReverse {
    static constexpr u32 WIDTH = 32 * E;
    using Memory = Exact<E, UNITS, BIAS, RETENTION, MOMENTUM>;
    using Row = typename Memory::Row;
    using Places = typename Memory::Places;
    using I = Image<E, UNITS>;
    // Which matrices a write went into first.
    static constexpr u32 SOURCE = MOMENTUM ? 2 : 0;

    const RecurrentCall& call;
    const Options& o;
    Places places;
    // Gradients of weights and momentum.
    Matrices<E, UNITS, MOMENTUM> d;
    // Weights after and before a token, momentum before it: images in shared memory.
    float *after, *before, *momentum;
    // Factors of the weights that are there.
    float after_factors[2], before_factors[2];

    __device__ __forceinline__ ExactReverse(const RecurrentCall& call, const Options& o, float* near)
        : call(call), o(o), places(near) {
        const u32 each = 2 * UNITS * E * blockDim.x;
        after = places.after, before = after + each, momentum = before + each;
    }

    // Unit `n` of the lane, and its number among all of the block.
    __device__ __forceinline__ static u32 unit() { return threadIdx.x % 32 * UNITS / 32; }
    __device__ __forceinline__ static u32 hidden_unit() { return threadIdx.x / 32 * UNITS + unit(); }

    // States of an interval again, from the kept one: images of those before each token, records, the last weights in
    // `after`.
    __device__ __forceinline__ void replay(const SequenceHead& sequence, u32 start, u32 end, const float* kept, float* images,
                                           float* records) {
        const u32 size = call.state, hidden = o.hidden, number = threadIdx.x % 32 * UNITS / 16;
        const u32 own = threadIdx.x / 32 * UNITS + number % UNITS;
        Memory memory;
        memory.state.load(kept);
        memory.settle(places);
        typename Memory::Row next, row;
        next.load(call, sequence.row(call, start));
        float h[UNITS], q[E] = {};
        u32 t = start;
        for (; t < end; t++) {
            row = next;
            if (t + 1 < end) next.load(call, sequence.row(call, t + 1));
            // The state before the token.
            for_matrices([&](u32 m) { I::store(images + (u64)(t - start) * size, m, memory.state.x[m]); });
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = o.read_after ? q[i] : row.q[i];
            const float pre = memory.apply(o, places, row.k, q, t % 2, false, h);
            ExactRecord record(records, hidden, WIDTH, t - start), last(records, hidden, WIDTH, t - start - (t > start));
            if (RETENTION == LQ && threadIdx.x < 2) record.factors[threadIdx.x] = memory.factors[threadIdx.x ? 1 : 0];
            if (number < UNITS) record.pre[own] = pre;
            else if (!o.read_after || t > start) (o.read_after ? last : record).read_pre[own] = pre;
            __syncthreads();
            memory.learn(o, places, row, t % 2, h, &record);
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = row.q[i];
        }
        if (o.read_after) {
            // The last token's read.
            const float pre = memory.pre(q, q);
            if (number >= UNITS) ExactRecord(records, hidden, WIDTH, t - 1 - start).read_pre[own] = pre;
        }
        I::store(after, 0, memory.state.x[0]);
        I::store(after, 1, memory.state.x[1]);
        after_factors[0] = memory.factors[0], after_factors[1] = memory.factors[1];
        // Records are other threads' too.
        __syncthreads();
    }

    template <class Done> __device__ __forceinline__ static void for_matrices(Done done) {
#pragma unroll
        for (u32 m = 0; m < (MOMENTUM ? 4 : 2); m++) done(m);
    }

    // What the read adds to gradients of the weights that it saw, and its part of the query's. Rows 0 and 1 of `own`.
    __device__ __forceinline__ void read_vjp(const ExactRecord& record, float* seen, const float (&f)[2], const float (&q)[E],
                                             const float (&dout)[E], u32 parity) {
        const float dh = f[1] * by_unit<E, UNITS, RETENTION>(seen, 1, dout);
        const float pre = record.read_pre[hidden_unit()];
        const Curve at = activation(o.activation, pre);
        places.own[unit()] = dh * at.slope;
        places.own[UNITS + unit()] = at.value;
        __syncwarp();
        float dq[E] = {};
        {
            float dpre[UNITS];
            read_row(dpre, places.own);
            add_units<E, UNITS, RETENTION>(seen, 0, dpre, dq);
        }
        float* part = places.part(parity, 1);
#pragma unroll
        for (u32 i = 0; i < E; i++) part[threadIdx.x % 32 + 32 * i] = f[0] * dq[i];
        // ⟨W̄, W⟩ of both matrices, by unit.
        float along[2] = {dh * at.slope * pre, at.value * dh};
        weights_along(parity, GATE_SUMS, along);
        add_outer(0, seen, f[0], along[0], q, places.own, q, nullptr, 1.0f);
        add_outer(1, seen, f[1], along[1], dout, places.own + UNITS, dout, nullptr, 1.0f);
    }

    // Two sums over units, whose numbers lanes have as `unit` says, in every thread where weights are an image of the state.
    __device__ __forceinline__ void weights_along(u32 parity, u32 first, float (&along)[2]) const {
        if constexpr (RETENTION == LQ) {
            // Lanes with the same unit have the same number: each counts once.
            const bool counts = threadIdx.x % (32 / UNITS) == 0;
            float sums[2] = {counts ? along[0] : 0.0f, counts ? along[1] : 0.0f};
            const float sum = lane_sums<2>(sums);
            if (threadIdx.x % 16 == 0) places.part(parity, 3)[first + threadIdx.x % 32 / 16] = sum;
            __syncthreads();
            along[0] = places.sum(parity, 3, first), along[1] = places.sum(parity, 3, first + 1);
        }
    }

    // The gradient x y + x′ y′ of a matrix's weights joins that of its state: x and x′ rows by unit in shared memory, x′ may be
    // absent. `image` is the state, f its factor, `along` what `weights_along` gave.
    __device__ __forceinline__ void add_outer(u32 m, float* image, float f, float along, const float (&y)[E], const float* x,
                                              const float (&more_y)[E], const float* more_x, float keep) {
        if constexpr (RETENTION == LQ) {
            // (54): own slope 3 x² f, and what all share.
            I::each(image, m, [&](u32 u, u32 i, float w) {
                float dw = x[u] * y[i];
                if (more_x) dw += more_x[u] * more_y[i];
                const float square = w * w;
                d.x[m][u][i] = keep * d.x[m][u][i] + (3.0f * square * f * dw - 2.0f * f * along * (f * square * w));
            });
        } else {
#pragma unroll
            for (u32 first = 0; first < UNITS; first += 4) {
                float four[4], more[4] = {};
                read_row(four, x + first);
                if (more_x) read_row(more, more_x + first);
#pragma unroll
                for (u32 j = 0; j < 4; j++)
#pragma unroll
                    for (u32 i = 0; i < E; i++) {
                        const float dw = more_x ? four[j] * y[i] + more[j] * more_y[i] : four[j] * y[i];
                        d.x[m][first + j][i] = keep * d.x[m][first + j][i] + dw;
                    }
            }
        }
    }

    // ⟨D, X⟩ of two matrices from the first one on, this thread's part.
    __device__ __forceinline__ float inner(u32 first, float* from) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 m = 0; m < 2; m++)
            I::each(from, m, [&](u32 u, u32 i, float w) { sum += (m ? d.x[first + 1][u][i] : d.x[first][u][i]) * w; });
        return sum;
    }

    // One token back: equations (41)–(46), (56)–(59). `images` is where the state before the token before it lies, null where
    // that is in another interval.
    __device__ __forceinline__ void token(const Row& row, const ExactRecord& record, const float (&dout)[E], u64 at, u32 parity,
                                          float* images) {
        const u32 lane = threadIdx.x % 32, n = unit();
        const float a = expf(row.log_a), eta = MOMENTUM ? expf(row.log_eta) : 0.0f, theta = row.theta;
        // Asked for early: what the forward left.
        const float pre = record.pre[hidden_unit()], back = record.back[hidden_unit()];
        float e[E], u_o[E];
#pragma unroll
        for (u32 i = 0; i < E; i++) e[i] = record.error[lane + 32 * i];
        if (o.read_after) read_vjp(record, after, after_factors, row.q, dout, parity);
        // Its place is free for the weights before the token before.
        if (images) I::copy(after, images, 2);

        const Curve curve = activation(o.activation, pre);
        float* own = places.own + 2 * UNITS;
        // Rows 2 and 3 of `own`: h and δ.
        own[n] = curve.value;
        own[UNITS + n] = back * curve.slope;
        const float shrink = taught<BIAS>(o, e, row.delta, u_o);
        // Gradients of the gates, this thread's part, and that of P.
        float gates[GATE_SUMS] = {};
        gates[0] = inner(0, before);
        if constexpr (MOMENTUM) {
#pragma unroll
            for (u32 m = 0; m < 2; m++)
#pragma unroll
                for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                    for (u32 i = 0; i < E; i++) d.x[2 + m][u][i] += d.x[m][u][i];
            gates[1] = inner(2, momentum);
            if (images) I::copy(momentum, images + 2 * UNITS * E * blockDim.x, 2);
        }
        // δ̄ and h̄ without −θ: k D₀ and D₁ u_o.
        float sums[2 * UNITS] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) {
                sums[u] += row.k[i] * d.x[SOURCE][u][i];
                sums[UNITS + u] += u_o[i] * d.x[SOURCE + 1][u][i];
            }
        own[2 * UNITS + lane * UNITS / 16] = lane_sums<2 * UNITS>(sums);
        __syncwarp();
        const float ddelta = own[2 * UNITS + n], dh = own[3 * UNITS + n];
        // ⟨D, xᵀ y⟩ of both layers: once a unit.
        if (lane % (32 / UNITS) == 0) gates[2] = -(back * curve.slope * ddelta + curve.value * dh);
        const float gate_sum = lane_sums<GATE_SUMS>(gates);
        if (lane % (32 / GATE_SUMS) == 0) places.part(parity, 3)[lane * GATE_SUMS / 32] = gate_sum;
        // p̄ and b̄; row 4 from there.
        float dpre = -theta * (back * curve.second * ddelta + dh * curve.slope);
        own[4 * UNITS + n] = -theta * ddelta * curve.slope;
        __syncwarp();
        float dk[E] = {}, du[E] = {};
        add_rows(own + UNITS, d.x[SOURCE], dk);
        add_rows(own, d.x[SOURCE + 1], du);
#pragma unroll
        for (u32 i = 0; i < E; i++) dk[i] *= -theta, du[i] *= -theta;
        // b = W1 u_o gives to u_o.
        {
            float dback[UNITS];
            read_row(dback, own + 4 * UNITS);
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) dback[u] *= before_factors[1];
            add_units<E, UNITS, RETENTION>(before, 1, dback, du);
        }
        float* part = places.part(parity, 0);
#pragma unroll
        for (u32 i = 0; i < E; i++) part[lane + 32 * i] = du[i];
        __syncthreads();

        // From the gradient of u to that of the error.
#pragma unroll
        for (u32 i = 0; i < E; i++) du[i] = places.sum(parity, 0, lane + 32 * i);
        const float ddelta_gate = taught_vjp<BIAS>(o, e, row.delta, u_o, shrink, du);
        const float dout_h = before_factors[1] * by_unit<E, UNITS, RETENTION>(before, 1, du);
        dpre += dout_h * curve.slope;
        own[5 * UNITS + n] = dpre;
        __syncwarp();
        {
            float dpres[UNITS];
            read_row(dpres, own + 5 * UNITS);
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) dpres[u] *= before_factors[0];
            add_units<E, UNITS, RETENTION>(before, 0, dpres, dk);
        }
        // ⟨W̄, W⟩ again, then both gradients of the weights.
        float along[2] = {dpre * pre, own[4 * UNITS + n] * back + curve.value * dout_h};
        weights_along(parity, GATE_SUMS + 2, along);
        add_outer(0, before, before_factors[0], along[0], row.k, own + 5 * UNITS, row.k, nullptr, a);
        add_outer(1, before, before_factors[1], along[1], u_o, own + 4 * UNITS, du, own, a);
        if constexpr (MOMENTUM) {
#pragma unroll
            for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                for (u32 i = 0; i < E; i++) d.x[2][u][i] *= eta, d.x[3][u][i] *= eta;
        }
        part = places.part(parity, 2);
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            // A residual's gradient is in all warps: the first one adds it.
            if (o.residual && threadIdx.x < 32) dk[i] += du[i];
            part[lane + 32 * i] = dk[i];
            if (threadIdx.x < 32) ::store(call.dv, at * WIDTH + lane + 32 * i, -du[i]);
        }
        if (BIAS == HUBER && threadIdx.x == 0) call.dgates[MOMENTUM ? 3 : 2][at] = ddelta_gate;
        store_gates(row, at, parity);
    }

    // Those of the weights before a token.
    __device__ __forceinline__ void take_factors(const ExactRecord& record) {
#pragma unroll
        for (u32 m = 0; m < 2; m++) before_factors[m] = RETENTION == LQ ? record.factors[m] : 1.0f;
    }

    // Gradients of the gates that are sums over the block, each by one thread.
    __device__ __forceinline__ void store_gates(const Row& row, u64 at, u32 parity) const {
        const u32 which = threadIdx.x;
        if (which >= (MOMENTUM ? 3 : 2)) return;
        // The sum of θ comes third, and without momentum second.
        const bool step = which == (MOMENTUM ? 2 : 1);
        const float sum = places.sum(parity, 3, step ? 2 : which);
        call.dgates[which][at] = step ? sum : sum * expf(which ? row.log_eta : row.log_a);
    }

    // The gradient of a query, with what a residual adds, or of a key, once its parts are there and a barrier.
    __device__ __forceinline__ void store_query(u64 row, u32 parity) const {
        if (threadIdx.x >= WIDTH) return;
        const u64 at = row * WIDTH + threadIdx.x;
        ::store(call.dq, at, places.sum(parity, 1, threadIdx.x) + (o.residual ? load(call.dout, at) : 0.0f));
    }
    __device__ __forceinline__ void store_key(u64 row, u32 parity) const {
        if (threadIdx.x < WIDTH) ::store(call.dk, row * WIDTH + threadIdx.x, places.sum(parity, 2, threadIdx.x));
    }
};

// This lane's part of a row of gradients of outputs.
template <u32 E> __device__ __forceinline__ void load_dout(const RecurrentCall& call, u64 row, float (&dout)[E]) {
#pragma unroll
    for (u32 i = 0; i < E; i++) dout[i] = load(call.dout, row * (32 * E) + threadIdx.x % 32 + 32 * i);
}

// All sequences and heads backward, interval by interval from the last.
template <u32 E, u32 UNITS, int BIAS, int RETENTION, bool MOMENTUM>
__device__ __forceinline__ void exact_backward(const Options& o, const RecurrentCall& call, float* near) {
    using Reverse = ExactReverse<E, UNITS, BIAS, RETENTION, MOMENTUM>;
    Reverse back(call, o, near);
    // Images of an interval's states, and gradients while registers hold states; then records.
    const u64 size = call.state;
    float* images = call.workspace + blockIdx.x * call.workspace_each;
    float* gradients = images + KEPT_EVERY * size;
    float* records = gradients + size;
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        back.d.load(call, call.dlast, index);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            const u32 start = intervals.start(interval), end = intervals.end(interval);
            Reverse::for_matrices([&](u32 m) { Image<E, UNITS>::store(gradients, m, back.d.x[m]); });
            back.replay(sequence, start, end, sequence.kept + interval * size, images, records);
            Reverse::for_matrices([&](u32 m) { Image<E, UNITS>::load(gradients, m, back.d.x[m]); });
            // The last token's states; a thread copies what it wrote itself.
            Image<E, UNITS>::copy(back.before, images + (end - 1 - start) * size, 2);
            if (MOMENTUM) Image<E, UNITS>::copy(back.momentum, images + (end - 1 - start) * size + size / 2, 2);
            typename Reverse::Row next, row;
            float dout[E], next_dout[E];
            next.load(call, sequence.row(call, end - 1));
            load_dout(call, sequence.row(call, end - 1), next_dout);
            for (u32 t = end; t-- > start;) {
                const u64 at = sequence.row(call, t);
                row = next;
#pragma unroll
                for (u32 i = 0; i < E; i++) dout[i] = next_dout[i];
                if (t > start) {
                    next.load(call, sequence.row(call, t - 1));
                    load_dout(call, sequence.row(call, t - 1), next_dout);
                }
                copies_wait<0>();
                const ExactRecord record(records, o.hidden, Reverse::WIDTH, t - start);
                back.take_factors(record);
                back.token(row, record, dout, at, t % 2, t > start ? images + (t - 1 - start) * size : nullptr);
                // The key's parts of the token after this came before the barrier.
                if (t + 1 < end) back.store_key(sequence.row(call, t + 1), (t + 1) % 2);
                if (!o.read_after) {
                    // A read before the write comes last.
                    back.read_vjp(record, back.before, back.before_factors, row.q, dout, t % 2);
                    __syncthreads();
                }
                back.store_query(at, t % 2);
                float* free = back.before;
                back.before = back.after;
                back.after = free;
                back.after_factors[0] = back.before_factors[0], back.after_factors[1] = back.before_factors[1];
            }
            __syncthreads();
            back.store_key(sequence.row(call, start), start % 2);
            // Parts are free again.
            __syncthreads();
        }
        back.d.store(call, call.dinitial, index);
    }
}
