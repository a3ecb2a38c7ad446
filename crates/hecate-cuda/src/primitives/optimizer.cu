// One step of AdamW, and the norm of gradients: all parameters in one call.
#include "entries.cuh"

// Arrays `[count]`; what is read and what is written may be the same.
struct Update {
    const float* grad;
    const float* old_value;
    const float* old_mean;
    const float* old_square;
    float* value;
    float* mean;
    float* square;
    u64 count;
    // Block
    u64 first;
};

// One step for all parameters; `optimizer::Step` is its twin.
struct Step {
    // [number], ascending by `first`
    const Update* updates;
    // [1]; null where nothing is clipped
    const float* norm_squared;
    // [3]: learning rate and 1 / (1 − βᵗ) of both moments, in place of those below; or null
    const float* rates;
    // [guards]: nothing moves where one of them is not finite
    const float* finite;
    u32 number;
    u32 guards;
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    // 1 / (1 − βᵗ)
    float unbias1, unbias2;
    float max_norm;
};

// A block has BLOCK_ELEMENTS elements of one parameter, a thread every 256th of them. Gradients are clipped on the way, so
// that nobody writes them again.
KERNEL(adamw, Step, 256) {
    float clip = 1.0f;
    if (args.norm_squared) {
        // Every thread makes the factor for itself: one read.
        float norm = sqrtf(args.norm_squared[0]);
        if (norm > args.max_norm) clip = args.max_norm / norm;
    }
    float learning_rate = args.rates ? args.rates[0] : args.learning_rate;
    float unbias1 = args.rates ? args.rates[1] : args.unbias1, unbias2 = args.rates ? args.rates[2] : args.unbias2;
    // A graph's host sees after the step only that it should not have been made.
    bool moves = true;
    for (u32 i = 0; i < args.guards; i++) moves = moves && fabsf(args.finite[i]) <= 3.402823466e38f;
    Update own = own_entry(args.updates, args.number);
    u64 start = (blockIdx.x - own.first) * BLOCK_ELEMENTS, end = start + BLOCK_ELEMENTS < own.count ? start + BLOCK_ELEMENTS : own.count;
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        float g = clip * own.grad[i], p = own.old_value[i];
        float mean = own.old_mean[i], square = own.old_square[i];
        float m = args.beta1 * mean + (1.0f - args.beta1) * g;
        float s = args.beta2 * square + (1.0f - args.beta2) * (g * g);
        // Means without the bias of their start at zero.
        float direction = unbias1 * m / (sqrtf(unbias2 * s) + args.epsilon);
        own.mean[i] = moves ? m : mean;
        own.square[i] = moves ? s : square;
        own.value[i] = moves ? p - learning_rate * (direction + args.weight_decay * p) : p;
    }
}

// One gradient of any type.
struct Gradient {
    // [count]
    Array x;
    u64 count;
    // Block
    u64 first;
};

// The squares of all gradients, in a part a block.
struct Squares {
    // [number], ascending by `first`
    const Gradient* gradients;
    // [blocks]
    double* parts;
    u32 number;
};

// Every block adds up the squares of its elements.
KERNEL(squares, Squares, 256) {
    __shared__ double shared[256];
    Gradient own = own_entry(args.gradients, args.number);
    u64 start = (blockIdx.x - own.first) * BLOCK_ELEMENTS, end = start + BLOCK_ELEMENTS < own.count ? start + BLOCK_ELEMENTS : own.count;
    double sum = 0.0;
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        double x = load(own.x, i);
        sum += x * x;
    }
    sum = column_sum(sum, 1, shared);
    if (threadIdx.x == 0) args.parts[blockIdx.x] = sum;
}
