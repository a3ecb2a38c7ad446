// Huber's error, decay, with and without momentum.
#include "deep_backward.cuh"

// Name, inner loss, retention, momentum.
DEEP_KERNELS(yaad, HUBER, DECAY, false)
DEEP_KERNELS(yaad_momentum, HUBER, DECAY, true)
