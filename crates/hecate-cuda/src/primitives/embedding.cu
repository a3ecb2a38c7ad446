// Rows of a table by number. The backward lists, for every id, where it stands: a stable sort of positions by id, digit by
// digit of 8 bits. So one block adds up each row of the table. Blocks of their own first sum whole pieces of all positions.
// A row's block then adds these sums, and the positions before and after them that fill no piece.
#include "hecate.cuh"

// y[i] = table[ids[i]]; `embedding::Gather` is its twin.
struct Gather {
    // [vocabulary, width]
    Array table;
    // [count, width]
    Array y;
    // [count]
    const u32* ids;
    u64 count, width;
    u32 vocabulary;
};

// An id that the table does not have gives NaN.
KERNEL(gather, Gather, 256) {
    for (u64 i = grid_thread(); i < args.count * args.width; i += grid_threads()) {
        Place at = place(i, args.width);
        u32 id = args.ids[at.row];
        store(args.y, i, id < args.vocabulary ? load(args.table, id * args.width + at.column) : NOT_A_NUMBER);
    }
}

// Values of a digit, and threads of a block.
#define DIGITS 256

// What a pass of the sort looks at: 8 bits of each key. A tile is as many positions as a block has threads.
struct Keys {
    // [count]
    const u32* keys;
    u64 count;
    u32 shift;
    // Larger keys count as this one
    u32 most;
};

// Ids over the vocabulary all count as one.
__device__ __forceinline__ u32 key_at(const Keys& x, u64 i) { return x.keys[i] < x.most ? x.keys[i] : x.most; }

// The digits of this block's tile; after the end, a digit that is none.
__device__ __forceinline__ void load_digits(const Keys& x, u32* digits) {
    u64 i = grid_thread();
    digits[threadIdx.x] = i < x.count ? (key_at(x, i) >> x.shift) & (DIGITS - 1) : DIGITS;
    __syncthreads();
}

// `embedding::DigitCounts` is its twin.
struct DigitCounts {
    Keys x;
    // [256, tiles]
    u32* counts;
};

// A block for each tile: how often it has each digit.
KERNEL(digit_counts, DigitCounts, 256) {
    __shared__ u32 digits[DIGITS];
    load_digits(args.x, digits);
    // Thread d counts digit d: 256 reads of shared memory, which all threads read at one address.
    u32 count = 0;
    for (u32 i = 0; i < DIGITS; i++) count += digits[i] == threadIdx.x;
    args.counts[(u64)threadIdx.x * gridDim.x + blockIdx.x] = count;
}

// Counts become starts, in place.
struct DigitStarts {
    // [256, tiles], turned into sums over the tiles in front
    u32* counts;
    // [256]
    u32* totals;
    u32 tiles;
};

// A block for each digit: running sums over tiles, 256 of them at a time.
KERNEL(digit_starts, DigitStarts, 256) {
    __shared__ u32 sums[DIGITS];
    u32* counts = args.counts + (u64)blockIdx.x * args.tiles;
    u32 before = 0;
    for (u32 first = 0; first < args.tiles; first += DIGITS) {
        u32 tile = first + threadIdx.x;
        // A tile a thread.
        u32 own = tile < args.tiles ? counts[tile] : 0;
        sums[threadIdx.x] = own;
        __syncthreads();
        // A running sum over the threads of the block, in eight steps.
        for (u32 step = 1; step < DIGITS; step *= 2) {
            u32 left = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += left;
            __syncthreads();
        }
        if (tile < args.tiles) counts[tile] = before + sums[threadIdx.x] - own;
        before += sums[DIGITS - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) args.totals[blockIdx.x] = before;
}

// One pass of the sort.
struct DigitPlaces {
    Keys x;
    // [count]; the positions themselves where null
    const u32* order;
    // [256, tiles]
    const u32* starts;
    // [256]
    const u32* totals;
    // [count]
    u32* sorted_keys;
    // [count]
    u32* sorted_order;
};

// A block for each tile: every position goes after those of lower digits, and of its digit further left.
KERNEL(digit_places, DigitPlaces, 256) {
    __shared__ u32 digits[DIGITS], totals[DIGITS];
    totals[threadIdx.x] = args.totals[threadIdx.x];
    load_digits(args.x, digits);
    u64 i = grid_thread();
    if (i < args.x.count) {
        u32 digit = digits[threadIdx.x];
        // After the same digit of earlier tiles, then lower digits, then the same digit of this tile.
        u64 to = args.starts[(u64)digit * gridDim.x + blockIdx.x];
        for (u32 other = 0; other < digit; other++) to += totals[other];
        for (u32 left = 0; left < threadIdx.x; left++) to += digits[left] == digit;
        args.sorted_keys[to] = key_at(args.x, i);
        args.sorted_order[to] = args.order ? args.order[i] : (u32)i;
    }
}

// Where the positions of each id begin.
struct IdStarts {
    // [count], ascending
    const u32* keys;
    // [vocabulary + 1]
    u32* starts;
    u64 count;
    u32 vocabulary;
};

// The first key that is not under each id.
KERNEL(id_starts, IdStarts, 256) {
    for (u64 id = grid_thread(); id <= args.vocabulary; id += grid_threads()) {
        u64 low = 0, high = args.count;
        while (low < high) {
            u64 middle = (low + high) / 2;
            if (args.keys[middle] < id) low = middle + 1;
            else high = middle;
        }
        args.starts[id] = (u32)low;
    }
}

// Runs of columns of a block.
#define COLUMNS 32

// Positions of a piece, and those of a thread that are asked for at once.
#define PIECE 64
#define BATCH 4

// Sums of rows of dy by id; `embedding::Sums` is its twin.
struct GatherBackward {
    // [count, width]
    Array dy;
    // [vocabulary, width]
    Array dtable;
    const u32* keys;
    const u32* order;
    const u32* starts;
    // [count / PIECE, width]; only of those that are of one id
    double* pieces;
    u64 width;
    // Runs of 16 bytes divide the width
    u32 wide;
};

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ GatherBackward of_type(GatherBackward args) {
    args.dy.type = args.dtable.type = TYPE;
    return args;
}

// A block has COLUMNS runs of columns; eight threads of each take positions in turn.
template <u32 N> __device__ __forceinline__ void add_rows(double (&sums)[N], const GatherBackward& args, u64 first, u64 last, u64 column) {
    u32 step = threadIdx.x / COLUMNS, steps = blockDim.x / COLUMNS;
    for (u64 i = first + step; i < last; i += BATCH * steps) {
        Run<N> dy[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            bool inside = i + b * steps < last;
            dy[b] = load_run_if<N>(inside, args.dy, args.order[inside ? i + b * steps : i] * args.width + column);
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; b++)
#pragma unroll
            for (u32 n = 0; n < N; n++) sums[n] += dy[b].x[n];
    }
}

// Block x is a piece, block y a share of the columns.
template <u32 N> __device__ __forceinline__ void sum_piece(const GatherBackward& args, double* shared) {
    u64 first = (u64)blockIdx.x * PIECE;
    // Keys ascend: equal ends mean one id.
    if (args.keys[first] != args.keys[first + PIECE - 1]) return;
    for (u64 left = (u64)blockIdx.y * COLUMNS * N; left < args.width; left += (u64)gridDim.y * COLUMNS * N) {
        u64 column = left + N * (threadIdx.x % COLUMNS);
        double sums[N] = {};
        if (column < args.width) add_rows(sums, args, first, first + PIECE, column);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            double sum = column_sum(sums[n], COLUMNS, shared);
            if (threadIdx.x < COLUMNS && column < args.width) args.pieces[blockIdx.x * args.width + column + n] = sum;
        }
    }
}

// Sums run in 64 bits, in an order that positions alone decide.
KERNEL(gather_pieces, GatherBackward, 256) {
    __shared__ double shared[256];
    if (args.wide) BY_TYPE(args.dy.type, sum_piece<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
    else sum_piece<1>(args, shared);
}

// The sums of the positions from `first` to `last`, which are those of an id.
template <u32 N> __device__ __forceinline__ void add_id(double (&sums)[N], const GatherBackward& args, u64 first, u64 last, u64 column) {
    // Whole pieces were added up before; what is left in front of them and after them is added up here.
    u64 piece = (first + PIECE - 1) / PIECE, end = last / PIECE;
    if (piece >= end) return add_rows(sums, args, first, last, column);
    add_rows(sums, args, first, piece * PIECE, column);
    for (u64 p = piece + threadIdx.x / COLUMNS; p < end; p += blockDim.x / COLUMNS)
#pragma unroll
        for (u32 n = 0; n < N; n++) sums[n] += args.pieces[p * args.width + column + n];
    add_rows(sums, args, end * PIECE, last, column);
}

// Block x is an id, block y a share of the columns.
template <u32 N> __device__ __forceinline__ void sum_id(const GatherBackward& args, double* shared) {
    u64 id = blockIdx.x, row = id * args.width;
    u32 first = args.starts[id], last = args.starts[id + 1];
    // The id does not occur: its row is zeros.
    if (first == last) {
        u64 threads = (u64)gridDim.y * blockDim.x;
        for (u64 i = N * ((u64)blockIdx.y * blockDim.x + threadIdx.x); i < args.width; i += N * threads)
            store_run<N>(args.dtable, row + i, Run<N>{});
        return;
    }
    for (u64 left = (u64)blockIdx.y * COLUMNS * N; left < args.width; left += (u64)gridDim.y * COLUMNS * N) {
        u64 column = left + N * (threadIdx.x % COLUMNS);
        double sums[N] = {};
        if (column < args.width) add_id(sums, args, first, last, column);
        Run<N> total;
#pragma unroll
        for (u32 n = 0; n < N; n++) total.x[n] = (float)column_sum(sums[n], COLUMNS, shared);
        if (threadIdx.x < COLUMNS && column < args.width) store_run<N>(args.dtable, row + column, total);
    }
}

// A block has an id and a share of the columns; most ids occur a few times.
KERNEL(gather_backward, GatherBackward, 256) {
    __shared__ double shared[256];
    if (args.wide) BY_TYPE(args.dy.type, sum_id<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
    else sum_id<1>(args, shared);
}
