// Sums in two stages, in an order that sizes alone decide. Long ones run in 64 bits.
#include "hecate.cuh"

// The sum of x, or of its squares, in a part a block; `reduce::TotalParts` is its twin.
struct TotalParts {
    Array x;
    // [blocks]
    double* parts;
    u64 count;
    u32 squares;
};

// A thread adds up elements `grid_threads()` apart, then the block its threads.
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

// The sum of parts.
struct Total {
    const double* parts;
    float* sum;
    u32 count;
};

// One block.
KERNEL(total, Total, 256) {
    __shared__ double shared[256];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < args.count; i += blockDim.x) sum += args.parts[i];
    sum = column_sum(sum, 1, shared);
    if (threadIdx.x == 0) args.sum[0] = (float)sum;
}

// What is added up over rows.
enum { VALUES, PRODUCTS, SCALED };

// Sums down columns over `height` rows a part; `reduce::ColumnParts` is its twin.
struct ColumnParts {
    // [rows, width]; y is x for values
    Array x, y;
    // [rows, factors]
    const float* factor;
    // [blocks y, width]
    double* parts;
    u64 rows, width;
    // Rows of a part
    u64 height;
    // Of a block, a power of two; of runs where `wide`
    u32 columns;
    u32 terms;
    // A row has as many, each for its part of the columns, which has whole runs
    u32 factors;
    // Runs of 16 bytes divide the width, and x and y are of one type
    u32 wide;
};

// Terms added up in 32 bits, and those that are asked for at once.
#define SHORT 32
#define BATCH 4

// part += terms of BATCH rows, `steps` apart; those from `last` on are none.
template <u32 N>
__device__ __forceinline__ void add_batch(Run<N>& part, const ColumnParts& args, u64 row, u32 steps, u64 last, u64 column, u32 own) {
    Run<N> x[BATCH], y[BATCH];
    float factor[BATCH];
#pragma unroll
    for (u32 b = 0; b < BATCH; b++) {
        // All reads of a batch are under way together.
        u64 at = row + b * steps;
        bool inside = at < last;
        x[b] = load_run_if<N>(inside, args.x, at * args.width + column);
        y[b] = load_run_if<N>(inside, args.y, at * args.width + column);
        factor[b] = inside && args.terms == SCALED ? args.factor[at * args.factors + own] : 1.0f;
    }
#pragma unroll
    for (u32 b = 0; b < BATCH; b++)
#pragma unroll
        for (u32 n = 0; n < N; n++) part.x[n] += args.terms == VALUES ? x[b].x[n] : x[b].x[n] * factor[b] * y[b].x[n];
}

// A part of the rows, in 64 bits but for SHORT terms at a time.
template <u32 N> __device__ __forceinline__ void sum_parts(const ColumnParts& args, double* shared) {
    // A block stands as `steps` rows of `columns` threads, each with N neighbouring columns.
    u32 steps = blockDim.x / args.columns, step = threadIdx.x / args.columns;
    u64 column = N * ((u64)blockIdx.x * args.columns + threadIdx.x % args.columns);
    // Rows of the part; threads without columns have none.
    u64 row = blockIdx.y * args.height, last = row + args.height < args.rows ? row + args.height : args.rows;
    row = column < args.width ? row + step : last;
    // Which factor of a row.
    const u32 own = args.factors > 1 ? column / (args.width / args.factors) : 0;
    double sums[N] = {};
    // SHORT terms in 32 bits, then into the sum of 64.
    while (row < last) {
        Run<N> part = {};
        for (u32 n = 0; n < SHORT && row < last; n += BATCH, row += BATCH * steps) add_batch(part, args, row, steps, last, column, own);
#pragma unroll
        for (u32 n = 0; n < N; n++) sums[n] += part.x[n];
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        double sum = column_sum(sums[n], args.columns, shared);
        if (step == 0 && column < args.width) args.parts[blockIdx.y * args.width + column + n] = sum;
    }
}

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ ColumnParts of_type(ColumnParts args) {
    args.x.type = args.y.type = TYPE;
    return args;
}

// Block x has columns, block y a part of the rows.
KERNEL(column_parts, ColumnParts, 256) {
    __shared__ double shared[256];
    if (args.wide) BY_TYPE(args.x.type, sum_parts<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
    else sum_parts<1>(args, shared);
}

// The sum of parts, by column, of one sum or two.
struct ColumnTotals {
    // [width]
    Array y[2];
    // [count, width]
    const void* parts[2];
    u64 width;
    u32 count;
    u32 columns;
    // Whether parts have 32 bits, else 64
    u32 narrow;
};

// Threads of a column take parts in turn, then are added up in a tree.
KERNEL(column_totals, ColumnTotals, 256) {
    __shared__ double shared[256];
    u32 steps = blockDim.x / args.columns, step = threadIdx.x / args.columns;
    u64 column = (u64)blockIdx.x * args.columns + threadIdx.x % args.columns;
    // Which of the sums.
    const void* parts = args.parts[blockIdx.y];
    double sum = 0.0;
    if (column < args.width) {
#pragma unroll 8
        for (u32 i = step; i < args.count; i += steps) {
            const u64 at = i * args.width + column;
            sum += args.narrow ? ((const float*)parts)[at] : ((const double*)parts)[at];
        }
    }
    sum = column_sum(sum, args.columns, shared);
    if (step == 0 && column < args.width) store(args.y[blockIdx.y], column, (float)sum);
}
