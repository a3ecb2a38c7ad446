// What kernels share: arrays of a type known at run time, sums over warps and blocks in a fixed order.
#pragma once
#include "device.cuh"
#include "tensor.cuh"

// Elements of 32 bits (type 0), bfloat16 (1) or IEEE half (2).
struct Array {
    void* data;
    u32 type;
};

// Element `i` as a 32-bit float.
__device__ __forceinline__ float load(Array x, u64 i) {
    if (x.type == 0) return ((const float*)x.data)[i];
    // Both 16-bit types are read alike.
    u16 bits = ((const u16*)x.data)[i];
    return x.type == 1 ? from_bf16(bits) : from_f16(bits);
}

// Element `i`, rounded to the array's type.
__device__ __forceinline__ void store(Array x, u64 i, float value) {
    if (x.type == 0) ((float*)x.data)[i] = value;
    else ((u16*)x.data)[i] = x.type == 1 ? to_bf16(value) : to_f16(value);
}

// Neighbours that are read and written at once: one, or four or eight whose first stands at a multiple of as many.
template <u32 N> struct Run {
    float x[N];
};

// What is done with TYPE, a type of arrays, known while compiling: these are read and written without a branch, so that
// reads wait together.
#define BY_TYPE(type, ...) \
    switch (type) { \
        case 1: { constexpr u32 TYPE = 1; __VA_ARGS__; break; } \
        case 2: { constexpr u32 TYPE = 2; __VA_ARGS__; break; } \
        default: { constexpr u32 TYPE = 0; __VA_ARGS__; } \
    }

// Neighbours in 16 bytes.
template <u32 TYPE> constexpr u32 RUN_LENGTH = TYPE == 0 ? 4 : 8;

// A 16-bit element of type 1 or 2 as a 32-bit float.
__device__ __forceinline__ float from_bits(u32 type, u32 bits) { return type == 1 ? from_bf16((u16)bits) : from_f16((u16)bits); }
// Two elements, `low` in the low half.
__device__ __forceinline__ u32 to_word(u32 type, float low, float high) {
    return type == 1 ? pack_bf16(low, high) : to_f16(low) | (u32)to_f16(high) << 16;
}

// The 16-bit elements of a run, two to a word.
template <u32 N> struct Words;
template <> struct Words<4> {
    typedef uint2 type;
};
template <> struct Words<8> {
    typedef uint4 type;
};

// N elements as they lie in memory, which takes half the registers where they have 16 bits; and the run that they are.
template <u32 TYPE, u32 N> using Bits = typename Words<TYPE == 0 ? 2 * N : N>::type;
// Returns N elements as floats, out of their bits.
template <u32 N, u32 TYPE> __device__ __forceinline__ Run<N> run_of(Bits<TYPE, N> bits) {
    // The words as they lie, then one by one.
    union {
        Bits<TYPE, N> all;
        u32 each[sizeof(bits) / 4];
    } words = {bits};
    Run<N> run;
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        if constexpr (TYPE == 0) run.x[n] = __uint_as_float(words.each[n]);
        else run.x[n] = from_bits(TYPE, words.each[n / 2] >> n % 2 * 16);
    }
    return run;
}

// The N neighbours from element `i` on, a multiple of N.
template <u32 N> __device__ __forceinline__ Run<N> load_run(Array x, u64 i) {
    Run<N> run;
    if constexpr (N == 1) {
        run.x[0] = load(x, i);
    } else if (x.type == 0) {
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            float4 four = ((const float4*)x.data)[(i + n) / 4];
            run.x[n] = four.x;
            run.x[n + 1] = four.y;
            run.x[n + 2] = four.z;
            run.x[n + 3] = four.w;
        }
    } else {
        union {
            typename Words<N>::type all;
            u32 each[N / 2];
        } words = {((const typename Words<N>::type*)x.data)[i / N]};
#pragma unroll
        for (u32 n = 0; n < N; n++) run.x[n] = from_bits(x.type, words.each[n / 2] >> n % 2 * 16);
    }
    return run;
}

// The same, and zeros where `inside` is false: the first run is read there, so that no branch stands between two reads.
template <u32 N> __device__ __forceinline__ Run<N> load_run_if(bool inside, Array x, u64 i) {
    Run<N> run = load_run<N>(x, inside ? i : 0);
#pragma unroll
    for (u32 n = 0; n < N; n++) run.x[n] = inside ? run.x[n] : 0.0f;
    return run;
}

// Rounds a run to the array's type and writes it at once, from element `i` on, a multiple of N.
template <u32 N> __device__ __forceinline__ void store_run(Array x, u64 i, const Run<N>& run) {
    if constexpr (N == 1) {
        store(x, i, run.x[0]);
    } else if (x.type == 0) {
#pragma unroll
        for (u32 n = 0; n < N; n += 4)
            ((float4*)x.data)[(i + n) / 4] = make_float4(run.x[n], run.x[n + 1], run.x[n + 2], run.x[n + 3]);
    } else {
        union {
            u32 each[N / 2];
            typename Words<N>::type all;
        } words;
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) words.each[n] = to_word(x.type, run.x[2 * n], run.x[2 * n + 1]);
        ((typename Words<N>::type*)x.data)[i / N] = words.all;
    }
}

// This thread among all, and the step to its next element.
__device__ __forceinline__ u64 grid_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
// Returns the number of the grid's threads.
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
    // In five steps; all lanes end with the same sum.
    for (u32 mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}

// The maximum over a warp, in every lane; NaN where there is one.
__device__ __forceinline__ float warp_max(float x) {
    for (u32 mask = 16; mask > 0; mask >>= 1) {
        float other = shuffle_xor(x, mask);
        // NaN stays: `fmaxf` would drop it.
        x = (x > other || x != x) ? x : other;
    }
    return x;
}

// The sum over a block, in every thread; `shared` holds 32 elements. Blocks are whole warps.
__device__ inline float block_sum(float x, float* shared) {
    // Warps by themselves, then a number a warp through shared memory. All threads add these up in the same order.
    x = warp_sum(x);
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // Whoever used `shared` before is through with it.
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
    // A number a warp, in order.
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
    // A tree whose shape depends on the block alone.
    for (u32 step = blockDim.x / 2; step >= columns; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
        __syncthreads();
    }
    return shared[threadIdx.x % columns];
}
