// Attention with 16-bit arguments: tiles of rows in shared memory, and products of them on the tensor cores.
//
// A tile has ROWS rows, and zeros where there are none. Its columns lie in panels of 64, in which pieces of 16 bytes change
// places (`in_panel`), so that eight rows that are read together lie in other banks. A warp's sums [16,8 TILES] are
// x[TILES][4]: thread `4 g + t` holds columns 8 n + 2 t, 8 n + 2 t + 1 of rows g (x[n][0], x[n][1]) and g + 8.
#pragma once
#include "attention.cuh"
#include "group.cuh"

// e^x = 2^(x LOG2_E)
static constexpr float LOG2_E = 1.4426950408889634f;

// Keys of a tile: addresses of their rows (0: none), and the tokens that see them.
template <int COUNT> struct KeyRows {
    u64 k[COUNT], v[COUNT];
    int first[COUNT], last[COUNT];
};

// Units of a tile: addresses of their rows, tokens, and of the backward lse LOG2_E and D.
template <int COUNT> struct UnitRows {
    u64 q[COUNT], dy[COUNT];
    int token[COUNT];
    float lse[COUNT], along[COUNT];
};

// Where an element of a tile is.
template <int ROWS> __device__ __forceinline__ u32 place(u32 row, u32 column) {
    return column / 64 * (ROWS * 64) + in_panel(row, column);
}

// Starts copies of rows of `width` elements, by THREADS threads of which this is number `who`; `any` is some address.
template <int ROWS, int WIDTH, int THREADS>
__device__ __forceinline__ void fetch_tile(u16* tile, const u64* rows, int width, const void* any, int who) {
    constexpr int PIECES = WIDTH / 8;
    static_assert(ROWS * PIECES % THREADS == 0, "all threads copy as much");
    // No further, or addresses of all pieces are kept in registers.
#pragma unroll 4
    for (int i = 0; i < ROWS * PIECES / THREADS; i++) {
        int row = (i * THREADS + who) / PIECES, column = (i * THREADS + who) % PIECES * 8;
        u64 from = rows[row];
        bool inside = from != 0 && column < width;
        copy_16(tile + place<ROWS>(row, column), inside ? (const u16*)from + column : (const u16*)any, inside);
    }
}

// Two elements of type 1 or 2, `low` in the low half.
template <u32 TYPE> __device__ __forceinline__ u32 pack(float low, float high) {
    if constexpr (TYPE == 1) return pack_bf16(low, high);
    else return pack_halves(low, high);
}

// x, y [16,8] += a [16,16] b [16,16].
template <u32 TYPE>
__device__ __forceinline__ void multiply(float (&x)[4], float (&y)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    if constexpr (TYPE == 1) multiply_add_bf16(x, a, b[0], b[1]), multiply_add_bf16(y, a, b[2], b[3]);
    else multiply_add_halves(x, a, b[0], b[1]), multiply_add_halves(y, a, b[2], b[3]);
}

// x [16,8 TILES] += a bᵀ: rows `row` .. `row` + 15 of tile `a` and all of tile `b`, over WIDTH columns.
template <u32 TYPE, int WIDTH, int ROWS_A, int ROWS_B, int TILES>
__device__ __forceinline__ void multiply_rows(float (&x)[TILES][4], const u16* a, u32 row, const u16* b) {
    static_assert(8 * TILES == ROWS_B, "a column of sums for each row of b");
    const u32 lane = threadIdx.x % 32;
    // Panel after panel, so that registers hold addresses of one.
#pragma unroll 1
    for (u32 panel = 0; panel < WIDTH; panel += 64, a += ROWS_A * 64, b += ROWS_B * 64)
#pragma unroll
        for (u32 depth = 0; depth < 64; depth += 16) {
            u32 left[4];
            load_matrices(left, a + place<ROWS_A>(row + lane % 16, depth + lane / 16 * 8));
#pragma unroll
            for (u32 n = 0; n < TILES; n += 2) {
                u32 right[4];
                load_matrices(right, b + place<ROWS_B>(8 * n + lane / 16 * 8 + lane % 8, depth + lane / 8 % 2 * 8));
                multiply<TYPE>(x[n], x[n + 1], left, right);
            }
        }
}

// x [16,8 TILES] += w b: weights [16,16 STEPS] as left factors, and columns `first` .. of tile `b`.
template <u32 TYPE, int ROWS, int STEPS, int TILES>
__device__ __forceinline__ void multiply_weights(
    float (&x)[TILES][4], const u32 (&w)[STEPS][4], const u16* b, u32 first) {
    static_assert(16 * STEPS == ROWS, "a weight for each row of b");
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 s = 0; s < STEPS; s++)
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2) {
            u32 right[4];
            load_matrices_across(right, b + place<ROWS>(16 * s + lane % 16, first + 8 * n + lane / 16 * 8));
            multiply<TYPE>(x[n], x[n + 1], w[s], right);
        }
}

// Sums as left factors, as they lie.
template <u32 TYPE, int STEPS, int TILES>
__device__ __forceinline__ void as_weights(u32 (&w)[STEPS][4], const float (&x)[TILES][4]) {
    static_assert(TILES == 2 * STEPS, "two tiles of sums are a factor");
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int h = 0; h < 4; h++) w[s][h] = pack<TYPE>(x[2 * s + h / 2][h % 2 * 2], x[2 * s + h / 2][h % 2 * 2 + 1]);
}

// Largest and sum over the four threads of a row.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}
// Returns the sum over the four threads of a row.
__device__ __forceinline__ float quad_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// Of a thread's two rows: the largest score so far, and its part of the sum of the exponentials relative to it.
struct Softmax {
    float top[2] = {-INFINITE, -INFINITE}, total[2] = {};

    // Scores become weights; `factor` is what sums before them are times. `scale` is positive and has LOG2_E in it.
    template <int TILES>
    __device__ __forceinline__ void weigh(float (&s)[TILES][4], float (&factor)[2], float scale) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Two chains, and a NaN is passed over here; its exponential is one.
            float most = top[h], other = top[h];
#pragma unroll
            for (int n = 0; n < TILES; n++) most = fmaxf(most, s[n][2 * h]), other = fmaxf(other, s[n][2 * h + 1]);
            most = quad_max(fmaxf(most, other));
            // Where nothing was seen yet, any number will do.
            const float base = most == -INFINITE ? 0.0f : scale * most;
            factor[h] = short_exp2(scale * top[h] - base);
            top[h] = most;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) sum += s[n][i] = short_exp2(s[n][i] * scale - base);
            total[h] = total[h] * factor[h] + sum;
        }
    }
};

// x = x by[row], of a thread's two rows.
template <int TILES> __device__ __forceinline__ void scale_rows(float (&x)[TILES][4], const float (&by)[2]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) x[n][i] *= by[i / 2];
}

// Writes the columns below `width` of a thread's two rows, numbers row[0] and row[1] of `out` and none where negative, from
// column `first` on, times by[row].
template <int TILES>
__device__ __forceinline__ void store_rows(
    Array out, const float (&x)[TILES][4], const long long (&row)[2], const float (&by)[2], int first, int width) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const int column = first + 8 * n + threadIdx.x % 4 * 2;
        if (column >= width) continue;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row[h] >= 0) store_pair(out, row[h] * width + column, by[h] * x[n][2 * h], by[h] * x[n][2 * h + 1]);
    }
}
