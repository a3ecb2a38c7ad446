// The exact chunk form with bfloat16, forward: equations (19)-(22), from chunk to chunk, 16 columns to a warp.
#include "bf16.cuh"

struct Bf16Forward {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const float *m, *s;        // [N,H,K,V]
    u16* out;                  // [rows,H,V]
    float *last_m, *last_s;    // [N,H,K,V]
    u16* kept;                 // [kept,H,1 + S,V,K]: states before each chunk for the backward; null: none
    u16* written;              // [rows,H,V]: Z for the backward; null where `kept` is
    u32 stages, unused;        // chunks that lie in shared memory: 2 or 3
};

template <u32 KEYS, u32 WARPS, bool S>
struct Forward {
    static constexpr u32 ROW = KEYS + 8, NARROW = 16 * WARPS + 8;
    // Few warps have others that read ahead for them.
    static constexpr u32 READERS = WARPS <= 4 ? WARPS : 0, COUNT = 32 * (READERS ? READERS : WARPS);
    // Bytes of a chunk on its way.
    static constexpr u32 STAGE = 2 * CHUNK * (2 * ROW + NARROW) + 2 * 2 * CHUNK * SIDE + 4 * NUMBERS;

    const Bf16Forward& args;
    const Linear& p;
    u8* shared;
    u64 state, matrix;
    u32 first, own;  // columns of the block and of the warp
    Columns<KEYS> m, s;

    __device__ __forceinline__ u16* keys(u32 stage) const { return (u16*)(shared + stage * STAGE); }
    __device__ __forceinline__ u16* queries(u32 stage) const { return keys(stage) + CHUNK * ROW; }
    __device__ __forceinline__ u16* values(u32 stage) const { return queries(stage) + CHUNK * ROW; }
    __device__ __forceinline__ u16* solution(u32 stage) const { return values(stage) + CHUNK * NARROW; }
    __device__ __forceinline__ u16* reads(u32 stage) const { return solution(stage) + CHUNK * SIDE; }
    __device__ __forceinline__ float* numbers(u32 stage) const { return (float*)(reads(stage) + CHUNK * SIDE); }
    __device__ __forceinline__ ByToken by(u32 stage, u32 which) const { return {numbers(stage) + which * CHUNK}; }

    __device__ __forceinline__ void fetch(u32 number, u32 stage) const {
        const u32 who = threadIdx.x - (READERS ? 32 * WARPS : 0);
        const Chunk chunk(p, state, number);
        const u8* from = args.ready + chunk.kept * READY;
        fetch_rows<KEYS, COUNT>(p, chunk, p.k.data, p.key, 0, keys(stage), ROW, who);
        fetch_rows<KEYS, COUNT>(p, chunk, p.q.data, p.key, 0, queries(stage), ROW, who);
        fetch_rows<16 * WARPS, COUNT>(p, chunk, p.v.data, p.value, first, values(stage), NARROW, who);
        if (p.erase) fetch_square<COUNT>((const u16*)from, solution(stage), who);
        fetch_square<COUNT>((const u16*)from + SQUARE, reads(stage), who);
        fetch_numbers<COUNT>((const float*)(from + 4 * SQUARE), numbers(stage), who);
    }

    // a ∘ (rows M) + b ∘ (rows S), turned over.
    __device__ __forceinline__ void read(Sums<8>& x, const u16* rows, ByToken a, ByToken b) const {
        x.clear();
        m.times_rows(x, rows, ROW);
        x.scale(a);
        if (S) {
            Sums<8> y;
            y.clear();
            s.times_rows(y, rows, ROW);
            y.scale(b);
            #pragma unroll
            for (u32 n = 0; n < 8; n++)
                #pragma unroll
                for (u32 i = 0; i < 4; i++) x.x[n][i] += y.x[n][i];
        }
    }

    // (19): the right side in place of r a⁻ ∘ X₀ + r b⁻ ∘ X₁, then the solution.
    __device__ __forceinline__ void solve(Sums<8>& x, u32 stage) const {
        const ByToken w = by(stage, OF_W);
        #pragma unroll
        for (u32 s = 0; s < 4; s++) {
            u32 v[4];
            left_across(v, values(stage), NARROW, threadIdx.x / 32 * 16, 16 * s);
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                float2 f = w(16 * s + 8 * h + threadIdx.x % 4 * 2);
                float (&of)[4] = x.x[2 * s + h];
                of[0] = f.x * low_half(v[2 * h]) - of[0];
                of[1] = f.y * high_half(v[2 * h]) - of[1];
                of[2] = f.x * low_half(v[2 * h + 1]) - of[2];
                of[3] = f.y * high_half(v[2 * h + 1]) - of[3];
            }
        }
        if (!p.erase) return;
        Lefts<4> known;
        known.of(x);
        x.clear();
        times_lower(x, known, solution(stage));
    }

    __device__ __forceinline__ void go(const Chunk& chunk, u32 stage) {
        if (args.kept) {
            u16* kept = args.kept + chunk.kept * (S ? 2 : 1) * matrix;
            m.keep(p, kept, own);
            if (S) s.keep(p, kept + matrix, own);
        }
        Sums<8> x;
        if (p.erase) read(x, keys(stage), by(stage, OF_ERASE_A), by(stage, OF_ERASE_B));
        else x.clear();
        solve(x, stage);
        if (args.kept) store_rows(p, chunk, x, args.written, own);
        Lefts<4> z;
        z.of(x);
        // (20).
        Sums<8> out;
        read(out, queries(stage), by(stage, OF_READ_A), by(stage, OF_READ_B));
        times_lower(out, z, reads(stage));
        store_rows(p, chunk, out, args.out, own);
        // (21), (22).
        const float* scalars = numbers(stage) + SCALARS;
        const float an = scalars[0], bn = scalars[1], en = scalars[2];
        #pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                m.sums.x[n][i] = an * m.sums.x[n][i] + (S ? bn * s.sums.x[n][i] : 0.0f);
                if (S) s.sums.x[n][i] *= en;
            }
        z.of(x, by(stage, OF_LAST_C));
        m.add(z, keys(stage), ROW);
        if (S) {
            z.of(x, by(stage, OF_LAST_E));
            s.add(z, keys(stage), ROW);
        }
    }

    __device__ __forceinline__ void run() {
        const bool goes = threadIdx.x < 32 * WARPS, reads = !READERS || !goes;
        if (goes) {
            m.read(p, args.m + state * matrix, own);
            if (S) s.read(p, args.s + state * matrix, own);
        }
        const u32 count = chunks_of(p, state);
        const u32 stages = args.stages;
        for (u32 step = 0; step + 1 < stages; step++) {
            if (reads && step < count) fetch(step, step);
            copies_commit();
        }
        for (u32 step = 0, stage = 0; step < count; step++, stage = stage + 1 < stages ? stage + 1 : 0) {
            if (stages == 2) copies_wait<0>();
            else copies_wait<1>();
            // The chunk is there for all, and nobody reads the last one any more, whose place is the next one's.
            __syncthreads();
            const u32 next = step + stages - 1;
            if (reads && next < count) fetch(next, stage ? stage - 1 : stages - 1);
            copies_commit();
            if (goes) go(Chunk(p, state, step), stage);
        }
        if (!goes) return;
        m.write(p, args.last_m + state * matrix, own);
        if (S) s.write(p, args.last_s + state * matrix, own);
    }
};

template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void forward(const Bf16Forward& args, u8* shared) {
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS;
    Forward<KEYS, WARPS, S> of{args, args.p, shared, blockIdx.x / args.p.blocks, (u64)args.p.key * args.p.value, first,
                               first + threadIdx.x / 32 % WARPS * 16};
    of.run();
}

#define FORWARD(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Forward, 32 * (WARPS <= 4 ? 2 * WARPS : WARPS), 1) {      \
        DYNAMIC_SHARED(u8, shared);              \
        forward<KEYS, WARPS, S>(args, shared);   \
    }

FORWARD(bf16_64_2, 64, 2, false)
FORWARD(bf16_64_4, 64, 4, false)
FORWARD(bf16_128_2, 128, 2, false)
FORWARD(bf16_128_4, 128, 4, false)
FORWARD(bf16_128_8, 128, 8, false)
FORWARD(bf16_64_2_momentum, 64, 2, true)
FORWARD(bf16_64_4_momentum, 64, 4, true)
FORWARD(bf16_128_2_momentum, 128, 2, true)
FORWARD(bf16_128_4_momentum, 128, 4, true)
FORWARD(bf16_128_8_momentum, 128, 8, true)
