// Products of 32-bit matrices by a block on tensor cores, and the cluster of blocks that shares a memory.
#pragma once
#include "block.cuh"

// This lane's fours of a row.
#define FOURS(c, columns) for (u32 c = threadIdx.x % 32 * 4; c < (columns); c += 128)

// Element (i, j) lies at `x[i * row + j * column]`.
struct Factor {
    const float* x;
    u32 row, column;
};

// Rows of `stride` elements in shared or global memory.
struct Panel {
    float* x;
    u32 stride;

    __device__ __forceinline__ float& at(u32 i, u32 j) const { return x[(u64)i * stride + j]; }
    __device__ __forceinline__ float* row(u32 i) const { return x + (u64)i * stride; }
    // Four neighbours; columns and strides are multiples of four.
    __device__ __forceinline__ float4& four(u32 i, u32 j) const { return *(float4*)(x + (u64)i * stride + j); }
    // As a factor, and its transpose.
    __device__ __forceinline__ Factor own() const { return {x, stride, 1}; }
    __device__ __forceinline__ Factor t() const { return {x, 1, stride}; }
};

// Every fourth element (i, j) of [height,wide], a warp a row. Many threads have few each: reads wait together.
template <class F> __device__ __forceinline__ void fours(u32 height, u32 wide, F f) {
    ROWS(i, height) {
        FOURS(j, wide) f(i, j);
    }
}
// f of one, two or three by elements.
template <class F> __device__ __forceinline__ float4 map(F f, float4 x) { return make_float4(f(x.x), f(x.y), f(x.z), f(x.w)); }
template <class F> __device__ __forceinline__ float4 map(F f, float4 x, float4 y) {
    return make_float4(f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w));
}
template <class F> __device__ __forceinline__ float4 map(F f, float4 x, float4 y, float4 z) {
    return make_float4(f(x.x, y.x, z.x), f(x.y, y.y, z.y), f(x.z, y.z, z.z), f(x.w, y.w, z.w));
}
// x·y of fours.
__device__ __forceinline__ float dot(float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }

// To the nearest of 10 bits of fraction: a tenth of what rounding arguments to bfloat16 costs. NaN stays.
__device__ __forceinline__ u32 to_factor(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// Tiles [16 TALL,32] of the product, a warp each.
template <u32 TALL>
__device__ __forceinline__ void multiply_tiles(Panel out, float keep, const float* by, Factor a, Factor b, u32 rows,
                                               u32 columns, u32 depth) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 across = (columns + 31) / 32, tiles = (rows + 16 * TALL - 1) / (16 * TALL) * across;
    for (u32 tile = threadIdx.x / 32; tile < tiles; tile += blockDim.x / 32) {
        u32 top = tile / across * 16 * TALL, side = tile % across * 32;
        // Beyond an edge the last row or column is read in place of others, and the result is not stored.
        const float *left[TALL][2], *right[4];
#pragma unroll
        for (u32 m = 0; m < 2 * TALL; m++)
            left[m / 2][m % 2] = a.x + (u64)min(top + 8 * m + g, rows - 1) * a.row + t * a.column;
#pragma unroll
        for (u32 n = 0; n < 4; n++) right[n] = b.x + (u64)min(side + 8 * n + g, columns - 1) * b.column + t * b.row;
        float sum[TALL][4][4] = {};
        // Elements from one step of eight terms to the next.
        u32 step_a = 8 * a.column, step_b = 8 * b.row, half_a = 4 * a.column, half_b = 4 * b.row;
#pragma unroll 2
        for (u32 k = 0; k < depth; k += 8) {
            u32 x[TALL][4], y[4][2];
#pragma unroll
            for (u32 m = 0; m < TALL; m++) {
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    x[m][h] = to_factor(left[m][h][0]);
                    x[m][2 + h] = to_factor(left[m][h][half_a]);
                    left[m][h] += step_a;
                }
            }
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                y[n][0] = to_factor(right[n][0]);
                y[n][1] = to_factor(right[n][half_b]);
                right[n] += step_b;
            }
#pragma unroll
            for (u32 m = 0; m < TALL; m++)
#pragma unroll
                for (u32 n = 0; n < 4; n++) multiply_add(sum[m][n], x[m], y[n]);
        }
#pragma unroll
        for (u32 m = 0; m < 2 * TALL; m++) {
            u32 i = top + 8 * m + g;
            if (i >= rows) continue;
            float factor = by ? by[i] : 1.0f, *row = out.row(i);
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                u32 j = side + 8 * n + 2 * t;
                // Widths are even: a pair is inside or outside.
                if (j >= columns) continue;
                float2 old = keep == 0.0f ? make_float2(0.0f, 0.0f) : *(float2*)(row + j);
                const float* pair = sum[m / 2][n] + m % 2 * 2;
                *(float2*)(row + j) = make_float2(keep * old.x + factor * pair[0], keep * old.y + factor * pair[1]);
            }
        }
    }
}

// out [rows,columns] = keep out + by ∘ (a b), `by` a number a row, null for 1. The depth and all widths are multiples of
// eight; `out` is neither factor.
TOGETHER void multiply(Panel out, float keep, const float* by, Factor a, Factor b, u32 rows, u32 columns, u32 depth) {
    u32 tall = (rows + 31) / 32 * ((columns + 31) / 32);
    // Higher tiles read less a product, where they are enough for all warps.
    if (tall >= blockDim.x / 32) multiply_tiles<2>(out, keep, by, a, b, rows, columns, depth);
    else multiply_tiles<1>(out, keep, by, a, b, rows, columns, depth);
    __syncthreads();
}

// Blocks that share a memory, each with its columns of the hidden layer. What a block wrote is seen by all after a meeting.
struct Cluster {
    u32 rank, count;

    __device__ void join() {
        rank = 0, count = 1;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    }
    // All threads of all blocks.
    __device__ __forceinline__ void meet() const {
#if __CUDA_ARCH__ >= 900
        if (count > 1) {
            asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
            return;
        }
#endif
        __syncthreads();
    }
};
