// MONETA in frozen groups: l_p, L_q with q = 4 and the mirror; back to an anchor.
#define POWER_GRADS true
#define ANCHORED true
#include "mapped/kernels.cuh"

MAPPED_KERNELS(moneta_groups_anchored, CUBES)
