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

// lse = top + log Σ e^{x − top}, loss = lse − x[target]; a target that is no class gives NaN.
KERNEL(cross_entropy, CrossEntropy, 256) {
    __shared__ float shared[32];
    u64 row = blockIdx.x, start = row * args.width;
    Seen seen;
#define SEE(TYPE, N) seen = see<N>(Array{args.logits.data, TYPE}, start, args.classes)
    BY_RUNS(args.logits, args.width, SEE);
    // Each thread's sum is relative to its own maximum and is brought down to the block's.
    float top = block_max(seen.top, shared);
    // A thread that saw nothing has nothing to bring down.
    float sum = block_sum(seen.top == top ? seen.sum : seen.sum * expf(seen.top - top), shared);
    if (threadIdx.x == 0) {
        // One thread has the row's result.
        u32 target = args.targets[row];
        float log_sum = logf(sum);
        args.lse[row] = top + log_sum;
        // The difference of neighbours first: rounding `lse` would cost a small loss its digits.
        args.loss[row] = target < args.classes ? log_sum + (top - load(args.logits, start + target)) : NOT_A_NUMBER;
    }
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

// dlogits = factor (e^{x − lse} − [target]), zero after the classes
template <u32 N> __device__ __forceinline__ void slopes(const CrossEntropyBackward& args, u32 type) {
    const u64 row = blockIdx.x, start = row * args.width;
    const Array dlogits = {args.dlogits.data, type};
    const u32 target = args.targets[row];
    const float lse = args.lse[row], factor = target < args.classes ? args.factor : NOT_A_NUMBER;
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
#define SLOPES(TYPE, N) slopes<N>(args, TYPE)
    BY_RUNS(args.logits, args.width, SLOPES);
}
