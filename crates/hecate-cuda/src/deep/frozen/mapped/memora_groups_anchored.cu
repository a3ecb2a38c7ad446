// MEMORA in frozen groups: L2, relative entropy; back to an anchor.
#define ANCHORED true
#include "mapped/kernels.cuh"

MAPPED_KERNELS(memora_groups_anchored, SOFTMAX)
