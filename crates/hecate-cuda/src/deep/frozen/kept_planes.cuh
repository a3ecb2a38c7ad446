// States that are kept as planes of halves, as they lie in shared memory, one after another. The copy engine moves them while
// threads do other things. That takes capability 9.0, as clusters do.
#pragma once
#include "group.cuh"
#include "plane.cuh"

// Elsewhere these functions do nothing: kernels that have them are compiled for every GPU, and run on those alone.
#if __CUDA_ARCH__ >= 900
#define COPY_ENGINE true
#else
#define COPY_ENGINE false
#endif

// Gates by which threads wait for planes, one a layer.
__device__ __forceinline__ u64* plane_gates() {
    __shared__ u64 gates[2];
    return gates;
}
// By one thread; a barrier follows.
__device__ __forceinline__ void open_gates() {
#if COPY_ENGINE
    // One arrival, of the thread that says how much is to come.
    gate_open(plane_gates(), 1), gate_open(plane_gates() + 1, 1);
    show_to_groups();
#endif
}
// What threads of the block wrote to planes comes before copies out of them and into their place. A barrier follows.
__device__ __forceinline__ void show_planes() {
#if COPY_ENGINE
    show_to_groups();
#endif
}

// What is read once more in a whole pass is the first to leave the cache.
__device__ __forceinline__ u64 leave_first() {
    u64 policy = 0;
#if COPY_ENGINE
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
// All of these are called by one thread. A plane is its elements with their units: a multiple of sixteen bytes.
// Begins to write one, and returns where the next lies.
__device__ __forceinline__ float* keep_plane(float* to, const Plane& plane, u32 size) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(plane.x), "r"(4 * size), "l"(leave_first()) : "memory");
#endif
    return to + size;
}
// After the last of those that belong together.
__device__ __forceinline__ void stores_begun() {
#if COPY_ENGINE
    stores_commit();
#endif
}
// Planes may change again when they have been read.
__device__ __forceinline__ void planes_read() {
#if COPY_ENGINE
    stores_read();
#endif
}
// Begins to read one. Its gate opens when as much has come as is expected.
__device__ __forceinline__ void expect_planes(u64* gate, u32 size) {
#if COPY_ENGINE
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :: "r"((u32)__cvta_generic_to_shared(gate)), "r"(4 * size) : "memory");
#endif
}
// Returns where the next lies, as above.
__device__ __forceinline__ const float* fetch_plane(const Plane& plane, const float* from, u32 size, u64* gate) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(plane.x), "l"(__cvta_generic_to_global(from)), "r"(4 * size), "r"((u32)__cvta_generic_to_shared(gate))
                 : "memory");
#endif
    return from + size;
}
// A row of a multiple of sixteen bytes is asked for, so that the cache has it when it is read; and a number.
__device__ __forceinline__ void expect_row(const void* row, u32 bytes) {
#if COPY_ENGINE
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(row)), "r"(bytes) : "memory");
#endif
}
// Prefetches one number into the second cache.
__device__ __forceinline__ void expect_number(const float* x) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(x)) : "memory");
}
// By all threads: until what is expected in a phase of this parity is there.
__device__ __forceinline__ void wait_for_planes(u32 layer, u32 parity) {
#if COPY_ENGINE
    gate_wait(plane_gates() + layer, parity);
#endif
}
