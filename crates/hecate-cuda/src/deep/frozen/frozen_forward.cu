// Frozen groups forward of MLPs that decay.
#include "frozen_forward.cuh"

// A kernel a number of blocks in a cluster.
#define FORWARD(declared)         \
    declared {                    \
        DYNAMIC_SHARED(float, near); \
        run_forward(args.call, args.cell, near); \
    }
FORWARD(KERNEL(frozen_forward_1, FrozenArgs, FROZEN_THREADS))
FORWARD(CLUSTER_KERNEL(frozen_forward_2, FrozenArgs, FROZEN_THREADS, 2))
FORWARD(CLUSTER_KERNEL(frozen_forward_4, FrozenArgs, FROZEN_THREADS, 4))
FORWARD(CLUSTER_KERNEL(frozen_forward_8, FrozenArgs, FROZEN_THREADS, 8))
