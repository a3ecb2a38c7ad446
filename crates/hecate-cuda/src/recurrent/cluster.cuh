// Kernels whose blocks come in clusters.
#pragma once
#include "device.cuh"

// A kernel whose blocks come in clusters of `count`, which run together: from capability 9.0 on. Elsewhere there is none.
#if __CUDA_ARCH__ >= 900
#define CLUSTER_ENTRY(name, Args, threads, count) \
    extern "C" __global__ void __launch_bounds__(threads) __cluster_dims__(count, 1, 1) name(const __grid_constant__ Args args)
#else
#define CLUSTER_ENTRY(name, Args, threads, count) LEFT_OUT(name, Args, threads)
#endif
#ifdef ONE_KERNEL
#define CLUSTER_KERNEL(name, Args, ...) CHOICE(WANTED_##name CLUSTER_ENTRY, LEFT_OUT, )(name, Args, __VA_ARGS__)
#else
#define CLUSTER_KERNEL(name, Args, ...) CLUSTER_ENTRY(name, Args, __VA_ARGS__)
#endif

// Blocks that share a memory. What a block wrote is seen by all after a meeting.
struct Cluster {
    u32 rank, count;

    __device__ void join() {
        // Without clusters a block is alone.
        rank = 0, count = 1;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    }
    // All threads of all blocks.
    __device__ __forceinline__ void meet() const {
#if __CUDA_ARCH__ >= 900
        // Arrival shows what was written, the wait sees what others wrote, also in global memory.
        if (count > 1) {
            asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
            return;
        }
#endif
        __syncthreads();
    }
};
