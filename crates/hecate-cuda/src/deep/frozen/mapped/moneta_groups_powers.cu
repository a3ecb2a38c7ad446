// MONETA in frozen groups: l_p, L_q with any q up to 8, the mirror or the literal map.
#define TAUGHT_POWERS true
#include "mapped/kernels.cuh"

MAPPED_KERNELS(moneta_groups_powers, POWERS)
