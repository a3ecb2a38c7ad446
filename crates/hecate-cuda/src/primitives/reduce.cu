// Sums in two stages, in an order that sizes alone decide. Long ones run in 64 bits.
#include "hecate.cuh"

struct TotalParts {
    Array x;
    double* parts;  // [blocks]
    u64 count;
    u32 squares;
};

KERNEL(total_parts, TotalParts, 256) {
    __shared__ double shared[256];
    double sum = 0.0;
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        double x = load(args.x, i);
        sum += args.squares ? x * x : x;
    }
    sum = column_sum(sum, 1, shared);
    if (threadIdx.x == 0) args.parts[blockIdx.x] = sum;
}

struct Total {
    const double* parts;
    float* sum;
    u32 count;
};

KERNEL(total, Total, 256) {
    __shared__ double shared[256];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < args.count; i += blockDim.x) sum += args.parts[i];
    sum = column_sum(sum, 1, shared);
    if (threadIdx.x == 0) args.sum[0] = (float)sum;
}

// What is added up over rows.
enum { VALUES, PRODUCTS, SCALED };

struct ColumnParts {
    Array x, y;           // [rows, width]
    const float* factor;  // [rows]
    double* parts;        // [blocks y, width]
    u64 rows, width;
    u64 height;           // rows of a part
    u32 columns;          // of a block, a power of two
    u32 terms;
};

// Terms added up in 32 bits.
#define SHORT 32

KERNEL(column_parts, ColumnParts, 256) {
    __shared__ double shared[256];
    u32 steps = blockDim.x / args.columns, step = threadIdx.x / args.columns;
    u64 column = (u64)blockIdx.x * args.columns + threadIdx.x % args.columns;
    u64 row = blockIdx.y * args.height, last = row + args.height < args.rows ? row + args.height : args.rows;
    row = column < args.width ? row + step : last;
    double sum = 0.0;
    while (row < last) {
        float part = 0.0f;
        for (u32 n = 0; n < SHORT && row < last; n++, row += steps) {
            u64 i = row * args.width + column;
            float x = load(args.x, i);
            if (args.terms == SCALED) x *= args.factor[row];
            part += args.terms == VALUES ? x : x * load(args.y, i);
        }
        sum += part;
    }
    sum = column_sum(sum, args.columns, shared);
    if (step == 0 && column < args.width) args.parts[blockIdx.y * args.width + column] = sum;
}

struct ColumnTotals {
    Array y;  // [width]
    const double* parts;
    u64 width;
    u32 count;
    u32 columns;
};

KERNEL(column_totals, ColumnTotals, 256) {
    __shared__ double shared[256];
    u32 steps = blockDim.x / args.columns, step = threadIdx.x / args.columns;
    u64 column = (u64)blockIdx.x * args.columns + threadIdx.x % args.columns;
    double sum = 0.0;
    if (column < args.width)
        for (u64 i = step; i < args.count; i += steps) sum += args.parts[i * args.width + column];
    sum = column_sum(sum, args.columns, shared);
    if (step == 0 && column < args.width) store(args.y, column, (float)sum);
}
