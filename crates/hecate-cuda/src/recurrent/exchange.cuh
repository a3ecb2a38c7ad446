// Numbers that the blocks of a cluster tell each other.
//
// A meeting of a cluster waits until global memory has all that was written before it. Here every number goes into the
// others' shared memory by itself, and a barrier there counts bytes: nobody waits for more than what it is told.
#pragma once
#include "cluster.cuh"

#if __CUDA_ARCH__ >= 900
// An address of this block's shared memory as one of another block's.
__device__ __forceinline__ u32 in_block(const void* place, u32 block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(place)), "r"(block));
    return there;
}
// Stores x in another block's shared memory; that block's barrier counts the four bytes when they are there.
__device__ __forceinline__ void tell_block(u32 place, float x, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(place), "r"(__float_as_uint(x)), "r"(barrier) : "memory");
}
#endif

// Of BLOCKS blocks, neighbours in the grid. All threads of all of them go through the same meetings.
template <u32 BLOCKS> struct Exchange {
    // In shared memory; they take turns, since others may be one meeting ahead.
    u64* barriers;
    // Meetings so far, and what a warp has told each other block since the last one.
    u32 meetings = 0, bytes = 0;

    // Remembers the barriers, which `open` makes ready.
    __device__ __forceinline__ explicit Exchange(u64* barriers) : barriers(barriers) {}

    // Which block this is, its warp among those of all blocks, and how many these are.
    __device__ __forceinline__ static u32 block() { return BLOCKS == 1 ? 0 : blockIdx.x % BLOCKS; }
    // Returns this warp's number among the warps of all blocks.
    __device__ __forceinline__ static u32 warp() { return block() * (blockDim.x / 32) + threadIdx.x / 32; }
    // Returns the number of warps of all blocks.
    __device__ __forceinline__ static u32 warps() { return BLOCKS * (blockDim.x / 32); }

    // Once, before anything is told. Others' shared memory is there when all have begun.
    __device__ __forceinline__ void open() {
#if __CUDA_ARCH__ >= 900
        if constexpr (BLOCKS > 1) {
            if (threadIdx.x == 0)
#pragma unroll
                for (u32 turn = 0; turn < 2; turn++) {
                    const u32 barrier = (u32)__cvta_generic_to_shared(barriers + turn);
                    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(barrier) : "memory");
                }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            wait_for_all();
        }
#endif
    }

    // To this place in every block, by COUNT lanes of each warp: those that are `one`. All read it behind the next meeting.
    // Others may write here as soon as they have passed the last meeting before that one. So a warp has read what a place
    // had before its own last `tell` ahead of that last meeting.
    template <u32 COUNT> __device__ __forceinline__ void tell(float* place, float x, bool one = true) {
        if (one) *place = x;
#if __CUDA_ARCH__ >= 900
        if (one)
#pragma unroll
            for (u32 i = 1; i < BLOCKS; i++) {
                const u32 other = (block() + i) % BLOCKS;
                tell_block(in_block(place, other), x, in_block(barriers + meetings % 2, other));
            }
#endif
        bytes += COUNT * sizeof(float);
    }

    // All have come here, and told what they tell. Where that is nothing they wait for each other by the cluster's barrier.
    __device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
        if constexpr (BLOCKS > 1) {
            if (bytes == 0) return wait_for_all();
            // As much comes as goes.
            const u32 barrier = (u32)__cvta_generic_to_shared(barriers + meetings % 2);
            if (threadIdx.x == 0)
                asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                             :: "r"(barrier), "r"((BLOCKS - 1) * (blockDim.x / 32) * bytes) : "memory");
            __syncthreads();
            asm volatile(
                "{\n\t.reg .pred p;\n\tagain:\n\tmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n\t@!p bra again;\n\t}"
                :: "r"(barrier), "r"(meetings / 2 % 2) : "memory");
            meetings++, bytes = 0;
            return;
        }
#endif
        __syncthreads();
    }

  private:
    // Waits until all blocks are here.
    __device__ __forceinline__ static void wait_for_all() { Cluster{block(), BLOCKS}.meet(); }
};
