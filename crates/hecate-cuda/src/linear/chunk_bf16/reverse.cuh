// The exact chunk form with bfloat16, backward through the memory: dM and dS from the last chunk to the first, equations (23)-(25)
// and (30), with 16 value columns a warp. Only these column warps wait for the chunk before. Producer warps load ahead and write
// the states to global memory; consumer warps round dO to fp16 and write Λ. Column warps leave both in shared memory.
#pragma once
#include "chunk_bf16/columns.cuh"

// `reverse::ReverseArguments` is its twin.
struct Bf16Reverse {
    Linear p;
    // [kept,H,READY]
    const u8* ready;
    // [rows,H,V]
    const u16* dout;
    // [N,H,K,V]: of the final state
    const float *dm, *ds;
    // [N,H,K,V]: of the initial state
    float *first_dm, *first_ds;
    // [kept,H,1 + S] of the states after each chunk, as `kept_at` says
    u16* kept;
    // [rows,H,V]: Λ and w ∘ Λ
    u16 *solved, *dv;
    // [segments]: how many blocks have finished each segment; null: nobody asks
    u32* progress;
    // Chunks that lie in shared memory, 2 or 3; chunks of a segment
    u32 stages, segment;
};

// A block has 16 * WARPS value columns of one head. Each of its WARPS column warps holds 16 of them of dM and dS, transposed, in
// registers.
//
// Shared memory holds `stages` chunks (K, Q, dO or Λ, T, Y ∘ Q Kᵀ, vectors). Two places are for dM and dS as left factors,
// which other warps write to global memory.
template <u32 KEYS, u32 WARPS, bool S>
struct Reverse {
    // Four warps multiply as a warpgroup where the GPU can.
    static constexpr bool GROUP = GROUPS_MULTIPLY && WARPS == 4;
    using Keys = Tile<KEYS, GROUP>;
    using Values = Tile<16 * WARPS, GROUP>;
    using Square = Tile<CHUNK, GROUP>;
    static constexpr u32 STEPS = KEYS / 16, FACTORS = STEPS * (S ? 2 : 1);
    // Four warps load ahead and keep states, and four more take in dO and write Λ; the same four do both where registers do not
    // suffice. Where registers can be given away, column warps have MANY a thread and the others FEW.
    static constexpr u32 READERS = 4, COUNT = 32 * READERS, OTHERS = GROUP ? 2 * READERS : READERS;
    static constexpr u32 MANY = 256, FEW = 120;
    static_assert(MANY + 2 * FEW <= 3 * 168, "what there is");
    // Bytes of one chunk in shared memory, and of one set of left factors, 16 bytes a lane: every column warp has those of M, then
    // those of S; the scales of Λ's columns follow.
    static constexpr u32 STAGE = whole<GROUP>(2 * (2 * Keys::SIZE + Values::SIZE + 2 * Square::SIZE) + 4 * ELEMENTS + 16);
    static constexpr u32 LEFT_BYTES = (32 * 16 * FACTORS + 4 * 16) * WARPS + 4 * READERS;

    const Bf16Reverse& args;
    const Linear& p;
    u8* shared;
    const Sequence sequence;
    u64 matrix;
    // Columns of the block and of the warp
    u32 first, own;
    Columns<KEYS> m, s;

    // Returns one of two sets of left factors: even steps have one, odd steps the other.
    __device__ __forceinline__ u8* left_places(u32 step) const { return shared + args.stages * STAGE + step % 2 * LEFT_BYTES; }
    // Returns where this lane's 16 bytes of left factor i of column warp `warp` lie.
    __device__ __forceinline__ uint4* left_factors(u32 step, u32 warp, u32 i) const {
        return (uint4*)(left_places(step)) + (warp * FACTORS + i) * 32 + threadIdx.x % 32;
    }

    // Returns the scales of Λ's columns [16 * WARPS], then one maximum of each consumer warp.
    __device__ __forceinline__ float* left_scales(u32 step) const {
        return (float*)(left_places(step) + 32 * 16 * FACTORS * WARPS);
    }

    // Returns K [CHUNK,KEYS] of the chunk in place `stage`.
    __device__ __forceinline__ Keys keys(u32 stage) const { return {(u16*)(shared + stage * STAGE)}; }
    // Returns Q [CHUNK,KEYS] of the chunk in place `stage`.
    __device__ __forceinline__ Keys queries(u32 stage) const { return {keys(stage).x + Keys::SIZE}; }
    // Returns dO, later Λ [CHUNK, 16 * WARPS], as halves.
    __device__ __forceinline__ Values outputs(u32 stage) const { return {queries(stage).x + Keys::SIZE}; }
    // Returns T [CHUNK,CHUNK].
    __device__ __forceinline__ Square solution(u32 stage) const { return {outputs(stage).x + Values::SIZE}; }
    // Returns Y ∘ Q Kᵀ [CHUNK,CHUNK].
    __device__ __forceinline__ Square reads(u32 stage) const { return {solution(stage).x + Square::SIZE}; }
    // Returns the chunk's vectors, by the offsets OF_*.
    __device__ __forceinline__ float* vectors(u32 stage) const { return (float*)(reads(stage).x + Square::SIZE); }
    // One of the vectors of that chunk.
    __device__ __forceinline__ ByToken by(u32 stage, u32 which) const { return {vectors(stage) + which * CHUNK}; }

    // Returns the thread's number among the producers, or among the consumers.
    __device__ __forceinline__ u32 who() const { return (threadIdx.x - 32 * WARPS) % COUNT; }
    // Starts copies of K, Q, T and Y ∘ Q Kᵀ of a chunk, which only column warps read; a commit follows.
    __device__ __forceinline__ void fetch(const Chunk& chunk, u32 stage) const {
        const u32 who = this->who();
        const u16* from = (const u16*)(args.ready + chunk.kept * READY);
        fetch_tile<COUNT>(p, chunk, p.k.data, p.key, 0, keys(stage), who);
        fetch_tile<COUNT>(p, chunk, p.q.data, p.key, 0, queries(stage), who);
        if (p.erase) fetch_square<COUNT>(from, solution(stage), who);
        fetch_square<COUNT>(from + SQUARE, reads(stage), who);
    }
    // x = dO.T of the warp's columns [16,CHUNK], as a left factor of fp16 in the chunk's scale.
    __device__ __forceinline__ void outputs_of(Lefts<4>& x, u32 stage) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) left_across(x.x[i], outputs(stage), threadIdx.x / 32 * 16, 16 * i);
    }
    // x = of * by[None, :] with one factor a token, as bfloat16; the scale of fp16 is taken out.
    __device__ __forceinline__ void scaled(Lefts<4>& x, const Lefts<4>& of, u32 stage, u32 which) const {
        const float down = vectors(stage)[OF_OUTPUTS];
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            #pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const float2 f = by(stage, which)(2 * i + n);
                // The halves' scale goes along.
                const float low = down * f.x, high = down * f.y;
                #pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    const float2 both = unpack_halves(of.x[i][2 * n + h]);
                    x.x[i][2 * n + h] = pack_bf16(low * both.x, high * both.y);
                }
            }
    }

    // With enough registers nothing waits for the products with dO, and vectors are read ahead.
    static constexpr bool BESIDE = GROUP && (!S || KEYS == 64);

    // dZ [CHUNK,16] = last_c ∘ (K @ dM) + last_E ∘ (K @ dS) + (Y ∘ Q Kᵀ).T @ dO, equation (23); x is dZ.T.
    // Also starts dM = A dM + Q.T @ (a⁺ ∘ dO), and the same for dS.
    __device__ __forceinline__ void need(Sums<8>& x, u32 step, u32 stage) {
        // dM and dS are stored as left factors on the way, for the producers to keep.
        const u32 warp = threadIdx.x / 32;
        Lefts<4> dout;
        Held last;
        m.times_rows(x, keys(stage), left_factors(step, warp, 0), [&] {
            if (BESIDE) last.of(by(stage, OF_LAST_C));
            if (!S) outputs_of(dout, stage);
        });
        // The factors last_c and last_E of each token.
        if (BESIDE) x.scale(last);
        else x.scale(by(stage, OF_LAST_C));
        Sums<8> y;
        if (S) {
            s.times_rows(y, keys(stage), left_factors(step, warp, STEPS), [&] { if (BESIDE) outputs_of(dout, stage); });
            y.scale(by(stage, OF_LAST_E));
            x.add(y);
            if (!BESIDE) outputs_of(dout, stage);
        }
        // Y ∘ Q Kᵀ and dO are halves, each with a factor of its own.
        const float down = vectors(stage)[OF_READS] * vectors(stage)[OF_OUTPUTS];
        times_upper<BESIDE ? S ? 2 : 1 : 0>(y, dout, reads(stage), [&] {
            if (!BESIDE) return;
            // Nobody else may read a factor in registers while a warpgroup multiplies.
            Lefts<4> again;
            outputs_of(again, stage);
            add_outputs(again, stage);
        });
        // dZ of (23).
        x.add_rows(y, down, down);
        if (!BESIDE) add_outputs(dout, stage), finish_adds();
    }
    // dS = b dM + E dS + Q.T @ (b⁺ ∘ dO) and dM = A dM + Q.T @ (a⁺ ∘ dO): (30) without the keys' part.
    __device__ __forceinline__ void add_outputs(const Lefts<4>& dout, u32 stage) {
        const float* scalars = vectors(stage) + SCALARS;
        // A[C], c[C,0], E[C,0].
        const float an = scalars[0], bn = scalars[1], en = scalars[2];
        #pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (S) s.sums.x[n][i] = bn * m.sums.x[n][i] + en * s.sums.x[n][i];
                m.sums.x[n][i] *= an;
            }
        // a⁺ ∘ dO and b⁺ ∘ dO, to be multiplied by queries.
        Lefts<4> part, pushed;
        scaled(part, dout, stage, OF_READ_A);
        m.begin_add(part, queries(stage));
        if (S) {
            scaled(pushed, dout, stage, OF_READ_B);
            s.begin_add(pushed, queries(stage));
        }
    }
    // Waits until the products are added to both matrices.
    __device__ __forceinline__ void finish_adds() {
        m.template finish_add<GROUP>();
        if (S) s.template finish_add<GROUP>();
    }

    // Λ = T.T @ dZ, (24), which takes the place of dO in fp16; x becomes -Λ in f32, for the keys' part of (30).
    __device__ __forceinline__ void solve(Sums<8>& x, Held& erase, u32 step, u32 stage) const {
        Scale rows[2];
        // Each row of dZ.T, a value column, has a power of two of its own.
        x.scales(rows);
        Lefts<4> halves;
        halves.halves_of(x, rows[0].up, rows[1].up);
        float down[2] = {rows[0].down, rows[1].down}, more = 1.0f;
        if (p.erase) {
            // Tᵀ dZ.
            times_upper(x, halves, solution(stage), [&] { if (BESIDE) erase.of(by(stage, OF_ERASE_A)); });
            halves.halves_of(x, SOLVED_UP, SOLVED_UP);
            const float solved = vectors(stage)[OF_SOLUTION];
            down[0] *= solved, down[1] *= solved, more = SOLVED_DOWN;
            // -Λ in f32, for the memory; what goes to global memory was rounded to fp16 before.
            x.scale_rows(-down[0], -down[1]);
        }
        const u32 column = threadIdx.x / 32 * 16, row = threadIdx.x % 32 / 4;
        // Each warp has the 16 columns in which its dO was.
        place_rows([=, place = outputs(stage)](u32 t, u32 c) { return place.at(t, column + c); }, halves);
        float* to = left_scales(step) + column + row;
        if (threadIdx.x % 4 == 0) to[0] = more * down[0], to[8] = more * down[1];
    }

    // One chunk of the column warps: dZ (23), Λ (24), then dM and dS before the chunk (30).
    __device__ __forceinline__ void go(u32 step, u32 stage) {
        Sums<8> x;
        Held erase;
        // The part of (30) that comes from reads is under way.
        need(x, step, stage);
        solve(x, erase, step, stage);
        if (BESIDE) finish_adds();
        if (!p.erase) return;
        Lefts<4> part, pushed;
        // dM -= K.T @ (r a⁻ ∘ Λ) and dS -= K.T @ (r b⁻ ∘ Λ).
        if (BESIDE) m.template begin_add_sums<0>(part, x, erase, keys(stage));
        else m.template begin_add_sums<0>(part, x, by(stage, OF_ERASE_A), keys(stage));
        if (S) s.template begin_add_sums<0>(pushed, x, by(stage, OF_ERASE_B), keys(stage));
        finish_adds();
    }

    // A consumer thread has eight columns of a row in each of PIECES turns, as it takes in dO and writes Λ.
    static constexpr u32 WIDTH = 16 * WARPS, ACROSS = WIDTH / 8, APART = COUNT / ACROSS, PIECES = CHUNK / APART;
    // Returns where the thread's vector i of dO or Λ lies.
    __device__ __forceinline__ u16* piece(u32 stage, u32 i) const {
        const u32 who = this->who();
        return outputs(stage).at(who / ACROSS, who % ACROSS * 8) + i * APART * Values::STRIDE;
    }
    // A consumer thread's part of dO and of a chunk's vectors, held in registers until their place is free.
    struct Prefetched {
        static constexpr u32 TURNS = (ELEMENTS / 4 + COUNT - 1) / COUNT;
        uint4 outputs[PIECES], vectors[TURNS];
    };
    // True for the parts of a chunk's vectors that are used: without momentum those of S are left out.
    static __device__ __forceinline__ bool needed(u32 i) {
        return i < (S ? OF_END : END_OF_PLAIN) * CHUNK / 4 || i >= SCALARS / 4 && i < ELEMENTS / 4;
    }

    // Counts this block as done with the segment that begins with chunk `number`, after all its writes.
    __device__ __forceinline__ void pass(u32 number) const {
        // Who sees the count sees the writes before it.
        __threadfence();
        atomicAdd(args.progress + number / args.segment, 1);
    }

    // Takes dM and dS through all chunks, by the column warps. At the barrier between two steps the next chunk has arrived, and
    // nobody reads the last one any more, whose place another chunk takes.
    __device__ __forceinline__ void take_through(u32 count) {
        m.read(p, args.dm + sequence.state * matrix, own);
        if (S) s.read(p, args.ds + sequence.state * matrix, own);
        for (u32 step = 0, stage = 0; step <= count; step++, stage = next_stage(stage)) {
            __syncthreads();
            if (step < count) go(step, stage);
        }
        m.write(p, args.first_dm + sequence.state * matrix, own);
        if (S) s.write(p, args.first_ds + sequence.state * matrix, own);
    }
    // Returns the place after this one.
    __device__ __forceinline__ u32 next_stage(u32 stage) const { return stage + 1 < args.stages ? stage + 1 : 0; }

    // Waits for the copies that the next step needs; with three places those of one more step may be under way.
    __device__ __forceinline__ void wait() const {
        if (args.stages == 2) copies_wait<0>();
        else copies_wait<1>();
    }

    // Declared for the producers and consumers; `reverse.cu` has them.
    __device__ __forceinline__ void prefetch(Prefetched& x, const Chunk& chunk) const;
    // Stores the prefetched dO as halves, and the vectors, in place `stage`.
    __device__ __forceinline__ void place_prefetched(const Prefetched& x, u32 stage) const;
    // Writes Λ and w ∘ Λ of a chunk to global memory.
    __device__ __forceinline__ void store_solved(const Chunk& chunk, u32 step, u32 stage) const;
    // Writes dM and dS after a chunk to global memory.
    __device__ __forceinline__ void keep_states(const Chunk& chunk, u32 step) const;
    // Serves the columns' warps through all chunks: loads ahead and writes their results down.
    __device__ __forceinline__ void attend(u32 count, bool loads, bool stores) const;
};
