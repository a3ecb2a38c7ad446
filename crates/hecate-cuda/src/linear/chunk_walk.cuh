// What a block of the 32-bit chunk form holds that goes from chunk to chunk with a block of value columns: forward the
// memory and the values, backward their gradients.
#pragma once
#include "chunk.cuh"

// A block has 256 threads, 64 tokens and WIDTH value columns. KEYS is K rounded up to 32, 64 or 128; outside K and V all
// elements are zero. S: there is a momentum.
template <u32 KEYS, u32 WIDTH, bool S>
struct ChunkWalk {
    // Elements from row to row in shared memory. Four or eight more than a row has: rows begin in other banks, and at
    // multiples of 16 bytes.
    static constexpr u32 STRIDE = KEYS + 4, NARROW = WIDTH + 8;
    // How the warps share [CHUNK,WIDTH], and [KEYS,WIDTH].
    using Own = Share<CHUNK, WIDTH>;
    using OfState = Share<KEYS, WIDTH>;

    const Linear& p;
    // First column of the block.
    const u32 first;
    // Number of the head in [N,H]; elements of a matrix [K,V].
    const u64 state, matrix;
    // 1 where a token reads the memory after its own write, else 0: row of A and b for its read.
    const u32 seen;
    const Own own;
    const OfState of_state;
    // [CHUNK,STRIDE] each.
    float *k, *q;
    // T and Y ∘ Q Kᵀ [CHUNK,WIDE].
    float *t, *y;
    // M and S, or their gradients, [KEYS,NARROW] each; s is null without momentum.
    float *m, *s;
    // V or dO, and Z or dZ, [CHUNK,NARROW] each.
    float *v, *z;
    // [CHUNK] each, and [VECTORS].
    float *w, *r, *vectors;

    // `shared` is cut up in this order; `strengths` holds w, then r.
    __device__ __forceinline__ ChunkWalk(const Linear& p, float* shared, float (*strengths)[CHUNK], float* vectors)
        : p(p), first(blockIdx.x % p.blocks * WIDTH), state(blockIdx.x / p.blocks), matrix((u64)p.key * p.value),
          seen(p.before ? 0 : 1), w(strengths[0]), r(strengths[1]), vectors(vectors) {
        float* rest = shared;
        auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
        k = take(CHUNK * STRIDE), q = take(CHUNK * STRIDE), t = take(CHUNK * WIDE), y = take(CHUNK * WIDE);
        m = take(KEYS * NARROW), s = S ? take(KEYS * NARROW) : nullptr;
        v = take(CHUNK * NARROW), z = take(CHUNK * NARROW);
    }

    // A[t] and b[t], t = 0..CHUNK; c and E of the chunk's last token.
    __device__ __forceinline__ const float* a() const { return vectors + AT_A; }
    // Returns b [CHUNK + 1], the factors of S before the chunk.
    __device__ __forceinline__ const float* b() const { return vectors + AT_B; }
    // Returns c [CHUNK], how much of each write is in M after the last token.
    __device__ __forceinline__ const float* last_c() const { return vectors + AT_C; }
    // Returns E [CHUNK], how much of each write is in S after the last token.
    __device__ __forceinline__ const float* last_e() const { return vectors + AT_E; }

    // Factors of products, as functions of row and column: an array of shared memory as it lies, or transposed.
    template <u32 BETWEEN>
    static __device__ __forceinline__ auto rows(const float* x) {
        return [x](u32 i, u32 j) { return x[i * BETWEEN + j]; };
    }
    // Returns x.T as a factor of products, with rows of x BETWEEN elements apart.
    template <u32 BETWEEN>
    static __device__ __forceinline__ auto transposed(const float* x) {
        return [x](u32 i, u32 j) { return x[j * BETWEEN + i]; };
    }

    // The columns of M and S, or of their gradients, from and to arrays [N,H,K,V].
    __device__ __forceinline__ void read_state(const float* from_m, const float* from_s) const {
        read_matrix<KEYS, WIDTH>(p, from_m + state * matrix, first, m, NARROW);
        if (S) read_matrix<KEYS, WIDTH>(p, from_s + state * matrix, first, s, NARROW);
    }
    // The same back; what is outside K and V is not written.
    __device__ __forceinline__ void write_state(float* to_m, float* to_s) const {
        write_matrix<KEYS, WIDTH>(p, to_m + state * matrix, first, m, NARROW);
        if (S) write_matrix<KEYS, WIDTH>(p, to_s + state * matrix, first, s, NARROW);
    }
    // The same to a chunk's place in an array [kept,H,1 + S,K,V].
    __device__ __forceinline__ void keep_state(float* kept, const Chunk& chunk) const {
        kept += chunk.kept * (S ? 2 : 1) * matrix;
        write_matrix<KEYS, WIDTH>(p, kept, first, m, NARROW);
        if (S) write_matrix<KEYS, WIDTH>(p, kept + matrix, first, s, NARROW);
    }

    // Vectors and strengths of a chunk; a barrier follows.
    // A thread copies every 256th element; the first 64 threads have a token's gates each.
    __device__ __forceinline__ void read_vectors(const Chunk& chunk, const float* prepared) const {
        for (u32 i = threadIdx.x; i < VECTORS; i += THREADS) vectors[i] = prepared[2 * SQUARE + i];
        read_strengths(p, chunk, w, r);
    }

    // x = f[row] x + g[row] y of a warp's part of [CHUNK,WIDTH]; without momentum f[row] x alone.
    __device__ __forceinline__ void mix(
        Sum<Own::TILES>& x, const Sum<Own::TILES>& y, const float* f, const float* g
    ) const {
        #pragma unroll
        for (u32 n = 0; n < Own::TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 row = own.row + threadIdx.x % 32 / 4 + i / 2 * 8;
                x.x[n][i] = f[row] * x.x[n][i] + (S ? g[row] * y.x[n][i] : 0.0f);
            }
    }
};
