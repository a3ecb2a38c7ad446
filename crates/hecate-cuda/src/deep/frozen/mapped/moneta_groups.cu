// MONETA in frozen groups: l_p, L_q with q = 4 and the mirror.
#define POWER_GRADS true
#include "mapped/kernels.cuh"

MAPPED_KERNELS(moneta_groups, CUBES)
