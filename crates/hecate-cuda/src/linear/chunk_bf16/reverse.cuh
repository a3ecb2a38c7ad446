// The exact chunk form with bfloat16: the gradient of the memory, equations (23)-(25) and (30), from the last chunk to
// the first, 16 columns to a warp. Warps of their own do all that need not be done one chunk after another. Producers read
// ahead. Consumers make halves of dO, and write down Λ and the states, which the columns' warps leave in shared memory.
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
    // [segments]: blocks that are through; null: nobody asks
    u32* progress;
    // Chunks that lie in shared memory, 2 or 3; chunks of a segment
    u32 stages, segment;
};

// A block has 16 WARPS value columns of one head, a warp 16 of them: dM and dS in registers, transposed.
//
// Shared memory holds `stages` chunks (K, Q, dO or Λ, T, Y ∘ Q Kᵀ, vectors). Two places are for dM and dS as left factors,
// which other warps write to global memory.
template <u32 KEYS, u32 WARPS, bool S>
struct Reverse {
    // Four warps multiply as a group where that exists.
    static constexpr bool GROUP = GROUPS_MULTIPLY && WARPS == 4;
    using Keys = Tile<KEYS, GROUP>;
    using Values = Tile<16 * WARPS, GROUP>;
    using Square = Tile<CHUNK, GROUP>;
    static constexpr u32 STEPS = KEYS / 16, FACTORS = STEPS * (S ? 2 : 1);
    // Warps that read ahead and keep states, and as many that take in dO and write down Λ; the same where there are no
    // registers for both. Where registers can be given away, those of a thread of the columns' warps and of the others.
    static constexpr u32 READERS = 4, COUNT = 32 * READERS, OTHERS = GROUP ? 2 * READERS : READERS;
    static constexpr u32 MANY = 256, FEW = 120;
    static_assert(MANY + 2 * FEW <= 3 * 168, "what there is");
    // Bytes of a chunk on its way, and of left factors, 16 a lane each. Every warp has M, then S; the scales of the columns
    // of Λ follow.
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

    // Places of left factors, one for even steps and one for odd.
    __device__ __forceinline__ u8* left_places(u32 step) const { return shared + args.stages * STAGE + step % 2 * LEFT_BYTES; }
    // Factor `i` of the warp of columns `warp`, of step `step`.
    __device__ __forceinline__ uint4* left_factors(u32 step, u32 warp, u32 i) const {
        return (uint4*)(left_places(step)) + (warp * FACTORS + i) * 32 + threadIdx.x % 32;
    }

    // By column of the block; after them an element of each reader.
    __device__ __forceinline__ float* left_scales(u32 step) const {
        return (float*)(left_places(step) + 32 * 16 * FACTORS * WARPS);
    }

    // Where each part of the chunk in place `stage` lies.
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

    // A thread among those that read ahead, or among those that write down.
    __device__ __forceinline__ u32 who() const { return (threadIdx.x - 32 * WARPS) % COUNT; }
    // What the columns' warps alone read of a chunk.
    __device__ __forceinline__ void fetch(const Chunk& chunk, u32 stage) const {
        const u32 who = this->who();
        const u16* from = (const u16*)(args.ready + chunk.kept * READY);
        fetch_tile<COUNT>(p, chunk, p.k.data, p.key, 0, keys(stage), who);
        fetch_tile<COUNT>(p, chunk, p.q.data, p.key, 0, queries(stage), who);
        if (p.erase) fetch_square<COUNT>(from, solution(stage), who);
        fetch_square<COUNT>(from + SQUARE, reads(stage), who);
    }
    // dO of the warp's columns, transposed, as a left factor: halves, by the chunk's scale.
    __device__ __forceinline__ void outputs_of(Lefts<4>& x, u32 stage) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) left_across(x.x[i], outputs(stage), threadIdx.x / 32 * 16, 16 * i);
    }
    // The same times `by` of each token, as bfloat16.
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

    // Where there are registers for it, nothing waits for products of outputs' gradients, and elements are read ahead.
    static constexpr bool BESIDE = GROUP && (!S || KEYS == 64);

    // (23): what later states and reads need of Z.
    __device__ __forceinline__ void need(Sums<8>& x, u32 step, u32 stage) {
        // K dM and K dS, while dM and dS are stored as left factors.
        const u32 warp = threadIdx.x / 32;
        Lefts<4> dout;
        Held last;
        m.times_rows(x, keys(stage), left_factors(step, warp, 0), [&] {
            if (BESIDE) last.of(by(stage, OF_LAST_C));
            if (!S) outputs_of(dout, stage);
        });
        // c[C,·] and E[C,·] of each token.
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
            // Nobody else may read a factor in registers meanwhile.
            Lefts<4> again;
            outputs_of(again, stage);
            add_outputs(again, stage);
        });
        // dZ of (23).
        x.add_rows(y, down, down);
        if (!BESIDE) add_outputs(dout, stage), finish_adds();
    }
    // (30) but for keys.
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
    // Waits for what groups add to both matrices.
    __device__ __forceinline__ void finish_adds() {
        m.template finish_add<GROUP>();
        if (S) s.template finish_add<GROUP>();
    }

    // (24): Λ, which is stored in place of dO; minus it, for keys.
    __device__ __forceinline__ void solve(Sums<8>& x, Held& erase, u32 step, u32 stage) const {
        Scale rows[2];
        // Rows of dZ have powers of two of their own.
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
            // −Λ in 32 bits, for the memory; what is written down was rounded to halves before.
            x.scale_rows(-down[0], -down[1]);
        }
        const u32 column = threadIdx.x / 32 * 16, row = threadIdx.x % 32 / 4;
        // Each warp has 16 columns of the place where dO was.
        place_rows([=, place = outputs(stage)](u32 t, u32 c) { return place.at(t, column + c); }, halves);
        float* to = left_scales(step) + column + row;
        if (threadIdx.x % 4 == 0) to[0] = more * down[0], to[8] = more * down[1];
    }

    // A step of the columns' warps: (23), (24), (30).
    __device__ __forceinline__ void go(u32 step, u32 stage) {
        Sums<8> x;
        Held erase;
        // dZ, and the reads' part of (30) is under way.
        need(x, step, stage);
        solve(x, erase, step, stage);
        if (BESIDE) finish_adds();
        if (!p.erase) return;
        Lefts<4> part, pushed;
        // −r a⁻ ∘ Λ and −r b⁻ ∘ Λ times keys. Before the chunk's first tokens least of the state is forgotten.
        if (BESIDE) m.template begin_add_sums<0>(part, x, erase, keys(stage));
        else m.template begin_add_sums<0>(part, x, by(stage, OF_ERASE_A), keys(stage));
        if (S) s.template begin_add_sums<0>(pushed, x, by(stage, OF_ERASE_B), keys(stage));
        finish_adds();
    }

    // Eight columns of a row a thread and turn, as they read dO ahead and write down Λ.
    static constexpr u32 WIDTH = 16 * WARPS, ACROSS = WIDTH / 8, APART = COUNT / ACROSS, PIECES = CHUNK / APART;
    // Where the thread's `i`th piece of dO or Λ lies.
    __device__ __forceinline__ u16* piece(u32 stage, u32 i) const {
        const u32 who = this->who();
        return outputs(stage).at(who / ACROSS, who % ACROSS * 8) + i * APART * Values::STRIDE;
    }
    // A thread's part of dO and of the elements of a chunk, on their way through registers: until they are needed, their places
    // are another chunk's.
    struct Prefetched {
        static constexpr u32 TURNS = (ELEMENTS / 4 + COUNT - 1) / COUNT;
        uint4 outputs[PIECES], vectors[TURNS];
    };
    // Vectors of momentum are left out where there is none.
    static __device__ __forceinline__ bool needed(u32 i) {
        return i < (S ? OF_END : END_OF_PLAIN) * CHUNK / 4 || i >= SCALARS / 4 && i < ELEMENTS / 4;
    }

    // Tells those who ask that all is written down from a chunk on, with which a segment begins.
    __device__ __forceinline__ void pass(u32 number) const {
        // What was stored is seen by whoever sees the count.
        __threadfence();
        atomicAdd(args.progress + number / args.segment, 1);
    }

    // The columns' warps. Between two steps all wait for each other. The next chunk is there for all. None of these
    // reads the last one any more, whose place another takes.
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
    // Places in turn.
    __device__ __forceinline__ u32 next_stage(u32 stage) const { return stage + 1 < args.stages ? stage + 1 : 0; }

    // Waits for the copies that the next step needs.
    __device__ __forceinline__ void wait() const {
        if (args.stages == 2) copies_wait<0>();
        else copies_wait<1>();
    }

    // What the other warps do.
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
