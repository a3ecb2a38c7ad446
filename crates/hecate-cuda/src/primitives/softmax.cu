// Softmax of rows `x [rows, width]`. A row belongs to `lanes` threads: a warp, or the whole block where it is long.
#include "norm.cuh"

// Runs of 16 bytes that a thread keeps of a row.
const u32 KEPT = 4;

// `softmax::SoftmaxCall` is its twin.
struct SoftmaxCall {
    // [rows, width], of one type: x and y, or backward y, dy and dx.
    Array x, dy, y;
    u64 rows, width;
    u32 lanes;
};

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ SoftmaxCall of_type(SoftmaxCall args) {
    args.x.type = args.dy.type = args.y.type = TYPE;
    return args;
}

// The maximum over the threads of a row; all threads of the block call it.
__device__ __forceinline__ float lanes_max(float x, u32 lanes, float* shared) {
    return lanes == 32 ? warp_max(x) : block_max(x, shared);
}

// Rows that stay in registers from the maximum to the result.
template <u32 N> __device__ __forceinline__ void softmax_kept_rows(const SoftmaxCall& args) {
    __shared__ float shared[32];
    Run<N> x[1][KEPT];
    keep(x, args, args.x);
    // What a row does not have was read as zeros, which could be the largest: it takes no part.
    float top = -INFINITE;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++)
        if (piece<N, 1>(args, 0, run).inside)
#pragma unroll
            for (u32 n = 0; n < N; n++) top = x[0][run].x[n] > top ? x[0][run].x[n] : top;
    top = lanes_max(top, args.lanes, shared);
    // A NaN is no maximum, but its power is NaN, and so is the sum.
    float sum = 0.0f;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++)
        if (piece<N, 1>(args, 0, run).inside)
#pragma unroll
            for (u32 n = 0; n < N; n++) sum += x[0][run].x[n] = expf(x[0][run].x[n] - top);
    // One division a row.
    const float share = 1.0f / lanes_sum(sum, args.lanes, shared);
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) {
        Piece at = piece<N, 1>(args, 0, run);
        if (!at.inside) continue;
#pragma unroll
        for (u32 n = 0; n < N; n++) x[0][run].x[n] *= share;
        store_run<N>(args.y, at.row * args.width + at.column, x[0][run]);
    }
}

// Longer rows are read twice: once for the maximum and the sum, which is brought down whenever the maximum rises.
template <u32 N> __device__ __forceinline__ void softmax_rows(const SoftmaxCall& args) {
    __shared__ float shared[32];
    RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        // Of what this thread saw: the maximum, and the sum of powers relative to it.
        float own = -INFINITE, sum = 0.0f;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i);
            float top = own;
#pragma unroll
            for (u32 n = 0; n < N; n++) top = x.x[n] > top ? x.x[n] : top;
            if (top > own) sum *= expf(own - top);
            own = top;
            // Where all is -∞ still, that is not taken from itself.
            const float least = top > -INFINITE ? top : 0.0f;
#pragma unroll
            for (u32 n = 0; n < N; n++) sum += expf(x.x[n] - least);
        }
        const float top = lanes_max(own, args.lanes, shared);
        // A thread that saw nothing has nothing to bring down.
        const float all = lanes_sum(own == top ? sum : sum * expf(own - top), args.lanes, shared);
        const float share = 1.0f / all;
        // The second time: powers relative to the maximum of the row.
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i);
#pragma unroll
            for (u32 n = 0; n < N; n++) x.x[n] = expf(x.x[n] - top) * share;
            store_run<N>(args.y, start + i, x);
        }
    }
}

// dx = y (dy − y·dy) of rows that stay in registers; the shares y are `x` here, and dx is `y`.
template <u32 N> __device__ __forceinline__ void softmax_kept_rows_backward(const SoftmaxCall& args) {
    __shared__ float shared[32];
    Run<N> shares[1][KEPT], dy[1][KEPT];
    keep(shares, args, args.x);
    keep(dy, args, args.dy);
    // Zeros outside of the row add nothing.
    float sum = 0.0f;
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) sum += dot(shares[0][run], dy[0][run]);
    sum = lanes_sum(sum, args.lanes, shared);
#pragma unroll
    for (u32 run = 0; run < KEPT; run++) {
        Piece at = piece<N, 1>(args, 0, run);
        if (!at.inside) continue;
#pragma unroll
        for (u32 n = 0; n < N; n++) dy[0][run].x[n] = shares[0][run].x[n] * (dy[0][run].x[n] - sum);
        store_run<N>(args.y, at.row * args.width + at.column, dy[0][run]);
    }
}

// The same of longer rows.
template <u32 N> __device__ __forceinline__ void softmax_rows_backward(const SoftmaxCall& args) {
    __shared__ float shared[32];
    RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        // y·dy, the mean of dy by the shares.
        float sum = 0.0f;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes)
            sum += dot(load_run<N>(args.x, start + i), load_run<N>(args.dy, start + i));
        sum = lanes_sum(sum, args.lanes, shared);
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Run<N> shares = load_run<N>(args.x, start + i), dx = load_run<N>(args.dy, start + i);
#pragma unroll
            for (u32 n = 0; n < N; n++) dx.x[n] = shares.x[n] * (dx.x[n] - sum);
            store_run<N>(args.y, start + i, dx);
        }
    }
}

// Rows of whole runs, up to four a thread.
KERNEL(softmax_kept, SoftmaxCall, 256) {
    BY_TYPE(args.x.type, softmax_kept_rows<RUN_LENGTH<TYPE>>(of_type<TYPE>(args)))
}

// All other rows.
KERNEL(softmax, SoftmaxCall, 256) {
    if (args.width % 4 == 0) softmax_rows<4>(args);
    else softmax_rows<1>(args);
}

// Backward, the same two.
KERNEL(softmax_kept_backward, SoftmaxCall, 256) {
    BY_TYPE(args.x.type, softmax_kept_rows_backward<RUN_LENGTH<TYPE>>(of_type<TYPE>(args)))
}

// Rows of other lengths begin at multiples of four where their length is one.
KERNEL(softmax_backward, SoftmaxCall, 256) {
    if (args.width % 4 == 0) softmax_rows_backward<4>(args);
    else softmax_rows_backward<1>(args);
}
