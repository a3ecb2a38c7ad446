// The exact chunk form, equations (15)-(32): what its kernels share.
//
// A block of 256 threads works on 64 tokens of one sequence and head, or goes from chunk to chunk with a block of value
// columns. Everything but the tables are products of tiles in shared memory, done by the tensor cores. Elements of 32
// bits go there in two parts, x = high + low: x y ≈ high high + high low + low high. That leaves out 2^-20 of a factor
// at most, so the sums stay 32-bit sums.
#pragma once
#include "linear.cuh"

// Tokens
static constexpr u32 CHUNK = 64;
// Elements from row to row of a square [CHUNK,CHUNK]
static constexpr u32 WIDE = CHUNK + 4;
// 8 warps.
static constexpr u32 THREADS = 256;

// Where the parts of a chunk lie that depend on keys, queries and gates only, one after the other. First T (only with
// erase) and Y ∘ Q Kᵀ [CHUNK,CHUNK]. Then A[t], b[t] for t = 0..CHUNK, then c[n,·], E[n,·], and E[n,0].
// Elements of a square, and of all vectors; of both squares with them.
static constexpr u32 SQUARE = CHUNK * CHUNK, VECTORS = 272;
static constexpr u32 PREPARED = 2 * SQUARE + VECTORS;
// Where each vector begins among them.
static constexpr u32 AT_A = 0, AT_B = CHUNK + 1, AT_C = 2 * CHUNK + 2, AT_E = 3 * CHUNK + 2, AT_E0 = 4 * CHUNK + 2;

// One head of one sequence, by its number in [N,H].
struct Sequence {
    u32 heads, head, tokens;
    // Number; first row
    u64 state, first;
    // Index into [kept,H] of the state before its first chunk
    u64 kept;

    // Sequence and head number `state` among N H.
    __device__ Sequence(const Linear& p, u64 state) : heads(p.heads), state(state) {
        const u32 sequence = (u32)state / p.heads;
        head = (u32)state - sequence * p.heads;
        first = p.starts ? p.starts[sequence] : (u64)sequence * p.tokens;
        tokens = p.starts ? p.starts[sequence + 1] - (u32)first : p.tokens;
        kept = (p.starts ? p.starts[p.sequences + 1 + sequence] : (u64)sequence * p.kept) * p.heads + head;
    }

    // Chunks of 64 tokens, the last perhaps shorter.
    __device__ __forceinline__ u32 chunks() const { return (tokens + CHUNK - 1) / CHUNK; }
};

// One chunk of it.
struct Chunk {
    // `tokens`: of this chunk; 0 where there is none
    u32 head, tokens;
    // Number of its head in [N,H]; first row
    u64 state, row;
    // Index into [kept,H] of its kept state
    u64 kept;

    // Chunk `number` of a sequence; past its end one of no tokens.
    __device__ __forceinline__ Chunk(const Sequence& of, u32 number)
        : head(of.head), tokens(number * CHUNK < of.tokens ? min(CHUNK, of.tokens - number * CHUNK) : 0), state(of.state),
          row(of.first + (u64)number * CHUNK), kept(of.kept + (u64)number * of.heads) {}
    // Finds chunk `number` of the sequence and head of `state`.
    __device__ Chunk(const Linear& p, u64 state, u32 number) : Chunk(Sequence(p, state), number) {}

    // Token and head in arrays [rows,H].
    __device__ __forceinline__ u64 token(const Linear& p, u32 t) const { return (row + t) * p.heads + head; }
};

// Four 16-bit elements.
__device__ __forceinline__ float4 widen(u32 type, uint2 x) {
    return make_float4(from_bits(type, x.x), from_bits(type, x.x >> 16), from_bits(type, x.y), from_bits(type, x.y >> 16));
}

// Rows of `x [rows,H,width]` of a chunk as [CHUNK,WIDTH] with `stride`, from column `first`; zeros outside. All loads
// are under way before the first is waited for.
// Threads of a row stand side by side, four columns each, so that rows of global memory are read in whole lines.
template <u32 WIDTH>
__device__ __forceinline__ void read_rows(
    const Linear& p, const Chunk& chunk, Array x, u32 width, u32 first, float* to, u32 stride
) {
    // Rows that do not begin at multiples of 16 bytes are read element by element.
    if (width % 4 != 0) {
        for (u32 i = threadIdx.x; i < CHUNK * WIDTH; i += THREADS) {
            u32 t = i / WIDTH, c = i % WIDTH;
            bool inside = t < chunk.tokens && first + c < width;
            to[t * stride + c] = inside ? load(x, chunk.token(p, t) * width + first + c) : 0.0f;
        }
        return;
    }
    constexpr u32 EACH = CHUNK * WIDTH / 4 / THREADS;
    // The thread's first column and row.
    const u32 c = threadIdx.x % (WIDTH / 4) * 4, t = threadIdx.x / (WIDTH / 4);
    constexpr u32 STEP = THREADS / (WIDTH / 4);
    const u64 from = chunk.token(p, t) * width + first + c, apart = (u64)STEP * p.heads * width;
    const bool within = first + c < width;
    float4 rows[EACH];
    if (x.type == 0) {
        #pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            bool inside = within && t + i * STEP < chunk.tokens;
            rows[i] = inside ? ((const float4*)x.data)[(from + i * apart) / 4] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    } else {
        // 16-bit elements stay as they are until all are read.
        uint2 bits[EACH];
        #pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            bits[i].x = bits[i].y = 0;
            if (within && t + i * STEP < chunk.tokens) bits[i] = ((const uint2*)x.data)[(from + i * apart) / 4];
        }
        #pragma unroll
        for (u32 i = 0; i < EACH; i++) rows[i] = widen(x.type, bits[i]);
    }
    #pragma unroll
    for (u32 i = 0; i < EACH; i++) *(float4*)(to + (t + i * STEP) * stride + c) = rows[i];
}

// Columns from `first` of a matrix [K,V] as [KEYS,WIDTH] with `stride`; zeros outside.
template <u32 KEYS, u32 WIDTH>
__device__ __forceinline__ void read_matrix(const Linear& p, const float* x, u32 first, float* to, u32 stride) {
    constexpr u32 EACH = KEYS * WIDTH / 4 / THREADS;
    #pragma unroll
    for (u32 n = 0; n < EACH; n++) {
        // Row and first column of the thread's n-th piece.
        u32 i = threadIdx.x + n * THREADS, k = i / (WIDTH / 4), c = i % (WIDTH / 4) * 4;
        const float* from = x + (u64)k * p.value + first + c;
        float4 row = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (k < p.key && p.value % 4 == 0) {
            if (first + c < p.value) row = *(const float4*)from;
        } else if (k < p.key) {
            if (first + c < p.value) row.x = from[0];
            if (first + c + 1 < p.value) row.y = from[1];
            if (first + c + 2 < p.value) row.z = from[2];
            if (first + c + 3 < p.value) row.w = from[3];
        }
        *(float4*)(to + k * stride + c) = row;
    }
}

// The same from shared memory back to a matrix [K,V].
template <u32 KEYS, u32 WIDTH>
__device__ __forceinline__ void write_matrix(const Linear& p, float* x, u32 first, const float* from, u32 stride) {
    #pragma unroll
    for (u32 n = 0; n < KEYS * WIDTH / 4 / THREADS; n++) {
        u32 i = threadIdx.x + n * THREADS, k = i / (WIDTH / 4), c = i % (WIDTH / 4) * 4;
        if (k >= p.key) continue;
        const float* row = from + k * stride + c;
        float* to = x + (u64)k * p.value + first + c;
        if (p.value % 4 == 0) {
            if (first + c < p.value) *(float4*)to = *(const float4*)row;
        } else {
            for (u32 j = 0; j < 4; j++)
                if (first + c + j < p.value) to[j] = row[j];
        }
    }
}

// A square [CHUNK,CHUNK] as it was prepared.
__device__ __forceinline__ void read_square(const float* x, float* to) {
    #pragma unroll
    for (u32 n = 0; n < SQUARE / 4 / THREADS; n++) {
        u32 i = 4 * (threadIdx.x + n * THREADS);
        *(float4*)(to + i / CHUNK * WIDE + i % CHUNK) = *(const float4*)(x + i);
    }
}

// w and r of the chunk's tokens; 0 after its end.
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

    // x [16, 8 * TILES] = 0
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

// x += A B: rows from `row`, columns from `column`, over `depth` (a multiple of 8). A and B are functions of row and
// column. Few tiles have sums of their own for the small parts, so that no product waits for the one before.
// A warp makes 16 rows and 8 TILES columns. All its threads call it; nothing is exchanged beyond the warp.
template <u32 TILES, class A, class B>
__device__ __forceinline__ void product(Sum<TILES>& x, u32 row, u32 column, u32 depth, A a, B b) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr bool APART = TILES <= 2;
    Sum<TILES> small, smaller;
    if (APART) small.clear(), smaller.clear();
    #pragma unroll 2
    for (u32 k = 0; k < depth; k += 8) {
        // The left factor [16,8], in two parts.
        u32 high[4], low[4];
        split(a(row + g, k + t), high[0], low[0]);
        split(a(row + g + 8, k + t), high[1], low[1]);
        split(a(row + g, k + t + 4), high[2], low[2]);
        split(a(row + g + 8, k + t + 4), high[3], low[3]);
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            // The right factor [8,8], in two parts.
            u32 other[2], rest[2];
            split(b(k + t, column + 8 * n + g), other[0], rest[0]);
            split(b(k + t + 4, column + 8 * n + g), other[1], rest[1]);
            multiply_add(APART ? smaller.x[n] : x.x[n], low, other);
            multiply_add(APART ? small.x[n] : x.x[n], high, rest);
            multiply_add(x.x[n], high, other);
        }
    }
    if constexpr (APART) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x.x[n][i] += small.x[n][i] + smaller.x[n][i];
    }
}

// Sums over the columns that a thread holds of rows `row + g` and `row + g + 8`, and over the threads of a row. They are
// added to `to [CHUNK]` by one thread each.
struct RowSums {
    float x[2] = {0.0f, 0.0f};

    // Place `i` of a tile belongs to the upper row for i < 2, else to the lower.
    __device__ __forceinline__ void add(u32 i, float value) { x[i / 2] += value; }
    // to[row] += the sum over the four lanes that share a row, for both rows of the thread.
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

    // Bands of 16 rows first, then columns.
    __device__ __forceinline__ Share() {
        // Warps that are BANDS apart share a row.
        u32 warp = threadIdx.x / 32;
        row = warp % BANDS * 16;
        side = warp / BANDS;
        column = side * TILES * 8;
    }
};
