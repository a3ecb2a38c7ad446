// L2, relative entropy, no momentum.
#include "deep_backward.cuh"

// Name, inner loss, retention, momentum.
DEEP_KERNELS(memora, L2, KL, false)
