// Exact tokens of MLP memories with weights in registers.
#include "exact_reverse.cuh"

// The launch hands this over: sequences and arrays, then the rule's options.
struct ExactArgs {
    RecurrentCall call;
    Options cell;
};

// Keys of 32 E elements, UNITS hidden units a warp, THREADS at most.
#define EXACT_KERNELS(name, E, UNITS, THREADS, BIAS, RETENTION, MOMENTUM)                     \
    KERNEL(name##_forward, ExactArgs, THREADS, 1) {                                \
        DYNAMIC_SHARED(float4, near);                                              \
        exact_forward<E, UNITS, BIAS, RETENTION, MOMENTUM>(args.cell, args.call, (float*)near); \
    }                                                                              \
    KERNEL(name##_backward, ExactArgs, THREADS, 1) {                               \
        DYNAMIC_SHARED(float4, near);                                              \
        exact_backward<E, UNITS, BIAS, RETENTION, MOMENTUM>(args.cell, args.call, (float*)near); \
    }

EXACT_KERNELS(exact_titans_32, 1, 8, 512, L2, DECAY, true)
EXACT_KERNELS(exact_titans_64, 2, 16, 256, L2, DECAY, true)
EXACT_KERNELS(exact_huber_32, 1, 8, 512, HUBER, DECAY, false)
EXACT_KERNELS(exact_huber_64, 2, 16, 256, HUBER, DECAY, false)
EXACT_KERNELS(exact_huber_momentum_32, 1, 8, 512, HUBER, DECAY, true)
EXACT_KERNELS(exact_huber_momentum_64, 2, 16, 256, HUBER, DECAY, true)
EXACT_KERNELS(exact_moneta_32, 1, 8, 512, LP, LQ, false)
EXACT_KERNELS(exact_moneta_64, 2, 16, 256, LP, LQ, false)
EXACT_KERNELS(exact_memora_32, 1, 8, 512, L2, KL, false)
EXACT_KERNELS(exact_memora_64, 2, 16, 256, L2, KL, false)
