// Kernels that begin while the one before them still runs (programmatic dependent launch, from capability 9.0 on).
#pragma once
#include "device.cuh"

// Lets the next kernel begin, and waits for all that was queued before this one. `Cuda::launch_early` starts kernels of which
// every thread calls it. Before that they write no array, and read none but those that their arguments say are settled: no
// kernel of the captured step up to this one writes these (`Buffer::is_settled`). What else they ask for is a hint to the cache.
//
// Several kernels before may still run until then, each waiting for the one before it. The next one waits until this one has
// ended, and so for what this one waited for.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}
