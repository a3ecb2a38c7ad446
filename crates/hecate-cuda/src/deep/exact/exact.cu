// Exact tokens of MLP memories with weights in registers.
#include "exact_reverse.cuh"

// The launch hands this over: sequences and arrays, then the rule's options.
struct ExactArgs {
    RecurrentCall call;
    Options cell;
};

// Keys and values of 32 E elements, UNITS hidden units a warp, BLOCKS blocks a memory.
#define RUN(declared, pass, E, UNITS, BLOCKS, ...)                                \
    declared {                                                                    \
        DYNAMIC_SHARED(float4, near);                                             \
        pass<E, UNITS, BLOCKS, __VA_ARGS__>(args.cell, args.call, (float*)near);  \
    }
// With THREADS at most: 512 of 128 registers, or 256 of 255.
#define EXACT_KERNELS(name, E, UNITS, THREADS, ...)                                                  \
    RUN(KERNEL(name##_forward, ExactArgs, THREADS, 1), exact_forward, E, UNITS, 1, __VA_ARGS__)      \
    RUN(KERNEL(name##_backward, ExactArgs, THREADS, 1), exact_backward, E, UNITS, 1, __VA_ARGS__)
#define PAIR_KERNELS(name, UNITS, ...)                                                                \
    RUN(CLUSTER_KERNEL(name##_forward, ExactArgs, 256, 2), exact_forward, 2, UNITS, 2, __VA_ARGS__)   \
    RUN(CLUSTER_KERNEL(name##_backward, ExactArgs, 256, 2), exact_backward, 2, UNITS, 2, __VA_ARGS__)
// One block a memory at either width; two of 64, with up to 128 hidden units or up to 256.
#define MEMORY_KERNELS(name, ...)                        \
    EXACT_KERNELS(name##_32, 1, 8, 512, __VA_ARGS__)     \
    EXACT_KERNELS(name##_64, 2, 16, 256, __VA_ARGS__)    \
    PAIR_KERNELS(name##_pair_128, 8, __VA_ARGS__)        \
    PAIR_KERNELS(name##_pair_256, 16, __VA_ARGS__)

MEMORY_KERNELS(exact_titans, L2, DECAY, true)
MEMORY_KERNELS(exact_huber, HUBER, DECAY, false)
MEMORY_KERNELS(exact_huber_momentum, HUBER, DECAY, true)
MEMORY_KERNELS(exact_moneta, LP, LQ, false)
MEMORY_KERNELS(exact_memora, L2, KL, false)
