// The exact chunk form with bfloat16: the gradient of the memory, equations (23)-(25) and (30), from the last chunk to
// the first, 16 columns to a warp. Warps of their own read ahead and write down what is kept, which the others leave as
// left factors.
#include "bf16.cuh"

struct Bf16Reverse {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const u16* dout;           // [rows,H,V]
    const float *dm, *ds;      // [N,H,K,V]: of the final state
    float *first_dm, *first_ds;  // [N,H,K,V]: of the initial state
    u16* kept;                 // [kept,H,1 + S] of the states behind each chunk, as `kept_at` says
    u16 *solved, *dv;          // [rows,H,V]: Λ and w ∘ Λ
    u32* progress;             // [segments]: blocks that are through; null: nobody asks
    u32 stages, segment;       // chunks that lie in shared memory, 2 or 3; chunks of a segment
};

template <u32 KEYS, u32 WARPS, bool S>
struct Reverse {
    // Four warps multiply as a group where that exists.
    static constexpr bool GROUP = GROUPS_MULTIPLY && WARPS == 4;
    using Keys = Tile<KEYS, GROUP>;
    using Values = Tile<16 * WARPS, GROUP>;
    using Square = Tile<CHUNK, GROUP>;
    static constexpr u32 STEPS = KEYS / 16, FACTORS = STEPS * (S ? 2 : 1);
    // Warps that read ahead.
    static constexpr u32 READERS = 4, COUNT = 32 * READERS;
    // Bytes of a chunk on its way, and of left factors, 16 a lane each: of every warp M, then S.
    static constexpr u32 STAGE = whole<GROUP>(2 * (2 * Keys::SIZE + Values::SIZE + 2 * Square::SIZE) + 4 * NUMBERS);
    static constexpr u32 HANDED = 32 * 16 * FACTORS * WARPS;

    const Bf16Reverse& args;
    const Linear& p;
    u8* shared;
    const Sequence sequence;
    u64 matrix;
    u32 first, own;  // columns of the block and of the warp
    Columns<KEYS> m, s;

    // Factor `i` of the warp of columns `warp`, of step `step`.
    __device__ __forceinline__ uint4* handed(u32 step, u32 warp, u32 i) const {
        return (uint4*)(shared + step % 2 * HANDED) + (warp * FACTORS + i) * 32 + threadIdx.x % 32;
    }

    __device__ __forceinline__ Keys keys(u32 stage) const { return {(u16*)(shared + 2 * HANDED + stage * STAGE)}; }
    __device__ __forceinline__ Keys queries(u32 stage) const { return {keys(stage).x + Keys::SIZE}; }
    __device__ __forceinline__ Values outputs(u32 stage) const { return {queries(stage).x + Keys::SIZE}; }
    __device__ __forceinline__ Square solution(u32 stage) const { return {outputs(stage).x + Values::SIZE}; }
    __device__ __forceinline__ Square reads(u32 stage) const { return {solution(stage).x + Square::SIZE}; }
    __device__ __forceinline__ float* numbers(u32 stage) const { return (float*)(reads(stage).x + Square::SIZE); }
    __device__ __forceinline__ ByToken by(u32 stage, u32 which) const { return {numbers(stage) + which * CHUNK}; }

    __device__ __forceinline__ void fetch(u32 number, u32 stage) const {
        const u32 who = threadIdx.x - 32 * WARPS;
        const Chunk chunk(sequence, number);
        const u8* from = args.ready + chunk.kept * READY;
        fetch_tile<COUNT>(p, chunk, p.k.data, p.key, 0, keys(stage), who);
        fetch_tile<COUNT>(p, chunk, p.q.data, p.key, 0, queries(stage), who);
        fetch_tile<COUNT>(p, chunk, args.dout, p.value, first, outputs(stage), who);
        if (p.erase) fetch_square<COUNT>((const u16*)from, solution(stage), who);
        fetch_square<COUNT>((const u16*)from + SQUARE, reads(stage), who);
        fetch_numbers<COUNT>((const float*)(from + 4 * SQUARE), numbers(stage), who);
    }

    // dO of the warp's columns, turned over, as a left factor; scaled by token where `by` is given.
    __device__ __forceinline__ void outputs_of(Lefts<4>& x, u32 stage) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) left_across(x.x[i], outputs(stage), threadIdx.x / 32 * 16, 16 * i);
    }
    __device__ __forceinline__ void scaled(Lefts<4>& x, const Lefts<4>& of, ByToken by) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            #pragma unroll
            for (u32 h = 0; h < 4; h++) {
                float2 f = by(16 * i + h / 2 * 8 + threadIdx.x % 4 * 2);
                x.x[i][h] = pack_bf16(f.x * low_half(of.x[i][h]), f.y * high_half(of.x[i][h]));
            }
    }

    // (23), (24): Λ.
    __device__ __forceinline__ void solve(Sums<8>& x, const Lefts<4>& dout, u32 step, u32 stage) const {
        const u32 warp = threadIdx.x / 32;
        m.times_rows(x, keys(stage), handed(step, warp, 0));
        x.scale(by(stage, OF_LAST_C));
        if (S) {
            Sums<8> y;
            s.times_rows(y, keys(stage), handed(step, warp, STEPS));
            y.scale(by(stage, OF_LAST_E));
            x.add(y);
        }
        times_upper(x, dout, reads(stage));
        if (!p.erase) return;
        Lefts<4> known;
        known.of(x);
        x.clear();
        times_upper(x, known, solution(stage));
    }

    // Rows of the warp's columns; by way of where dO lay.
    __device__ __forceinline__ void store(const Chunk& chunk, const Sums<8>& x, u16* to, u32 stage) const {
        if constexpr (GROUP) {
            const u32 column = threadIdx.x / 32 * 16;
            const auto at = [=, place = outputs(stage)](u32 t, u32 piece) { return place.at(t, column + 8 * piece); };
            Lefts<4> narrow;
            narrow.of(x);
            store_rows_by(at, p, chunk, narrow, to, own);
        } else {
            store_rows(p, chunk, x, to, own);
        }
    }

    __device__ __forceinline__ void go(const Chunk& chunk, u32 step, u32 stage) {
        Lefts<4> dout, part;
        outputs_of(dout, stage);
        Sums<8> x;
        solve(x, dout, step, stage);
        store(chunk, x, args.solved, stage);
        // (30).
        const float* scalars = numbers(stage) + SCALARS;
        const float an = scalars[0], bn = scalars[1], en = scalars[2];
        #pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (S) s.sums.x[n][i] = bn * m.sums.x[n][i] + en * s.sums.x[n][i];
                m.sums.x[n][i] *= an;
            }
        scaled(part, dout, by(stage, OF_READ_A));
        m.add(part, queries(stage));
        if (S) {
            scaled(part, dout, by(stage, OF_READ_B));
            s.add(part, queries(stage));
        }
        if (p.erase) {
            const auto less = [&](u32 which) {
                return [of = by(stage, which)](u32 t) { float2 f = of(t); return make_float2(-f.x, -f.y); };
            };
            part.of(x, less(OF_ERASE_A));
            m.add(part, keys(stage));
            if (S) {
                part.of(x, less(OF_ERASE_B));
                s.add(part, keys(stage));
            }
        }
        x.scale(by(stage, OF_W));
        store(chunk, x, args.dv, stage);
    }

    // What the others handed on: a factor a warp and turn.
    __device__ __forceinline__ void keep(const Chunk& chunk, u32 step) const {
        const u32 size = kept_size<KEYS>(p);
        u16* to = args.kept + chunk.kept * (S ? 2 : 1) * size;
        #pragma unroll
        for (u32 i = threadIdx.x / 32 - WARPS; i < WARPS * FACTORS; i += READERS) {
            const u32 warp = i / FACTORS, n = i % FACTORS;
            keep_factor<KEYS>(p, handed(step, warp, n), to + n / STEPS * size, first + 16 * warp, n % STEPS);
        }
    }

    // Says that a chunk is written down, with all behind it, where a segment begins with it.
    __device__ __forceinline__ void pass(u32 number) const {
        if (!args.progress || number == 0 || number % args.segment != 0) return;
        __threadfence();
        atomicAdd(args.progress + number / args.segment, 1);
    }

    // The columns' warps. Between two steps all wait for each other: the next chunk is there for all, and nobody reads
    // the last one any more, whose place is that of another.
    __device__ __forceinline__ void take_through(u32 count) {
        m.read(p, args.dm + sequence.state * matrix, own);
        if (S) s.read(p, args.ds + sequence.state * matrix, own);
        for (u32 step = 0, stage = 0; step <= count; step++, stage = stage + 1 < args.stages ? stage + 1 : 0) {
            __syncthreads();
            if (step < count) go(Chunk(sequence, count - 1 - step), step, stage);
        }
        m.write(p, args.first_dm + sequence.state * matrix, own);
        if (S) s.write(p, args.first_ds + sequence.state * matrix, own);
    }
    __device__ __forceinline__ void read_ahead(u32 count) const {
        const u32 stages = args.stages;
        // Segments that this sequence has not.
        if (threadIdx.x == 32 * WARPS && args.progress)
            for (u32 number = (count + args.segment - 1) / args.segment * args.segment; number < p.kept; number += args.segment)
                pass(number);
        for (u32 stage = 0; stage < stages; stage++) {
            clear_above<COUNT>(solution(stage), threadIdx.x - 32 * WARPS);
            clear_above<COUNT>(reads(stage), threadIdx.x - 32 * WARPS);
        }
        for (u32 step = 0; step + 1 < stages; step++) {
            if (step < count) fetch(count - 1 - step, step);
            copies_commit();
        }
        for (u32 step = 0, stage = 0; step <= count; step++, stage = stage + 1 < stages ? stage + 1 : 0) {
            if (stages == 2) copies_wait<0>();
            else copies_wait<1>();
            if (GROUP) show_to_groups();
            __syncthreads();
            // The columns' warps wrote down the chunk of the step before the last one then, and these here in the last step.
            if (step > 1 && threadIdx.x == 32 * WARPS) pass(count + 1 - step);
            const u32 next = step + stages - 1;
            if (next < count) fetch(count - 1 - next, stage ? stage - 1 : stages - 1);
            copies_commit();
            if (step > 0) keep(Chunk(sequence, count - step), step - 1);
        }
    }
};

template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void reverse(const Bf16Reverse& args, u8* shared) {
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS, own = first + threadIdx.x / 32 % WARPS * 16;
    const Sequence sequence(args.p, blockIdx.x / args.p.blocks);
    Reverse<KEYS, WARPS, S> of{args, args.p, shared, sequence, (u64)args.p.key * args.p.value, first, own};
    const u32 count = of.sequence.chunks();
    if (threadIdx.x < 32 * WARPS) of.take_through(count);
    else of.read_ahead(count);
}

// Waits until so many blocks are through a segment.
struct Bf16Await {
    const u32* counter;
    u32 count, unused;
};
KERNEL(bf16_await, Bf16Await, 1, 1) {
    u32 found;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(args.counter) : "memory");
    while (found < args.count);
}

#define REVERSE(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Reverse, 32 * (WARPS + 4), 1) { \
        DYNAMIC_SHARED(u8, shared);              \
        reverse<KEYS, WARPS, S>(args, shared);   \
    }

REVERSE(bf16_reverse_64_2, 64, 2, false)
REVERSE(bf16_reverse_64_4, 64, 4, false)
REVERSE(bf16_reverse_128_2, 128, 2, false)
REVERSE(bf16_reverse_128_4, 128, 4, false)
REVERSE(bf16_reverse_128_8, 128, 8, false)
REVERSE(bf16_reverse_64_2_momentum, 64, 2, true)
REVERSE(bf16_reverse_64_4_momentum, 64, 4, true)
REVERSE(bf16_reverse_128_2_momentum, 128, 2, true)
REVERSE(bf16_reverse_128_4_momentum, 128, 4, true)
REVERSE(bf16_reverse_256_2, 256, 2, false)
