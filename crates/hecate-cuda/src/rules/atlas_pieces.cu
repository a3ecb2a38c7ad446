// Frozen Atlas with Newton-Schulz by pieces of a group: equations (80) to (87), for matrices of 64 by 64.
//
// The errors of a window depend on the gradient point alone: they are made for all tokens of a piece at once. Momentum and
// memory then stay in registers from token to token, laid out as products on tensor cores leave their results.
#include "newton_schulz_groups.cuh"
#include "pieces.cuh"

// Places of X for every step, and sums over windows in registers, bound both of these.
// Tokens of a window, and steps of Newton-Schulz, at most.
#define WINDOW 4
#define STEPS 5

// The state is `M [64,64]`, `S [64,64]`, keys `[c−1,64]`, values `[c−1,64]`.
struct AtlasPieces {
    static constexpr u32 TOKENS = 8, COUNT = SIDE * SIDE, WARPS = SQUARE_THREADS / 32;
    static constexpr bool NEAR_ADJOINT = false;
    // Updates and what these give to the momentum, by token, of two pieces in turn.
    static constexpr u32 SHARED = 4 * TOKENS * COUNT;

    // c, whether a token reads after its own write, K, V.
    u32 window, after, key, value;
    // `(α, β, κ)` and ε² of Newton-Schulz, and its steps.
    float alpha, beta, kappa, epsilon;
    u32 steps;

    // The memory alone is one.
    __device__ u32 point() const { return COUNT; }
    // Tokens of the buffers, and rows of a piece's windows: those of the buffers, then the tokens.
    __device__ u32 last() const { return window - 1; }
    __device__ u32 rows() const { return TOKENS + last(); }

    // Arrays of a forward.
    struct Forward {
        // Rows of windows: keys, values, errors.
        Panel k, v, e;
        // Sums of warps for what tokens read [tokens,4,64].
        float* read;
        // Places of factors: of the block, X of two steps or of all, A, B; or of each group, X of two steps, A.
        Halves factors;
        // In global memory, of a backward: by token dM, then S after it; then what groups keep.
        float* far = nullptr;

        __device__ Forward(const AtlasPieces& cell, Near& near, u32 places = 4, u32 of_group = 3)
            : k(near, cell.rows(), SIDE), v(near, cell.rows(), SIDE), e(near, cell.rows(), SIDE),
              read(near.take(TOKENS * 4 * SIDE)), factors{(u16*)near.take(factor_room(places, of_group))} {}

        // A group's places begin at a multiple of 1 KiB.
        static __device__ u32 factor_room(u32 places, u32 of_group) {
            return GROUPS_MULTIPLY ? SQUARE_GROUPS * of_group * PLACE / 2 + 256 : places * Halves::SIZE;
        }
    };

    // Newton-Schulz with `kept` places of X.
    __device__ NewtonSchulzHalves newton_schulz(Halves factors, u32 kept) const {
        auto place = [&](u32 number) { return Halves{factors.at + number * 2 * Halves::SIZE}; };
        return {steps, alpha, beta, kappa, epsilon, factors, place(kept), place(kept + 1), place(kept + 2), place(kept + 3), kept};
    }

    // The same of this thread's group, with `places` for it.
    __device__ NewtonSchulzGroups newton_schulz_group(const Forward& room, u32 places) const {
        // The same for all lanes, and known to be.
        const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);
        u16* own = (u16*)(((u64)room.factors.at + 1023) / 1024 * 1024) + group * places * PLACE;
        uint4* kept = (uint4*)(room.far + (2 * TOKENS + group * STEPS) * COUNT);
        return {steps, alpha, beta, kappa, epsilon, own, own + PLACE, own + 2 * PLACE, own + 3 * PLACE, kept};
    }
    // Calls `f` with each of the tokens of this thread's group, which no other group of a cluster has.
    template <class F> __device__ static void each_of_group(const Piece& piece, F f) {
        const u32 count = piece.cluster.count;
        for (u32 t = piece.cluster.rank + threadIdx.x / GROUP_THREADS * count; t < piece.tokens; t += SQUARE_GROUPS * count) f(t);
    }

    // Weight of the row of windows that is `back` before that of token `t`; other gates come first.
    __device__ float weight(const Piece& piece, u32 t, u32 back) const { return piece.gates.row(t)[3 + back]; }

    // Rows of windows, and (80). All threads call it, as every function here.
    __device__ __noinline__ void begin(const Piece& piece, const float* point, const float* old, const Forward& room) const {
        // Buffers lie behind both matrices, oldest row first.
        const float *keys = old + 2 * COUNT, *values = keys + last() * SIDE;
        const u32 count = last() + piece.tokens;
        ROWS(i, count) LANES(j, SIDE) {
            bool buffered = i < last();
            room.k.row(i)[j] = buffered ? keys[i * SIDE + j] : piece.k.row(i - last())[j];
            room.v.row(i)[j] = buffered ? values[i * SIDE + j] : piece.v.row(i - last())[j];
        }
        __syncthreads();
        // Rows of a window that are older than the group see its gradient point as well.
        ROWS(i, count) LANES(j, SIDE) {
            float sum = room.v.row(i)[j];
#pragma unroll 8
            for (u32 r = 0; r < SIDE; r++) sum -= room.k.row(i)[r] * point[r * SIDE + j];
            room.e.row(i)[j] = sum;
        }
        __syncthreads();
    }

    // (81)
    __device__ __forceinline__ void learn(const Piece& piece, u32 t, Square& s, const Forward& room) const {
        // One rank a row of the window; its own row is the last.
        s.scale(expf(piece.gates.row(t)[1]));
        for (u32 back = 0; back < window; back++) {
            u32 i = last() + t - back;
            s.add_outer(weight(piece, t, back), room.k.row(i), room.e.row(i));
        }
    }

    // A warp's row among those of warps, and its column.
    __device__ static u32 warp_row() { return threadIdx.x / 32 % 4; }
    __device__ static u32 warp_column() { return threadIdx.x / 128; }

    // A matrix by token in global memory.
    __device__ static void keep(float* to, u32 number, const Square& from) { from.store(to + number * COUNT); }
    __device__ static Square kept(const float* from, u32 number) {
        Square result;
        result.load(from + number * COUNT);
        return result;
    }
    // Where a cluster leaves updates (0), and what these give to the momentum (1). Pieces take turns: a block may be one ahead.
    __device__ static float* exchanged(const Piece& piece, u32 which) {
        return piece.shared + (piece.number % 2 * 2 + which) * TOKENS * COUNT;
    }

    __device__ void forward(
        const Piece& piece, const float* point, const float* old, float* next, const Forward& room, bool outputs
    ) const {
        begin(piece, point, old, room);
        float *updates = exchanged(piece, 0), *momenta = exchanged(piece, 1), inverse;
        Square m, s;
        s.load(old + COUNT);
        // Momenta are made by all blocks, and the update of each token by one.
        if constexpr (GROUPS_MULTIPLY) {
            for (u32 t = 0; t < piece.tokens; t++) {
                learn(piece, t, s, room);
                if (piece.owns(t)) keep(momenta, t, s);
            }
            __syncthreads();
            const NewtonSchulzGroups orthogonal = newton_schulz_group(room, 3);
            each_of_group(piece, [&](u32 t) {
                orthogonal.forward<false>(momenta + t * COUNT, inverse).store(updates + t * COUNT);
            });
        } else {
            const NewtonSchulzHalves orthogonal = newton_schulz(room.factors, 2);
            for (u32 t = 0; t < piece.tokens; t++) {
                learn(piece, t, s, room);
                if (piece.owns(t)) keep(updates, t, orthogonal.forward(s, inverse));
            }
        }
        m.load(old);
        // From here on the updates of all blocks are seen.
        piece.cluster.meet();
        Square coming = kept(updates, 0);
        for (u32 t = 0; t < piece.tokens; t++) {
            float* read = room.read + (t * 4 + warp_row()) * SIDE;
            const Square update = coming;
            // On its way while this token's is worked on.
            if (t + 1 < piece.tokens) coming = kept(updates, t + 1);
            const bool reads = outputs && piece.owns(t);
            if (reads && !after) m.down(piece.q.row(t), read);
            m.add(expf(piece.gates.row(t)[0]), piece.gates.row(t)[2], update);
            if (reads && after) m.down(piece.q.row(t), read);
        }
        m.store(next), s.store(next + COUNT);
        shift(piece, next, room);
        __syncthreads();
        if (!outputs) return;
        ROWS(t, piece.tokens) {
            if (!piece.owns(t)) continue;
            // Four rows of warps have added up their own rows.
            LANES(j, SIDE) {
                const float* read = room.read + t * 4 * SIDE + j;
                float y = read[0] + read[SIDE] + read[2 * SIDE] + read[3 * SIDE];
                store(piece.call.out, piece.row(t) * SIDE + j, y);
            }
        }
        __syncthreads();
    }

    // The last rows of windows become the buffers.
    __device__ void shift(const Piece& piece, float* next, const Forward& room) const {
        float *keys = next + 2 * COUNT, *values = keys + last() * SIDE;
        ROWS(i, last()) LANES(j, SIDE) {
            keys[i * SIDE + j] = room.k.row(piece.tokens + i)[j];
            values[i * SIDE + j] = room.v.row(piece.tokens + i)[j];
        }
    }

    // Arrays of a backward.
    struct Backward : Forward {
        // Rows of windows: their gradients before the weights, of values and of keys.
        Panel g, dv, dk;
        // Sums of warps: for dq [tokens,2,64]; by token, for a, θ, η and weights.
        float *dq, *sums;
        // By row of windows and warp, where factors are not needed any more: g [rows,4,64], `e dSᵀ` [rows,2,64].
        float *own_g, *own_k;

        __device__ Backward(const AtlasPieces& cell, Near& near)
            : Forward(cell, near, STEPS + 4, 4), g(near, cell.rows(), SIDE), dv(near, cell.rows(), SIDE),
              dk(near, cell.rows(), SIDE), dq(near.take(TOKENS * 2 * SIDE)), sums(near.take(TOKENS * SUMS * WARPS)),
              own_g((float*)factors.at), own_k(own_g + cell.rows() * 4 * SIDE) {}
    };
    // Of a token: for a, θ, η, then weights.
    static constexpr u32 SUMS = 3 + WINDOW;

    // A thread's part of one of a token's sums.
    __device__ static void sum(const Backward& room, u32 t, u32 which, float own) {
        float total = warp_sum(own);
        if (first_lane()) room.sums[(t * SUMS + which) * WARPS + threadIdx.x / 32] = total;
    }

    __device__ void backward(
        const Piece& piece, const float* point, const float* old, const Adjoint& adjoint, const Backward& room
    ) const {
        begin(piece, point, old, room);
        memory_vjp(piece, adjoint.state, room);
        updates_vjp(piece, old, room);
        // Their factors make room for sums.
        __syncthreads();
        momentum_vjp(piece, old, adjoint.state + COUNT, room);
        __syncthreads();
        rows_vjp(piece, point, adjoint, room);
        store_grads(piece, room);
        __syncthreads();
    }

    // dM of (85), (87) after every token, from what it is after the piece.
    __device__ __noinline__ void memory_vjp(const Piece& piece, float* dmemory, const Backward& room) const {
        // Only reads give to it: it is there before any update is made again.
        Square d;
        d.load(dmemory);
        for (u32 t = piece.tokens; t-- > 0;) {
            if (after) d.add_outer(1.0f, piece.q.row(t), piece.dout.row(t));
            keep(room.far, t, d);
            d.scale(expf(piece.gates.row(t)[0]));
            if (!after) d.add_outer(1.0f, piece.q.row(t), piece.dout.row(t));
        }
        d.store(dmemory);
    }

    // Forward again through the piece: updates, and what every one gives to its momentum (85), each by one block. Then
    // gradients of q, a and θ.
    __device__ __noinline__ void updates_vjp(const Piece& piece, const float* old, const Backward& room) const {
        float *updates = exchanged(piece, 0), *backs = exchanged(piece, 1), inverse;
        Square m, s;
        s.load(old + COUNT);
        for (u32 t = 0; t < piece.tokens; t++) {
            learn(piece, t, s, room);
            keep(room.far, TOKENS + t, s);
            if (GROUPS_MULTIPLY || !piece.owns(t)) continue;
            const NewtonSchulzHalves orthogonal = newton_schulz(room.factors, STEPS);
            keep(updates, t, orthogonal.forward(s, inverse));
            // `dU = θ dM`.
            Square d = kept(room.far, t);
            d.scale(piece.gates.row(t)[2]);
            keep(backs, t, orthogonal.backward(s, inverse, d));
        }
        // Groups take tokens apart, now that momenta of all are there.
        if constexpr (GROUPS_MULTIPLY) {
            __syncthreads();
            const NewtonSchulzGroups orthogonal = newton_schulz_group(room, 4);
            each_of_group(piece, [&](u32 t) {
                const float* own = room.far + (TOKENS + t) * COUNT;
                orthogonal.forward<true>(own, inverse).store(updates + t * COUNT);
                GroupSquare d;
                d.load(room.far + t * COUNT);
                d.scale(piece.gates.row(t)[2]);
                orthogonal.backward(own, inverse, d);
                d.store(backs + t * COUNT);
            });
        }
        m.load(old);
        piece.cluster.meet();
        Square coming = kept(updates, 0), coming_d = kept(room.far, 0);
        for (u32 t = 0; t < piece.tokens; t++) {
            float* dq = room.dq + (t * 2 + warp_column()) * SIDE;
            const Square update = coming, d = coming_d;
            // On their way while this token's are worked on.
            if (t + 1 < piece.tokens) coming = kept(updates, t + 1), coming_d = kept(room.far, t + 1);
            const bool owned = piece.owns(t);
            // With the memory before the token, and its update.
            if (owned) sum(room, t, 0, d.dot(m)), sum(room, t, 1, d.dot(update));
            if (owned && !after) m.along(piece.dout.row(t), dq);
            m.add(expf(piece.gates.row(t)[0]), piece.gates.row(t)[2], update);
            if (owned && after) m.along(piece.dout.row(t), dq);
        }
    }

    // dS of (85), (87) in reverse, and what it gives to η, to weights and, summed over the windows of a row, to rows (86).
    __device__ __noinline__ void momentum_vjp(const Piece& piece, const float* old, float* dmomentum, const Backward& room) const {
        // Of the last rows of windows, sums of dS by their weights in all windows that have them.
        Square d, rows[WINDOW] = {};
        d.load(dmomentum);
        const float* backs = exchanged(piece, 1);
        Square coming = kept(backs, piece.tokens - 1);
        for (u32 t = piece.tokens; t-- > 0;) {
            d.add(1.0f, 1.0f, coming);
            if (t) coming = kept(backs, t - 1);
            // Sums of a token's gates are made by the block that writes them.
            const bool owned = piece.owns(t);
            if (owned) {
                Square before;
                before.load(t ? room.far + (TOKENS + t - 1) * COUNT : old + COUNT);
                sum(room, t, 2, d.dot(before));
            }
            // Number `back` is of the row so far before the token's own.
#pragma unroll
            for (u32 back = 0; back < WINDOW; back++) {
                if (back >= window) continue;
                u32 i = last() + t - back;
                rows[back].add(1.0f, weight(piece, t, back), d);
                if (!owned) continue;
                // `k dS eᵀ`, as ⟨dS, kᵀ e⟩.
                Square outer = {};
                outer.add_outer(1.0f, room.k.row(i), room.e.row(i));
                sum(room, t, 3 + back, d.dot(outer));
            }
            // No earlier window has the token's own row.
            row_sums(last() + t, rows[0], room);
#pragma unroll
            for (u32 back = 0; back + 1 < WINDOW; back++) rows[back] = rows[back + 1];
            rows[WINDOW - 1] = Square{};
            d.scale(expf(piece.gates.row(t)[1]));
        }
        d.store(dmomentum);
        // Rows of the buffers have windows in pieces before, too, which add to what is left here.
#pragma unroll
        for (u32 back = 0; back + 1 < WINDOW; back++) {
            if (back < last()) row_sums(last() - 1 - back, rows[back], room);
        }
    }

    // What all windows of row `i` give to it, `d` being their dS by weights: `k d`, and `e dᵀ`.
    __device__ __forceinline__ void row_sums(u32 i, const Square& d, const Backward& room) const {
        d.down(room.k.row(i), room.own_g + (i * 4 + warp_row()) * SIDE);
        d.along(room.e.row(i), room.own_k + (i * 2 + warp_column()) * SIDE);
    }

    // (86): gradients of rows of windows and of the point.
    __device__ __noinline__ void rows_vjp(const Piece& piece, const float* point, const Adjoint& adjoint, const Backward& room) const {
        const u32 count = last() + piece.tokens;
        float *dkeys = adjoint.state + 2 * COUNT, *dvalues = dkeys + last() * SIDE;
        // What comes from windows after the piece, of the rows that became their buffers.
        auto later = [&](const float* of, u32 i, u32 j) { return i < piece.tokens ? 0.0f : of[(i - piece.tokens) * SIDE + j]; };
        ROWS(i, count) LANES(j, SIDE) {
            const float* own = room.own_g + i * 4 * SIDE + j;
            float g = own[0] + own[SIDE] + own[2 * SIDE] + own[3 * SIDE];
            room.g.row(i)[j] = g;
            room.dv.row(i)[j] = g + later(dvalues, i, j);
        }
        __syncthreads();
        ROWS(i, count) LANES(r, SIDE) {
            const float* own = room.own_k + i * 2 * SIDE + r;
            float of_point = 0.0f;
#pragma unroll 4
            for (u32 step = 0; step < SIDE; step += 4) {
                // Each lane begins elsewhere in its row: all would read from the same banks.
                const u32 j = (step + 4 * r) % SIDE;
                of_point += thread_dot(point + r * SIDE + j, room.g.row(i) + j, 4);
            }
            room.dk.row(i)[r] = own[0] + own[SIDE] - of_point + later(dkeys, i, r);
        }
        // `−kᵀ g` over all rows.
        Square inner = {};
        for (u32 i = 0; i < count; i++) inner.add_outer(-1.0f, room.k.row(i), room.g.row(i));
        Square dpoint;
        dpoint.load(adjoint.point);
        dpoint.add(1.0f, 1.0f, inner);
        dpoint.store(adjoint.point);
        __syncthreads();
        ROWS(i, last()) LANES(j, SIDE) dkeys[i * SIDE + j] = room.dk.row(i)[j], dvalues[i * SIDE + j] = room.dv.row(i)[j];
    }

    // Gradients of a piece's arguments.
    __device__ __noinline__ void store_grads(const Piece& piece, const Backward& room) const {
        ROWS(t, piece.tokens) {
            if (!piece.owns(t)) continue;
            u64 row = piece.row(t);
            LANES(j, SIDE) {
                const float* dq = room.dq + t * 2 * SIDE + j;
                store(piece.call.dq, row * SIDE + j, dq[0] + dq[SIDE]);
                store(piece.call.dk, row * SIDE + j, room.dk.row(last() + t)[j]);
                store(piece.call.dv, row * SIDE + j, room.dv.row(last() + t)[j]);
            }
            // Sums over warps, in order; a lane has one of a token's gates.
            LANES(which, 3 + window) {
                float sum = 0.0f;
                for (u32 warp = 0; warp < WARPS; warp++) sum += room.sums[(t * SUMS + which) * WARPS + warp];
                const float* gates = piece.gates.row(t);
                if (which == 0) piece.call.dgates[0][row] = expf(gates[0]) * sum;
                else if (which == 1) piece.call.dgates[2][row] = sum;
                else if (which == 2) piece.call.dgates[1][row] = expf(gates[1]) * sum;
                else piece.call.dgates[3][row * window + which - 3] = sum;
            }
        }
    }
};

// One block a multiprocessor: its arrays fill shared memory.
// Two warps a scheduler: all registers are theirs.
#define ALONE SQUARE_THREADS, 1

// `atlas.rs`: what the launch hands over.
struct AtlasCall {
    RecurrentCall call;
    AtlasPieces cell;
};

// A block has one sequence and head at a time, or a cluster of two has.
#define RUN(declared, run) \
    declared { \
        DYNAMIC_SHARED(float, near); \
        run(args.cell, args.call, near); \
    }
RUN(KERNEL(atlas_pieces_forward_1, AtlasCall, ALONE), run_pieces)
RUN(KERNEL(atlas_pieces_backward_1, AtlasCall, ALONE), run_pieces_backward)
RUN(CLUSTER_KERNEL(atlas_pieces_forward_2, AtlasCall, SQUARE_THREADS, 2), run_pieces)
RUN(CLUSTER_KERNEL(atlas_pieces_backward_2, AtlasCall, SQUARE_THREADS, 2), run_pieces_backward)
