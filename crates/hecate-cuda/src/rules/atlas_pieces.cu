// Frozen Atlas with Newton-Schulz by pieces of a group: equations (80) to (87), for matrices of 64 by 64.
//
// The errors of a window depend on the gradient point alone: they are made for all tokens of a piece at once. Momentum and
// memory then stay in registers from token to token, laid out as products on tensor cores leave their results.
//
// Phases are functions of their own, so that each has all registers: with all in one the kernel would spill. Products of
// groups are in the kernel itself, since the compiler waits for each of them by itself where calls stand between.
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
    __device__ static u32 warp_column() { return threadIdx.x / 128; }

    // A matrix by token in global memory, as tiles.
    __device__ static void keep(float* to, u32 number, const Square& from) { from.store_tiles(to + number * COUNT); }
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

    // Elements of sums of so many warps for all rows of windows.
    __device__ static constexpr u32 rows_of_sums(u32 warps) { return (TOKENS + WINDOW - 1) * warps * SIDE; }

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
              own_g((float*)factors.at), own_k(own_g + rows_of_sums(4)) {}

        // Its copy in a function that is called; `far` stays in global memory.
        __device__ __forceinline__ Backward near() const {
            Backward own = *this;
            (Forward&)own = Forward::near();
            own.g = g.near(), own.dv = dv.near(), own.dk = dk.near();
            own.dq = in_shared(dq), own.sums = in_shared(sums);
            own.own_g = in_shared(own_g), own.own_k = in_shared(own_k);
            return own;
        }
    };
    // Of a token: for a, θ, η, then weights.
    static constexpr u32 SUMS = 3 + WINDOW;

    // A thread's parts of a token's sums, from `first` on: a power of two of them, of which those that there are count.
    template <u32 N> __device__ __forceinline__ static void sum(const Backward& room, u32 t, u32 first, const float (&own)[N]) {
        const float total = warp_sums(own);
        // Neighbouring lanes have the same one.
        const u32 lane = threadIdx.x % 32, which = first + lane / (32 / N);
        if (lane % (32 / N) == 0 && which < SUMS) room.sums[(t * SUMS + which) * WARPS + threadIdx.x / 32] = total;
    }

    __device__ void backward(
        const Piece& piece, const float* point, const float* old, const Adjoint& adjoint, const Backward& room
    ) const {
        begin(piece, point, old, room);
        memory_vjp(piece, adjoint.state, room);
        updates_vjp(piece, old, room);
        reads_vjp(piece, old, room);
        // Their factors make room for sums.
        __syncthreads();
        momentum_vjp(piece, old, adjoint.state + COUNT, room);
        __syncthreads();
        rows_vjp(piece, point, adjoint, room);
        store_grads(piece, room);
        __syncthreads();
    }

    // dM of (85), (87) after every token, from what it is after the piece.
    __device__ __noinline__ void memory_vjp(const Piece& all, float* dmemory, const Backward& arrays) const {
        const Piece piece = all.near();
        const Backward room = arrays.near();
        const bool after = this->after;
        // Only reads give to it: it is there before any update is made again.
        Square d;
        d.load(dmemory);
        for (u32 t = piece.tokens; t-- > 0;) {
            if (after) d.add_outer(1.0f, piece.q.row(t), piece.dout.row(t));
            if (piece.owns(t)) keep(room.far, t, d);
            d.scale(expf(piece.gates.row(t)[0]));
            if (!after) d.add_outer(1.0f, piece.q.row(t), piece.dout.row(t));
        }
        d.store(dmemory);
    }

    // Forward again through the piece: updates, and what every one gives to its momentum (85), each by one block.
    __device__ __forceinline__ void updates_vjp(const Piece& piece, const float* old, const Backward& room) const {
        float *updates = exchanged(piece, 0), *backs = exchanged(piece, 1), inverse;
        momenta<true>(piece, old + COUNT, room.far + TOKENS * COUNT, nullptr, room);
        // Groups take tokens apart, now that momenta of all are there.
        __syncthreads();
        if constexpr (GROUPS_MULTIPLY) {
            const NewtonSchulzGroups orthogonal = newton_schulz_group(room, 4);
            each_of_group(piece, [&](u32 t) {
                const float* own = room.far + (TOKENS + t) * COUNT;
                orthogonal.forward<true>(own, inverse).store_tiles(updates + t * COUNT);
                // `dU = θ dM`.
                GroupSquare d;
                d.load_tiles(room.far + t * COUNT);
                d.scale(piece.gates.row(t)[2]);
                orthogonal.backward(own, inverse, d);
                d.store_tiles(backs + t * COUNT);
            });
        } else {
            const NewtonSchulzHalves orthogonal = newton_schulz(room.factors, STEPS);
            for (u32 t = piece.cluster.rank; t < piece.tokens; t += piece.cluster.count) {
                const Square s = kept(room.far, TOKENS + t);
                keep(updates, t, orthogonal.forward(s, inverse));
                Square d = kept(room.far, t);
                d.scale(piece.gates.row(t)[2]);
                keep(backs, t, orthogonal.backward(s, inverse, d));
            }
        }
        piece.cluster.meet();
    }

    // Gradients of q, a and θ, from updates and what their memories got.
    __device__ __noinline__ void reads_vjp(const Piece& all, const float* old, const Backward& arrays) const {
        const Piece piece = all.near();
        const Backward room = arrays.near();
        const bool after = this->after;
        const float* updates = exchanged(piece, 0);
        Square m;
        m.load(old);
        // Factors are not needed any more.
        const Coming coming = {in_shared((float*)room.factors.at)}, coming_d = {coming.places + AHEAD * COUNT};
        auto start = [&](u32 t) {
            coming.start(updates, t);
            if (piece.owns(t)) coming_d.start(room.far, t);
        };
        each_ahead<false>(piece, start, [&](u32 t) {
            const Square update = coming.take(t);
            float* dq = room.dq + (t * 2 + warp_column()) * SIDE;
            const bool owned = piece.owns(t);
            if (owned) {
                // With the memory before the token, and its update.
                const Square d = coming_d.take(t);
                sum(room, t, 0, {d.dot(m), d.dot(update)});
                if (!after) m.along(piece.dout.row(t), dq);
            }
            m.add(expf(piece.gates.row(t)[0]), piece.gates.row(t)[2], update);
            if (owned && after) m.along(piece.dout.row(t), dq);
        });
    }

    // dS of (85), (87) in reverse, and what it gives to η, to weights and, summed over the windows of a row, to rows (86).
    __device__ __noinline__ void momentum_vjp(const Piece& all, const float* old, float* dmomentum, const Backward& arrays) const {
        const Piece piece = all.near();
        const Backward room = arrays.near();
        const u32 window = this->window;
        // Of the last rows of windows, sums of dS by their weights in all windows that have them.
        Square d, rows[WINDOW] = {};
        d.load(dmomentum);
        const float* backs = exchanged(piece, 1);
        // After the sums there are places of factors.
        const Coming coming = {room.own_k + rows_of_sums(2)}, momenta = {coming.places + AHEAD * COUNT};
        Square first;
        first.load(old + COUNT);
        // Sums of a token's gates are made by the block that writes them; the momentum before it is that after the last.
        auto start = [&](u32 t) {
            coming.start(backs, t);
            if (t && piece.owns(t)) momenta.start(room.far + (TOKENS - 1) * COUNT, t);
        };
        each_ahead<true>(piece, start, [&](u32 t) {
            d.add(1.0f, 1.0f, coming.take(t));
            const bool owned = piece.owns(t);
            // For η, then for weights; the warp adds up all at once.
            float sums[8] = {};
            if (owned) sums[0] = d.dot(t ? momenta.take(t) : first);
            // Number `back` is of the row so far before the token's own.
#pragma unroll
            for (u32 back = 0; back < WINDOW; back++) {
                const u32 i = row_of(t, back, window);
                rows[back].add(1.0f, weight(piece, t, back, window), d);
                // `k dS eᵀ`, as ⟨dS, kᵀ e⟩.
                if (owned) sums[1 + back] = d.dot_outer(room.k.row(i), room.e.row(i));
            }
            if (owned) sum(room, t, 2, sums);
            // No earlier window has the token's own row.
            row_sums(row_of(t, 0, window), rows[0], room);
#pragma unroll
            for (u32 back = 0; back + 1 < WINDOW; back++) rows[back] = rows[back + 1];
            rows[WINDOW - 1] = Square{};
            d.scale(expf(piece.gates.row(t)[1]));
        });
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
    __device__ __noinline__ void rows_vjp(
        const Piece& all, const float* point, const Adjoint& adjoint, const Backward& arrays
    ) const {
        const Piece piece = all.near();
        const Backward room = arrays.near();
        point = in_shared(point);
        // On its way while sums are made.
        Square dpoint;
        dpoint.load(adjoint.point);
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
        // A thread has one row of the point for all of its rows of windows.
        const u32 r = threadIdx.x % SIDE;
        float of_point[EACH_ROWS] = {};
#pragma unroll 4
        for (u32 step = 0; step < SIDE; step += 4) {
            // Each lane begins elsewhere in its row: all would read from the same banks.
            const u32 j = (step + 4 * r) % SIDE;
            const float4 own = *(const float4*)(point + r * SIDE + j);
#pragma unroll
            for (u32 n = 0; n < EACH_ROWS; n++) {
                const float4 g = *(const float4*)(room.g.row(threadIdx.x / SIDE + n * SQUARE_THREADS / SIDE) + j);
                of_point[n] += (own.x * g.x + own.y * g.y) + (own.z * g.z + own.w * g.w);
            }
        }
        each_row(count, [&](u32 n, u32 i) {
            const float* own = room.own_k + i * 2 * SIDE + r;
            room.dk.row(i)[r] = own[0] + own[SIDE] - of_point[n] + later(dkeys, i, r);
        });
        // `−kᵀ g` over all rows.
        Square inner = {};
        for (u32 i = 0; i < count; i++) inner.add_outer(-1.0f, room.k.row(i), room.g.row(i));
        dpoint.add(1.0f, 1.0f, inner);
        dpoint.store(adjoint.point);
        __syncthreads();
        ROWS(i, last()) LANES(j, SIDE) dkeys[i * SIDE + j] = room.dk.row(i)[j], dvalues[i * SIDE + j] = room.dv.row(i)[j];
    }

    // Gradients of a piece's arguments.
    __device__ __noinline__ void store_grads(const Piece& all, const Backward& arrays) const {
        const Piece piece = all.near();
        const Backward room = arrays.near();
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
