// The forgetting gate: log a = −exp(a_log) softplus(x + dt_bias), `a_log` and `dt_bias` a number a head.
#include "hecate.cuh"
#include "maps.cuh"

// Arrays of one call; `retention::Retention` is its twin.
struct Retention {
    // [rows, width]
    Array x;
    // [width]
    const float *a_log, *dt_bias;
    // [rows, width]
    float* y;
    u64 count, width;
};

// A thread has elements `grid_threads()` apart.
KERNEL(retention, Retention, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        const u64 head = place(i, args.width).column;
        args.y[i] = -expf(args.a_log[head]) * softplus(load(args.x, i) + args.dt_bias[head]);
    }
}

// `retention::RetentionBackward` is its twin; dy [rows, width].
struct RetentionBackward {
    // [rows, width]
    Array x, dx;
    const float *a_log, *dt_bias, *dy;
    // Parts of their gradients: [blocks y, width]
    double *of_a_log, *of_dt_bias;
    u64 rows, width;
    // Rows of a part
    u64 height;
    // Of a block, a power of two
    u32 columns;
};

// Gradients of x, a_log and dt_bias in one pass over x and dy.
KERNEL(retention_backward, RetentionBackward, 256) {
    __shared__ double shared[256];
    // A block stands as rows of `columns` threads, a head each; block y has `height` rows of the arrays.
    const u32 steps = blockDim.x / args.columns;
    const u64 head = (u64)blockIdx.x * args.columns + threadIdx.x % args.columns;
    const u64 first = blockIdx.y * args.height, last = first + args.height < args.rows ? first + args.height : args.rows;
    const bool inside = head < args.width;
    const float factor = inside ? -expf(args.a_log[head]) : 0.0f, dt_bias = inside ? args.dt_bias[head] : 0.0f;
    double of_a_log = 0.0, of_dt_bias = 0.0;
    for (u64 row = first + threadIdx.x / args.columns; inside && row < last; row += steps) {
        const u64 at = row * args.width + head;
        const float x = load(args.x, at) + dt_bias, dy = args.dy[at], dx = factor * (sides(x).up * dy);
        store(args.dx, at, dx);
        // Zero where dy is, though log a may be −∞; unless exp(a_log) is infinite itself.
        of_a_log += factor * (softplus(x) * dy);
        of_dt_bias += dx;
    }
    of_a_log = column_sum(of_a_log, args.columns, shared);
    of_dt_bias = column_sum(of_dt_bias, args.columns, shared);
    if (!inside || threadIdx.x >= args.columns) return;
    args.of_a_log[blockIdx.y * args.width + head] = of_a_log;
    args.of_dt_bias[blockIdx.y * args.width + head] = of_dt_bias;
}
