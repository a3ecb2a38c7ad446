// L2, decay, momentum, an MLP.
#include "deep_backward.cuh"

DEEP_KERNELS(titans_mlp, L2, DECAY, true)
