// Frozen Atlas by pieces of a group, backward: equations (85) to (87).
#pragma once
#include "atlas_pieces.cuh"

// The same memory, with the arrays of a backward beside those of a forward.
struct AtlasPiecesReverse : AtlasPieces {
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

        // Takes the arrays of a backward from shared memory.
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

    // Takes gradients back through a piece: to its arguments, to the state before it and to the gradient point.
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
