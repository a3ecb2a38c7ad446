// Square matrices of 64 rows by a block of eight warps: in registers, and their products on tensor cores.
//
// Factors lie in shared memory as sums of two halves, 22 bits of fraction; products leave out what both lower halves give.
// Sums have 32 bits.
#pragma once
#include "block.cuh"
#include "tensor.cuh"

#define SIDE 64
// Halves from one row to the next: rows of a column of eight are in different banks.
#define HALF_STRIDE 72
#define SQUARE_THREADS 256

// This thread's elements of a matrix, as products leave them: tiles of eight columns, of each two rows eight apart, of each two
// neighbours. All are this thread's: no barrier is needed.
// `Own::tile` says where tile `n` lies in memory.
template <class Own, u32 COUNT> struct Elements {
    float x[COUNT];

    // As products name them.
    __device__ __forceinline__ float (&tiles())[COUNT / 4][4] { return *(float(*)[COUNT / 4][4])x; }
    // This thread's part of ⟨x, y⟩.
    __device__ __forceinline__ float dot(const Elements& y) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) sum += x[n] * y.x[n];
        return sum;
    }
    // x = keep x + factor y.
    __device__ __forceinline__ void add(float keep, float factor, const Elements& y) {
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) x[n] = keep * x[n] + factor * y.x[n];
    }
    // x *= factor
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) x[n] *= factor;
    }
    // The largest one's size; NaN is left out.
    __device__ __forceinline__ float most() const {
        float most = 0.0f;
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) most = fmaxf(most, fabsf(x[n]));
        return most;
    }
    // As tiles: a thread reads and writes the same elements, as runs of four.
    __device__ __forceinline__ void load_tiles(const float* from) {
#pragma unroll
        for (u32 n = 0; n < COUNT / 4; n++) {
            const float4 four = *(const float4*)(from + Own::tile(n));
            x[4 * n] = four.x, x[4 * n + 1] = four.y, x[4 * n + 2] = four.z, x[4 * n + 3] = four.w;
        }
    }
    // Stores the tiles as `load_tiles` reads them.
    __device__ __forceinline__ void store_tiles(float* to) const {
#pragma unroll
        for (u32 n = 0; n < COUNT / 4; n++)
            *(float4*)(to + Own::tile(n)) = make_float4(x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3]);
    }
};

// Of a block's matrix: a warp has 16 rows and 32 columns. Number `n` is element `(row(n), column(n))`.
struct Square : Elements<Square, 16> {
    // Four warps lie below each other, two side by side.
    __device__ __forceinline__ static u32 row(u32 n) { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + n / 2 % 2 * 8; }
    // Returns the column of the thread's element n.
    __device__ __forceinline__ static u32 column(u32 n) {
        return threadIdx.x / 128 * 32 + n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2;
    }

    // A matrix [64,64] in memory, two neighbours at once.
    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) {
            float2 two = *(const float2*)(from + row(n) * SIDE + column(n));
            x[n] = two.x, x[n + 1] = two.y;
        }
    }
    // to [64,64] = x, two neighbours at once.
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) *(float2*)(to + row(n) * SIDE + column(n)) = make_float2(x[n], x[n + 1]);
    }

    // Tiles have 16 rows and 8 columns, each as a warp's threads hold it: whole lines at once, and the same for all that hold
    // tiles so. They lie row by row.
    __device__ __forceinline__ static u32 tile(u32 n) {
        return ((threadIdx.x / 32 % 4 * 8 + threadIdx.x / 128 * 4 + n) * 32 + threadIdx.x % 32) * 4;
    }

    // x += factor leftᵀ right.
    __device__ __forceinline__ void add_outer(float factor, const float* left, const float* right) {
        // A thread has two rows.
        float rows[2] = {factor * left[row(0)], factor * left[row(2)]};
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) {
            float2 two = *(const float2*)(right + column(n));
            x[n] += rows[n / 2 % 2] * two.x, x[n + 1] += rows[n / 2 % 2] * two.y;
        }
    }

    // This thread's part of ⟨x, leftᵀ right⟩.
    __device__ __forceinline__ float dot_outer(const float* left, const float* right) const {
        // Its columns first, of both rows.
        float rows[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) {
            float2 two = *(const float2*)(right + column(n));
            rows[n / 2 % 2] += x[n] * two.x + x[n + 1] * two.y;
        }
        return left[row(0)] * rows[0] + left[row(2)] * rows[1];
    }

    // Sums `by x` down this warp's rows to `out [64]` of its row of warps; a lane writes one column.
    __device__ __forceinline__ void down(const float* by, float* out) const {
        // A thread has eight columns.
        float rows[2] = {by[row(0)], by[row(2)]}, sums[8];
#pragma unroll
        for (u32 c = 0; c < 8; c++) {
            u32 n = c / 2 * 4 + c % 2;
            sums[c] = rows[0] * x[n] + rows[1] * x[n + 2];
        }
        // Lanes a multiple of four apart have the same columns: each keeps one of eight.
        u32 kept = 0;
#pragma unroll
        for (u32 half = 4, mask = 16; half > 0; half /= 2, mask /= 2) {
            bool upper = threadIdx.x & mask;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (i >= half) continue;
                float own = upper ? sums[i + half] : sums[i], other = upper ? sums[i] : sums[i + half];
                sums[i] = own + shuffle_xor(other, mask);
            }
            kept += upper ? half : 0;
        }
        out[threadIdx.x / 128 * 32 + kept / 2 * 8 + threadIdx.x % 4 * 2 + kept % 2] = sums[0];
    }
    // Sums `x by` along this warp's columns to `out [64]` of its column of warps.
    __device__ __forceinline__ void along(const float* by, float* out) const {
        // Four neighbouring lanes have the same two rows.
        float sums[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) {
            float2 two = *(const float2*)(by + column(n));
            sums[n / 2 % 2] += x[n] * two.x + x[n + 1] * two.y;
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            sums[i] += shuffle_xor(sums[i], 1);
            sums[i] += shuffle_xor(sums[i], 2);
            if (threadIdx.x % 4 == 0) out[row(2 * i)] = sums[i];
        }
    }
};

// A matrix as halves, upper ones and then lower ones.
struct Halves {
    u16* at;

    // Elements of 32 bits that it takes.
    static constexpr u32 SIZE = SIDE * HALF_STRIDE;

    // From registers, by a factor.
    __device__ __forceinline__ void put(const Square& from, float factor) const {
#pragma unroll
        for (u32 n = 0; n < 16; n += 2) {
            float first = factor * from.x[n], second = factor * from.x[n + 1];
            // What the upper half leaves is the lower one.
            u32 upper = pack_halves(first, second);
            float2 have = unpack_halves(upper);
            u32 own = (Square::row(n) * HALF_STRIDE + Square::column(n)) / 2;
            ((u32*)at)[own] = upper;
            ((u32*)at)[SIDE * HALF_STRIDE / 2 + own] = pack_halves(first - have.x, second - have.y);
        }
    }

    // Rows `r` to `r + 15` and columns `c` to `c + 15`, of the upper (0) or lower halves, as the left factor.
    // Or, with `c` and `r` of its own terms and columns, two neighbouring parts of the right one.
    __device__ __forceinline__ void left(u32 (&x)[4], u32 lower, u32 r, u32 c) const {
        u32 lane = threadIdx.x % 32, row = r + lane % 16, column = c + lane / 16 * 8;
        load_matrices(x, at + lower * SIDE * HALF_STRIDE + row * HALF_STRIDE + column);
    }
    // Loads a right factor [16,16], rows from `term` and columns from `column` on, of the upper (0) or lower halves.
    __device__ __forceinline__ void right(u32 (&x)[4], u32 lower, u32 term, u32 column) const {
        u32 lane = threadIdx.x % 32, row = term + lane % 16, from = column + lane / 16 * 8;
        load_matrices_across(x, at + lower * SIDE * HALF_STRIDE + row * HALF_STRIDE + from);
    }
    // Of the transpose, which lies the way a right factor is wanted.
    __device__ __forceinline__ void right_transposed(u32 (&x)[4], u32 lower, u32 term, u32 column) const {
        u32 lane = threadIdx.x % 32, row = column + lane % 8 + lane / 16 * 8, from = term + lane / 8 % 2 * 8;
        load_matrices(x, at + lower * SIDE * HALF_STRIDE + row * HALF_STRIDE + from);
    }
};

// out += x y, or x yᵀ.
template <bool TRANSPOSED> __device__ __forceinline__ void add_product(Square& out, Halves x, Halves y) {
    // This warp's first row and column.
    const u32 top = threadIdx.x / 32 % 4 * 16, side = threadIdx.x / 128 * 32;
    float(&sums)[4][4] = out.tiles();
    // Two at a time: with all of them the kernels would spill.
#pragma unroll 2
    for (u32 term = 0; term < SIDE; term += 16) {
        // Both halves of sixteen terms.
        u32 a[2][4];
        x.left(a[0], 0, top, term), x.left(a[1], 1, top, term);
#pragma unroll
        for (u32 pair = 0; pair < 2; pair++) {
            u32 b[2][4];
#pragma unroll
            for (u32 lower = 0; lower < 2; lower++) {
                if constexpr (TRANSPOSED) y.right_transposed(b[lower], lower, term, side + 16 * pair);
                else y.right(b[lower], lower, term, side + 16 * pair);
            }
#pragma unroll
            // Upper by upper, upper by lower, lower by upper.
            for (u32 part = 0; part < 3; part++) {
                const u32(&left)[4] = a[part == 2], (&right)[4] = b[part == 1];
                multiply_add_halves(sums[2 * pair], left, right[0], right[1]);
                multiply_add_halves(sums[2 * pair + 1], left, right[2], right[3]);
            }
        }
    }
}
