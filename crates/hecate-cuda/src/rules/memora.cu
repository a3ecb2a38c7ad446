// L2, relative entropy, no momentum.
#include "deep_backward.cuh"

DEEP_KERNELS(memora, L2, KL, false)
