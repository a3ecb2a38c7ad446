// Kernels that begin while the one before them still runs (programmatic dependent launch, from capability 9.0 on).
#pragma once
#include "device.cuh"

// Lets the next kernel begin, and waits for all that was queued before this one. `Cuda::launch_early` starts kernels whose
// threads all call it before they read or write an array; what they ask for before it is no more than a hint. The next one
// waits until this one has ended, and so for what this one waited for.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}
