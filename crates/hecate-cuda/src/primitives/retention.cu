// The forgetting gate: log a = −exp(slope) softplus(x + offset), `slope` and `offset` a number a head.
#include "hecate.cuh"
#include "maps.cuh"

struct Retention {
    Array x;                       // [rows, width]
    const float *slope, *offset;   // [width]
    float* y;                      // [rows, width]
    u64 count, width;
};

KERNEL(retention, Retention, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        const u64 head = place(i, args.width).column;
        args.y[i] = -expf(args.slope[head]) * softplus(load(args.x, i) + args.offset[head]);
    }
}

struct RetentionBackward {
    Array x, dx;                      // [rows, width]
    const float *slope, *offset, *dy;
    double *of_slope, *of_offset;     // parts of their gradients: [blocks y, width]
    u64 rows, width;
    u64 height;                       // rows of a part
    u32 columns;                      // of a block, a power of two
};

KERNEL(retention_backward, RetentionBackward, 256) {
    __shared__ double shared[256];
    const u32 steps = blockDim.x / args.columns;
    const u64 head = (u64)blockIdx.x * args.columns + threadIdx.x % args.columns;
    const u64 first = blockIdx.y * args.height, last = first + args.height < args.rows ? first + args.height : args.rows;
    const bool inside = head < args.width;
    const float factor = inside ? -expf(args.slope[head]) : 0.0f, offset = inside ? args.offset[head] : 0.0f;
    double of_slope = 0.0, of_offset = 0.0;
    for (u64 row = first + threadIdx.x / args.columns; inside && row < last; row += steps) {
        const u64 at = row * args.width + head;
        const float x = load(args.x, at) + offset, dy = args.dy[at], dx = factor * (sides(x).up * dy);
        store(args.dx, at, dx);
        // Zero where dy is, though log a may be −∞; unless exp(slope) is infinite itself.
        of_slope += factor * (softplus(x) * dy);
        of_offset += dx;
    }
    of_slope = column_sum(of_slope, args.columns, shared);
    of_offset = column_sum(of_offset, args.columns, shared);
    if (!inside || threadIdx.x >= args.columns) return;
    args.of_slope[blockIdx.y * args.width + head] = of_slope;
    args.of_offset[blockIdx.y * args.width + head] = of_offset;
}
