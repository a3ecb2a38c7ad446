// The exact chunk form, equations (15)-(32), with q, k and v of bfloat16: what its kernels share.
//
// Tiles lie in shared memory as bfloat16, as they come; the tensor cores take them from there and add up in 32 bits.
// Masks, the solve and the memory stay in 32 bits; the memory is rounded where it is a factor.
//
// A warp that goes from chunk to chunk holds 16 value columns of the memory, turned over: M^T [16,K], as sums of the
// tensor cores. Everything else it needs of a chunk, X^T [16,64], Z^T, O^T, lies in registers in the same way, in which
// a sum is at once a left factor. So warps exchange nothing; they share the right factors, which are read ahead.
#pragma once
#include "chunk.cuh"
#include "tensor.cuh"

// What depends on keys, queries and gates only, of each chunk: T and Y ∘ Q Kᵀ [CHUNK,CHUNK] of bfloat16, then vectors
// [CHUNK] of 32 bits by these numbers, then A[n], b[n], E[n,0], where n is the chunk's last token, and nothing.
enum { OF_W, OF_R, OF_ERASE_A, OF_READ_A, OF_LAST_C, OF_ERASE_B, OF_READ_B, OF_LAST_E, OF_END };
static constexpr u32 SCALARS = OF_END * CHUNK, NUMBERS = SCALARS + 4;
static constexpr u32 READY = 2 * 2 * SQUARE + 4 * NUMBERS;  // bytes

static constexpr u32 SIDE = CHUNK + 8;  // bfloat16 from row to row of a square

// Rows of `x [rows,H,width]` of a chunk as [CHUNK,WIDTH] with `stride`, from column `first`; zeros outside. Widths and
// `first` are multiples of 8. Done by COUNT threads, of which this is number `who`.
template <u32 WIDTH, u32 COUNT>
__device__ __forceinline__ void fetch_rows(
    const Linear& p, const Chunk& chunk, const void* x, u32 width, u32 first, u16* to, u32 stride, u32 who
) {
    constexpr u32 STEP = COUNT / (WIDTH / 8);
    const u32 c = who % (WIDTH / 8) * 8, t = who / (WIDTH / 8);
    const u64 apart = (u64)STEP * p.heads * width;
    const u16* from = (const u16*)x + chunk.token(p, t) * width + first + c;
    to += t * stride + c;
    if (chunk.tokens == CHUNK && first + WIDTH <= width) {
        #pragma unroll
        for (u32 i = 0; i < CHUNK / STEP; i++, from += apart) copy_16(to + i * STEP * stride, from, true);
    } else {
        for (u32 i = 0; i < CHUNK / STEP; i++, from += apart) {
            bool inside = first + c < width && t + i * STEP < chunk.tokens;
            copy_16(to + i * STEP * stride, inside ? from : (const u16*)x, inside);
        }
    }
}

// A square [CHUNK,CHUNK] as it was prepared, without blocks [16,16] above the diagonal: nobody reads them.
template <u32 COUNT>
__device__ __forceinline__ void fetch_square(const u16* x, u16* to, u32 who) {
    const u32 row = who / 8, column = who % 8 * 8;
    x += 8 * who, to += row * SIDE + column;
    #pragma unroll
    for (u32 i = 0; i < SQUARE / 8 / COUNT; i++)
        if (column < (row + i * (COUNT / 8)) / 16 * 16 + 16) copy_16(to + i * (COUNT / 8) * SIDE, x + i * 8 * COUNT, true);
}

template <u32 COUNT>
__device__ __forceinline__ void fetch_numbers(const float* x, float* to, u32 who) {
    for (u32 i = who; i < NUMBERS / 4; i += COUNT) copy_16(to + 4 * i, x + 4 * i, true);
}

__device__ __forceinline__ float low_half(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_half(u32 x) { return __uint_as_float(x & 0xffff0000u); }

// Two right factors [16,8] side by side, [16,16], out of a tile whose rows are their columns, or, across, are their rows.
// Also a left factor [16,16]: across, out of a tile whose rows are its columns, in the order 0, 2, 1, 3.
__device__ __forceinline__ void right(u32 (&x)[4], const u16* tile, u32 stride, u32 column, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(x, tile + (column + lane / 16 * 8 + lane % 8) * stride + depth + lane / 8 % 2 * 8);
}
__device__ __forceinline__ void right_across(u32 (&x)[4], const u16* tile, u32 stride, u32 column, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_across(x, tile + (depth + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8);
}
// A left factor [16,16] out of a tile whose rows are its rows, or, across, are its columns.
__device__ __forceinline__ void left(u32 (&x)[4], const u16* tile, u32 stride, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(x, tile + (row + lane / 8 % 2 * 8 + lane % 8) * stride + depth + lane / 16 * 8);
}
__device__ __forceinline__ void left_across(u32 (&x)[4], const u16* tile, u32 stride, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_across(x, tile + (depth + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8);
}

// x [16,16] += a b, of two tiles of sums.
__device__ __forceinline__ void multiply_pair(float (&x)[4], float (&y)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    multiply_add_bf16(x, a, b[0], b[1]);
    multiply_add_bf16(y, a, b[2], b[3]);
}

// Sums [16,16] as a left factor.
__device__ __forceinline__ void as_left(u32 (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = pack_bf16(x[0], x[1]);
    a[1] = pack_bf16(x[2], x[3]);
    a[2] = pack_bf16(y[0], y[1]);
    a[3] = pack_bf16(y[2], y[3]);
}

// A left factor in shared memory, 16 bytes a lane.
__device__ __forceinline__ void hand(uint4* to, const u32 (&x)[4]) {
    uint4 of;
    of.x = x[0], of.y = x[1], of.z = x[2], of.w = x[3];
    *to = of;
}
__device__ __forceinline__ void take(const uint4* from, u32 (&x)[4]) {
    const uint4 of = *from;
    x[0] = of.x, x[1] = of.y, x[2] = of.z, x[3] = of.w;
}

// Sums of a warp, [16,8 TILES].
template <u32 TILES>
struct Sums {
    float x[TILES][4];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] = 0.0f;
    }

    __device__ __forceinline__ void add(const Sums& y) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] += y.x[n][i];
    }

    // x = x by(column); `by` gives the numbers of two neighbours.
    template <class F>
    __device__ __forceinline__ void scale(F by) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            float2 f = by(8 * n + threadIdx.x % 4 * 2);
            x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
        }
    }
};

// Left factors of a warp, [16,16 STEPS].
template <u32 STEPS>
struct Lefts {
    u32 x[STEPS][4];

    __device__ __forceinline__ void of(const Sums<2 * STEPS>& sums) {
        #pragma unroll
        for (u32 s = 0; s < STEPS; s++) as_left(x[s], sums.x[2 * s], sums.x[2 * s + 1]);
    }
    // Of sums whose columns are scaled.
    template <class F>
    __device__ __forceinline__ void of(const Sums<2 * STEPS>& sums, F by) {
        Sums<2 * STEPS> scaled = sums;
        scaled.scale(by);
        of(scaled);
    }
};

// Rows of a chunk from column `first` out of left factors of a warp that are turned over, [16,CHUNK].
__device__ __forceinline__ void store_rows(const Linear& p, const Chunk& chunk, const Lefts<4>& x, u16* to, u32 first) {
    const u32 t = threadIdx.x % 32 / 4, c = first + threadIdx.x % 4 * 2;
    u16* row = to + chunk.token(p, t) * p.value + c;
    const u64 apart = (u64)8 * p.heads * p.value;
    u32 of[8][2];
    #pragma unroll
    for (u32 n = 0; n < 8; n++)
        #pragma unroll
        for (u32 i = 0; i < 2; i++) of[n][i] = transpose_matrix(x.x[n / 2][n % 2 * 2 + i]);
    // All at once where nothing has to be asked.
    if (chunk.tokens == CHUNK && first + 16 <= p.value) {
        #pragma unroll
        for (u32 n = 0; n < 8; n++, row += apart) ((u32*)row)[0] = of[n][0], ((u32*)row)[4] = of[n][1];
        return;
    }
    #pragma unroll
    for (u32 n = 0; n < 8; n++, row += apart) {
        if (8 * n + t < chunk.tokens && c < p.value) ((u32*)row)[0] = of[n][0];
        if (8 * n + t < chunk.tokens && c + 8 < p.value) ((u32*)row)[4] = of[n][1];
    }
}
// The same of sums.
__device__ __forceinline__ void store_rows(const Linear& p, const Chunk& chunk, const Sums<8>& x, u16* to, u32 first) {
    Lefts<4> narrow;
    narrow.of(x);
    store_rows(p, chunk, narrow, to, first);
}

// x [16,CHUNK] += left [16,16] times columns 16 step + [0,16) of rows [CHUNK,·], turned over.
__device__ __forceinline__ void times_step(Sums<8>& x, const u32 (&a)[4], const u16* rows, u32 stride, u32 step) {
    #pragma unroll
    for (u32 n = 0; n < 4; n++) {
        u32 b[4];
        right(b, rows, stride, 16 * n, 16 * step);
        multiply_pair(x.x[2 * n], x.x[2 * n + 1], a, b);
    }
}

// A warp's 16 columns of a matrix of the memory, turned over: [16,KEYS].
template <u32 KEYS>
struct Columns {
    static constexpr u32 TILES = KEYS / 8;
    Sums<TILES> sums;

    // Element `i` of tile `n`: row and column of the matrix [K,V] from column `first`.
    static __device__ __forceinline__ u32 key(u32 n, u32 i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }
    static __device__ __forceinline__ u32 value(u32 first, u32 i) { return first + threadIdx.x % 32 / 4 + i / 2 * 8; }

    __device__ void read(const Linear& p, const float* x, u32 first) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                bool inside = key(n, i) < p.key && value(first, i) < p.value;
                sums.x[n][i] = inside ? x[(u64)key(n, i) * p.value + value(first, i)] : 0.0f;
            }
    }

    __device__ void write(const Linear& p, float* x, u32 first) const {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (key(n, i) < p.key && value(first, i) < p.value)
                    x[(u64)key(n, i) * p.value + value(first, i)] = sums.x[n][i];
    }

    // Left factor `i`, which is handed on.
    __device__ __forceinline__ void step(u32 (&a)[4], uint4* to, u32 i) const {
        as_left(a, sums.x[2 * i], sums.x[2 * i + 1]);
        hand(to + 32 * i, a);
    }
    __device__ __forceinline__ void hand_on(uint4* to) const {
        u32 a[4];
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) step(a, to, i);
    }
    // x [16,CHUNK] = this times rows [CHUNK,KEYS], turned over; this is handed on.
    __device__ __forceinline__ void times_rows(Sums<8>& x, const u16* rows, u32 stride, uint4* to) const {
        x.clear();
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) {
            u32 a[4];
            step(a, to, i);
            times_step(x, a, rows, stride, i);
        }
    }

    // This += left [16,CHUNK] rows [CHUNK,KEYS].
    __device__ __forceinline__ void add(const Lefts<4>& factor, const u16* rows, u32 stride) {
        #pragma unroll
        for (u32 s = 0; s < 4; s++)
            #pragma unroll
            for (u32 n = 0; n < KEYS / 16; n++) {
                u32 b[4];
                right_across(b, rows, stride, 16 * n, 16 * s);
                multiply_pair(sums.x[2 * n], sums.x[2 * n + 1], factor.x[s], b);
            }
    }
};

// x [16,CHUNK] = left factors that were handed on times rows [CHUNK,16 STEPS], turned over.
template <u32 STEPS>
__device__ __forceinline__ void handed_times(Sums<8>& x, const uint4* from, const u16* rows, u32 stride) {
    x.clear();
    #pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
        u32 a[4];
        take(from + 32 * i, a);
        times_step(x, a, rows, stride, i);
    }
}

// A state [K,V] that is kept for the backward: as bfloat16 [V,KEYS] in tiles [16,16], one behind the other as rows of
// tiles, each of them four [8,8]: rows 0-7, rows 8-15, and the same of columns 8-15. So a left factor of a warp is written
// in whole lines. Tiles are whole: outside they have zeros.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_size(const Linear& p) { return KEYS * ((p.value + 15) / 16 * 16); }
// Where eight columns from `column` of row `v` lie.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_at(u32 v, u32 column) {
    return (v / 16 * (KEYS / 16) + column / 16) * 256 + column / 8 % 2 * 128 + v % 16 * 8;
}
// Keeps left factor `step` of columns from `first`, which was handed on.
template <u32 KEYS>
__device__ __forceinline__ void keep_factor(const Linear& p, const uint4* from, u16* to, u32 first, u32 step) {
    if (first >= p.value) return;
    u32* tile = (u32*)(to + kept_at<KEYS>(first, 16 * step)) + threadIdx.x % 32;
    u32 a[4];
    take(from, a);
    #pragma unroll
    for (u32 i = 0; i < 4; i++) tile[32 * i] = a[i];
}

// x += left [16,CHUNK] times a lower square, turned over: x[·,i] += Σ_{j ≤ i} left[·,j] square[i,j].
__device__ __forceinline__ void times_lower(Sums<8>& x, const Lefts<4>& factor, const u16* square) {
    #pragma unroll
    for (u32 n = 0; n < 4; n++)
        #pragma unroll
        for (u32 s = 0; s <= n; s++) {
            u32 b[4];
            right(b, square, SIDE, 16 * n, 16 * s);
            multiply_pair(x.x[2 * n], x.x[2 * n + 1], factor.x[s], b);
        }
}

// x += left [16,CHUNK] times a lower square: x[·,j] += Σ_{i ≥ j} left[·,i] square[i,j].
__device__ __forceinline__ void times_upper(Sums<8>& x, const Lefts<4>& factor, const u16* square) {
    #pragma unroll
    for (u32 n = 0; n < 4; n++)
        #pragma unroll
        for (u32 s = n; s < 4; s++) {
            u32 b[4];
            right_across(b, square, SIDE, 16 * n, 16 * s);
            multiply_pair(x.x[2 * n], x.x[2 * n + 1], factor.x[s], b);
        }
}

// Products of a of the tokens of a chunk, out of which c is made where there is no momentum: c[t,j] = Π_{j < s ≤ t} a_s.
// Within a stretch of 16 tokens by recursion; from one stretch to a later one by what is behind j in its own, the
// stretches between, and what is up to t in its own. All are products of numbers in [0,1] that belong to c.
struct Decays {
    float within[CHUNK][17];       // c[t,j] of a stretch, by t and j modulo 16
    float up_to[CHUNK];            // Π over the stretch's tokens up to t
    float between[4][4];           // Π over the stretches between two, by the later's number

    // Of one token a thread, as row and as column; `a` is that of token `s` by `a(s)`.
    template <class F>
    __device__ __forceinline__ void begin(u32 j, F a) {
        const u32 top = j / 16 * 16;
        float c = 1.0f, product = 1.0f;
        #pragma unroll
        for (u32 i = 0; i < 16; i++) {
            const float now = a(top + i);
            if (top + i > j) c *= now;
            if (top + i <= j) product *= now;
            within[top + i][j % 16] = top + i >= j ? c : 0.0f;
        }
        up_to[j] = product;
    }

    // Behind a barrier; of 16 threads.
    __device__ __forceinline__ void join(u32 i) {
        float product = 1.0f;
        for (u32 n = i % 4 + 1; n < i / 4; n++) product *= up_to[16 * n + 15];
        between[i / 4][i % 4] = product;
    }

    // c[t,j] of the last token.
    __device__ __forceinline__ float last(u32 j) const {
        float product = within[j / 16 * 16 + 15][j % 16];
        for (u32 n = j / 16 + 1; n < 4; n++) product *= up_to[16 * n + 15];
        return product;
    }
    // c[t,j] of rows t = i, i + 8 and columns j, j + 1, and c[t-1,j]; 0 where j is later. Rows of a warp are of one stretch,
    // columns too, so that all go one way.
    __device__ __forceinline__ void at(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        #pragma unroll
        for (u32 h = 0; h < 2; h++)
            #pragma unroll
            for (u32 e = 0; e < 2; e++) now[h][e] = before[h][e] = 0.0f;
        if (j / 16 == i / 16) {
            #pragma unroll
            for (u32 h = 0; h < 2; h++)
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    now[h][e] = within[i + 8 * h][j % 16 + e];
                    if (i + 8 * h > j + e) before[h][e] = within[i + 8 * h - 1][j % 16 + e];
                }
        } else if (j < i) {
            const float between_both = between[i / 16][j / 16], *end = within[j / 16 * 16 + 15] + j % 16;
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const float row = up_to[i + 8 * h], above = h || i % 16 ? up_to[i + 8 * h - 1] : 1.0f;
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    now[h][e] = row * (between_both * end[e]);
                    before[h][e] = above * (between_both * end[e]);
                }
            }
        }
    }
    // A[t + 1], of the state before the chunk.
    __device__ __forceinline__ float state(u32 t) const {
        float product = up_to[t];
        for (u32 n = 0; n < t / 16; n++) product *= up_to[16 * n + 15];
        return product;
    }
};

// The same where c lies in a table [CHUNK,WIDE].
__device__ __forceinline__ void masks_at(const float* c, u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) {
    #pragma unroll
    for (u32 h = 0; h < 2; h++)
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            const u32 t = i + 8 * h;
            now[h][e] = t >= j + e ? c[t * WIDE + j + e] : 0.0f;
            before[h][e] = t > j + e ? c[(t - 1) * WIDE + j + e] : 0.0f;
        }
}

// Numbers of a chunk's tokens, two neighbours at once.
struct ByToken {
    const float* x;
    __device__ __forceinline__ float2 operator()(u32 t) const { return *(const float2*)(x + t); }
};
