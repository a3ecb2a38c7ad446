// Products and copies of 16-bit matrices by a warp, which depend on the machine; from sm_80 on.
#pragma once
#include "device.cuh"

// Two elements as bfloat16, rounded to the nearest: `low` in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// The same as IEEE halves, which are eight times finer and end at 2^16; and back.
__device__ __forceinline__ u32 pack_halves(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
// Back to two 32-bit floats.
__device__ __forceinline__ float2 unpack_halves(u32 both) {
    float2 x;
    asm("{.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;}"
        : "=f"(x.x), "=f"(x.y) : "r"(both));
    return x;
}
// The larger of two pairs of bfloat16 without signs.
__device__ __forceinline__ u32 larger_bf16(u32 x, u32 y) {
    u32 both;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(x), "r"(y));
    return both;
}

// d [16,8] += a [16,16] b [16,8] of bfloat16 over a warp, two elements to a word, of which thread `4 g + t` holds
// a[g][2t..], a[g+8][2t..], a[g][2t+8..], a[g+8][2t+8..], b[2t..][g], b[2t+8..][g], and d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1].
__device__ __forceinline__ void multiply_add_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of halves.
__device__ __forceinline__ void multiply_add_halves(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices [8,8] of 16-bit elements in shared memory; lane `8 i + r` names row `r` of the `i`th. Thread `4 g + t`
// gets x[g][2t..] of each; across: x[2t][g] and x[2t+1][g].
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// The same of columns.
__device__ __forceinline__ void load_matrices_across(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}

// A matrix [8,8] of 16-bit elements over a warp, transposed: x[g][2t..] becomes x[2t][g] and x[2t+1][g].
__device__ __forceinline__ u32 transpose_matrix(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Four matrices [8,8] of 16-bit elements to shared memory, which lanes name and threads hold as above; across: lane `8 i + r`
// names where column `r` of the `i`th goes. From sm_90 on.
__device__ __forceinline__ void store_matrices(const u32 (&x)[4], void* row) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%4], {%0,%1,%2,%3};"
                 :: "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// Stores four matrices [8,8] of 16-bit elements, transposed: lanes name where columns go.
__device__ __forceinline__ void store_matrices_across(const u32 (&x)[4], void* column) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%4], {%0,%1,%2,%3};"
                 :: "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"((u32)__cvta_generic_to_shared(column)) : "memory");
}

// 16 bytes at once.
__device__ __forceinline__ void store_16(void* to, const u32 (&x)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};"
                 :: "l"(__cvta_generic_to_global(to)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Starts a copy of 16 bytes to shared memory, of zeros where `inside` is false; `from` is an address in any case.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
// Asks for the line of 128 bytes around an address, which is soon to be read, from the memory behind the caches.
__device__ __forceinline__ void ask_for(const void* line) { asm volatile("prefetch.global.L2 [%0];" :: "l"(line)); }
// Copies that were started belong together from here.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of this thread's copies but those of the last LEFT groups.
template <u32 LEFT> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
