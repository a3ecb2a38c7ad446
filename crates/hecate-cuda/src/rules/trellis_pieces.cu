// Slots for keys and for values, frozen, by pieces of a group: equations (70) to (79).
//
// Between the writes of a piece both memories are linear in what they find. Their predictions, and their inner gradients,
// depends on the gradient point alone: it is made for all tokens at once. The states after all tokens are then one sweep in
// which a thread has its own elements, and all reads of them are independent again.
#include "phi.cuh"
#include "pieces.cuh"

// The state is `S_K [m,K]`, then `S_V [m,V]`.
struct TrellisPieces {
    // A sequence's states after so many tokens fit shared memory at the sizes that are timed.
    static constexpr u32 TOKENS = 16;
    static constexpr bool NEAR_ADJOINT = true;
    static constexpr bool APART = false;
    static constexpr u32 SHARED = 0;

    // φ, m, K, V.
    u32 kind, slots, key, value;
    float epsilon;

    // Returns the elements of a state: memories [m,K] and [m,V].
    __device__ u32 size() const { return slots * (key + value); }
    // Returns the elements of a gradient point: the whole state.
    __device__ u32 point() const { return size(); }

    // φ at these sizes: half a warp has a row where that is lanes enough for the slots. Rows that a block has at once.
    __device__ Phi phi() const { return {kind, slots, slots <= 16 ? 16u : 32u, epsilon}; }
    // Returns how many rows [m] a block works on at once.
    __device__ u32 places() const { return MOST_THREADS / phi().lanes; }

    // Arrays of a forward. Those that have three or two of something have keys, values, query.
    struct Forward {
        // By token: what retains, and −θ u of both memories [2,tokens,m].
        float *decay, *steps;
        // Predictions of the memories [3,tokens,m]; points of φ and workspaces.
        float *predictions, *spare;
        // ρ [tokens,m]; the states after all tokens.
        float* read;
        Panel trace;

        // Takes the arrays of a forward from shared memory.
        __device__ Forward(const TrellisPieces& cell, Near& near)
            : decay(near.take(2 * TOKENS)), steps(near.take(2 * TOKENS * cell.slots)),
              predictions(near.take(3 * TOKENS * cell.slots)),
              spare(near.take(cell.places() * (POINT_ROWS + WORKSPACE_ROWS) * cell.slots)),
              read(near.take(TOKENS * cell.slots)), trace(near, TOKENS, cell.size()) {}
    };

    // Rows `[tokens,m]` of keys (0), values (1) or query (2), and the row of a token.
    __device__ float* row(float* of, u32 which, u32 t) const { return of + (which * TOKENS + t) * slots; }

    // Hands every token of keys, values, query, up to `of` of these, to `body(which, t, places)`, by the lanes of φ. Tokens
    // beyond the last have rows too, that nobody looks at: all lanes of a warp go the same way.
    template <class Body> __device__ __forceinline__ void each_row(u32 of, const Forward& room, Body body) const {
        const u32 own = threadIdx.x / phi().lanes;
        float* place = room.spare + own * (POINT_ROWS + WORKSPACE_ROWS) * slots;
        for (u32 r = own; r < of * TOKENS; r += places()) body(r / TOKENS, r % TOKENS, place);
        __syncthreads();
    }

    // out = ⟨slot, x⟩ for all slots of both memories, by token. Slots of a memory begin at `keys` or `values`, and `apart` further
    // for every token: 0 where all tokens ask the same ones.
    __device__ void predict(
        const Piece& piece, float* out, const float* keys, Panel k, const float* values, Panel v, u32 apart
    ) const {
        // Neighbouring threads have neighbouring tokens, and one slot.
        EACH(at, 2 * slots * TOKENS) {
            u32 t = at % TOKENS, i = at / TOKENS, side = i >= slots;
            if (t >= piece.tokens) continue;
            i -= side * slots;
            const float* s = side ? values + i * value : keys + i * key;
            row(out, side, t)[i] = thread_dot(s + t * apart, (side ? v : k).row(t), side ? value : key);
        }
        __syncthreads();
    }

    // Predictions of both memories of `point` for a piece's keys and values, and their inner gradients: (72).
    __device__ void inner_grads(const Piece& piece, const float* point, const Forward& room) const {
        // Tokens beyond the last change nothing.
        EACH(t, TOKENS) {
            float log_a = t < piece.tokens ? piece.gates.row(t)[0] : 0.0f;
            // 1 − a of the logarithm: next to 1 the difference itself is rounding.
            room.decay[t] = expf(log_a), room.decay[TOKENS + t] = -expm1f(log_a);
        }
        predict(piece, room.predictions, point, piece.k, point + slots * key, piece.v, 0);
        each_row(2, room, [&](u32 side, u32 t, float* places) {
            float theta = piece.gates.row(t)[1], *step = row(room.steps, side, t);
            // The point's rows are not wanted any more once `u` is there.
            phi().inner_grad(phi().at(row(room.predictions, side, t), places), piece.gates.row(t) + 2, step);
            LANES_OF(phi().lanes, i, slots) step[i] *= -theta;
        });
    }

    // Two slots of one memory and two columns of them, which one thread takes through a piece.
    struct Tile {
        // 1 for values; the memory's width, the first slot and the first column.
        u32 side, width, slot, column;
        // Where they lie in a state, and whether they are there.
        u32 at[2][2];
        bool has[2][2];
    };
    // Half of the warps have the keys' memory, the others the values'.
    template <class Body> __device__ __forceinline__ void tiles(Body body) const {
        // A warp has two neighbouring slots; lanes have columns 32 apart, so that they read neighbours.
        constexpr u32 HALF = MOST_THREADS / 64;
        u32 warp = threadIdx.x / 32, side = warp / HALF, width = side ? value : key;
        for (u32 slot = warp % HALF * 2; slot < slots; slot += 2 * HALF) {
            for (u32 column = threadIdx.x % 32; column < width; column += 64) {
                Tile tile = {side, width, slot, column};
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    // Slots may be odd in number, and widths no multiple of 64.
                    u32 i = slot + n / 2, j = column + n % 2 * 32;
                    tile.has[n / 2][n % 2] = i < slots && j < width;
                    tile.at[n / 2][n % 2] = (side ? slots * key : 0) + i * width + j;
                }
                body(tile);
            }
        }
    }
    // Products of four tokens' `by [slot]` and `x [column]` for a tile, zero beyond the last token.
    __device__ __forceinline__ void outer(
        const Piece& piece, const Tile& tile, const float* by, Panel x, u32 first, float (&out)[4][2][2]
    ) const {
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            u32 t = first + n;
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                // What lies beyond is not even read: it may be no number.
                bool has = tile.has[c / 2][c % 2] && t < piece.tokens;
                float own = has ? by[t * slots + tile.slot + c / 2] : 0.0f;
                out[n][c / 2][c % 2] = has ? own * x.row(t)[tile.column + c % 2 * 32] : 0.0f;
            }
        }
    }

    // What a tile goes back to as it forgets: the anchor, or zero.
    __device__ __forceinline__ void find_anchor(const Piece& piece, const Tile& tile, float (&to)[2][2]) const {
        const float* from = piece.anchor(tile.side);
        const u32 begin = tile.side ? slots * key : 0;
#pragma unroll
        for (u32 c = 0; c < 4; c++) to[c / 2][c % 2] = from && tile.has[c / 2][c % 2] ? from[tile.at[c / 2][c % 2] - begin] : 0.0f;
    }

    // (75), (76): the states after all tokens, and where it is wanted, the last of them.
    __device__ void write(const Piece& piece, const float* old, float* next, const Forward& room) const {
        tiles([&](const Tile& tile) {
            float s[2][2], anchor[2][2];
            find_anchor(piece, tile, anchor);
#pragma unroll
            for (u32 c = 0; c < 4; c++) s[c / 2][c % 2] = tile.has[c / 2][c % 2] ? old[tile.at[c / 2][c % 2]] : 0.0f;
            // Four tokens are read before one is written.
            for (u32 t = 0; t < piece.tokens; t += 4) {
                float written[4][2][2];
                outer(piece, tile, row(room.steps, tile.side, 0), tile.side ? piece.v : piece.k, t, written);
                float4 decay = *(const float4*)(room.decay + t);
                float a[4] = {decay.x, decay.y, decay.z, decay.w};
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) {
                        // `B + a (S − B)`, then the write.
                        float& own = s[c / 2][c % 2];
                        own = a[n] * own + (1.0f - a[n]) * anchor[c / 2][c % 2] + written[n][c / 2][c % 2];
                        if (tile.has[c / 2][c % 2]) room.trace.row(t + n)[tile.at[c / 2][c % 2]] = own;
                    }
                }
            }
#pragma unroll
            for (u32 c = 0; c < 4; c++)
                if (next && tile.has[c / 2][c % 2]) next[tile.at[c / 2][c % 2]] = s[c / 2][c % 2];
        });
        __syncthreads();
    }

    // out = ⟨slot, x⟩ [tokens,m] of one memory, whose slots begin at `begin` of all states in the trace.
    __device__ void predict_after(const Piece& piece, float* out, u32 begin, Panel x, u32 width, const Forward& room) const {
        EACH(at, slots * TOKENS) {
            u32 t = at % TOKENS, i = at / TOKENS;
            if (t < piece.tokens) out[t * slots + i] = thread_dot(room.trace.row(t) + begin + i * width, x.row(t), width);
        }
        __syncthreads();
    }

    // ρ of (75) for all tokens.
    // Answers of the query stay for the backward.
    __device__ void find_read(const Piece& piece, const Forward& room) const {
        predict_after(piece, row(room.predictions, 2, 0), 0, piece.q, key, room);
        each_row(1, room, [&](u32, u32 t, float* places) {
            PhiPoint place = phi().at(row(room.predictions, 2, t), places);
            LANES_OF(phi().lanes, i, slots) room.read[t * slots + i] = place.f[i];
        });
    }

    // Sums over slots of `weights [m]` times rows of `slots [m,width]`, column `j`.
    __device__ __forceinline__ float weighed(const float* weights, const float* of, u32 width, u32 j) const {
        float sum = 0.0f;
#pragma unroll 4
        for (u32 i = 0; i < slots; i++) sum += weights[i] * of[i * width + j];
        return sum;
    }

    // Takes both memories through a piece and, if `outputs`, stores what the queries read.
    __device__ void forward(
        const Piece& piece, const float* point, const float* old, float* next, const Forward& room, bool outputs
    ) const {
        inner_grads(piece, point, room);
        write(piece, old, next, room);
        if (!outputs) return;
        find_read(piece, room);
        // A warp has a token, lanes its columns.
        ROWS(t, piece.tokens) LANES(j, value) {
            float y = weighed(room.read + t * slots, room.trace.row(t) + slots * key, value, j);
            store(piece.call.out, piece.row(t) * value + j, y);
        }
        __syncthreads();
    }

    // Arrays of a backward. The trace first holds states, then their gradients.
    struct Backward : Forward {
        // Gradients of predictions [3,tokens,m], what either memory asks of the code [2,tokens,m].
        float *dpredictions, *dcode;
        // ⟨dS, S⟩ by token and warp, the gradients of θ by memory and token.
        float *kept, *dtheta;

        // Takes the arrays of a backward from shared memory.
        __device__ Backward(const TrellisPieces& cell, Near& near)
            : Forward(cell, near), dpredictions(near.take(3 * TOKENS * cell.slots)),
              dcode(near.take(2 * TOKENS * cell.slots)), kept(near.take(TOKENS * MOST_THREADS / 32)),
              dtheta(near.take(2 * TOKENS)) {}
    };

    // Takes gradients back through a piece: to its arguments, to the state before it and to the gradient point.
    __device__ void backward(
        const Piece& piece, const float* point, const float* old, const Adjoint& adjoint, const Backward& room
    ) const {
        // Forward again, which leaves predictions, steps, what is read, and the states after all tokens.
        inner_grads(piece, point, room);
        write(piece, old, nullptr, room);
        find_read(piece, room);
        read_vjp(piece, room);
        states_vjp(piece, old, adjoint.state, room);
        codes_vjp(piece, room);
        writes_vjp(piece, point, adjoint.point, room);
        store_gates(piece, room);
        __syncthreads();
    }

    // (77) but for the states: the gradients of the query's prediction, and of the query.
    __device__ void read_vjp(const Piece& piece, const Backward& room) const {
        predict_after(piece, row(room.dpredictions, 2, 0), slots * key, piece.dout, value, room);
        each_row(1, room, [&](u32, u32 t, float* places) {
            phi().pullback(phi().at(row(room.predictions, 2, t), places), row(room.dpredictions, 2, t));
        });
        ROWS(t, piece.tokens) LANES(j, key)
            store(piece.call.dq, piece.row(t) * key + j, weighed(row(room.dpredictions, 2, t), room.trace.row(t), key, j));
        __syncthreads();
    }

    // dS of (77) to (79) after all tokens, each with its own read, in place of the states; and ⟨dS, S⟩ of (78).
    __device__ void states_vjp(const Piece& piece, const float* old, float* dstate, const Backward& room) const {
        // ⟨dS, S⟩ of this thread's elements, a number a token.
        float kept[TOKENS] = {};
        tiles([&](const Tile& tile) {
            float d[2][2], anchor[2][2], danchor[2][2] = {};
            find_anchor(piece, tile, anchor);
#pragma unroll
            for (u32 c = 0; c < 4; c++) d[c / 2][c % 2] = tile.has[c / 2][c % 2] ? dstate[tile.at[c / 2][c % 2]] : 0.0f;
#pragma unroll
            for (u32 first = TOKENS; first > 0;) {
                first -= 4;
                if (first < piece.tokens) four_states_vjp(piece, tile, first, old, anchor, d, danchor, kept, room);
            }
#pragma unroll
            for (u32 c = 0; c < 4; c++)
                if (tile.has[c / 2][c % 2]) dstate[tile.at[c / 2][c % 2]] = d[c / 2][c % 2];
            // Blocks have a sequence each: nobody else adds to it.
            float* to = piece.danchor(tile.side);
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                u32 at = tile.at[c / 2][c % 2] - (tile.side ? slots * key : 0);
                if (to && tile.has[c / 2][c % 2]) to[at] += danchor[c / 2][c % 2];
            }
        });
        // Lanes 2 t have the sums over their warp.
        float sum = warp_sums(kept);
        u32 lane = threadIdx.x % 32;
        if (lane % 2 == 0) room.kept[lane / 2 * (MOST_THREADS / 32) + threadIdx.x / 32] = sum;
        __syncthreads();
    }

    // The same of four tokens and a tile. All is read before anything is written.
    __device__ __forceinline__ void four_states_vjp(
        const Piece& piece, const Tile& tile, u32 first, const float* old, const float (&anchor)[2][2], float (&d)[2][2],
        float (&danchor)[2][2], float (&kept)[TOKENS], const Backward& room
    ) const {
        float read[4][2][2], before[4][2][2];
        outer(piece, tile, tile.side ? room.read : row(room.dpredictions, 2, 0), tile.side ? piece.dout : piece.q, first, read);
        float4 decay = *(const float4*)(room.decay + first);
        float4 loss = *(const float4*)(room.decay + TOKENS + first);
        float a[4] = {decay.x, decay.y, decay.z, decay.w}, lost[4] = {loss.x, loss.y, loss.z, loss.w};
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            // Before the first token is the state that the piece found.
            const float* from = first + n ? room.trace.row(first + n - 1) : old;
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                bool has = tile.has[c / 2][c % 2] && first + n < piece.tokens;
                before[n][c / 2][c % 2] = has ? from[tile.at[c / 2][c % 2]] : 0.0f;
            }
        }
#pragma unroll
        for (u32 n = 4; n-- > 0;) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                // Complete for the state after the token; then what its write found.
                float& own = d[c / 2][c % 2];
                own += read[n][c / 2][c % 2];
                kept[first + n] += own * (before[n][c / 2][c % 2] - anchor[c / 2][c % 2]);
                danchor[c / 2][c % 2] += lost[n] * own;
                if (tile.has[c / 2][c % 2]) room.trace.row(first + n)[tile.at[c / 2][c % 2]] = own;
                own *= a[n];
            }
        }
    }

    // (78), (79) up to the gradients of both memories' predictions.
    __device__ void codes_vjp(const Piece& piece, const Backward& room) const {
        // The trace holds dS now.
        const float* keys = room.trace.at;
        predict(piece, room.dpredictions, keys, piece.k, keys + slots * key, piece.v, room.trace.stride);
        each_row(2, room, [&](u32 side, u32 t, float* spare) {
            const float theta = piece.gates.row(t)[1], *code = piece.gates.row(t) + 2;
            float *own = row(room.dpredictions, side, t), *u = spare + POINT_ROWS * slots;
            PhiPoint place = phi().at(row(room.predictions, side, t), spare);
            phi().inner_grad(place, code, u);
            // Before the row is scaled by −θ.
            float dtheta = -phi().dot(u, own);
            if ((threadIdx.x & (phi().lanes - 1)) == 0) room.dtheta[side * TOKENS + t] = dtheta;
            LANES_OF(phi().lanes, i, slots) own[i] *= -theta;
            phi().second_derivative(place, code, own, row(room.dcode, side, t), u);
        });
    }

    // What is left of (78), (79): gradients of keys and values, and of the point.
    __device__ void writes_vjp(const Piece& piece, const float* point, float* dpoint, const Backward& room) const {
        // Keys and values: what the write gives, then what the prediction does.
        ROWS(r, 2 * piece.tokens) {
            u32 side = r >= piece.tokens, t = r - side * piece.tokens, width = side ? value : key, begin = side ? slots * key : 0;
            LANES(j, width) {
                float dx = weighed(row(room.steps, side, t), room.trace.row(t) + begin, width, j);
                dx += weighed(row(room.dpredictions, side, t), point + begin, width, j);
                store(side ? piece.call.dv : piece.call.dk, piece.row(t) * width + j, dx);
            }
        }
        tiles([&](const Tile& tile) {
            // `dzᵀ x` over the tokens.
            float sum[2][2] = {};
            for (u32 t = 0; t < piece.tokens; t += 4) {
                float inner[4][2][2];
                outer(piece, tile, row(room.dpredictions, tile.side, 0), tile.side ? piece.v : piece.k, t, inner);
#pragma unroll
                for (u32 n = 0; n < 16; n++) sum[n % 4 / 2][n % 2] += inner[n / 4][n % 4 / 2][n % 2];
            }
#pragma unroll
            for (u32 c = 0; c < 4; c++)
                if (tile.has[c / 2][c % 2]) dpoint[tile.at[c / 2][c % 2]] += sum[c / 2][c % 2];
        });
    }

    // Gradients of gates: `log a`, `θ`, the code, which both memories ask for.
    __device__ void store_gates(const Piece& piece, const Backward& room) const {
        EACH(t, piece.tokens) {
            // Warps in order: the same bits every time.
            float da = 0.0f;
            for (u32 warp = 0; warp < MOST_THREADS / 32; warp++) da += room.kept[t * (MOST_THREADS / 32) + warp];
            piece.call.dgates[0][piece.row(t)] = room.decay[t] * da;
            piece.call.dgates[1][piece.row(t)] = room.dtheta[t] + room.dtheta[TOKENS + t];
        }
        EACH(at, piece.tokens * slots) {
            u32 t = at / slots, i = at % slots;
            float sum = row(room.dcode, 0, t)[i] + row(room.dcode, 1, t)[i];
            piece.call.dgates[2][piece.row(t) * slots + i] = sum;
        }
    }
};

// One block a multiprocessor: its arrays fill shared memory. A thread may have 128 registers.
// With half as many threads each would have twice the work between two barriers.
#define ALONE MOST_THREADS, 1

// `trellis.rs`: what the launch hands over.
struct TrellisCall {
    RecurrentCall call;
    TrellisPieces cell;
};

// A block has one sequence and head at a time; so has the backward.
KERNEL(trellis_pieces_forward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_pieces(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(trellis_pieces_backward, TrellisCall, ALONE) {
    DYNAMIC_SHARED(float, near);
    run_pieces_backward(args.cell, args.call, near);
}
