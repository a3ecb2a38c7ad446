// Rows at the ends of sequences, and the sum of partial results.
#include "hecate.cuh"

// The last `kept` rows of each sequence, oldest first: of `x [rows, width]` and, in front of it, of
// `before [N, kept, width]`. Without `before` those are zeros; without `x` its rows are ones.
struct LastRows {
    // out [N, kept, width]
    Array before, x, out;
    const u32* starts;
    u64 count, kept, width;
};

// A thread has an element of the result: a row of the state in front where the sequence is short, else of x.
KERNEL(last_rows, LastRows, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        u64 column = i % args.width, row = i / args.width, n = row / args.kept;
        u64 start = args.starts[n], at = args.starts[n + 1] - start + row % args.kept;
        float value;
        if (at < args.kept) value = args.before.data ? load(args.before, (n * args.kept + at) * args.width + column) : 0.0f;
        else value = args.x.data ? load(args.x, (start + at - args.kept) * args.width + column) : 1.0f;
        store(args.out, i, value);
    }
}

// out[i] = sum over p of parts[p, i].
struct SumParts {
    Array out;
    const float* parts;
    u64 count;
    u32 number;
};

#define COLUMNS 32

// Blocks of COLUMNS sums; eight threads of each take parts in turn.
KERNEL(sum_parts, SumParts, 256) {
    __shared__ double shared[256];
    u32 step = threadIdx.x / COLUMNS, steps = blockDim.x / COLUMNS;
    for (u64 left = (u64)blockIdx.x * COLUMNS; left < args.count; left += (u64)gridDim.x * COLUMNS) {
        u64 i = left + threadIdx.x % COLUMNS;
        double sum = 0.0;
        if (i < args.count) {
#pragma unroll 8
            for (u32 part = step; part < args.number; part += steps) sum += args.parts[part * args.count + i];
        }
        sum = column_sum(sum, COLUMNS, shared);
        if (step == 0 && i < args.count) store(args.out, i, (float)sum);
    }
}
