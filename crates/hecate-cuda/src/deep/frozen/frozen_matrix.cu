// Frozen groups of matrices that decay: the second layer alone, with keys and queries in place of the hidden layer.
#define MEMORIES MATRICES
#include "frozen_backward.cuh"
#include "frozen_forward.cuh"

// All sequences and heads forward; below it, backward.
KERNEL(frozen_matrix, FrozenArgs, FROZEN_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.call, args.cell, near);
}
KERNEL(frozen_matrix_backward, FrozenArgs, FROZEN_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.call, args.cell, near);
}
