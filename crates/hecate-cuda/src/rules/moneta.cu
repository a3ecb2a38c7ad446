// l_p, L_q, no momentum.
#include "deep_backward.cuh"

DEEP_KERNELS(moneta, LP, LQ, false)
