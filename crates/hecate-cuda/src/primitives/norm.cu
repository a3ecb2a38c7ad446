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

KERNEL(normalise, Normalise, 256) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float square = 0.0f;
        for (u64 i = lane.index; i < args.width; i += args.lanes) {
            float x = load(args.x, start + i);
            square += x * x;
        }
        square = lanes_sum(square, args.lanes, shared);
        // The square of ε may be no 32-bit number.
        float r = args.l2 ? 1.0f / hypotf(sqrtf(square), args.epsilon)
                          : 1.0f / sqrtf(square / (float)args.width + args.epsilon);
        for (u64 i = lane.index; i < args.width; i += args.lanes) {
            float y = load(args.x, start + i) * r;
            store(args.y, start + i, args.l2 ? y : y * load(args.weight, i));
        }
        if (lane.index == 0) args.inverse[row] = r;
    }
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
__device__ __forceinline__ float slope(const NormaliseBackward& args, float r, u64 start, u64 i) {
    float g = r * load(args.dy, start + i);
    return args.l2 ? g : g * load(args.weight, i);
}

// dx = g − x r² (x·g) share
KERNEL(normalise_backward, NormaliseBackward, 256) {
    __shared__ float shared[32];
    Lane lane = lane_of(args.lanes);
    for (u64 row = lane.row; row < args.rows; row += lane.rows) {
        u64 start = row * args.width;
        float r = args.inverse[row], dot = 0.0f;
        for (u64 i = lane.index; i < args.width; i += args.lanes) dot += load(args.x, start + i) * slope(args, r, start, i);
        dot = lanes_sum(dot, args.lanes, shared);
        float along = (r * dot) * r * args.share;
        for (u64 i = lane.index; i < args.width; i += args.lanes)
            store(args.dx, start + i, slope(args, r, start, i) - along * load(args.x, start + i));
    }
}
