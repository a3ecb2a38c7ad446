// The exact chunk form with bfloat16, forward: equations (19)-(22), from chunk to chunk, 16 columns to a pair of warps.
//
// One of a pair takes the memory through the chunk, (19), (21) and (22). The other follows a chunk later. It makes the
// outputs (20) of the memory before the chunk and of Z, which the first leaves as left factors. Producer warps read
// ahead for all. Outputs take Z as halves, since Y ∘ Q Kᵀ times its rounding would not cancel where they themselves do.
#pragma once
#include "chunk_bf16/columns.cuh"

// `forward::ForwardArguments` is its twin.
struct Bf16Forward {
    Linear p;
    // [kept,H,READY]
    const u8* ready;
    // [N,H,K,V]
    const float *m, *s;
    // [rows,H,V]
    u16* out;
    // [N,H,K,V]
    float *last_m, *last_s;
    // [kept,H,1 + S] states before each chunk for the backward, as `kept_at` says; null: none
    u16* kept;
    // [rows,H,V]: Z for the backward; null where `kept` is
    u16* pseudo_values;
    // Of each sequence, those from here on; what is before them left the memory in `last_m`
    u32 begin, chunks;
};

// A block has 16 WARPS value columns of one head. Its WARPS first warps hold the memory in registers, as many second warps
// make outputs, and four more read ahead, unless the second warps do that as well.
//
// Shared memory holds FRONTS chunks of what the first warps read: K, V, T, vectors. Two chunks are there of what the
// second read: Q, Y ∘ Q Kᵀ, vectors. Two places are for what the first hand to the second: M, Z, S as left factors, and
// scales.
template <u32 KEYS, u32 WARPS, bool S>
struct Forward {
    // Four of the first warps, and of the second ones, multiply as groups where that exists.
    static constexpr bool GROUP = GROUPS_MULTIPLY && WARPS == 4;
    // Threads that read ahead: after those of the pairs, but where two matrices leave no registers for more, their second
    // warps.
    static constexpr bool APART = GROUP || !S || KEYS * WARPS < 512;
    static constexpr u32 COUNT = APART ? 128 : 32 * WARPS, READERS = (APART ? 64 : 32) * WARPS;
    // Registers a thread of the first warps, of the second, and of those that read ahead, where they can be given away.
    static constexpr bool TWO_WIDE = S && KEYS == 128;
    static constexpr u32 MANY = TWO_WIDE ? 240 : 200, SOME = TWO_WIDE ? 144 : 184, FEW = 120;
    static_assert(MANY + SOME + FEW <= 3 * 168, "what there is");
    // Chunks that lie in shared memory for the first of a pair: `Tiles::fronts`.
    static constexpr u32 FRONTS = GROUP && (!S || KEYS == 64) ? 3 : 2;
    using Keys = Tile<KEYS, GROUP>;
    using Values = Tile<16 * WARPS, GROUP>;
    using Square = Tile<CHUNK, GROUP>;
    static constexpr u32 STEPS = KEYS / 16;
    // Bytes of a chunk for the first of a pair (K, V, T, vectors) and for the second (Q, Y ∘ Q Kᵀ, vectors). Then bytes
    // of left factors, 16 a lane each: M, Z, S of every pair, and after them the scales of Z's columns.
    static constexpr u32 FRONT = whole<GROUP>(2 * (Keys::SIZE + Values::SIZE + Square::SIZE) + 4 * ELEMENTS);
    static constexpr u32 BACK = whole<GROUP>(2 * (Keys::SIZE + Square::SIZE) + 4 * ELEMENTS);
    static constexpr u32 FACTORS = STEPS * (S ? 2 : 1) + 4, LEFT_BYTES = (32 * 16 * FACTORS + 4 * 16) * WARPS;

    const Bf16Forward& args;
    const Linear& p;
    u8* shared;
    const Sequence sequence;
    u64 matrix;
    // Columns of the block and of the pair
    u32 first, own;

    // Where each part of chunk `n` lies; chunks take places in turn.
    __device__ __forceinline__ Keys keys(u32 n) const { return {(u16*)(shared + n % FRONTS * FRONT)}; }
    // Returns the block's columns of values [CHUNK, 16 * WARPS] of chunk n.
    __device__ __forceinline__ Values values(u32 n) const { return {keys(n).x + Keys::SIZE}; }
    // Returns T [CHUNK,CHUNK] of chunk n, the solved inverse.
    __device__ __forceinline__ Square solution(u32 n) const { return {values(n).x + Values::SIZE}; }
    // Returns the vectors that the first warps read of chunk n.
    __device__ __forceinline__ float* front_vectors(u32 n) const { return (float*)(solution(n).x + Square::SIZE); }
    // Returns the queries [CHUNK,KEYS] of chunk n, for the second warps.
    __device__ __forceinline__ Keys queries(u32 n) const { return {(u16*)(shared + FRONTS * FRONT + n % 2 * BACK)}; }
    // Returns Y ∘ Q Kᵀ [CHUNK,CHUNK] of chunk n.
    __device__ __forceinline__ Square reads(u32 n) const { return {queries(n).x + Keys::SIZE}; }
    // Returns the vectors that the second warps read of chunk n.
    __device__ __forceinline__ float* back_vectors(u32 n) const { return (float*)(reads(n).x + Square::SIZE); }
    // Factor `i` of this pair and lane: M, then Z, then S.
    __device__ __forceinline__ u8* left_places(u32 n) const { return shared + FRONTS * FRONT + 2 * BACK + n % 2 * LEFT_BYTES; }
    // Returns where this lane's 16 bytes of left factor i of its pair lie.
    __device__ __forceinline__ uint4* left_factors(u32 n, u32 i) const {
        return (uint4*)left_places(n) + (threadIdx.x / 32 % WARPS * FACTORS + i) * 32 + threadIdx.x % 32;
    }
    // By column of this pair.
    __device__ __forceinline__ float* left_scales(u32 n) const {
        return (float*)(left_places(n) + 32 * 16 * FACTORS * WARPS) + threadIdx.x / 32 % WARPS * 16;
    }
    // Which left factors are whose.
    static constexpr u32 OF_M = 0, OF_Z = STEPS, OF_S = STEPS + 4;

    // Keys, values, T and vectors of a chunk, for the first warps; a commit follows.
    __device__ __forceinline__ void fetch_front(u32 n) const {
        const Chunk chunk(sequence, n);
        // Threads that read ahead, counted from 0.
        const u32 who = threadIdx.x - READERS;
        // T, Y ∘ Q Kᵀ, vectors.
        const u8* from = args.ready + chunk.kept * READY;
        fetch_tile<COUNT>(p, chunk, p.k.data, p.key, 0, keys(n), who);
        fetch_tile<COUNT>(p, chunk, p.v.data, p.value, first, values(n), who);
        if (p.erase) fetch_square<COUNT>((const u16*)from, solution(n), who);
        fetch_vectors<COUNT>((const float*)(from + 4 * SQUARE), front_vectors(n), who, 0, S ? OF_END : END_OF_PLAIN);
    }
    // Queries, Y ∘ Q Kᵀ and vectors of reads, for the second warps; a commit follows.
    __device__ __forceinline__ void fetch_back(u32 n) const {
        const Chunk chunk(sequence, n);
        const u32 who = threadIdx.x - READERS;
        const u8* from = args.ready + chunk.kept * READY;
        fetch_tile<COUNT>(p, chunk, p.q.data, p.key, 0, queries(n), who);
        fetch_square<COUNT>((const u16*)from + SQUARE, reads(n), who);
        fetch_vectors<COUNT>(
            (const float*)(from + 4 * SQUARE), back_vectors(n), who, OF_READ_A, S ? OF_READ_B + 1 : OF_READ_A + 1
        );
    }

    // V of the pair's columns, transposed.
    __device__ __forceinline__ void values_of(Lefts<4>& v, u32 n) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) left_across(v.x[i], values(n), threadIdx.x / 32 * 16, 16 * i);
    }
    // x = w V − by ∘ x, transposed.
    template <class F>
    __device__ __forceinline__ void from_values(Sums<8>& x, const Lefts<4>& v, const F& by, u32 n) const {
        // A thread's two columns of each tile are two neighbouring tokens.
        const ByToken w{front_vectors(n) + OF_W * CHUNK};
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            // Of two neighbouring tokens.
            const float2 f = w(i), g = by(i);
            const u32 upper = v.x[i / 2][i % 2 * 2], lower = v.x[i / 2][i % 2 * 2 + 1];
            float (&of)[4] = x.x[i];
            of[0] = f.x * low_half(upper) - g.x * of[0];
            of[1] = f.y * high_half(upper) - g.y * of[1];
            of[2] = f.x * low_half(lower) - g.x * of[2];
            of[3] = f.y * high_half(lower) - g.y * of[3];
        }
    }

    // The right side of (19), w V − r a⁻ ∘ (K M) − r b⁻ ∘ (K S), transposed; M and S are stored as left factors.
    __device__ __forceinline__ void right_side(Sums<8>& x, const Columns<KEYS>& m, const Columns<KEYS>& s, u32 n) const {
        const float* vectors = front_vectors(n);
        const ByToken erase{vectors + OF_ERASE_A * CHUNK};
        Lefts<4> v;
        // Nothing is predicted: the right side is w V.
        if (!p.erase) {
            m.store_left(left_factors(n, OF_M));
            if (S) s.store_left(left_factors(n, OF_S));
            values_of(v, n);
            x.clear();
            from_values(x, v, [](u32) { return float2{}; }, n);
            return;
        }
        // Factors are read while a group multiplies.
        Held held;
        m.times_rows(x, keys(n), left_factors(n, OF_M), [&] {
            values_of(v, n);
            // Groups have registers for elements that are read ahead.
            if (GROUP) held.of(erase);
        });
        if (GROUP) from_values(x, v, held, n);
        else from_values(x, v, erase, n);
        if (!S) return;
        Sums<8> y;
        s.times_rows(y, keys(n), left_factors(n, OF_S));
        x.subtract(y, ByToken{vectors + OF_ERASE_B * CHUNK});
    }

    // (19): the solution in place of its right side, stored as a left factor. Its rows times `down` are Z. The memory is taken to
    // the chunk's end meanwhile, without what is written.
    __device__ __forceinline__ void solve(
        Sums<8>& x, float (&down)[2], Held& last, Columns<KEYS>& m, Columns<KEYS>& s, u32 n
    ) const {
        // Rows of a warp, which are value columns, have powers of two of their own.
        Scale rows[2];
        x.scales(rows);
        down[0] = rows[0].down, down[1] = rows[1].down;
        Lefts<4> halves;
        halves.halves_of(x, rows[0].up, rows[1].up);
        // T is the unit matrix without erase.
        const bool solves = p.erase;
        if (solves) {
            times_lower(x, halves, solution(n), [&] {
                decay(m, s, n);
                if (GROUP) last.of({front_vectors(n) + OF_LAST_C * CHUNK});
            });
            halves.halves_of(x, SOLVED_UP, SOLVED_UP);
            // What T is times.
            const float more = front_vectors(n)[OF_SOLUTION];
            down[0] *= more, down[1] *= more;
        } else {
            decay(m, s, n);
            if (GROUP) last.of({front_vectors(n) + OF_LAST_C * CHUNK});
        }
        #pragma unroll
        for (u32 i = 0; i < 4; i++) store_fragment(left_factors(n, OF_Z + i), halves.x[i]);
        // One of the four lanes of a row.
        if (threadIdx.x % 4 == 0) {
            const float more = solves ? SOLVED_DOWN : 1.0f;
            float* to = left_scales(n) + threadIdx.x % 32 / 4;
            to[0] = more * down[0], to[8] = more * down[1];
        }
        if (!solves) down[0] = down[1] = 1.0f;
    }

    // (21), (22) without the pseudo-values: M = A[n] M + b[n] S, S = E[n,0] S.
    __device__ __forceinline__ void decay(Columns<KEYS>& m, Columns<KEYS>& s, u32 n) const {
        const float *vectors = front_vectors(n), an = vectors[SCALARS], bn = vectors[SCALARS + 1], en = vectors[SCALARS + 2];
        #pragma unroll
        for (u32 c = 0; c < KEYS / 8; c++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                m.sums.x[c][i] = an * m.sums.x[c][i] + (S ? bn * s.sums.x[c][i] : 0.0f);
                if (S) s.sums.x[c][i] *= en;
            }
    }

    // The first of a pair: Z, then (21), (22).
    __device__ __forceinline__ void go(Columns<KEYS>& m, Columns<KEYS>& s, u32 n) const {
        Sums<8> x;
        float down[2];
        Lefts<4> z;
        Held last;
        // In registers: the right side, then Z, then c[C,·] ∘ Z.
        right_side(x, m, s, n);
        solve(x, down, last, m, s, n);
        // From the solution's scale back to Z.
        x.scale_rows(down[0], down[1]);
        const float* vectors = front_vectors(n);
        // (21): Kᵀ (c[C,·] ∘ Z). A chunk's first tokens are always there.
        if (GROUP) m.template begin_add_sums<0>(z, x, last, keys(n));
        else m.template begin_add_sums<0>(z, x, ByToken{vectors + OF_LAST_C * CHUNK}, keys(n));
        if (S) {
            // (22): Kᵀ (E[C,·] ∘ Z).
            Lefts<4> pushed;
            s.template begin_add_sums<0>(pushed, x, ByToken{vectors + OF_LAST_E * CHUNK}, keys(n));
            s.template finish_add<GROUP>();
        }
        m.template finish_add<GROUP>();
    }

    // Places are [CHUNK,16], of which pieces of eight columns change.
    static __device__ __forceinline__ u16* at(u16* place, u32 t, u32 c) { return place + 16 * t + (c / 8 ^ t / 4 % 2) * 8; }
    // x [16,CHUNK] to the pair's columns of an array [rows,H,V].
    __device__ __forceinline__ void store(const Chunk& chunk, const Lefts<4>& x, u16* place, u16* to) const {
        if constexpr (GROUP) store_rows_by([=](u32 t, u32 c) { return at(place, t, c); }, p, chunk, x, to, own);
        else store_rows(p, chunk, x, to, own);
    }
    // O, and Z if it is kept, by way of where Z lay.
    __device__ __forceinline__ void store(
        u32 n, const Chunk& chunk, const Sums<8>& out, Lefts<4>& z, const float (&down)[2]
    ) const {
        // Z was read; its place [CHUNK,16] serves the way out.
        u16* place = (u16*)(left_factors(n, OF_Z) - threadIdx.x % 32);
        Lefts<4> rounded;
        rounded.of(out);
        store(chunk, rounded, place, args.out);
        if (!args.kept) return;
        narrow(z, down);
        store(chunk, z, place, args.pseudo_values);
    }

    // In step n the first of each pair goes through chunk n. The second makes the outputs of the one before. What both
    // need in the next step is sent for. Between two steps all wait for each other.
    __device__ __forceinline__ void take_through(u32 begin, u32 end) const {
        Columns<KEYS> m, s;
        m.read(p, (begin ? args.last_m : args.m) + sequence.state * matrix, own);
        if (S) s.read(p, (begin ? args.last_s : args.s) + sequence.state * matrix, own);
        // One step more than chunks: the second warps come one chunk later.
        for (u32 n = begin; n <= end; n++) {
            __syncthreads();
            if (n < end) go(m, s, n);
        }
        m.write(p, args.last_m + sequence.state * matrix, own);
        if (S) s.write(p, args.last_s + sequence.state * matrix, own);
    }
    // Groups multiply whole squares, so that zeros stand above the diagonal once and for all.
    __device__ __forceinline__ void clear() const {
        #pragma unroll
        for (u32 n = 0; n < FRONTS; n++) clear_above<COUNT>(solution(n), threadIdx.x - READERS);
        #pragma unroll
        for (u32 n = 0; n < 2; n++) clear_above<COUNT>(reads(n), threadIdx.x - READERS);
    }

    // What the second warps do.
    __device__ __forceinline__ void narrow(Lefts<4>& z, const float (&down)[2]) const;
    // Takes Z of chunk n as left factors from the first warps, with a scale a column.
    __device__ __forceinline__ void take_solution(Lefts<4>& z, float (&down)[2], u32 n) const;
    // out [CHUNK,16] = a⁺ ∘ (Q @ M) + b⁺ ∘ (Q @ S) + (Y ∘ Q Kᵀ) @ Z, equation (20), for chunk n.
    __device__ __forceinline__ void read(u32 n) const;
    // Writes M and S before chunk n, and Z, for a backward.
    __device__ __forceinline__ void keep_states(u32 n, const Chunk& chunk) const;
    // Goes through chunks begin to end, one chunk behind the first warps.
    __device__ __forceinline__ void follow(u32 begin, u32 end, bool reads, bool fetches) const;
};
