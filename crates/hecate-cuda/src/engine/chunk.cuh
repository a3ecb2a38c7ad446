// The exact chunk form, equations (15)-(32): what its kernels share.
//
// A block of 256 threads works on 64 tokens of one sequence and head, or goes from chunk to chunk with a block of value
// columns. Everything but the tables are products of tiles in shared memory, done by the tensor cores. Numbers of 32
// bits go there in two parts, x = high + low, and x y ≈ high high + high low + low high, which leaves out 2^-20 of a
// factor at most: the sums stay 32-bit sums.
#pragma once
#include "linear.cuh"

static constexpr u32 CHUNK = 64;         // tokens
static constexpr u32 WIDE = CHUNK + 4;   // numbers from row to row of a square [CHUNK,CHUNK]
static constexpr u32 THREADS = 256;

// Where the parts of a chunk lie that depend on keys, queries and gates only, one after the other: T, Y ∘ Q Kᵀ, L ∘ K Kᵀ
// [CHUNK,CHUNK], then A[t], b[t] for t = 0..CHUNK, then c[n,·], E[n,·], and E[n,0]. T and L ∘ K Kᵀ only with erase.
static constexpr u32 SQUARE = CHUNK * CHUNK, VECTORS = 272;
static constexpr u32 PREPARED = 3 * SQUARE + VECTORS;
static constexpr u32 AT_A = 0, AT_B = CHUNK + 1, AT_C = 2 * CHUNK + 2, AT_E = 3 * CHUNK + 2, AT_E0 = 4 * CHUNK + 2;

// One chunk of one sequence and head.
struct Chunk {
    u32 head, tokens;  // `tokens`: of this chunk; 0 where there is none
    u64 state, row;    // index into [N,H]; first row
    u64 kept;          // index into [kept,H] of its kept state

    __device__ Chunk(const Linear& p, u64 state, u32 number) : state(state) {
        head = (u32)(state % p.heads);
        u64 sequence = state / p.heads;
        u64 first = p.starts ? p.starts[sequence] : sequence * p.tokens;
        u32 all = p.starts ? p.starts[sequence + 1] - (u32)first : p.tokens;
        u64 before = p.starts ? p.starts[p.sequences + 1 + sequence] : sequence * p.kept;
        tokens = number * CHUNK < all ? min(CHUNK, all - number * CHUNK) : 0;
        row = first + (u64)number * CHUNK;
        kept = (before + number) * p.heads + head;
    }

    // Token and head in arrays [rows,H].
    __device__ __forceinline__ u64 token(const Linear& p, u32 t) const { return (row + t) * p.heads + head; }
};

// Chunks of a sequence.
__device__ __forceinline__ u32 chunks_of(const Linear& p, u64 state) {
    u64 sequence = state / p.heads;
    u32 tokens = p.starts ? p.starts[sequence + 1] - p.starts[sequence] : p.tokens;
    return (tokens + CHUNK - 1) / CHUNK;
}

// Rows of `x [rows,H,width]` of a chunk as [CHUNK,WIDTH] with `stride`, from column `first`; zeros outside.
template <u32 WIDTH>
__device__ __forceinline__ void read_rows(
    const Linear& p, const Chunk& chunk, Array x, u32 width, u32 first, float* to, u32 stride
) {
    #pragma unroll 8
    for (u32 i = threadIdx.x; i < CHUNK * WIDTH; i += THREADS) {
        u32 t = i / WIDTH, c = i % WIDTH;
        bool inside = t < chunk.tokens && first + c < width;
        to[t * stride + c] = inside ? load(x, chunk.token(p, t) * width + first + c) : 0.0f;
    }
}

// Columns from `first` of a matrix [K,V] as [KEYS,WIDTH] with `stride`; zeros outside, or where there is none.
template <u32 KEYS, u32 WIDTH>
__device__ __forceinline__ void read_matrix(const Linear& p, const float* x, u32 first, float* to, u32 stride) {
    #pragma unroll 8
    for (u32 i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
        u32 k = i / WIDTH, c = i % WIDTH;
        to[k * stride + c] = k < p.key && first + c < p.value ? x[(u64)k * p.value + first + c] : 0.0f;
    }
}

template <u32 KEYS, u32 WIDTH>
__device__ __forceinline__ void write_matrix(const Linear& p, float* x, u32 first, const float* from, u32 stride) {
    #pragma unroll 8
    for (u32 i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
        u32 k = i / WIDTH, c = i % WIDTH;
        if (k < p.key && first + c < p.value) x[(u64)k * p.value + first + c] = from[k * stride + c];
    }
}

// A square [CHUNK,CHUNK] as it was prepared.
__device__ __forceinline__ void read_square(const float* x, float* to) {
    #pragma unroll 4
    for (u32 i = threadIdx.x; i < SQUARE; i += THREADS) to[i / CHUNK * WIDE + i % CHUNK] = x[i];
}

// w and r of the chunk's tokens; 0 behind its end.
__device__ __forceinline__ void read_strengths(const Linear& p, const Chunk& chunk, float* w, float* r) {
    if (threadIdx.x < CHUNK) {
        bool inside = threadIdx.x < chunk.tokens;
        Four gates = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
        w[threadIdx.x] = gates.x;
        r[threadIdx.x] = gates.y;
    }
}

// Part of a product that a warp holds: 16 rows, and TILES times 8 columns.
template <u32 TILES>
struct Sum {
    float x[TILES][4];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] = 0.0f;
    }

    // f(row, column, value) of all that this thread holds, the first at `row`, `column` of the whole.
    template <class F>
    __device__ __forceinline__ void each(u32 row, u32 column, F f) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(row + g + i / 2 * 8, column + 8 * n + 2 * t + i % 2, x[n][i]);
    }
};

// The part of a number that the tensor cores take, and what it leaves.
__device__ __forceinline__ void split(float x, u32& high, u32& low) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

// x += A B: rows from `row`, columns from `column`, over `depth` (a multiple of 8). A and B are functions of row and column.
template <u32 TILES, class A, class B>
__device__ __forceinline__ void product(Sum<TILES>& x, u32 row, u32 column, u32 depth, A a, B b) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll 2
    for (u32 k = 0; k < depth; k += 8) {
        u32 high[4], low[4];
        split(a(row + g, k + t), high[0], low[0]);
        split(a(row + g + 8, k + t), high[1], low[1]);
        split(a(row + g, k + t + 4), high[2], low[2]);
        split(a(row + g + 8, k + t + 4), high[3], low[3]);
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 other[2], rest[2];
            split(b(k + t, column + 8 * n + g), other[0], rest[0]);
            split(b(k + t + 4, column + 8 * n + g), other[1], rest[1]);
            multiply_add(x.x[n], low, other);
            multiply_add(x.x[n], high, rest);
            multiply_add(x.x[n], high, other);
        }
    }
}

// Sums over the columns that a thread holds of rows `row + g` and `row + g + 8`, and over the threads of a row: added to
// `to [CHUNK]` by one thread each.
struct RowSums {
    float x[2] = {0.0f, 0.0f};

    __device__ __forceinline__ void add(u32 i, float value) { x[i / 2] += value; }
    __device__ __forceinline__ void finish(u32 row, float* to) {
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            x[i] += shuffle_xor(x[i], 1);
            x[i] += shuffle_xor(x[i], 2);
        }
        if (threadIdx.x % 4 == 0) {
            to[row + threadIdx.x % 32 / 4] += x[0];
            to[row + threadIdx.x % 32 / 4 + 8] += x[1];
        }
    }
};

// How the 8 warps share [ROWS,WIDTH]: 16 rows each, and an equal part of the columns.
template <u32 ROWS, u32 WIDTH>
struct Share {
    static constexpr u32 BANDS = ROWS / 16, TILES = WIDTH / 8 * BANDS / 8;
    u32 row, column, side;

    __device__ __forceinline__ Share() {
        u32 warp = threadIdx.x / 32;
        row = warp % BANDS * 16;
        side = warp / BANDS;
        column = side * TILES * 8;
    }
};
