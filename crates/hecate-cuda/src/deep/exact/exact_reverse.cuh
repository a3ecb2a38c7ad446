// MLP memories token by token, backward: gradients of weights and momentum in registers, one barrier a token.
//
// States inside an interval are computed again from the kept one and lie in the workspace as threads hold them. A thread
// copies its own part of the next one to shared memory while it works on this one.
#pragma once
#include "exact.cuh"

// y [E] += x [UNITS] @ W [UNITS,E], with this warp's units and this lane's columns, without the matrix's factor.
template <u32 E, u32 UNITS, int RETENTION>
__device__ __forceinline__ void add_units(float* from, u32 m, const float (&x)[UNITS], float (&y)[E]) {
    Image<E, UNITS>::each(from, m, [&](u32 u, u32 i, float w) { y[i] += x[u] * weight<RETENTION>(w); });
}
// y [E] += x [UNITS] @ m [UNITS,E], with m in registers and x in shared memory.
template <u32 E, u32 UNITS>
__device__ __forceinline__ void add_rows(const float* x, const float (&m)[UNITS][E], float (&y)[E]) {
#pragma unroll
    for (u32 first = 0; first < UNITS; first += 4) {
        // Few registers at a time: gradients fill the rest.
        float four[4];
        read_row(four, x + first);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 i = 0; i < E; i++) y[i] += four[j] * m[first + j][i];
    }
}
// Returns W[u] · y of one unit, in the lanes that `lane_sums` names, without the matrix's factor.
template <u32 E, u32 UNITS, int RETENTION> __device__ __forceinline__ float by_unit(float* from, u32 m, const float (&y)[E]) {
    float sums[UNITS] = {};
    Image<E, UNITS>::each(from, m, [&](u32 u, u32 i, float w) { sums[u] += y[i] * weight<RETENTION>(w); });
    return lane_sums<UNITS>(sums);
}

// A memory's backward.
template <u32 E, u32 UNITS, u32 BLOCKS, int BIAS, int RETENTION, bool MOMENTUM> struct ExactReverse {
    static constexpr u32 WIDTH = 32 * E;
    using Memory = Exact<E, UNITS, BLOCKS, BIAS, RETENTION, MOMENTUM>;
    using Row = typename Memory::Row;
    using Asked = typename Memory::Asked;
    using Places = typename Memory::Places;
    using I = Image<E, UNITS>;
    // Matrices of an image: the state, and exponentials after it. Where weights are in it, and what else a write's backward
    // reads of the state before: momentum, or logarithms where weights are exponentials.
    static constexpr u32 MATRICES = MOMENTUM || RETENTION == KL ? 4 : 2, WEIGHTS = RETENTION == KL ? 2 : 0;
    static constexpr u32 OTHERS = RETENTION == KL ? 0 : 2;
    // Which matrices a write went into first.
    static constexpr u32 SOURCE = MOMENTUM ? 2 : 0;

    const RecurrentCall& call;
    const Options& o;
    Places places;
    // Gradients of weights and momentum.
    Matrices<E, UNITS, BLOCKS, MOMENTUM> d;
    // Weights after and before a token, and the others before it: images in shared memory.
    float *after, *before, *other;
    // Factors of the weights that are there.
    float after_factors[2], before_factors[2];
    // Images of the anchors in the workspace, null where there are none; then of their gradients.
    float *anchor, *danchor;

    // Divides the shared memory at `near`: the forward's arrays come first, then three images.
    __device__ __forceinline__ ExactReverse(const RecurrentCall& call, const Options& o, float* near)
        : call(call), o(o), places(near) {
        // Elements of both layers.
        const u32 each = 2 * UNITS * E * blockDim.x;
        after = places.after, before = after + each, other = before + each;
    }

    // Unit `n` of the lane, and its number among all of the block.
    __device__ __forceinline__ static u32 unit() { return threadIdx.x % 32 * UNITS / 32; }
    // Returns the number of the lane's unit among those of the block.
    __device__ __forceinline__ static u32 hidden_unit() { return threadIdx.x / 32 * UNITS + unit(); }

    // Hidden units of the block.
    __device__ __forceinline__ static u32 units() { return blockDim.x / 32 * UNITS; }

    // Elements of an image, and of two matrices of it.
    __device__ __forceinline__ static u32 pair() { return 2 * UNITS * E * blockDim.x; }
    // Returns the elements of an image.
    __device__ __forceinline__ static u32 image() { return MATRICES / 2 * pair(); }
    // Begins to copy what a token finds out of its image: weights to `weights`, and the others.
    __device__ __forceinline__ static void copy_weights(float* weights, float* image) {
        I::copy(weights, image + WEIGHTS / 2 * pair(), 2);
    }
    // Begins to copy the other two matrices of an image to `other`: momentum, or logarithms of weights.
    __device__ __forceinline__ void copy_others(float* image) const {
        if constexpr (MATRICES == 4) I::copy(other, image + OTHERS / 2 * pair(), 2);
    }

    // States of an interval again, from the kept one: images of those before each token, records, the last weights in
    // `after`.
    __device__ __forceinline__ void replay(const SequenceHead& sequence, u32 start, u32 end, const float* kept, float* images,
                                           float* records) {
        // Which of the numbers of `Memory::pre` the lane has, and of which unit.
        const u32 size = image(), hidden = units(), number = threadIdx.x % 32 * UNITS / 16;
        const u32 own = threadIdx.x / 32 * UNITS + number % UNITS;
        Memory memory;
        memory.anchor = anchor;
        memory.state.load(kept);
        memory.open(o, places);
        Asked next;
        Row row;
        next.ask(call, sequence.row(call, start));
        float h[UNITS], q[E] = {};
        u32 t = start;
        for (; t < end; t++) {
            // Asked for a token before it is used.
            next.read(call, row);
            if (t + 1 < end) next.ask(call, sequence.row(call, t + 1));
            // The state before the token.
            for_matrices([&](u32 m) { I::store(images + (u64)(t - start) * size, m, memory.state.x[m]); });
            if constexpr (RETENTION == KL) {
                I::store(images + (u64)(t - start) * size, 2, memory.exponentials[0]);
                I::store(images + (u64)(t - start) * size, 3, memory.exponentials[1]);
            }
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = o.read_after ? q[i] : row.q[i];
            // As in the forward, but outputs of reads are not wanted.
            const float pre = memory.apply(o, places, row.k, q, t % 2, false, h);
            ExactRecord record(records, hidden, WIDTH, t - start), last(records, hidden, WIDTH, t - start - (t > start));
            if (RETENTION == LQ && threadIdx.x < 2) record.factors[threadIdx.x] = memory.factors[threadIdx.x ? 1 : 0];
            // What queries see is of the token before, where a read comes after the write.
            if (number < UNITS) record.pre[own] = pre;
            else if (!o.read_after || t > start) (o.read_after ? last : record).read_pre[own] = pre;
            places.meet();
            memory.learn(o, places, row, t % 2, h, &record);
#pragma unroll
            for (u32 i = 0; i < E; i++) q[i] = row.q[i];
        }
        if (o.read_after) {
            // The last token's read.
            const float pre = memory.pre(q, q);
            if (number >= UNITS) ExactRecord(records, hidden, WIDTH, t - 1 - start).read_pre[own] = pre;
        }
        // The weights after the last token, from which the way back begins.
        if constexpr (RETENTION == KL) {
            I::store(after, 0, memory.exponentials[0]);
            I::store(after, 1, memory.exponentials[1]);
        } else {
            I::store(after, 0, memory.state.x[0]);
            I::store(after, 1, memory.state.x[1]);
        }
        after_factors[0] = memory.factors[0], after_factors[1] = memory.factors[1];
        // Records are other threads' too, and parts other blocks'.
        places.meet();
    }

    // Calls done(m) for each matrix of the state: the weights of both layers, then with momentum that of both.
    template <class Done> __device__ __forceinline__ static void for_matrices(Done done) {
#pragma unroll
        for (u32 m = 0; m < (MOMENTUM ? 4 : 2); m++) done(m);
    }

    // What the read adds to gradients of the weights that it saw, and its part of the query's, from the pre-activation of the
    // lane's unit. Rows 0 and 1 of `own`.
    __device__ __forceinline__ void read_vjp(float pre, float* seen, const float (&f)[2], const float (&q)[E],
                                             const float (&dout)[E], u32 parity) {
        // Back through the second layer, at the query.
        const float dh = f[1] * by_unit<E, UNITS, RETENTION>(seen, 1, dout);
        const Curve at = activation(o.activation, pre);
        // The gradient of the pre-activation, and the hidden layer, for all lanes.
        places.own[unit()] = dh * at.slope;
        places.own[UNITS + unit()] = at.value;
        __syncwarp();
        float dq[E] = {};
        {
            // In a scope of its own, so that its registers are free behind it.
            float dpre[UNITS];
            read_row(dpre, places.own);
            add_units<E, UNITS, RETENTION>(seen, 0, dpre, dq);
        }
#pragma unroll
        for (u32 i = 0; i < E; i++) dq[i] *= f[0];
        places.tell(parity, 1, dq);
        // ⟨W̄, W⟩ of both matrices, by unit.
        float along[2] = {dh * at.slope * pre, at.value * dh};
        weights_along(parity, GATE_SUMS, along);
        add_outer(0, seen, f[0], along[0], q, places.own, q, nullptr, 1.0f);
        add_outer(1, seen, f[1], along[1], dout, places.own + UNITS, dout, nullptr, 1.0f);
    }

    // Two sums over units, whose numbers lanes have as `unit` says, in every thread where weights are an image of the state.
    __device__ __forceinline__ void weights_along(u32 parity, u32 first, float (&along)[2]) {
        if constexpr (RETENTION == LQ) {
            // Lanes with the same unit have the same number: each counts once.
            // Sums are the same in every thread behind the barrier.
            const bool counts = threadIdx.x % (32 / UNITS) == 0;
            float sums[2] = {counts ? along[0] : 0.0f, counts ? along[1] : 0.0f};
            const float sum = lane_sums<2>(sums);
            places.template tell_numbers<2>(parity, first, sum);
            places.meet();
            along[0] = places.sum(parity, PART_ROWS, first), along[1] = places.sum(parity, PART_ROWS, first + 1);
        }
    }

    // The gradient x y + x′ y′ of a matrix's weights joins that of its state: x and x′ rows by unit in shared memory, x′ may be
    // absent. `image` is the state, f its factor, `along` what `weights_along` gave.
    __device__ __forceinline__ void add_outer(u32 m, float* image, float f, float along, const float (&y)[E], const float* x,
                                              const float (&more_y)[E], const float* more_x, float keep) {
        if constexpr (RETENTION == KL) {
            // The slope of an exponential is itself.
            I::each(image, m, [&](u32 u, u32 i, float w) {
                // What the weight gets, then what its logarithm gets of it.
                float dw = x[u] * y[i];
                if (more_x) dw += more_x[u] * more_y[i];
                d.x[m][u][i] = keep * d.x[m][u][i] + w * dw;
            });
        } else if constexpr (RETENTION == LQ) {
            // (54): own slope 3 x² f, and what all share.
            I::each(image, m, [&](u32 u, u32 i, float w) {
                float dw = x[u] * y[i];
                if (more_x) dw += more_x[u] * more_y[i];
                // States of (54) are the numbers themselves.
                const float square = w * w;
                d.x[m][u][i] = keep * d.x[m][u][i] + (3.0f * square * f * dw - 2.0f * f * along * (f * square * w));
            });
        } else {
#pragma unroll
            for (u32 first = 0; first < UNITS; first += 4) {
                // Rows of four units at once.
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

    // ⟨D, X⟩ of two matrices from the first one on, this thread's part. Logarithms are counted from those of equal shares: where
    // columns of D sum to 0 that changes nothing, and less is rounded.
    __device__ __forceinline__ float inner(u32 first, float* from) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            const float more = RETENTION == KL ? logf((float)(m ? o.hidden : WIDTH)) : 0.0f;
            I::each(from, m, [&](u32 u, u32 i, float w) { sum += d.x[first + m][u][i] * (w + more); });
        }
        return sum;
    }

    // A sequence begins: anchors of its head are at `to`, zero gradients after them.
    __device__ __forceinline__ void open_anchors(u32 head, float* to) {
        anchor = anchor_image<E, UNITS, BLOCKS>(call, head, to);
        danchor = to + pair();
        if (!anchor) return;
        each_four<E, UNITS, BLOCKS>(danchor, [](float4* sums, u32, const u32(&)[4]) { *sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f); });
    }
    // It ends: their gradients by sequence.
    __device__ __forceinline__ void store_anchors(u64 index) const {
        if (!anchor) return;
        each_four<E, UNITS, BLOCKS>(danchor, [&](float4* sums, u32 m, const u32(&at)[4]) {
            // In the order of the anchor itself.
            float* to = call.danchor[m] + index * call.sizes[m];
            to[at[0]] = sums->x, to[at[1]] = sums->y, to[at[2]] = sums->z, to[at[3]] = sums->w;
        });
    }
    // Back through X' = B + a (X − B): adds to the gradients of B and returns ⟨D, X − B⟩, this thread's part. X lies at `from`;
    // `add_outer` is what multiplies D by a.
    __device__ __forceinline__ float go_back_vjp(float log_a, float* from) const {
        // 1 - a of the logarithm: next to 1 the difference itself is rounding.
        const float rest = -expm1f(log_a);
        float sum = 0.0f, *anchor = made_here(this->anchor), *danchor = made_here(this->danchor);
#pragma unroll
        for (u32 m = 0; m < 2; m++)
#pragma unroll
            for (u32 n = 0; n < I::FOURS; n++) {
                // Four elements of each, which no other thread has.
                const float4 x = *I::four(from, m, n), to = *I::four(anchor, m, n);
                float4* sums = I::four(danchor, m, n);
                const float away[4] = {x.x - to.x, x.y - to.y, x.z - to.z, x.w - to.w};
                float own[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    own[j] = d.x[m][(4 * n + j) / E][(4 * n + j) % E];
                    sum += own[j] * away[j];
                }
                // What this thread has added up so far.
                const float4 old = *sums;
                *sums = make_float4(old.x + rest * own[0], old.y + rest * own[1], old.z + rest * own[2], old.w + rest * own[3]);
            }
        return sum;
    }

    // Back through the sum to which columns are set: dX −= P ∘ (column sums of dX), with P in `after`. One barrier.
    __device__ __forceinline__ void normalise_vjp(u32 parity) {
        const u32 lane = threadIdx.x % 32;
        float sums[UNITS], totals[E] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            sums[u] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < E; i++) sums[u] += d.x[0][u][i], totals[i] += d.x[1][u][i];
        }
        // Exponentials count `scale` times, so shares are these over it.
        const float sum = lane_sums<UNITS>(sums), inverse = 1.0f / o.scale;
        places.tell(parity, 2, totals);
        // Its rows were read until here.
        places.meet();
        places.own[unit()] = sum * inverse;
        __syncwarp();
        read_row(sums, places.own);
#pragma unroll
        for (u32 i = 0; i < E; i++) totals[i] = inverse * places.sum(parity, 2, lane + 32 * i);
        I::each(after, 0, [&](u32 u, u32 i, float w) { d.x[0][u][i] -= w * sums[u]; });
        I::each(after, 1, [&](u32 u, u32 i, float w) { d.x[1][u][i] -= w * totals[i]; });
    }

    // What X gets of P, S got too: the gradient of P is the sum of both.
    __device__ __forceinline__ void add_to_momentum() {
#pragma unroll
        for (u32 m = 0; m < 2; m++)
#pragma unroll
            for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                for (u32 i = 0; i < E; i++) d.x[2 + m][u][i] += d.x[m][u][i];
    }
    // From the gradient of P to that of S before the token.
    __device__ __forceinline__ void carry_momentum(float eta) {
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) d.x[2][u][i] *= eta, d.x[3][u][i] *= eta;
    }
    // k D₀ and D₁ u_o, whose numbers by unit lie over the lanes one after another.
    __device__ __forceinline__ float along_units(const float (&k)[E], const float (&u_o)[E]) const {
        float sums[2 * UNITS] = {};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++)
#pragma unroll
            for (u32 i = 0; i < E; i++) {
                // Both layers at once, so that exchanges among lanes overlap.
                sums[u] += k[i] * d.x[SOURCE][u][i];
                sums[UNITS + u] += u_o[i] * d.x[SOURCE + 1][u][i];
            }
        return lane_sums<2 * UNITS>(sums);
    }
    // out += W x of a matrix before the token, with a row of numbers by unit.
    __device__ __forceinline__ void add_before(u32 m, const float* row, float (&out)[E]) const {
        float x[UNITS];
        read_row(x, row);
        // The factor of an image is common to all its elements.
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) x[u] *= before_factors[m];
        add_units<E, UNITS, RETENTION>(before, m, x, out);
    }
    // The warp's part of a key's gradient, and the value's, which is minus that of the error.
    __device__ __forceinline__ void leave_rows(float (&dk)[E], const float (&derror)[E], u64 at, u32 parity) {
        const bool first = places.is_leader() && threadIdx.x < 32;
#pragma unroll
        for (u32 i = 0; i < E; i++) {
            const u32 column = threadIdx.x % 32 + 32 * i;
            // A residual's gradient is in all warps: the first one adds it.
            if (o.residual && first) dk[i] += derror[i];
            if (first) ::store(call.dv, at * WIDTH + column, -derror[i]);
        }
        places.tell(parity, 2, dk);
    }

    // One token back: equations (41)–(46), (56)–(59). `images` is where the state before the token before it lies, null where
    // that is in another interval; `key_row` is the row of the token after it, whose gradient of the key has come, or NONE.
    static constexpr u64 NONE = ~0ull;
    // Takes gradients of the state from after a token to before it, and sends or stores those of the token's arguments.
    __device__ __forceinline__ void token(const Row& row, const ExactRecord& record, float read_pre, const float (&dout)[E], u64 at,
                                          u64 key_row, u32 parity, float* images) {
        const u32 lane = threadIdx.x % 32, n = unit();
        // Gates of this token.
        const float a = expf(row.log_a), eta = MOMENTUM ? expf(row.log_eta) : 0.0f, theta = row.theta;
        // Asked for early: what the forward left.
        const float pre = record.pre[hidden_unit()], back = record.back[hidden_unit()];
        float e[E], u_o[E];
#pragma unroll
        for (u32 i = 0; i < E; i++) e[i] = record.error[lane + 32 * i];
        if (o.read_after) read_vjp(read_pre, after, after_factors, row.q, dout, parity);
        if constexpr (RETENTION == KL) {
            normalise_vjp(parity);
            // Part 2 is told twice a token: where it has been read before the next barrier, it is free behind that.
            store_key(key_row, parity ^ 1);
        }
        // Its place is free for the weights before the token before.
        if (images) copy_weights(after, images);

        const Curve curve = activation(o.activation, pre);
        float* own = places.own + 2 * UNITS;
        // Rows 2 and 3 of `own`: h and δ.
        own[n] = curve.value;
        own[UNITS + n] = back * curve.slope;
        const float shrink = own_inner_grad<BIAS>(o, e, row.delta, u_o);
        // Gradients of the gates, this thread's part, and that of P.
        float gates[GATE_SUMS] = {};
        float* old = RETENTION == KL ? other : before;
        gates[0] = anchor ? go_back_vjp(row.log_a, old) : inner(0, old);
        if constexpr (MOMENTUM) {
            add_to_momentum();
            gates[1] = inner(2, other);
        }
        if (images) copy_others(images);
        // δ̄ and h̄ without −θ.
        own[2 * UNITS + lane * UNITS / 16] = along_units(row.k, u_o);
        __syncwarp();
        const float ddelta = own[2 * UNITS + n], dh = own[3 * UNITS + n];
        // ⟨D, xᵀ y⟩ of both layers: once a unit.
        if (lane % (32 / UNITS) == 0) gates[2] = -(back * curve.slope * ddelta + curve.value * dh);
        const float gate_sum = lane_sums<GATE_SUMS>(gates);
        places.template tell_numbers<GATE_SUMS>(parity, 0, gate_sum);
        // p̄ and b̄; row 4 from there.
        // Equation (42): what δ = b ∘ σ′ gives to the pre-activation, and what h gives.
        float dpre = -theta * (back * curve.second * ddelta + dh * curve.slope);
        own[4 * UNITS + n] = -theta * ddelta * curve.slope;
        __syncwarp();
        float dk[E] = {}, du[E] = {};
        add_rows(own + UNITS, d.x[SOURCE], dk);
        add_rows(own, d.x[SOURCE + 1], du);
#pragma unroll
        for (u32 i = 0; i < E; i++) dk[i] *= -theta, du[i] *= -theta;
        // b = W1 u_o gives to u_o.
        add_before(1, own + 4 * UNITS, du);
        places.tell(parity, 0, du);
        places.meet();
        if constexpr (RETENTION != KL) store_key(key_row, parity ^ 1);

        // From the gradient of u to that of the error.
#pragma unroll
        for (u32 i = 0; i < E; i++) du[i] = places.sum(parity, 0, lane + 32 * i);
        const float ddelta_gate = own_inner_grad_vjp<BIAS>(o, e, row.delta, u_o, shrink, du);
        // The prediction's gradient goes to the hidden layer at the key.
        const float dout_h = before_factors[1] * by_unit<E, UNITS, RETENTION>(before, 1, du);
        dpre += dout_h * curve.slope;
        own[5 * UNITS + n] = dpre;
        __syncwarp();
        add_before(0, own + 5 * UNITS, dk);
        // ⟨W̄, W⟩ again, then both gradients of the weights.
        float along[2] = {dpre * pre, own[4 * UNITS + n] * back + curve.value * dout_h};
        weights_along(parity, GATE_SUMS + 2, along);
        add_outer(0, before, before_factors[0], along[0], row.k, own + 5 * UNITS, row.k, nullptr, a);
        add_outer(1, before, before_factors[1], along[1], u_o, own + 4 * UNITS, du, own, a);
        if constexpr (MOMENTUM) carry_momentum(eta);
        leave_rows(dk, du, at, parity);
        if (BIAS == HUBER && places.is_leader() && threadIdx.x == 0) call.dgates[MOMENTUM ? 3 : 2][at] = ddelta_gate;
        store_gates(row, at, parity);
    }

    // Those of the weights before a token.
    __device__ __forceinline__ void take_factors(const ExactRecord& record) {
#pragma unroll
        for (u32 m = 0; m < 2; m++) before_factors[m] = RETENTION == LQ ? record.factors[m] : 1.0f;
    }

    // Gradients of the gates that are sums over the block, each by one thread.
    __device__ __forceinline__ void store_gates(const Row& row, u64 at, u32 parity) const {
        // A thread has a gate.
        const u32 which = threadIdx.x;
        if (!places.is_leader() || which >= (MOMENTUM ? 3 : 2)) return;
        // The sum of θ comes third, and without momentum second.
        const bool step = which == (MOMENTUM ? 2 : 1);
        const float sum = places.sum(parity, PART_ROWS, step ? 2 : which);
        call.dgates[which][at] = step ? sum : sum * expf(which ? row.log_eta : row.log_a);
    }

    // The gradient of a query, with what a residual adds, or of a key, once its parts are there and a barrier.
    __device__ __forceinline__ void store_query(u64 row, u32 parity) const {
        if (!places.is_leader() || threadIdx.x >= WIDTH) return;
        // Sums over warps, each by the thread of its column.
        const u64 at = row * WIDTH + threadIdx.x;
        ::store(call.dq, at, places.sum(parity, 1, threadIdx.x) + (o.residual ? load(call.dout, at) : 0.0f));
    }
    // Stores dk [WIDTH] of the token at `row`, the sum over warps of what they sent.
    __device__ __forceinline__ void store_key(u64 row, u32 parity) const {
        if (row == NONE || !places.is_leader() || threadIdx.x >= WIDTH) return;
        ::store(call.dk, row * WIDTH + threadIdx.x, places.sum(parity, 2, threadIdx.x));
    }
};

// All sequences and heads backward, interval by interval from the last.
template <u32 E, u32 UNITS, u32 BLOCKS, int BIAS, int RETENTION, bool MOMENTUM>
__device__ __forceinline__ void exact_backward(const Options& o, const RecurrentCall& call, float* near) {
    using Reverse = ExactReverse<E, UNITS, BLOCKS, BIAS, RETENTION, MOMENTUM>;
    // Places in shared memory are the same for all sequences.
    Reverse back(call, o, near);
    // Images of an interval's states, and gradients while registers hold states; then records.
    const u64 size = Reverse::image();
    float* images = call.workspace + blockIdx.x * call.workspace_each;
    float* gradients = images + KEPT_EVERY * size;
    // Anchors and their gradients, of both layers, where there are any.
    float* anchors = gradients + call.state / BLOCKS;
    float* records = anchors + (call.anchor_slots ? 2 * Reverse::pair() : 0);
    for (u64 index = blockIdx.x / BLOCKS; index < (u64)call.sequences * call.heads; index += gridDim.x / BLOCKS) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        back.open_anchors(sequence.head, anchors);
        back.d.load(call, call.dlast, index);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            // Forward through the interval first: registers hold states meanwhile.
            const u32 start = intervals.start(interval), end = intervals.end(interval);
            Reverse::for_matrices([&](u32 m) { Image<E, UNITS>::store(gradients, m, back.d.x[m]); });
            back.replay(sequence, start, end, sequence.kept + (u64)interval * call.state, images, records);
            Reverse::for_matrices([&](u32 m) { Image<E, UNITS>::load(gradients, m, back.d.x[m]); });
            // The last token's states; a thread copies what it wrote itself.
            Reverse::copy_weights(back.before, images + (end - 1 - start) * size);
            back.copy_others(images + (end - 1 - start) * size);
            typename Reverse::Asked next;
            typename Reverse::Row row;
            AskedRow<E> next_dout;
            float dout[E];
            // Of the lane's unit at the query, asked for a token ahead too.
            auto read_pre_at = [&](u32 t) {
                return ExactRecord(records, Reverse::units(), Reverse::WIDTH, t - start).read_pre[Reverse::hidden_unit()];
            };
            float next_read_pre = read_pre_at(end - 1);
            next.ask(call, sequence.row(call, end - 1)), next_dout.ask(call.dout, sequence.row(call, end - 1));
            for (u32 t = end; t-- > start;) {
                const u64 at = sequence.row(call, t);
                next.read(call, row), next_dout.read(call.dout, dout);
                if (t > start) next.ask(call, sequence.row(call, t - 1)), next_dout.ask(call.dout, sequence.row(call, t - 1));
                // What this thread copied during the last token.
                copies_wait<0>();
                const ExactRecord record(records, Reverse::units(), Reverse::WIDTH, t - start);
                back.take_factors(record);
                const float read_pre = next_read_pre;
                if (t > start) next_read_pre = read_pre_at(t - 1);
                const u64 key_row = t + 1 < end ? sequence.row(call, t + 1) : Reverse::NONE;
                back.token(row, record, read_pre, dout, at, key_row, t % 2, t > start ? images + (t - 1 - start) * size : nullptr);
                if (!o.read_after) {
                    // A read before the write comes last.
                    back.read_vjp(read_pre, back.before, back.before_factors, row.q, dout, t % 2);
                    // Of (54) the read's products with weights were told behind all parts, and all have met for these.
                    if constexpr (RETENTION != LQ) back.places.meet();
                }
                back.store_query(at, t % 2);
                // Weights before this token are those after the one before.
                float* free = back.before;
                back.before = back.after;
                back.after = free;
                back.after_factors[0] = back.before_factors[0], back.after_factors[1] = back.before_factors[1];
            }
            back.places.meet();
            back.store_key(sequence.row(call, start), start % 2);
            // Parts are free again.
            back.places.meet();
        }
        back.d.store(call, call.dinitial, index);
        back.store_anchors(index);
    }
}
