// MEMORA in frozen groups: L2, relative entropy.
#include "mapped/kernels.cuh"

MAPPED_KERNELS(memora_groups, SOFTMAX)
