// Cross-entropy; a block for each row of `logits [rows, width]`.
#include "hecate.cuh"

struct CrossEntropy {
    Array logits;
    const u32* targets;  // [rows]
    float* loss;         // [rows]
    float* lse;          // [rows]
    u64 width;
};

// What a thread has seen of a row: `Σ e^{x − top}` of it is `sum`.
struct Seen {
    float top, sum;
};

template <u32 N> __device__ __forceinline__ Seen see(const CrossEntropy& args, u64 start) {
    Seen seen = {-INFINITE, 0.0f};
    for (u64 i = N * threadIdx.x; i < args.width; i += N * blockDim.x) {
        Run<N> x = load_run<N>(args.logits, start + i);
        float top = seen.top;
        for (u32 n = 0; n < N; n++) top = x.x[n] > top ? x.x[n] : top;
        if (top > seen.top) seen.sum *= expf(seen.top - top);
        seen.top = top;
        for (u32 n = 0; n < N; n++) seen.sum += expf(x.x[n] - top);
    }
    return seen;
}

// lse = top + log Σ e^{x − top}, loss = lse − x[target]; a target that the row does not have gives NaN.
KERNEL(cross_entropy, CrossEntropy, 256) {
    __shared__ float shared[32];
    u64 row = blockIdx.x, start = row * args.width;
    Seen seen = args.width % 4 == 0 ? see<4>(args, start) : see<1>(args, start);
    float top = block_max(seen.top, shared);
    // A thread that saw nothing has nothing to bring down.
    float sum = block_sum(seen.top == top ? seen.sum : seen.sum * expf(seen.top - top), shared);
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
template <u32 N> __device__ __forceinline__ void slopes(const CrossEntropyBackward& args) {
    u64 row = blockIdx.x, start = row * args.width;
    u32 target = args.targets[row];
    float lse = args.lse[row], factor = target < args.width ? args.factor : NOT_A_NUMBER;
    for (u64 i = N * threadIdx.x; i < args.width; i += N * blockDim.x) {
        Run<N> x = load_run<N>(args.logits, start + i);
        for (u32 n = 0; n < N; n++) {
            float slope = factor * expf(x.x[n] - lse);
            x.x[n] = i + n == target ? slope - factor : slope;
        }
        store_run<N>(args.dlogits, start + i, x);
    }
}

KERNEL(cross_entropy_backward, CrossEntropyBackward, 256) {
    if (args.width % 4 == 0) slopes<4>(args);
    else slopes<1>(args);
}
