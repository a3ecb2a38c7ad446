// L2, decay, momentum, an MLP.
#include "deep_backward.cuh"

// Name, inner loss, retention, momentum.
DEEP_KERNELS(titans_mlp, L2, DECAY, true)
