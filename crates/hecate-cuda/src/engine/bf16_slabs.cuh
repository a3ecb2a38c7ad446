// Gradients of a chunk with bfloat16: what is given, and how it comes to shared memory.
#pragma once
#include "bf16.cuh"

struct Bf16Gradients {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const u16* kept;           // [kept,H,1 + S] states before each chunk, as `kept_at` says
    const u16* kept_grads;     // [kept,H,1 + S] gradients of the states behind
    const u16 *written, *solved;  // [rows,H,V]: Z, Λ
    const u16* dout;           // [rows,H,V]
    u16 *dq, *dk;              // [rows,H,K]
    float *log_a, *log_eta, *theta, *beta;  // [rows,H]: gradients of the gates; null where the rule has none
    u32 chunks, unused;        // of the longest sequence
};

// Slabs of value columns, one after the other through two places in shared memory: of dO and Λ with each matrix of the
// state, then of Z with each of its gradient. Matrices lie there as rows [SLAB,KEYS].
template <u32 KEYS, u32 BLOCK, u32 MATRICES>
struct Slabs {
    // Of rows of tokens a thread copies 8 columns each.
    static constexpr u32 SLAB = BLOCK / 8, ROW = KEYS + 8, THIN = SLAB + 8, THIN_TILE = CHUNK * THIN;
    static constexpr u32 STAGE = 2 * THIN_TILE + SLAB * ROW;  // bfloat16 of a slab

    const Bf16Gradients& args;
    const Chunk chunk;
    u16* stages;
    u64 values;                             // this thread's part in arrays [rows,H,V]
    u32 fetched, next_matrix, next_column;

    __device__ __forceinline__ Slabs(const Bf16Gradients& args, const Chunk& chunk, u16* stages)
        : args(args), chunk(chunk), stages(stages),
          values(chunk.token(args.p, threadIdx.x / (SLAB / 8)) * args.p.value + threadIdx.x % (SLAB / 8) * 8), fetched(0),
          next_matrix(0), next_column(0) {}

    __device__ __forceinline__ const u16* matrix(const u16* of, u32 which) const {
        return of + (chunk.kept * MATRICES + which) * kept_size<KEYS>(args.p);
    }

    __device__ __forceinline__ void fetch() {
        if (next_matrix < 2 * MATRICES) {
            const Linear& p = args.p;
            const bool state = next_matrix < MATRICES;
            const u32 t = threadIdx.x / (SLAB / 8), first = threadIdx.x % (SLAB / 8) * 8;
            u16* to = stages + fetched % 2 * STAGE;
            const bool here = t < chunk.tokens && next_column + first < p.value;
            const u64 at = here ? values + next_column : 0;
            copy_16(to + t * THIN + first, (state ? args.dout : args.written) + at, here);
            if (state) copy_16(to + THIN_TILE + t * THIN + first, args.solved + at, here);
            // A tile [16,16] to a warp and turn.
            constexpr u32 TURNS = SLAB * KEYS / 8 / BLOCK;
            const u16* x = matrix(state ? args.kept : args.kept_grads, next_matrix % MATRICES);
            to += 2 * THIN_TILE;
            #pragma unroll
            for (u32 i = 0; i < TURNS; i++) {
                const u32 tile = threadIdx.x / 32 * TURNS + i, lane = threadIdx.x % 32;
                const u32 v = tile / (KEYS / 16) * 16 + lane % 16, c = tile % (KEYS / 16) * 16 + lane / 16 * 8;
                const bool inside = next_column + v < (p.value + 15) / 16 * 16;
                copy_16(to + v * ROW + c, inside ? x + kept_at<KEYS>(next_column + v, c) : x, inside);
            }
            next_column += SLAB;
            if (next_column >= p.value) next_column = 0, next_matrix++;
        }
        copies_commit();
        fetched++;
    }
    // The slab that was fetched last, by all; the one behind it is then on its way. dO (or Z), Λ, the matrix.
    __device__ __forceinline__ const u16* next() {
        copies_wait<0>();
        __syncthreads();
        const u16* at = stages + (fetched + 1) % 2 * STAGE;
        fetch();
        return at;
    }

    // Of this thread's token, eight columns of V each.
    __device__ __forceinline__ uint4 read_v(u32 first) const {
        const u32 t = threadIdx.x / (SLAB / 8), c = first + threadIdx.x % (SLAB / 8) * 8;
        return t < chunk.tokens && c < args.p.value ? *(const uint4*)((const u16*)args.p.v.data + values + first) : uint4{};
    }

    // Eight columns each of a slab of a state, which was here before. The lanes of a warp have 8 rows, 4 lanes each.
    static constexpr u32 EACH = SLAB * KEYS / 8 / BLOCK, APART = 8 * BLOCK / KEYS;
    static __device__ __forceinline__ u32 row() { return threadIdx.x / KEYS * 8 + threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ u32 column() { return threadIdx.x % KEYS / 32 * 32 + threadIdx.x % 4 * 8; }
    __device__ __forceinline__ void read_state(u32 which, u32 first, uint4 (&x)[EACH]) const {
        const u32 v = first + row(), c = column();
        const u16* from = matrix(args.kept, which);
        #pragma unroll
        for (u32 n = 0; n < EACH; n++)
            x[n] = v + n * APART < args.p.value ? *(const uint4*)(from + kept_at<KEYS>(v + n * APART, c)) : uint4{};
    }
    // Products of 8 rows with 8 rows, of which `inner` takes those of the same: of the first tile the upper ones, of the
    // second the lower.
    static __device__ __forceinline__ void add_inner(float (&x)[2][4], const uint4 (&a)[EACH], const u16* matrix) {
        matrix += row() * ROW + column();
        #pragma unroll
        for (u32 n = 0; n < EACH; n++) {
            const uint4 b = *(const uint4*)(matrix + n * APART * ROW);
            const u32 both[4] = {a[n].x, a[n].z, a[n].y, a[n].w};
            multiply_add_bf16(x[0], both, b.x, b.y);
            multiply_add_bf16(x[1], both, b.z, b.w);
        }
    }
    // This thread's part of the inner product.
    static __device__ __forceinline__ float inner(const float (&x)[2][4]) {
        const u32 i = threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
        return i == j ? x[0][0] + x[1][2] : i == j + 1 ? x[0][1] + x[1][3] : 0.0f;
    }

    // Asks for what is read after the squares.
    __device__ __forceinline__ void ask() const {
        const u16 *state = matrix(args.kept, 0), *gradient = matrix(args.kept_grads, 0);
        for (u32 i = 64 * threadIdx.x; i < MATRICES * kept_size<KEYS>(args.p); i += 64 * BLOCK)
            ask_for(state + i), ask_for(gradient + i);
        const u32 t = threadIdx.x % CHUNK;
        if (t >= chunk.tokens) return;
        const u16* v = (const u16*)args.p.v.data + chunk.token(args.p, t) * args.p.value;
        for (u32 c = threadIdx.x / CHUNK * 64; c < args.p.value; c += BLOCK) ask_for(v + c);
    }
};
