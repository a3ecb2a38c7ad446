// What kernels share: arrays of a type known at run time, sums over warps and blocks in a fixed order.
#pragma once
#include "device.cuh"

// Elements of 32 bits (type 0), bfloat16 (1) or IEEE half (2).
struct Array {
    void* data;
    u32 type;
};

__device__ __forceinline__ float load(Array x, u64 i) {
    if (x.type == 0) return ((const float*)x.data)[i];
    u16 bits = ((const u16*)x.data)[i];
    return x.type == 1 ? from_bf16(bits) : from_f16(bits);
}

__device__ __forceinline__ void store(Array x, u64 i, float value) {
    if (x.type == 0) ((float*)x.data)[i] = value;
    else ((u16*)x.data)[i] = x.type == 1 ? to_bf16(value) : to_f16(value);
}

// Neighbours that are read and written at once: one, or four whose first stands at a multiple of four.
template <u32 N> struct Run {
    float x[N];
};

__device__ __forceinline__ float from_bits(u32 type, u32 bits) { return type == 1 ? from_bf16((u16)bits) : from_f16((u16)bits); }
__device__ __forceinline__ u32 to_bits(u32 type, float x) { return type == 1 ? to_bf16(x) : to_f16(x); }

template <u32 N> __device__ __forceinline__ Run<N> load_run(Array x, u64 i) {
    if constexpr (N == 1) {
        return Run<1>{{load(x, i)}};
    } else if (x.type == 0) {
        float4 run = ((const float4*)x.data)[i / 4];
        return Run<4>{{run.x, run.y, run.z, run.w}};
    } else {
        uint2 run = ((const uint2*)x.data)[i / 4];
        return Run<4>{{from_bits(x.type, run.x), from_bits(x.type, run.x >> 16), from_bits(x.type, run.y),
                       from_bits(x.type, run.y >> 16)}};
    }
}

template <u32 N> __device__ __forceinline__ void store_run(Array x, u64 i, Run<N> run) {
    if constexpr (N == 1) {
        store(x, i, run.x[0]);
    } else if (x.type == 0) {
        ((float4*)x.data)[i / 4] = make_float4(run.x[0], run.x[1], run.x[2], run.x[3]);
    } else {
        u32 bits[4];
        for (u32 n = 0; n < 4; n++) bits[n] = to_bits(x.type, run.x[n]);
        uint2 words;
        words.x = bits[0] | bits[1] << 16;
        words.y = bits[2] | bits[3] << 16;
        ((uint2*)x.data)[i / 4] = words;
    }
}

// This thread among all, and the step to its next element.
__device__ __forceinline__ u64 grid_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 grid_threads() { return (u64)gridDim.x * blockDim.x; }

// Element `i` of rows of `width`.
struct Place {
    u64 row, column;
};

// By a division of 32 bits where that is enough: it takes a third of the time.
__device__ __forceinline__ Place place(u64 i, u64 width) {
    if ((i | width) >> 32) return Place{i / width, i % width};
    u32 row = (u32)i / (u32)width;
    return Place{row, (u32)i - row * (u32)width};
}

// The sum over a warp, in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    for (u32 mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (u32 mask = 16; mask > 0; mask >>= 1) {
        float other = shuffle_xor(x, mask);
        // NaN stays: `fmaxf` would drop it.
        x = (x > other || x != x) ? x : other;
    }
    return x;
}

// The sum over a block, in every thread; `shared` holds 32 numbers. Blocks are whole warps.
__device__ inline float block_sum(float x, float* shared) {
    x = warp_sum(x);
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[warp] = x;
    __syncthreads();
    float sum = 0.0f;
    for (u32 i = 0; i < warps; i++) sum += shared[i];
    return sum;
}

// The maximum over a block, in every thread; NaN where there is one.
__device__ inline float block_max(float x, float* shared) {
    x = warp_max(x);
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[warp] = x;
    __syncthreads();
    float most = shared[0];
    for (u32 i = 1; i < warps; i++) {
        float other = shared[i];
        most = (most > other || most != most) ? most : other;
    }
    return most;
}

// Of a block that stands as rows of `columns` threads, both powers of two: sums over each column, in every thread of it.
// `shared` holds a number a thread.
__device__ inline double column_sum(double x, u32 columns, double* shared) {
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
    for (u32 step = blockDim.x / 2; step >= columns; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
        __syncthreads();
    }
    return shared[threadIdx.x % columns];
}
