// States kept as planes of fp16, as they lie in shared memory, one after another. The copy engine (TMA) moves them while threads
// compute. It exists from capability 9.0 on, as clusters do.
#pragma once
#include "group.cuh"
#include "plane.cuh"

// On older GPUs these functions do nothing: the kernels that use them compile there, but never run.
#if __CUDA_ARCH__ >= 900
#define COPY_ENGINE true
#else
#define COPY_ENGINE false
#endif

// Returns the barriers in shared memory at which threads wait for planes, one a layer.
__device__ __forceinline__ u64* plane_gates() {
    __shared__ u64 gates[2];
    return gates;
}
// Initialises both barriers, by one thread; a __syncthreads follows.
__device__ __forceinline__ void open_gates() {
#if COPY_ENGINE
    // One thread arrives: the one that says how many bytes will come.
    gate_open(plane_gates(), 1), gate_open(plane_gates() + 1, 1);
    show_to_groups();
#endif
}
// Makes the block's writes to planes visible to copies. A __syncthreads follows.
__device__ __forceinline__ void show_planes() {
#if COPY_ENGINE
    show_to_groups();
#endif
}

// A cache policy for what is read only once more, after a whole pass: it leaves the cache first.
__device__ __forceinline__ u64 leave_first() {
    u64 policy = 0;
#if COPY_ENGINE
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
// The functions below are called by one thread. `size` counts 32-bit words of a plane with its scales, 16 bytes at least.
// Starts to copy a plane to global memory, and returns where the next one goes.
__device__ __forceinline__ float* keep_plane(float* to, const Plane& plane, u32 size) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(plane.x), "r"(4 * size), "l"(leave_first()) : "memory");
#endif
    return to + size;
}
// Ends a set of copies that belong together.
__device__ __forceinline__ void stores_begun() {
#if COPY_ENGINE
    stores_commit();
#endif
}
// Waits until the planes are read and may be overwritten.
__device__ __forceinline__ void planes_read() {
#if COPY_ENGINE
    stores_read();
#endif
}
// Announces how many words the layer's copies bring; the barrier opens when they are there.
__device__ __forceinline__ void expect_planes(u64* gate, u32 size) {
#if COPY_ENGINE
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :: "r"((u32)__cvta_generic_to_shared(gate)), "r"(4 * size) : "memory");
#endif
}
// Starts to copy a plane to shared memory, and returns where the next one lies.
__device__ __forceinline__ const float* fetch_plane(const Plane& plane, const float* from, u32 size, u64* gate) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(plane.x), "l"(__cvta_generic_to_global(from)), "r"(4 * size), "r"((u32)__cvta_generic_to_shared(gate))
                 : "memory");
#endif
    return from + size;
}
// Prefetches a row of a multiple of 16 bytes into the second cache.
__device__ __forceinline__ void expect_row(const void* row, u32 bytes) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(row)), "r"(bytes) : "memory");
#endif
}
// Prefetches one number into the second cache.
__device__ __forceinline__ void expect_number(const float* x) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(x)) : "memory");
}
// Waits, by all threads, for the planes announced in the phase of this parity.
__device__ __forceinline__ void wait_for_planes(u32 layer, u32 parity) {
#if COPY_ENGINE
    gate_wait(plane_gates() + layer, parity);
#endif
}
