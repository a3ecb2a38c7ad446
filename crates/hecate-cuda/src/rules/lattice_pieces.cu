// Slots of unit norm, frozen, by pieces of a group: equations (60) to (69).
//
// What slots are to be written with depends on the gradient point alone: `h`, `b` and `g` are made for all tokens at once.
// Each slot then goes through the tokens of a piece by itself, in the registers of one warp. Reads are sums over slots.
#include "unit_slots.cuh"

enum { DECODE, SIMILARITY, ENCODE };

// MOST tokens of a piece: a backward keeps the slots after each of them, and has room for fewer. Slots of `32 COLUMNS`, which
// go back to an anchor as they forget, or to zero.
template <u32 MOST, u32 COLUMNS, bool ANCHORED> struct LatticePieces {
    static constexpr u32 TOKENS = MOST, value = 32 * COLUMNS;
    static constexpr bool NEAR_ADJOINT = true;
    static constexpr bool APART = false;
    static constexpr u32 SHARED = 0;

    // One of the enumeration; whether a token reads after its own write; K, and V again.
    u32 variant, after, key, width;
    // Least retention; how far the norm of an initial slot may be from 1.
    float floor, tolerance;

    // Returns the elements of a gradient point: the slots [K,V].
    __device__ u32 point() const { return key * value; }

    // `a` above its floor; NaN stays.
    __device__ float retention(const float* gates) const {
        float a = expf(gates[0]);
        return a <= floor ? floor : a;
    }

    // A slot whose norm is not 1 makes its sequence and head NaN, since the host does not look.
    __device__ void open(float* state) const {
        ROWS(i, key) {
            float* s = state + (u64)i * value;
            float norm = sqrtf(warp_dot(s, s, value));
            // NaN in a slot fails the comparison too, and stays NaN.
            if (fabsf(norm - 1.0f) <= tolerance) continue;
            LANES(j, value) s[j] = NOT_A_NUMBER;
        }
        __syncthreads();
    }

    // Arrays of a forward.
    // Rows of slots are read four at once, which is why slots are a multiple of four.
    struct Forward {
        float* decay;
        // h [tokens,V]; b and θ g [tokens,K].
        Panel h, b, written;
        // Sums over each warp's slots [warps,tokens,V].
        Panel partial;

        // Takes the arrays of a forward from shared memory.
        __device__ Forward(const LatticePieces& cell, Near& near)
            : decay(near.take(TOKENS)), h(near, TOKENS, cell.value), b(near, TOKENS, cell.key),
              written(near, TOKENS, cell.key), partial(near, MOST_THREADS / 32 * TOKENS, cell.value) {}
    };
    // Returns the row [V] of a warp's sums over its slots for token t.
    __device__ static float* part(const Forward& room, u32 warp, u32 t) { return room.partial.row(warp * TOKENS + t); }

    // (60) of all tokens.
    __device__ void inner_grads(const Piece& piece, const float* point, const Forward& room) const {
        // With an anchor there is no floor.
        EACH(t, piece.tokens) room.decay[t] = ANCHORED ? expf(piece.gates.row(t)[0]) : retention(piece.gates.row(t));
        ROWS(t, piece.tokens) LANES(j, value)
            room.h.row(t)[j] = piece.v.row(t)[j] - (variant == DECODE ? weighed(piece.k.row(t), point, j) : 0.0f);
        __syncthreads();
    }

    // Column `j` of the sum over slots [K,V] by these weights [K], four of which are read at once.
    __device__ __forceinline__ float weighed(const float* weights, const float* of, u32 j) const {
        float sum = 0.0f;
#pragma unroll 4
        for (u32 i = 0; i < key; i += SLOTS) {
            Four own(weights + i);
#pragma unroll
            for (u32 n = 0; n < SLOTS; n++) sum += own.x[n] * of[(i + n) * value + j];
        }
        return sum;
    }

    // out[t][i] = ⟨slot i, rows[t]⟩ for a warp's slots from `first` on and all tokens, four at a time.
    __device__ __forceinline__ void predict(const Piece& piece, u32 first, const Slots<COLUMNS>& s, Panel rows, Panel out) const {
        for (u32 start = 0; start < piece.tokens; start += 4) {
            // Sixteen sums in one reduction.
            float sums[4 * SLOTS];
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                // Beyond the last token are rows too, that nobody looks at.
                Lanes<COLUMNS> x;
                x.load(rows.row(start + n));
#pragma unroll
                for (u32 i = 0; i < SLOTS; i++) {
                    float sum = 0.0f;
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; c++) sum += s.x[i][c] * x.x[c];
                    sums[n * SLOTS + i] = sum;
                }
            }
            float sum = warp_sums(sums);
            u32 lane = threadIdx.x % 32, at = lane / 2;
            if (lane % 2 == 0) out.row(start + at / SLOTS)[first + at % SLOTS] = sum;
        }
        __syncwarp();
    }

    // (61) for a warp's slots.
    __device__ __forceinline__ void teach_slots(
        const Piece& piece, u32 first, const Slots<COLUMNS>& r, const Forward& room
    ) const {
        // b of (61) first; lanes then take a token and slot each.
        predict(piece, first, r, room.h, room.b);
        for (u32 at = threadIdx.x % 32; at < piece.tokens * SLOTS; at += 32) {
            u32 t = at / SLOTS, i = first + at % SLOTS;
            float k = piece.k.row(t)[i];
            room.written.row(t)[i] = piece.gates.row(t)[1] * (variant == ENCODE ? k - room.b.row(t)[i] : k);
        }
        __syncwarp();
    }

    // Sums of all warps' parts, column `j` of token `t`.
    __device__ __forceinline__ float over_warps(const Forward& room, u32 t, u32 j) const {
        float sum = 0.0f;
        // Warps without slots have left nothing.
        u32 warps = MOST_THREADS / 32, busy = (key + SLOTS - 1) / SLOTS;
        for (u32 warp = 0; warp < (busy < warps ? busy : warps); warp++) sum += part(room, warp, t)[j];
        return sum;
    }

    // What a token brings along for a warp's slots.
    struct Brought {
        Lanes<COLUMNS> h, dout;
        Four b, written, q, inverse;
        float decay;
    };
    // Loads what token t has for a warp's four slots from `first` on: h, b, θ g, q, and for a BACKWARD dout and 1/n.
    template <bool BACKWARD, class Room>
    __device__ __forceinline__ void bring(const Piece& piece, u32 t, u32 first, const Room& room, Brought& to) const {
        to.h.load(room.h.row(t));
        to.b = Four(room.b.row(t) + first), to.written = Four(room.written.row(t) + first), to.q = Four(piece.q.row(t) + first);
        to.decay = room.decay[t];
        if constexpr (BACKWARD) {
            to.dout.load(piece.dout.row(t));
            to.inverse = Four(room.inverse.row(t) + first);
        }
    }

    // Adds to a warp's part what a token reads of its slots `s` from `first` on.
    __device__ __forceinline__ void read_slots(
        u32 t, u32 first, const Brought& token, const Slots<COLUMNS>& s, const Forward& room
    ) const {
        // Over this warp's slots; others have theirs.
        Lanes<COLUMNS> y = {};
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) y.x[c] += token.q.x[i] * s.x[i][c];
        }
        y.add(part(room, threadIdx.x / 32, t), first < SLOTS * (MOST_THREADS / 32));
    }

    // (62), (63) of one token for a warp's slots; 1/n of each.
    __device__ __forceinline__ float write_slots(
        const Brought& token, Slots<COLUMNS>& s, const Slots<COLUMNS>& r, const Slots<COLUMNS>& anchor
    ) const {
        float squares[SLOTS];
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
            squares[i] = 0.0f;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                float own = token.decay * s.x[i][c];
                if constexpr (ANCHORED) own += (1.0f - token.decay) * anchor.x[i][c];
                s.x[i][c] = own + token.written.x[i] * (token.h.x[c] - token.b.x[i] * r.x[i][c]);
                squares[i] += s.x[i][c] * s.x[i][c];
            }
        }
        // (63): back to norm 1, by the lanes that have the sums.
        float own = rsqrtf(warp_sums(squares));
        Four inverse = Four::spread(own);
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) s.x[i][c] *= inverse.x[i];
        }
        return own;
    }

    // All slots through a piece. The next token's numbers are read before anything of this one is written.
    __device__ __forceinline__ void sweep(
        const Piece& piece, const float* point, const float* old, float* next, const Forward& room, bool outputs
    ) const {
        for (u32 first = threadIdx.x / 32 * SLOTS; first < key; first += MOST_THREADS / 32 * SLOTS) {
            Slots<COLUMNS> s, r, anchor;
            s.load(old + first * value);
            r.load(point + first * value);
            if constexpr (ANCHORED) anchor.load(piece.anchor(0) + first * value);
            // The inner gradient needs the slots of the point, which are in registers now.
            teach_slots(piece, first, r, room);
            Brought token, later;
            bring<false>(piece, 0, first, room, later);
            for (u32 t = 0; t < piece.tokens; t++) {
                token = later;
                if (t + 1 < piece.tokens) bring<false>(piece, t + 1, first, room, later);
                if (outputs && !after) read_slots(t, first, token, s, room);
                write_slots(token, s, r, anchor);
                if (outputs && after) read_slots(t, first, token, s, room);
            }
            s.store(next + first * value);
        }
        __syncthreads();
    }

    // Takes the slots through a piece and, if `outputs`, stores out[t] = Σ over slots of what token t reads.
    __device__ void forward(
        const Piece& piece, const float* point, const float* old, float* next, const Forward& room, bool outputs
    ) const {
        inner_grads(piece, point, room);
        sweep(piece, point, old, next, room, outputs);
        if (!outputs) return;
        ROWS(t, piece.tokens) LANES(j, value) store(piece.call.out, piece.row(t) * value + j, over_warps(room, t, j));
        __syncthreads();
    }

    // Arrays of a backward.
    // Beside them a warp has its slots, their gradients and those of the point in registers.
    struct Backward : Forward {
        // By token and slot: 1/n, U·dX, db; dh [tokens,V].
        Panel inverse, gained, db, dh;
        // By token and four slots, with an anchor: their part of the gradient of `log a`.
        Panel retained;
        // The slots after all tokens.
        Panel trace;

        // Takes the arrays of a backward from shared memory.
        __device__ Backward(const LatticePieces& cell, Near& near)
            : Forward(cell, near), inverse(near, TOKENS, cell.key), gained(near, TOKENS, cell.key),
              db(near, TOKENS, cell.key), dh(near, TOKENS, cell.value),
              retained(near, TOKENS, cell.key / SLOTS), trace(near, TOKENS, cell.key * cell.value) {}
    };

    // Takes gradients back through a piece: to its arguments, to the slots before it and to the gradient point.
    __device__ void backward(
        const Piece& piece, const float* point, const float* old, const Adjoint& adjoint, const Backward& room
    ) const {
        // Forward again and back, slot by slot; dh of (68) needs all of them.
        inner_grads(piece, point, room);
        sweep_back(piece, point, old, adjoint, room);
        // dh of (68), which is dv.
        EACH(at, TOKENS * value) {
            u32 t = at % TOKENS, j = at / TOKENS;
            if (t >= piece.tokens) continue;
            float dh = over_warps(room, t, j) + weighed(room.db.row(t), point, j);
            room.dh.row(t)[j] = dh;
            store(piece.call.dv, piece.row(t) * value + j, dh);
        }
        __syncthreads();
        point_vjp(piece, point, adjoint.point, room);
        store_gates(piece, room);
        __syncthreads();
    }

    // All slots through a piece and back. What a lane leaves of them in `trace` it takes itself.
    __device__ __forceinline__ void sweep_back(
        const Piece& piece, const float* point, const float* old, const Adjoint& adjoint, const Backward& room
    ) const {
        for (u32 first = threadIdx.x / 32 * SLOTS; first < key; first += MOST_THREADS / 32 * SLOTS) {
            const u32 from = first * value;
            Slots<COLUMNS> s, r, anchor, danchor;
            s.load(old + from);
            r.load(point + from);
            if constexpr (ANCHORED) anchor.load(piece.anchor(0) + from), danchor.load(piece.danchor(0) + from);
            teach_slots(piece, first, r, room);
            // Forward to the end of the piece, and back from there.
            through(piece, first, s, r, anchor, room);
            Slots<COLUMNS> ds, dr;
            ds.load(adjoint.state + from);
            dr.load(adjoint.point + from);
            for (u32 t = piece.tokens; t-- > 0;) {
                // All that is read comes before what is written.
                Brought token;
                bring<true>(piece, t, first, room, token);
                Slots<COLUMNS> before;
                if (t) before.load(room.trace.row(t - 1) + from);
                else before.load(old + from);
                float dq = 0.0f;
                if (after) dq = read_vjp(token, s, ds);
                slots_vjp(piece, t, first, token, s, r, ds, dr, room);
                if constexpr (ANCHORED) anchor_vjp(t, first, token.decay, piece.gates.row(t)[0], before, anchor, ds, danchor, room);
                s = before;
                // A read before the write comes last in reverse.
                if (!after) dq = read_vjp(token, s, ds);
                if (first_of_slot()) store(piece.call.dq, piece.row(t) * key + first + summed_slot(), dq);
            }
            ds.store(adjoint.state + from);
            dr.store(adjoint.point + from);
            if constexpr (ANCHORED) danchor.store(piece.danchor(0) + from);
        }
        __syncthreads();
    }

    // What a warp's slots give to the anchor, 1 - a of the logarithm since next to 1 the difference is rounding, and, with the slots before the token, to `log a`; `d` is `dX` until then.
    __device__ __forceinline__ void anchor_vjp(
        u32 t, u32 first, float decay, float log_a, const Slots<COLUMNS>& before, const Slots<COLUMNS>& anchor, Slots<COLUMNS>& d,
        Slots<COLUMNS>& danchor, const Backward& room
    ) const {
        // ⟨dX, s − b⟩ over all four slots: the gate is one for all.
        float sum = 0.0f, lost = -expm1f(log_a);
#pragma unroll
        for (u32 n = 0; n < SLOTS * COLUMNS; n++) {
            u32 i = n / COLUMNS, c = n % COLUMNS;
            sum += d.x[i][c] * (before.x[i][c] - anchor.x[i][c]);
            danchor.x[i][c] += lost * d.x[i][c];
            d.x[i][c] *= decay;
        }
        sum = warp_sum(sum);
        if (first_lane()) room.retained.row(t)[first / SLOTS] = decay * sum;
    }

    // Forward again through a piece, keeping 1/n and a warp's slots after all tokens.
    __device__ __forceinline__ void through(
        const Piece& piece, u32 first, Slots<COLUMNS>& s, const Slots<COLUMNS>& r, const Slots<COLUMNS>& anchor,
        const Backward& room
    ) const {
        Brought token, later;
        bring<false>(piece, 0, first, room, later);
        for (u32 t = 0; t < piece.tokens; t++) {
            token = later;
            if (t + 1 < piece.tokens) bring<false>(piece, t + 1, first, room, later);
            float inverse = write_slots(token, s, r, anchor);
            if (first_of_slot()) room.inverse.row(t)[first + summed_slot()] = inverse;
            s.store(room.trace.row(t) + first * value);
        }
        // Lanes read of `inverse` what others wrote.
        __syncwarp();
    }

    // (65) for a warp's slots: `ds += q dy`, and dq of the slot that this lane has sums of.
    __device__ __forceinline__ float read_vjp(const Brought& token, const Slots<COLUMNS>& s, Slots<COLUMNS>& ds) const {
        // The slots that were read, and the gradient of what was read.
        float dq[SLOTS];
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
            dq[i] = 0.0f;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                ds.x[i][c] += token.q.x[i] * token.dout.x[c];
                dq[i] += token.dout.x[c] * s.x[i][c];
            }
        }
        return warp_sums(dq);
    }

    // (66) to (68) for a warp's slots: from the gradient of those after the token to that of those before it.
    __device__ __forceinline__ void slots_vjp(
        const Piece& piece, u32 t, u32 first, const Brought& token, const Slots<COLUMNS>& s, const Slots<COLUMNS>& r,
        Slots<COLUMNS>& ds, Slots<COLUMNS>& dr, const Backward& room
    ) const {
        // Only the first sum is waited for before the slots go on.
        float sums[SLOTS], both[2 * SLOTS];
        Lanes<COLUMNS> dh = {};
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
            sums[i] = 0.0f;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) sums[i] += s.x[i][c] * ds.x[i][c];
        }
        // ⟨s′, ds⟩, which the norm takes away.
        Four along = Four::spread(warp_sums(sums));
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) {
            both[2 * i] = both[2 * i + 1] = 0.0f;
            float from_r = token.b.x[i] * token.written.x[i];
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                float dx = (ds.x[i][c] - along.x[i] * s.x[i][c]) * token.inverse.x[i];
                both[2 * i] += token.h.x[c] * dx;
                both[2 * i + 1] += r.x[i][c] * dx;
                // dU = θ g dX joins dh; what `b U` gives to the point.
                dh.x[c] += token.written.x[i] * dx;
                dr.x[i][c] -= from_r * dx;
                ds.x[i][c] = ANCHORED ? dx : token.decay * dx;
            }
        }
        dh.add(part(room, threadIdx.x / 32, t), first < SLOTS * (MOST_THREADS / 32));
        // Four lanes have h·dX, the next four r·dX: U·dX = h·dX − b r·dX, of the slot that this lane has sums of.
        float own = warp_sums(both), by_r = shuffle(own, threadIdx.x % 32 | 4);
        u32 i = first + summed_slot();
        if (first_of_slot()) {
            float gained = own - room.b.row(t)[i] * by_r;
            room.gained.row(t)[i] = gained;
            room.db.row(t)[i] = -room.written.row(t)[i] * by_r - (variant == ENCODE ? piece.gates.row(t)[1] * gained : 0.0f);
        }
    }

    // What is left of (67) to (69): gradients of keys and of the point.
    __device__ __forceinline__ void point_vjp(const Piece& piece, const float* point, float* dpoint, const Backward& room) const {
        for (u32 first = threadIdx.x / 32 * SLOTS; first < key; first += MOST_THREADS / 32 * SLOTS) {
            Slots<COLUMNS> r, dr;
            r.load(point + first * value);
            dr.load(dpoint + first * value);
            // The norms are no longer needed: r·dh comes in their place.
            if (variant == DECODE) predict(piece, first, r, room.dh, room.inverse);
            for (u32 t = 0; t < piece.tokens; t++) {
                // `db h`, and for DECODE `−k dh`.
                Lanes<COLUMNS> h, dh;
                h.load(room.h.row(t)), dh.load(room.dh.row(t));
                Four db(room.db.row(t) + first), k(piece.k.row(t) + first);
#pragma unroll
                for (u32 n = 0; n < SLOTS * COLUMNS; n++) {
                    u32 i = n / COLUMNS, c = n % COLUMNS;
                    dr.x[i][c] += db.x[i] * h.x[c] - (variant == DECODE ? k.x[i] * dh.x[c] : 0.0f);
                }
            }
            dr.store(dpoint + first * value);
            for (u32 at = threadIdx.x % 32; at < piece.tokens * SLOTS; at += 32) {
                u32 t = at / SLOTS, i = first + at % SLOTS;
                float dk = piece.gates.row(t)[1] * room.gained.row(t)[i];
                if (variant == DECODE) dk -= room.inverse.row(t)[i];
                store(piece.call.dk, piece.row(t) * key + i, dk);
            }
        }
    }

    // (67): only θ/a matters. At the floor a does not move, and NaN must not become 0.
    __device__ void store_gates(const Piece& piece, const Backward& room) const {
        ROWS(t, piece.tokens) {
            // g again, from the key.
            float a = room.decay[t], theta = piece.gates.row(t)[1], dtheta = 0.0f;
            LANES(i, key) {
                float k = piece.k.row(t)[i], g = variant == ENCODE ? k - room.b.row(t)[i] : k;
                dtheta += g * room.gained.row(t)[i];
            }
            dtheta = warp_sum(dtheta);
            float dlog_a = a > floor || a != a ? -theta * dtheta : 0.0f;
            if constexpr (ANCHORED) dlog_a = warp_total(room.retained.row(t), key / SLOTS);
            if (first_lane()) {
                piece.call.dgates[0][piece.row(t)] = dlog_a;
                piece.call.dgates[1][piece.row(t)] = dtheta;
            }
        }
    }
};

// One block a multiprocessor: its arrays fill shared memory.
// Registers are then what bounds a backward: 128 a thread.
#define ALONE MOST_THREADS, 1

// `lattice.rs`: what the launch hands over.
template <u32 MOST, u32 COLUMNS, bool ANCHORED> struct LatticeCall {
    RecurrentCall call;
    LatticePieces<MOST, COLUMNS, ANCHORED> cell;
};

// A block has one sequence and head at a time; so has the backward. Slots of 32 and of 64 elements.
#define KERNELS(width, kind, anchored) \
    typedef LatticeCall<16, width / 32, anchored> Forward##kind##width; \
    typedef LatticeCall<8, width / 32, anchored> Backward##kind##width; \
    KERNEL(lattice_pieces_forward_##kind##width, Forward##kind##width, ALONE) { \
        DYNAMIC_SHARED(float, near); \
        run_pieces(args.cell, args.call, near); \
    } \
    KERNEL(lattice_pieces_backward_##kind##width, Backward##kind##width, ALONE) { \
        DYNAMIC_SHARED(float, near); \
        run_pieces_backward(args.cell, args.call, near); \
    }
KERNELS(32, , false)
KERNELS(64, , false)
KERNELS(32, anchored_, true)
KERNELS(64, anchored_, true)
