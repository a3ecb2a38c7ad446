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

    // Reads the block's rank and the cluster's size.
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

// Blocks that share a memory where a GPU may have no room for so many clusters at once: then they are neighbours in a grid that
// runs as a whole, and meet by a counter.
struct Blocks : Cluster {
    // How often a block came, of all meetings so far; null in a cluster.
    u32* came;

    // As many blocks, each memory with a counter of its own 128 bytes apart, zero at first; none: those of the cluster.
    __device__ void join(u32 blocks, u32* counters) {
        Cluster::join();
        came = nullptr;
        if (blocks) rank = blockIdx.x % blocks, count = blocks, came = counters + 32 * (blockIdx.x / blocks);
    }
    // All threads of all blocks.
    __device__ __forceinline__ void meet() const {
        if (!came) return Cluster::meet();
        __syncthreads();
        if (threadIdx.x == 0) wait_for_others();
        __syncthreads();
    }

    // One thread: the fence before shows what its block wrote, the one behind what others did.
    __device__ __forceinline__ void wait_for_others() const {
        u32 before, now;
        asm volatile("fence.acq_rel.gpu;\n\tatom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(came) : "memory");
        // The next multiple of `count`, a power of two, past which the counter may go on to another meeting.
        const u32 all = before - before % count + count;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(came) : "memory");
        } while ((int)(now - all) < 0);
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
};
