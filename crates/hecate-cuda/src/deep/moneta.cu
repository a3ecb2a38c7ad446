// l_p, L_q, no momentum.
#include "deep_backward.cuh"

// Name, inner loss, retention, momentum.
DEEP_KERNELS(moneta, LP, LQ, false)
