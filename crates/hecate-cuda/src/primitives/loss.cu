// Cross-entropy of `logits [rows, width]`, of which the first columns are classes; a block for each row.
#include "hecate.cuh"

// Of a row in 16 bits; in 32 all digits are wanted.
__device__ __forceinline__ float exponential(u32 type, float x) {
    return type == 0 ? expf(x) : short_exp2(1.44269504f * x);
}

// What is done with TYPE and N: runs of 16 bytes where these divide rows, else element by element of a type that is seen when
// it is read.
#define BY_RUNS(array, width, work)                                        \
    if ((width) % ((array).type == 0 ? 4 : 8) == 0) BY_TYPE((array).type, work(TYPE, RUN_LENGTH<TYPE>)) \
    else work((array).type, 1)

// Runs that a thread asks for at once.
const u32 AHEAD = 4;

// Gives `work` this thread's runs of a row, the first column beside each; what is after the classes is -∞.
template <u32 N, class Work>
__device__ __forceinline__ void each_run(Array logits, u64 start, u64 classes, const Work& work) {
    const u64 step = N * blockDim.x;
    for (u64 first = N * threadIdx.x; first < classes; first += AHEAD * step) {
        Run<N> x[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u64 i = first + a * step;
            x[a] = load_run<N>(logits, start + (i < classes ? i : first));
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u64 i = first + a * step;
            if (i >= classes) continue;
            // The last run reaches past the classes.
            if (i + N > classes)
                for (u32 n = 1; n < N; n++) x[a].x[n] = i + n < classes ? x[a].x[n] : -INFINITE;
            work(i, x[a]);
        }
    }
}

// `loss::CrossEntropy` is its twin.
struct CrossEntropy {
    Array logits;
    // [rows]
    const u32* targets;
    // [rows]
    float* loss;
    // [rows]
    float* lse;
    u64 width, classes;
};

// What a thread has seen of a row: `Σ e^{x − top}` of it is `sum`.
struct Seen {
    float top, sum;
};

// Goes through the thread's runs once, bringing the sum down whenever the maximum rises.
template <u32 N> __device__ __forceinline__ Seen see(Array logits, u64 start, u64 classes) {
    Seen seen = {-INFINITE, 0.0f};
    each_run<N>(logits, start, classes, [&](u64, const Run<N>& x) {
        // The largest of the run first.
        float top = seen.top;
#pragma unroll
        for (u32 n = 0; n < N; n++) top = x.x[n] > top ? x.x[n] : top;
        if (top > seen.top) seen.sum *= exponential(logits.type, seen.top - top);
        seen.top = top;
        // Where all is -∞ still, that is not taken from itself.
        const float least = top > -INFINITE ? top : 0.0f;
#pragma unroll
        for (u32 n = 0; n < N; n++) seen.sum += exponential(logits.type, x.x[n] - least);
    });
    return seen;
}

// A row's maximum, and log Σ e^{x − top}: together its log-sum.
struct Row {
    float top, log_sum;
    // lse − x[target]; a target that is no class gives NaN.
    template <class Args> __device__ __forceinline__ float loss(const Args& args) const {
        const u32 target = args.targets[blockIdx.x];
        if (target >= args.classes) return NOT_A_NUMBER;
        // The difference of neighbours first: rounding `lse` would cost a small loss its digits.
        return log_sum + (top - load(args.logits, blockIdx.x * args.width + target));
    }
};

// Of the block's row, in every thread.
template <class Args> __device__ __forceinline__ Row whole_row(const Args& args, float* shared) {
    Seen seen;
#define SEE(TYPE, N) seen = see<N>(Array{args.logits.data, TYPE}, blockIdx.x * args.width, args.classes)
    BY_RUNS(args.logits, args.width, SEE);
    // Each thread's sum is relative to its own maximum and is brought down to the block's.
    float top = block_max(seen.top, shared);
    // A thread that saw nothing has nothing to bring down.
    return {top, logf(block_sum(seen.top == top ? seen.sum : seen.sum * expf(seen.top - top), shared))};
}

// lse[row] = logsumexp(logits[row]) and loss[row], one block a row.
KERNEL(cross_entropy, CrossEntropy, 256) {
    __shared__ float shared[32];
    const Row row = whole_row(args, shared);
    // One thread has the row's result.
    if (threadIdx.x == 0) args.lse[blockIdx.x] = row.top + row.log_sum, args.loss[blockIdx.x] = row.loss(args);
}

// `loss::CrossEntropyBackward` is its twin.
struct CrossEntropyBackward {
    Array logits, dlogits;
    // [rows]
    const u32* targets;
    // [rows]
    const float* lse;
    u64 width, classes;
    float factor;
};

// dlogits = factor (e^{x − lse} − [target]), zero after the classes; `dlogits` may be `logits`.
template <u32 N, class Args> __device__ __forceinline__ void slopes(const Args& args, u32 type, float lse) {
    const u64 row = blockIdx.x, start = row * args.width;
    const Array dlogits = {args.dlogits.data, type};
    const u32 target = args.targets[row];
    const float factor = target < args.classes ? args.factor : NOT_A_NUMBER;
    each_run<N>(Array{args.logits.data, type}, start, args.classes, [&](u64 i, Run<N> x) {
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            const float slope = factor * exponential(type, x.x[n] - lse);
            x.x[n] = i + n == target ? slope - factor : slope;
            if (i + n >= args.classes) x.x[n] = 0.0f;
        }
        store_run<N>(dlogits, start + i, x);
    });
    // The rest of the row, which is no class.
    const u64 rest = (args.classes + N - 1) / N * N;
    for (u64 i = rest + N * threadIdx.x; i < args.width; i += N * blockDim.x) store_run<N>(dlogits, start + i, Run<N>{});
}

// A block has a row.
KERNEL(cross_entropy_backward, CrossEntropyBackward, 256) {
    const float lse = args.lse[blockIdx.x];
#define SLOPES(TYPE, N) slopes<N>(args, TYPE, lse)
    BY_RUNS(args.logits, args.width, SLOPES);
}

// `loss::CrossEntropyAndGradient` is its twin.
struct CrossEntropyAndGradient {
    Array logits, dlogits;
    // [rows]
    const u32* targets;
    // [rows]
    float* loss;
    u64 width, classes;
    float factor;
};

// Both of a row, which the caches still hold the second time: rows of all blocks that run at once are a few tens of megabytes.
KERNEL(cross_entropy_and_gradient, CrossEntropyAndGradient, 512) {
    __shared__ float shared[32];
    const Row row = whole_row(args, shared);
    if (threadIdx.x == 0) args.loss[blockIdx.x] = row.loss(args);
    // The target's score is read before it is written over.
    __syncthreads();
    const float lse = row.top + row.log_sum;
    BY_RUNS(args.logits, args.width, SLOPES);
}
