// The exact chunk form with bfloat16: the gradient of the memory, equations (23)-(25) and (30), from the last chunk to
// the first, 16 columns to a warp.
#include "bf16.cuh"

struct Bf16Reverse {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const u16* dout;           // [rows,H,V]
    const float *dm, *ds;      // [N,H,K,V]: of the final state
    float *first_dm, *first_ds;  // [N,H,K,V]: of the initial state
    u16* kept;                 // [kept,H,1 + S,V,K]: of the state behind each chunk
    u16 *solved, *dv;          // [rows,H,V]: Λ and w ∘ Λ
    u32 stages, unused;        // chunks that lie in shared memory: 2 or 3
};

template <u32 KEYS, u32 WARPS, bool S>
struct Reverse {
    static constexpr u32 ROW = KEYS + 8, NARROW = 16 * WARPS + 8;
    // Few warps have others that read ahead for them.
    static constexpr u32 READERS = WARPS <= 4 ? WARPS : 0, COUNT = 32 * (READERS ? READERS : WARPS);
    // Bytes of a chunk on its way.
    static constexpr u32 STAGE = 2 * CHUNK * (2 * ROW + NARROW) + 2 * 2 * CHUNK * SIDE + 4 * NUMBERS;

    const Bf16Reverse& args;
    const Linear& p;
    u8* shared;
    u64 state, matrix;
    u32 first, own;  // columns of the block and of the warp
    Columns<KEYS> m, s;

    __device__ __forceinline__ u16* keys(u32 stage) const { return (u16*)(shared + stage * STAGE); }
    __device__ __forceinline__ u16* queries(u32 stage) const { return keys(stage) + CHUNK * ROW; }
    __device__ __forceinline__ u16* outputs(u32 stage) const { return queries(stage) + CHUNK * ROW; }
    __device__ __forceinline__ u16* solution(u32 stage) const { return outputs(stage) + CHUNK * NARROW; }
    __device__ __forceinline__ u16* reads(u32 stage) const { return solution(stage) + CHUNK * SIDE; }
    __device__ __forceinline__ float* numbers(u32 stage) const { return (float*)(reads(stage) + CHUNK * SIDE); }
    __device__ __forceinline__ ByToken by(u32 stage, u32 which) const { return {numbers(stage) + which * CHUNK}; }

    __device__ __forceinline__ void fetch(u32 number, u32 stage) const {
        const u32 who = threadIdx.x - (READERS ? 32 * WARPS : 0);
        const Chunk chunk(p, state, number);
        const u8* from = args.ready + chunk.kept * READY;
        fetch_rows<KEYS, COUNT>(p, chunk, p.k.data, p.key, 0, keys(stage), ROW, who);
        fetch_rows<KEYS, COUNT>(p, chunk, p.q.data, p.key, 0, queries(stage), ROW, who);
        fetch_rows<16 * WARPS, COUNT>(p, chunk, args.dout, p.value, first, outputs(stage), NARROW, who);
        if (p.erase) fetch_square<COUNT>((const u16*)from, solution(stage), who);
        fetch_square<COUNT>((const u16*)from + SQUARE, reads(stage), who);
        fetch_numbers<COUNT>((const float*)(from + 4 * SQUARE), numbers(stage), who);
    }

    // dO of the warp's columns, turned over, as a left factor; scaled by token where `by` is given.
    __device__ __forceinline__ void outputs_of(Lefts<4>& x, u32 stage) const {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) left_across(x.x[i], outputs(stage), NARROW, threadIdx.x / 32 * 16, 16 * i);
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
    __device__ __forceinline__ void solve(Sums<8>& x, const Lefts<4>& dout, u32 stage) const {
        x.clear();
        m.times_rows(x, keys(stage), ROW);
        x.scale(by(stage, OF_LAST_C));
        if (S) {
            Sums<8> y;
            y.clear();
            s.times_rows(y, keys(stage), ROW);
            y.scale(by(stage, OF_LAST_E));
            #pragma unroll
            for (u32 n = 0; n < 8; n++)
                #pragma unroll
                for (u32 i = 0; i < 4; i++) x.x[n][i] += y.x[n][i];
        }
        times_upper(x, dout, reads(stage));
        if (!p.erase) return;
        Lefts<4> known;
        known.of(x);
        x.clear();
        times_upper(x, known, solution(stage));
    }

    __device__ __forceinline__ void go(const Chunk& chunk, u32 stage) {
        u16* kept = args.kept + chunk.kept * (S ? 2 : 1) * matrix;
        m.keep(p, kept, own);
        if (S) s.keep(p, kept + matrix, own);
        Lefts<4> dout, part;
        outputs_of(dout, stage);
        Sums<8> x;
        solve(x, dout, stage);
        store_rows(p, chunk, x, args.solved, own);
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
        m.add(part, queries(stage), ROW);
        if (S) {
            scaled(part, dout, by(stage, OF_READ_B));
            s.add(part, queries(stage), ROW);
        }
        if (p.erase) {
            const auto less = [&](u32 which) {
                return [of = by(stage, which)](u32 t) { float2 f = of(t); return make_float2(-f.x, -f.y); };
            };
            part.of(x, less(OF_ERASE_A));
            m.add(part, keys(stage), ROW);
            if (S) {
                part.of(x, less(OF_ERASE_B));
                s.add(part, keys(stage), ROW);
            }
        }
        x.scale(by(stage, OF_W));
        store_rows(p, chunk, x, args.dv, own);
    }

    __device__ __forceinline__ void run() {
        const bool goes = threadIdx.x < 32 * WARPS, reads = !READERS || !goes;
        if (goes) {
            m.read(p, args.dm + state * matrix, own);
            if (S) s.read(p, args.ds + state * matrix, own);
        }
        const u32 count = chunks_of(p, state);
        const u32 stages = args.stages;
        for (u32 step = 0; step + 1 < stages; step++) {
            if (reads && step < count) fetch(count - 1 - step, step);
            copies_commit();
        }
        for (u32 step = 0, stage = 0; step < count; step++, stage = stage + 1 < stages ? stage + 1 : 0) {
            if (stages == 2) copies_wait<0>();
            else copies_wait<1>();
            // The chunk is there for all, and nobody reads the last one any more, whose place is the next one's.
            __syncthreads();
            const u32 next = step + stages - 1;
            if (reads && next < count) fetch(count - 1 - next, stage ? stage - 1 : stages - 1);
            copies_commit();
            if (goes) go(Chunk(p, state, count - 1 - step), stage);
        }
        if (!goes) return;
        m.write(p, args.first_dm + state * matrix, own);
        if (S) s.write(p, args.first_ds + state * matrix, own);
    }
};

template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void reverse(const Bf16Reverse& args, u8* shared) {
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS;
    Reverse<KEYS, WARPS, S> of{args, args.p, shared, blockIdx.x / args.p.blocks, (u64)args.p.key * args.p.value, first,
                               first + threadIdx.x / 32 % WARPS * 16};
    of.run();
}

#define REVERSE(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Reverse, 32 * (WARPS <= 4 ? 2 * WARPS : WARPS), 1) {      \
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
REVERSE(bf16_reverse_128_8_momentum, 128, 8, true)
