// MONETA in frozen groups: l_p, L_q with q = 2, or from 2¼ to 6, the mirror or the literal map.
#define POWER_GRADS true
#include "mapped/kernels.cuh"

MAPPED_KERNELS(moneta_groups_powers, POWERS)
