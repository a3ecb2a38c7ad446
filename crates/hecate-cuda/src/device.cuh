// What depends on the machine: types, conversions, exchange between threads, and how a kernel is declared.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A kernel takes one structure by value; `args` is its name inside. After `Args`: the most threads of a block, and
// where that matters how many blocks are to fit a multiprocessor.
//
// Kernels are compiled one by one: with `ONE_KERNEL` and `WANTED_<name>` as `0,` there is that one alone, and what the
// others would need is never made.
#define SECOND(first, second, ...) second
#define CHOICE(...) SECOND(__VA_ARGS__)
#define ENTRY(name, Args, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Args args)
#define LEFT_OUT(name, Args, ...) static __device__ void name(const Args args)
#ifdef ONE_KERNEL
#define KERNEL(name, Args, ...) CHOICE(WANTED_##name ENTRY, LEFT_OUT, )(name, Args, __VA_ARGS__)
#else
#define KERNEL(name, Args, ...) ENTRY(name, Args, __VA_ARGS__)
#endif

// Shared memory whose size the launch names. One of them a kernel.
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(1024) type name[]

#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// 16-bit elements as 32-bit floats, and back, rounded to the nearest. NaN stays NaN.
__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
// The fraction's lowest kept bit decides ties, so that they go to even.
__device__ __forceinline__ u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// Widens a half to a float.
__device__ __forceinline__ float from_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
// Rounds a float to the nearest half, ties to even.
__device__ __forceinline__ u16 to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// 2ˣ and 1/x within an ulp or two, one instruction each; what is below 2⁻¹²⁶ is zero.
__device__ __forceinline__ float short_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / x within an ulp or two, by one instruction.
__device__ __forceinline__ float short_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Of lane `lane ^ mask`; all 32 lanes of a warp call it.
__device__ __forceinline__ float shuffle_xor(float x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
// Of lane `lane`; all 32 lanes of a warp call it.
__device__ __forceinline__ float shuffle(float x, u32 lane) { return __shfl_sync(0xffffffffu, x, lane); }

// d [16,8] += a [16,8] b [8,8] over a warp, of which thread `4 g + t` holds a[g][t], a[g+8][t], a[g][t+4], a[g+8][t+4],
// b[t][g], b[t+4][g], and d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1]. Factors have 8 bits of exponent and 10 of
// fraction: the lower bits of their 32 are cut off. From sm_80 on.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The part of a number that the tensor cores take, and what it leaves.
// `high` has 10 bits of fraction, `low` the rest, of which the tensor cores take 10 bits again.
__device__ __forceinline__ void split(float x, u32& high, u32& low) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}
