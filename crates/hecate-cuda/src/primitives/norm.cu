// Normalising rows `x [rows, width]`. A row belongs to `lanes` threads: a warp, or the whole block.
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

template <u32 N> __device__ __forceinline__ void normalise_rows(const Normalise& args) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float square = 0.0f;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i);
            for (u32 n = 0; n < N; n++) square += x.x[n] * x.x[n];
        }
        square = lanes_sum(square, args.lanes, shared);
        // The square of ε may be no 32-bit number.
        float r = args.l2 ? 1.0f / hypotf(sqrtf(square), args.epsilon)
                          : 1.0f / sqrtf(square / (float)args.width + args.epsilon);
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes) {
            Run<N> y = load_run<N>(args.x, start + i);
            for (u32 n = 0; n < N; n++) y.x[n] *= r;
            if (!args.l2) {
                Run<N> weight = load_run<N>(args.weight, i);
                for (u32 n = 0; n < N; n++) y.x[n] *= weight.x[n];
            }
            store_run<N>(args.y, start + i, y);
        }
        if (lane.index == 0) args.inverse[row] = r;
    }
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
    Run<N> g = load_run<N>(args.dy, start + i);
    for (u32 n = 0; n < N; n++) g.x[n] *= r;
    if (!args.l2) {
        Run<N> weight = load_run<N>(args.weight, i);
        for (u32 n = 0; n < N; n++) g.x[n] *= weight.x[n];
    }
    return g;
}

// dx = g − x r² (x·g) share
template <u32 N> __device__ __forceinline__ void normalise_rows_backward(const NormaliseBackward& args) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float r = args.inverse[row], dot = 0.0f;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i), g = slope<N>(args, r, start, i);
            for (u32 n = 0; n < N; n++) dot += x.x[n] * g.x[n];
        }
        dot = lanes_sum(dot, args.lanes, shared);
        float along = (r * dot) * r * args.share;
        for (u64 i = N * lane.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i), g = slope<N>(args, r, start, i);
            for (u32 n = 0; n < N; n++) g.x[n] -= along * x.x[n];
            store_run<N>(args.dx, start + i, g);
        }
    }
}

KERNEL(normalise_backward, NormaliseBackward, 256) {
    if (args.width % 4 == 0) normalise_rows_backward<4>(args);
    else normalise_rows_backward<1>(args);
}
