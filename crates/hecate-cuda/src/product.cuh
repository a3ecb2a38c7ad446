// Products of small matrices by one block.
#pragma once
#include "hecate.cuh"

// `x[i,j]` lies at `data[i * row + j * column]`.
struct Matrix {
    float* data;
    u32 row, column;

    // Element (i, j), and the transpose without a copy.
    __device__ __forceinline__ float& at(u32 i, u32 j) const { return data[(u64)i * row + (u64)j * column]; }
    // Returns the transpose, without a copy.
    __device__ __forceinline__ Matrix t() const { return {data, column, row}; }
};

// Columns of a result that a block makes at once, rows at most, and terms that it takes at once.
#define PRODUCT_WIDTH 64
#define PRODUCT_HEIGHT 128
#define PRODUCT_DEPTH 16

// `out [rows,columns] = keep from + factor x y`, `x [rows,depth]`, `y [depth,columns]`; `from` may be `out`, `x` and `y`
// not. A thread makes 4 x 4 elements, a row of 16 threads four rows, and a block a quarter as many rows as it has threads.
// Barriers before and after.
__device__ __noinline__ void product(
    Matrix out, float keep, Matrix from, float factor, Matrix x, Matrix y, u32 rows, u32 columns, u32 depth
) {
    // One column more than needed: threads that read down a column find other banks.
    __shared__ float left[PRODUCT_DEPTH][PRODUCT_HEIGHT + 1], right[PRODUCT_DEPTH][PRODUCT_WIDTH + 1];
    // A thread's first row and column; the others are `apart` rows and 16 columns on.
    u32 high = threadIdx.x / 16, wide = threadIdx.x % 16, apart = blockDim.x / 16, height = 4 * apart;
    for (u32 top = 0; top < rows; top += height) {
        for (u32 side = 0; side < columns; side += PRODUCT_WIDTH) {
            // The thread's elements of the result.
            float sum[4][4] = {};
            for (u32 first = 0; first < depth; first += PRODUCT_DEPTH) {
                __syncthreads();
                // Neighbouring threads load neighbouring elements, whichever way a matrix lies.
                for (u32 n = threadIdx.x; n < PRODUCT_DEPTH * height; n += blockDim.x) {
                    u32 d = x.column == 1 ? n % PRODUCT_DEPTH : n / height;
                    u32 i = x.column == 1 ? n / PRODUCT_DEPTH : n % height;
                    left[d][i] = top + i < rows && first + d < depth ? x.at(top + i, first + d) : 0.0f;
                }
                for (u32 n = threadIdx.x; n < PRODUCT_DEPTH * PRODUCT_WIDTH; n += blockDim.x) {
                    u32 d = y.column == 1 ? n / PRODUCT_WIDTH : n % PRODUCT_DEPTH;
                    u32 i = y.column == 1 ? n % PRODUCT_WIDTH : n / PRODUCT_DEPTH;
                    right[d][i] = side + i < columns && first + d < depth ? y.at(first + d, side + i) : 0.0f;
                }
                __syncthreads();
                // Every thread multiplies four rows by four columns.
                for (u32 d = 0; d < PRODUCT_DEPTH; d++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
#pragma unroll
                        for (u32 j = 0; j < 4; j++) sum[i][j] += left[d][high + apart * i] * right[d][wide + 16 * j];
                    }
                }
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    // Elements that the result has; `from` is not looked at where nothing of it is kept.
                    u32 r = top + high + apart * i, c = side + wide + 16 * j;
                    if (r < rows && c < columns)
                        out.at(r, c) = factor * sum[i][j] + (keep == 0.0f ? 0.0f : keep * from.at(r, c));
                }
            }
        }
    }
    __syncthreads();
}
