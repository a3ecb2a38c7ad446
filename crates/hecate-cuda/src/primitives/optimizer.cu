// One step of AdamW.
#include "hecate.cuh"

// Arrays `[count]`; what is read and what is written may be the same.
struct Step {
    const float* grad;
    const float* old_value;
    const float* old_mean;
    const float* old_square;
    float* value;
    float* mean;
    float* square;
    const float* norm_squared;  // [1]; null where nothing is clipped
    u64 count;
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    float unbias1, unbias2;  // 1 / (1 − βᵗ)
    float max_norm;
};

KERNEL(adamw, Step, 256) {
    float clip = 1.0f;
    if (args.norm_squared) {
        float norm = sqrtf(args.norm_squared[0]);
        if (norm > args.max_norm) clip = args.max_norm / norm;
    }
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float g = clip * args.grad[i], p = args.old_value[i];
        float m = args.beta1 * args.old_mean[i] + (1.0f - args.beta1) * g;
        float s = args.beta2 * args.old_square[i] + (1.0f - args.beta2) * (g * g);
        float direction = args.unbias1 * m / (sqrtf(args.unbias2 * s) + args.epsilon);
        args.mean[i] = m;
        args.square[i] = s;
        args.value[i] = p - args.learning_rate * (direction + args.weight_decay * p);
    }
}
