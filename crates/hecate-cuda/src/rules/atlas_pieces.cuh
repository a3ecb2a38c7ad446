// Frozen Atlas by pieces of a group, forward: arrays of a piece, errors of its windows, momenta, updates and memories.
#pragma once
#include "newton_schulz_groups.cuh"
#include "pieces.cuh"

// Places of X for every step, and sums over windows in registers, bound both of these.
// Tokens of a window, and steps of Newton-Schulz, at most.
#define WINDOW 4
#define STEPS 5
// Tokens whose matrices are on their way from global memory at once.
#define AHEAD 3

// The state is `M [64,64]`, `S [64,64]`, keys `[c−1,64]`, values `[c−1,64]`.
struct AtlasPieces {
    static constexpr u32 TOKENS = 8, COUNT = SIDE * SIDE, WARPS = SQUARE_THREADS / 32;
    static constexpr bool NEAR_ADJOINT = false, APART = true;
    // Rows of windows for each thread that has a column of some.
    static constexpr u32 EACH_ROWS = (TOKENS + WINDOW - 1 + SQUARE_THREADS / SIDE - 1) / (SQUARE_THREADS / SIDE);
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
    // Returns the rows of a piece's windows: the buffers', then the tokens'.
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

        // Takes the arrays of a forward from shared memory.
        __device__ Forward(const AtlasPieces& cell, Near& near, u32 places = 4, u32 of_group = 3)
            : k(near, cell.rows(), SIDE), v(near, cell.rows(), SIDE), e(near, cell.rows(), SIDE),
              read(near.take(TOKENS * 4 * SIDE)), factors{(u16*)near.take(factor_room(places, of_group))} {}

        // Its copy in a function that is called.
        __device__ __forceinline__ Forward near() const {
            Forward own = *this;
            own.k = k.near(), own.v = v.near(), own.e = e.near(), own.read = in_shared(read);
            return own;
        }

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

    // The row of windows that is `back` before that of token `t`, and its weight: behind other gates. Shorter windows take the
    // token's own row by zero for those that they have not: without a branch all are read at once.
    __device__ __forceinline__ static u32 row_of(u32 t, u32 back, u32 window) {
        return window - 1 + t - (back < window ? back : 0);
    }
    // Returns the gate that weighs the row `back` before token t; 0 beyond the window.
    __device__ __forceinline__ static float weight(const Piece& piece, u32 t, u32 back, u32 window) {
        return back < window ? piece.gates.row(t)[3 + back] : 0.0f;
    }

    // Calls `f` with rows `i` of windows and a column, a column for each thread.
    template <class F> __device__ __forceinline__ void each_row(u32 count, F f) const {
#pragma unroll
        for (u32 n = 0; n < EACH_ROWS; n++) {
            const u32 i = threadIdx.x / SIDE + n * SQUARE_THREADS / SIDE;
            if (i < count) f(n, i);
        }
    }

    // Rows of windows, and (80). All threads call it, as every function here.
    __device__ __noinline__ void begin(const Piece& all, const float* point, const float* old, const Forward& arrays) const {
        const Piece piece = all.near();
        const Forward room = arrays.near();
        point = in_shared(point);
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
        // A thread has one column and every fourth row: it reads a column of the point once for all of them.
        const u32 j = threadIdx.x % SIDE;
        float sums[EACH_ROWS] = {};
#pragma unroll 4
        for (u32 r = 0; r < SIDE; r += 4) {
            const float* own = point + r * SIDE + j;
            const float column[4] = {own[0], own[SIDE], own[2 * SIDE], own[3 * SIDE]};
            // Rows past the last are read too, and left out below: there is memory behind them.
#pragma unroll
            for (u32 n = 0; n < EACH_ROWS; n++) {
                const float4 k = *(const float4*)(room.k.row(threadIdx.x / SIDE + n * SQUARE_THREADS / SIDE) + r);
                sums[n] += (k.x * column[0] + k.y * column[1]) + (k.z * column[2] + k.w * column[3]);
            }
        }
        each_row(count, [&](u32 n, u32 i) { room.e.row(i)[j] = room.v.row(i)[j] - sums[n]; });
        __syncthreads();
    }

    // A warp's row among those of warps, and its column.
    __device__ static u32 warp_row() { return threadIdx.x / 32 % 4; }
    // Returns the warp's column, of two.
    __device__ static u32 warp_column() { return threadIdx.x / 128; }

    // A matrix by token in global memory, as tiles.
    __device__ static void keep(float* to, u32 number, const Square& from) { from.store_tiles(to + number * COUNT); }
    // Loads the matrix [64,64] of token `number`, as `keep` stored it.
    __device__ static Square kept(const float* from, u32 number) {
        Square result;
        result.load_tiles(from + number * COUNT);
        return result;
    }
    // Matrices of tokens on their way to shared memory. A thread brings what it reads itself, so that no barrier is needed.
    struct Coming {
        float* places;

        // Of token `t`; its place is free again AHEAD tokens later.
        __device__ __forceinline__ float* place(u32 t) const { return places + t % AHEAD * COUNT; }
        // Starts this thread's copies of the matrix [64,64] of token t.
        __device__ __forceinline__ void start(const float* from, u32 t) const {
#pragma unroll
            for (u32 n = 0; n < 4; n++) copy_16(place(t) + Square::tile(n), from + t * COUNT + Square::tile(n), true);
        }
        // After the wait for it.
        __device__ __forceinline__ Square take(u32 t) const {
            Square own;
            own.load_tiles(place(t));
            return own;
        }
    };
    // Calls `start` ahead with each token, in order or back from the last, and `f` when what it started is there.
    template <bool BACK, class Start, class F>
    __device__ __forceinline__ static void each_ahead(const Piece& piece, Start start, F f) {
        auto begin = [&](u32 n) {
            if (n < piece.tokens) start(BACK ? piece.tokens - 1 - n : n);
            // Also where there is none: the wait counts groups.
            copies_commit();
        };
        // Its own place is read before a copy to it starts.
        for (u32 n = 0; n < AHEAD; n++) begin(n);
        for (u32 n = 0; n < piece.tokens; n++) {
            copies_wait<AHEAD - 1>();
            f(BACK ? piece.tokens - 1 - n : n);
            begin(n + AHEAD);
        }
    }

    // Where a cluster leaves updates (0), and what these give to the momentum (1). Pieces take turns: a block may be one ahead.
    __device__ static float* exchanged(const Piece& piece, u32 which) {
        return piece.shared + (piece.number % 2 * 2 + which) * TOKENS * COUNT;
    }

    // (81): momenta after tokens from that before, those of this block's tokens or of ALL to `to`; the last to `last_one`.
    template <bool ALL>
    __device__ __noinline__ void momenta(
        const Piece& all, const float* before, float* to, float* last_one, const Forward& arrays
    ) const {
        const Piece piece = all.near();
        const Forward room = arrays.near();
        // Read once: arguments lie far from functions that are called.
        const u32 window = this->window;
        Square s;
        s.load(before);
        for (u32 t = 0; t < piece.tokens; t++) {
            // One rank a row of the window; its own row is the last.
            s.scale(expf(piece.gates.row(t)[1]));
#pragma unroll
            for (u32 back = 0; back < WINDOW; back++) {
                const u32 i = row_of(t, back, window);
                s.add_outer(weight(piece, t, back, window), room.k.row(i), room.e.row(i));
            }
            if (ALL || piece.owns(t)) keep(to, t, s);
        }
        if (last_one) s.store(last_one);
    }

    // (82): memories from updates, and what tokens read; the last goes to `last_one`.
    __device__ __noinline__ void memories(
        const Piece& all, const float* old, float* last_one, const Forward& arrays, bool outputs
    ) const {
        const Piece piece = all.near();
        const Forward room = arrays.near();
        const bool after = this->after;
        const float* updates = exchanged(piece, 0);
        Square m;
        m.load(old);
        // Factors are not needed any more.
        const Coming coming = {in_shared((float*)room.factors.at)};
        each_ahead<false>(piece, [&](u32 t) { coming.start(updates, t); }, [&](u32 t) {
            float* read = room.read + (t * 4 + warp_row()) * SIDE;
            const bool reads = outputs && piece.owns(t);
            if (reads && !after) m.down(piece.q.row(t), read);
            m.add(expf(piece.gates.row(t)[0]), piece.gates.row(t)[2], coming.take(t));
            if (reads && after) m.down(piece.q.row(t), read);
        });
        m.store(last_one);
    }

    // Takes the state through a piece: momenta, their Newton-Schulz updates, then each token's write and read in order.
    __device__ void forward(
        const Piece& piece, const float* point, const float* old, float* next, const Forward& room, bool outputs
    ) const {
        begin(piece, point, old, room);
        float *updates = exchanged(piece, 0), *own = exchanged(piece, 1), inverse;
        // Momenta are made by all blocks, and the update of each token by one.
        momenta<false>(piece, old + COUNT, own, next + COUNT, room);
        __syncthreads();
        if constexpr (GROUPS_MULTIPLY) {
            const NewtonSchulzGroups orthogonal = newton_schulz_group(room, 3);
            each_of_group(piece, [&](u32 t) {
                orthogonal.forward<false>(own + t * COUNT, inverse).store_tiles(updates + t * COUNT);
            });
        } else {
            const NewtonSchulzHalves orthogonal = newton_schulz(room.factors, 2);
            for (u32 t = piece.cluster.rank; t < piece.tokens; t += piece.cluster.count)
                keep(updates, t, orthogonal.forward(kept(own, t), inverse));
        }
        // From here on the updates of all blocks are seen.
        piece.cluster.meet();
        memories(piece, old, next, room, outputs);
        finish(piece, next, room, outputs);
    }

    // Buffers, and what tokens read.
    __device__ __noinline__ void finish(const Piece& all, float* next, const Forward& arrays, bool outputs) const {
        const Piece piece = all.near();
        const Forward room = arrays.near();
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
};
