// Layer norm of rows `x [rows, width]`. A row belongs to `lanes` threads: a warp, or the whole block where it is long.
#include "norm.cuh"

// Runs of 16 bytes that a thread keeps of a row.
const u32 KEPT = 4;

// y = (x − m) r w + b; `layer_norm::ForwardCall` is its twin.
struct LayerNorm {
    // [rows, width]
    Array x, y;
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
template <u32 N> __device__ __forceinline__ void kept_rows(const LayerNorm& args) {
    __shared__ float shared[32];
    const float share = 1.0f / (float)args.width;
    Run<N> x[1][KEPT];
    keep(x, args, args.x);
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
    BY_TYPE(args.x.type, kept_rows<RUN_LENGTH<TYPE>>(of_type<TYPE>(args)))
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

// Weights have the type of the rows; n has its own.
template <u32 TYPE> __device__ __forceinline__ LayerNormBackward of_type(LayerNormBackward args) {
    args.x.type = args.dy.type = args.dx.type = args.weight.type = TYPE;
    return args;
}

// h = w dy of a run, and n.
template <u32 N> struct Terms {
    Run<N> h, n;
};
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

// Rows that stay in registers.
template <u32 N> __device__ __forceinline__ void kept_rows_backward(const LayerNormBackward& args) {
    __shared__ float shared[32];
    const float share = 1.0f / (float)args.width;
    Run<N> x[1][KEPT], dy[1][KEPT];
    keep(x, args, args.x);
    keep(dy, args, args.dy);
    // Threads of rows after the last take part in the sums of their block.
    const u64 row = piece<N, 1>(args, 0, 0).row;
    const bool there = row < args.rows;
    const float mean = there ? args.mean[row] : 0.0f, r = there ? args.inverse[row] : 0.0f;
    // Means of h and of n h: what a row cannot change, its level and its length.
    float level = 0.0f, along = 0.0f;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) {
        Piece at = piece<N, 1>(args, 0, run);
        if (!at.inside) continue;
        Terms<N> t = terms(args, x[0][run], dy[0][run], mean, r, at.column);
        level += sum_of(t.h), along += dot(t.h, t.n);
        // In the place of what they were made of.
        dy[0][run] = t.h, x[0][run] = t.n;
    }
    level = lanes_sum(level, args.lanes, shared) * share;
    along = lanes_sum(along, args.lanes, shared) * share;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) {
        Piece at = piece<N, 1>(args, 0, run);
        if (at.inside) put(args, Terms<N>{dy[0][run], x[0][run]}, r, level, along, at.row * args.width + at.column);
    }
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

// Backward, the same two.
KERNEL(layer_norm_kept_backward, LayerNormBackward, 256) {
    BY_TYPE(args.x.type, kept_rows_backward<RUN_LENGTH<TYPE>>(of_type<TYPE>(args)))
}

// Rows of other lengths.
KERNEL(layer_norm_backward, LayerNormBackward, 256) {
    if (args.width % 4 == 0) long_rows_backward<4>(args);
    else long_rows_backward<1>(args);
}
