// Frozen groups backward of MLPs that decay.
#include "frozen_backward.cuh"

// A kernel a number of blocks in a cluster.
#define BACKWARD(declared)        \
    declared {                    \
        DYNAMIC_SHARED(float, near); \
        run_backward(args.call, args.cell, near); \
    }
BACKWARD(KERNEL(frozen_backward_1, FrozenArgs, FROZEN_THREADS))
BACKWARD(CLUSTER_KERNEL(frozen_backward_2, FrozenArgs, FROZEN_THREADS, 2))
BACKWARD(CLUSTER_KERNEL(frozen_backward_4, FrozenArgs, FROZEN_THREADS, 4))
BACKWARD(CLUSTER_KERNEL(frozen_backward_8, FrozenArgs, FROZEN_THREADS, 8))
