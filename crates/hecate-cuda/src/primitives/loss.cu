// Cross-entropy; a block for each row of `logits [rows, width]`.
#include "hecate.cuh"

struct CrossEntropy {
    Array logits;
    const u32* targets;  // [rows]
    float* loss;         // [rows]
    float* lse;          // [rows]
    u64 width;
};

// lse = top + log Σ e^{x − top}, loss = lse − x[target]; a target that the row does not have gives NaN.
KERNEL(cross_entropy, CrossEntropy, 256) {
    __shared__ float shared[32];
    u64 row = blockIdx.x, start = row * args.width;
    float top = -INFINITE;
    for (u64 i = threadIdx.x; i < args.width; i += blockDim.x) {
        float x = load(args.logits, start + i);
        top = (top > x || top != top) ? top : x;
    }
    top = block_max(top, shared);
    float sum = 0.0f;
    for (u64 i = threadIdx.x; i < args.width; i += blockDim.x) sum += expf(load(args.logits, start + i) - top);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        u32 target = args.targets[row];
        float log_sum = logf(sum);
        args.lse[row] = top + log_sum;
        // The difference of neighbours first: rounding `lse` would cost a small loss its digits.
        args.loss[row] = target < args.width ? log_sum + (top - load(args.logits, start + target)) : NOT_A_NUMBER;
    }
}

struct CrossEntropyBackward {
    Array logits, dlogits;
    const u32* targets;  // [rows]
    const float* lse;    // [rows]
    u64 width;
    float factor;
};

// dlogits = factor (e^{x − lse} − [target])
KERNEL(cross_entropy_backward, CrossEntropyBackward, 256) {
    u64 row = blockIdx.x, start = row * args.width;
    u32 target = args.targets[row];
    float lse = args.lse[row], factor = target < args.width ? args.factor : NOT_A_NUMBER;
    for (u64 i = threadIdx.x; i < args.width; i += blockDim.x) {
        float slope = factor * expf(load(args.logits, start + i) - lse);
        store(args.dlogits, start + i, i == target ? slope - factor : slope);
    }
}
