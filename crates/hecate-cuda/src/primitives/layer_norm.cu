// Layer norm of rows `x [rows, width]`. A row belongs to `lanes` threads: a warp, or the whole block.
#include "norm.cuh"

// Runs of 16 bytes that a thread keeps of a row.
const u32 KEPT = 4;

// y = (x − m) r w + b; `layer_norm::ForwardCall` is its twin.
struct LayerNorm {
    // [rows, width]
    Array x, y;
    // [rows, width], of the kernel that adds first: x + residual, which goes to `sum`, is normalised instead of x
    Array residual, sum;
    // [width]
    Array weight, bias;
    // [rows]
    float *mean, *inverse;
    u64 rows, width;
    float epsilon;
    u32 lanes;
};

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ LayerNorm of_type(LayerNorm args) {
    args.residual.type = args.sum.type = TYPE;
    args.x.type = args.y.type = args.weight.type = args.bias.type = TYPE;
    return args;
}

// A run of the result.
template <u32 N>
__device__ __forceinline__ Run<N> affine(Run<N> x, const LayerNorm& args, float mean, float r, u64 column) {
    // Both are the same for all rows and come from the cache.
    const Run<N> w = load_run<N>(args.weight, column), b = load_run<N>(args.bias, column);
#pragma unroll
    for (u32 n = 0; n < N; n++) x.x[n] = (x.x[n] - mean) * r * w.x[n] + b.x[n];
    return x;
}

// Σ x, and Σ (x − m)²: the mean first, so that a large one costs the variance no digits.
template <u32 N> __device__ __forceinline__ float sum_of(const Run<N>& x) {
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += x.x[n];
    return sum;
}
// Of a run that is there as a whole.
template <u32 N> __device__ __forceinline__ float squares_of(const Run<N>& x, float mean) {
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += (x.x[n] - mean) * (x.x[n] - mean);
    return sum;
}

// Rows that stay in registers.
// Whether a residual is ADDED is known while compiling: it takes registers that others can do without.
template <u32 N, bool ADDED> __device__ __forceinline__ void kept_rows(const LayerNorm& args) {
    __shared__ float shared[32];
    const float share = 1.0f / (float)args.width;
    Run<N> x[1][KEPT];
    // Zeros stand where the row has ended.
    keep(x, args, args.x);
    if constexpr (ADDED) add_residual(x, args);
    float sum = 0.0f, square = 0.0f;
    // Zeros outside of the row add nothing to its sum, but would to its variance.
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) sum += sum_of(x[0][run]);
    const float mean = lanes_sum(sum, args.lanes, shared) * share;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++)
        if (piece<N, 1>(args, 0, run).inside) square += squares_of(x[0][run], mean);
    const float r = 1.0f / sqrtf(lanes_sum(square, args.lanes, shared) * share + args.epsilon);
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) {
        Piece at = piece<N, 1>(args, 0, run);
        if (!at.inside) continue;
        store_run<N>(args.y, at.row * args.width + at.column, affine(x[0][run], args, mean, r, at.column));
        // Kept for the backward.
        if (at.column == 0) args.mean[at.row] = mean, args.inverse[at.row] = r;
    }
}

// Longer rows are read three times.
template <u32 N> __device__ __forceinline__ void long_rows(const LayerNorm& args) {
    __shared__ float shared[32];
    const float share = 1.0f / (float)args.width;
    RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        float sum = 0.0f, square = 0.0f;
        // The second and third time they come from the near cache.
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) sum += sum_of(load_run<N>(args.x, start + i));
        const float mean = lanes_sum(sum, args.lanes, shared) * share;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes)
            square += squares_of(load_run<N>(args.x, start + i), mean);
        const float r = 1.0f / sqrtf(lanes_sum(square, args.lanes, shared) * share + args.epsilon);
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes)
            store_run<N>(args.y, start + i, affine(load_run<N>(args.x, start + i), args, mean, r, i));
        if (thread.index == 0) args.mean[row] = mean, args.inverse[row] = r;
    }
}

// Rows of whole runs, up to four a thread.
KERNEL(layer_norm_kept, LayerNorm, 256) {
    BY_TYPE(args.x.type, kept_rows<RUN_LENGTH<TYPE>, false>(of_type<TYPE>(args)))
}

// The same of sums.
KERNEL(add_layer_norm_kept, LayerNorm, 256) {
    BY_TYPE(args.x.type, kept_rows<RUN_LENGTH<TYPE>, true>(of_type<TYPE>(args)))
}

// All other rows.
KERNEL(layer_norm, LayerNorm, 256) {
    if (args.width % 4 == 0) long_rows<4>(args);
    else long_rows<1>(args);
}

// dx, and n = (x − m) r, of which the gradient of the weight is made; `layer_norm::BackwardCall` is its twin.
struct LayerNormBackward {
    // [rows, width], n in 32 bits
    Array x, dy, dx, normed;
    // [width]
    Array weight;
    // [rows]
    const float *mean, *inverse;
    u64 rows, width;
    u32 lanes;
};

// h = w dy of a run, and n.
template <u32 N> struct Terms {
    Run<N> h, n;
};
// h = w * dy and n = (x - mean) * r of a run from `column` on.
template <u32 N>
__device__ __forceinline__ Terms<N> terms(
    const LayerNormBackward& args, Run<N> x, Run<N> dy, float mean, float r, u64 column
) {
    const Run<N> w = load_run<N>(args.weight, column);
#pragma unroll
    for (u32 n = 0; n < N; n++) x.x[n] = (x.x[n] - mean) * r, dy.x[n] *= w.x[n];
    return {dy, x};
}

// dx = r (h − mean h − n mean (n h)), written beside n.
template <u32 N>
__device__ __forceinline__ void put(
    const LayerNormBackward& args, Terms<N> at, float r, float level, float along, u64 place
) {
    store_run<N>(args.normed, place, at.n);
#pragma unroll
    for (u32 n = 0; n < N; n++) at.h.x[n] = r * (at.h.x[n] - level - at.n.x[n] * along);
    store_run<N>(args.dx, place, at.h);
}

// Longer rows are read twice.
template <u32 N> __device__ __forceinline__ void long_rows_backward(const LayerNormBackward& args) {
    __shared__ float shared[32];
    const float share = 1.0f / (float)args.width;
    RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        const float mean = args.mean[row], r = args.inverse[row];
        // Made anew each time, which costs less than keeping them.
        const auto at = [&](u64 i) {
            return terms(args, load_run<N>(args.x, start + i), load_run<N>(args.dy, start + i), mean, r, i);
        };
        float level = 0.0f, along = 0.0f;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Terms<N> t = at(i);
            level += sum_of(t.h), along += dot(t.h, t.n);
        }
        level = lanes_sum(level, args.lanes, shared) * share;
        along = lanes_sum(along, args.lanes, shared) * share;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) put(args, at(i), r, level, along, start + i);
    }
}

// Rows of any length.
KERNEL(layer_norm_backward, LayerNormBackward, 256) {
    if (args.width % 4 == 0) long_rows_backward<4>(args);
    else long_rows_backward<1>(args);
}

// All gradients at once of rows that threads keep, as `NormaliseGradients` has them for norms without a mean.
struct LayerNormGradients {
    Array x, dy, dx;
    // [rows, width], or null: what is added to dx
    Array dsum;
    Array weight;
    // [rows]
    const float *mean, *inverse;
    // Of dw and db: [blocks, width], in 64 bits, or in 32 where a block has one row at a time
    void *weight_parts, *bias_parts;
    u64 rows, width;
    u32 lanes;
};

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ LayerNormGradients of_type(LayerNormGradients args) {
    args.x.type = args.dy.type = args.dx.type = args.dsum.type = args.weight.type = TYPE;
    return args;
}

// A run of h and n, of x and dy as they lie in memory.
template <u32 N, u32 TYPE>
__device__ __forceinline__ Terms<N> terms_of(uint4 x, uint4 dy, const LayerNormGradients& args, float mean, float r, u32 column) {
    Run<N> n = run_of<N, TYPE>(x), h = run_of<N, TYPE>(dy);
    const Run<N> w = load_run<N>(args.weight, column);
#pragma unroll
    for (u32 i = 0; i < N; i++) n.x[i] = (n.x[i] - mean) * r, h.x[i] *= w.x[i];
    return {h, n};
}

// The sums of two numbers over a block, in every thread; `shared` holds 32 pairs.
__device__ __forceinline__ float2 block_sums(float2 x, float2* shared) {
    x = make_float2(warp_sum(x.x), warp_sum(x.y));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    // In the order of warps.
    float2 sum = make_float2(0.0f, 0.0f);
    for (u32 i = 0; i < blockDim.x / 32; i++) sum.x += shared[i].x, sum.y += shared[i].y;
    return sum;
}

// A block goes through rows, one for each `lanes` of its threads, and keeps its parts of dw and db in registers.
template <u32 TYPE, u32 RUNS, bool BLOCK> __device__ __forceinline__ void gradients(const LayerNormGradients& args, float* shared) {
    constexpr u32 N = RUN_LENGTH<TYPE>;
    // Two sums a warp.
    __shared__ float2 sums[32];
    const u32 together = blockDim.x / args.lanes, lane = threadIdx.x % args.lanes;
    const float share = 1.0f / (float)args.width;
    // Of the columns that the thread has in every row.
    Run<N> dw[RUNS] = {}, db[RUNS] = {};
    // All threads of a block go through as many rows, so that sums have all of them.
    for (u64 first = (u64)blockIdx.x * together; first < args.rows; first += (u64)gridDim.x * together) {
        // Whoever has no row reads the first run of all and writes nothing.
        const u64 row = first + threadIdx.x / args.lanes, start = row * args.width;
        const bool there = row < args.rows;
        // As they lie in memory, which takes half the registers.
        uint4 x[RUNS], dy[RUNS];
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * args.lanes + lane);
            const u64 at = there && column < args.width ? (start + column) / N : 0;
            x[run] = ((const uint4*)args.x.data)[at], dy[run] = ((const uint4*)args.dy.data)[at];
            if (BLOCK) ask_for_next(args, row + gridDim.x, column);
        }
        // What the forward left of the row.
        const float mean = there ? args.mean[row] : 0.0f, r = there ? args.inverse[row] : 0.0f;
        // Means of h and of n h: what a row cannot change, its level and its length.
        float level = 0.0f, along = 0.0f;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * args.lanes + lane);
            if (!there || column >= args.width) continue;
            const Terms<N> t = terms_of<N, TYPE>(x[run], dy[run], args, mean, r, column);
            // dy itself: the weight is a factor of dx alone.
            const Run<N> own = run_of<N, TYPE>(dy[run]);
#pragma unroll
            for (u32 n = 0; n < N; n++) dw[run].x[n] += t.n.x[n] * own.x[n], db[run].x[n] += own.x[n];
            level += sum_of(t.h), along += dot(t.h, t.n);
        }
        if constexpr (BLOCK) {
            // Both at once: a block waits half as often.
            const float2 both = block_sums(make_float2(level, along), sums);
            level = both.x * share, along = both.y * share;
        } else {
            level = warp_sum(level) * share, along = warp_sum(along) * share;
        }
        // dx = r (h − mean h − n mean (n h)), of terms that are made again.
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * args.lanes + lane);
            if (!there || column >= args.width) continue;
            Terms<N> t = terms_of<N, TYPE>(x[run], dy[run], args, mean, r, column);
#pragma unroll
            for (u32 n = 0; n < N; n++) t.h.x[n] = r * (t.h.x[n] - level - t.n.x[n] * along);
            if (args.dsum.data) {
                const Run<N> dsum = load_run<N>(args.dsum, start + column);
#pragma unroll
                for (u32 n = 0; n < N; n++) t.h.x[n] += dsum.x[n];
            }
            store_run<N>(args.dx, start + column, t.h);
        }
    }
    // This block's rows of both [blocks, width].
    const u64 part = blockIdx.x * args.width;
    if constexpr (BLOCK) {
        put_rows(dw, args.lanes, args.width, (float*)args.weight_parts + part);
        put_rows(db, args.lanes, args.width, (float*)args.bias_parts + part);
    } else {
        add_up_rows(dw, args.lanes, args.width, shared, (double*)args.weight_parts + part);
        add_up_rows(db, args.lanes, args.width, shared, (double*)args.bias_parts + part);
    }
}

// A warp a row; sums take 32 KiB of shared memory.
KERNEL(layer_norm_gradients, LayerNormGradients, 256, 2) {
    __shared__ float shared[4 * 8 * 256];
    BY_TYPE(args.x.type, gradients<TYPE, 4, false>(of_type<TYPE>(args), shared))
}

// A block a row, of up to two runs a thread.
KERNEL(layer_norm_large_gradients, LayerNormGradients, 256, 2) {
    BY_TYPE(args.x.type, gradients<TYPE, 2, true>(of_type<TYPE>(args), nullptr))
}

// Up to four runs a thread: the longest rows that are kept.
KERNEL(layer_norm_larger_gradients, LayerNormGradients, 256, 2) {
    BY_TYPE(args.x.type, gradients<TYPE, 4, true>(of_type<TYPE>(args), nullptr))
}
