// Normalising rows `x [rows, width]`. A row belongs to `lanes` threads: of short ones a power of two up to a warp, else a
// warp or the whole block.
#include "hecate.cuh"

struct Normalise {
    Array x, y;
    Array weight;    // [width]; not read for l2
    float* inverse;  // [rows]
    u64 rows, width;
    float epsilon;
    u32 lanes;
    u32 l2;  // r = 1/√(|x|² + ε²) and y = x r, instead of r = 1/√(mean x² + ε) and y = x r w
};

// This thread's row in a step of the grid, its place there, and how many rows a step has.
struct Lane {
    u64 row, rows;
    u32 index;
};

__device__ __forceinline__ Lane lane_of(u32 lanes) {
    u32 together = blockDim.x / lanes;
    return Lane{(u64)blockIdx.x * together + threadIdx.x / lanes, (u64)gridDim.x * together, threadIdx.x % lanes};
}

__device__ __forceinline__ float lanes_sum(float x, u32 lanes, float* shared) {
    return lanes == 32 ? warp_sum(x) : block_sum(x, shared);
}

// The sum over `lanes` neighbouring lanes, a power of two of them, in each; all 32 lanes of a warp call it.
__device__ __forceinline__ float neighbours_sum(float x, u32 lanes) {
    for (u32 mask = 1; mask < lanes; mask *= 2) x += shuffle_xor(x, mask);
    return x;
}

template <u32 N> __device__ __forceinline__ float dot(const Run<N>& a, const Run<N>& b) {
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += a.x[n] * b.x[n];
    return sum;
}

// r w x
template <u32 N> __device__ __forceinline__ Run<N> scaled(Run<N> x, float r, const Array& weight, u32 l2, u64 i) {
#pragma unroll
    for (u32 n = 0; n < N; n++) x.x[n] *= r;
    if (!l2) {
        Run<N> w = load_run<N>(weight, i);
#pragma unroll
        for (u32 n = 0; n < N; n++) x.x[n] *= w.x[n];
    }
    return x;
}

// r of a row with this |x|²; the square of ε may be no 32-bit number.
__device__ __forceinline__ float inverse_of(const Normalise& args, float square) {
    return args.l2 ? 1.0f / hypotf(sqrtf(square), args.epsilon) : 1.0f / sqrtf(square / (float)args.width + args.epsilon);
}

template <u32 N> __device__ __forceinline__ void normalise_rows(const Normalise& args) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float square = 0.0f;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i);
            square += dot(x, x);
        }
        float r = inverse_of(args, lanes_sum(square, args.lanes, shared));
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes)
            store_run<N>(args.y, start + i, scaled(load_run<N>(args.x, start + i), r, args.weight, args.l2, i));
        if (lane.index == 0) args.inverse[row] = r;
    }
}

// A run of a row that a thread keeps from the sum to the result, so that the array is read once. A block has ROWS rows for
// as many threads as a row has, each of them `run` < RUNS runs of all; those that the array does not have are zeros.
struct Piece {
    u64 row;
    u32 column;
    bool inside;
};

template <u32 N, u32 ROWS, class Args> __device__ __forceinline__ Piece piece(const Args& args, u32 r, u32 run) {
    u32 together = blockDim.x / args.lanes;
    u64 row = ((u64)blockIdx.x * ROWS + r) * together + threadIdx.x / args.lanes;
    u32 column = N * (run * args.lanes + threadIdx.x % args.lanes);
    return Piece{row, column, row < args.rows && column < args.width};
}

template <u32 N, u32 RUNS, u32 ROWS, class Args>
__device__ __forceinline__ void keep(Run<N> (&kept)[ROWS][RUNS], const Args& args, const Array& x) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            kept[r][run] = load_run_if<N>(at.inside, x, at.row * args.width + at.column);
        }
}

template <u32 N, u32 RUNS, u32 ROWS> __device__ __forceinline__ void normalise_kept(const Normalise& args) {
    Run<N> x[ROWS][RUNS];
    keep(x, args, args.x);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        float square = 0.0f;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) square += dot(x[r][run], x[r][run]);
        float inverse = inverse_of(args, neighbours_sum(square, args.lanes));
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            if (!at.inside) continue;
            Run<N> y = scaled(x[r][run], inverse, args.weight, args.l2, at.column);
            store_run<N>(args.y, at.row * args.width + at.column, y);
            if (at.column == 0) args.inverse[at.row] = inverse;
        }
    }
}

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ Normalise of_type(Normalise args) {
    args.x.type = args.y.type = args.weight.type = TYPE;
    return args;
}

// Rows of up to 32 runs of 16 bytes.
KERNEL(normalise_short, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 1, 2>(of_type<TYPE>(args)))
}

// Rows of up to 128 of them.
KERNEL(normalise_medium, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1>(of_type<TYPE>(args)))
}

// Rows begin at multiples of four where their length is one.
KERNEL(normalise, Normalise, 256) {
    if (args.width % 4 == 0) normalise_rows<4>(args);
    else normalise_rows<1>(args);
}

struct NormaliseBackward {
    Array x, dy, dx;
    Array weight;          // [width]; not read for l2
    const float* inverse;  // [rows]
    u64 rows, width;
    float share;  // 1/width, or 1 for l2
    u32 lanes;
    u32 l2;
};

// g = r w dy
template <u32 N> __device__ __forceinline__ Run<N> slope(const NormaliseBackward& args, float r, u64 start, u64 i) {
    return scaled(load_run<N>(args.dy, start + i), r, args.weight, args.l2, i);
}

// dx = g − x r² (x·g) share
template <u32 N> __device__ __forceinline__ Run<N> across(Run<N> g, const Run<N>& x, float along) {
#pragma unroll
    for (u32 n = 0; n < N; n++) g.x[n] -= along * x.x[n];
    return g;
}

template <u32 N> __device__ __forceinline__ void normalise_rows_backward(const NormaliseBackward& args) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float r = args.inverse[row], sum = 0.0f;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes)
            sum += dot(load_run<N>(args.x, start + i), slope<N>(args, r, start, i));
        sum = lanes_sum(sum, args.lanes, shared);
        float along = (r * sum) * r * args.share;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes)
            store_run<N>(args.dx, start + i, across(slope<N>(args, r, start, i), load_run<N>(args.x, start + i), along));
    }
}

template <u32 N, u32 RUNS, u32 ROWS>
__device__ __forceinline__ void normalise_kept_backward(const NormaliseBackward& args) {
    Run<N> x[ROWS][RUNS], g[ROWS][RUNS];
    float inverses[ROWS];
    keep(x, args, args.x);
    keep(g, args, args.dy);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        u64 row = piece<N, ROWS>(args, r, 0).row;
        inverses[r] = row < args.rows ? args.inverse[row] : 0.0f;
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        float inverse = inverses[r], sum = 0.0f;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            if (!at.inside) continue;
            g[r][run] = scaled(g[r][run], inverse, args.weight, args.l2, at.column);
            sum += dot(x[r][run], g[r][run]);
        }
        sum = neighbours_sum(sum, args.lanes);
        float along = (inverse * sum) * inverse * args.share;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            if (at.inside) store_run<N>(args.dx, at.row * args.width + at.column, across(g[r][run], x[r][run], along));
        }
    }
}

template <u32 TYPE> __device__ __forceinline__ NormaliseBackward of_type(NormaliseBackward args) {
    args.x.type = args.dy.type = args.dx.type = args.weight.type = TYPE;
    return args;
}

KERNEL(normalise_short_backward, NormaliseBackward, 256) {
    BY_TYPE(args.x.type, normalise_kept_backward<RUN_LENGTH<TYPE>, 1, 2>(of_type<TYPE>(args)))
}

KERNEL(normalise_medium_backward, NormaliseBackward, 256) {
    BY_TYPE(args.x.type, normalise_kept_backward<RUN_LENGTH<TYPE>, 4, 1>(of_type<TYPE>(args)))
}

KERNEL(normalise_backward, NormaliseBackward, 256) {
    if (args.width % 4 == 0) normalise_rows_backward<4>(args);
    else normalise_rows_backward<1>(args);
}
