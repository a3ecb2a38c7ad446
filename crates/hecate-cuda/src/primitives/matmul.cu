// Products of matrices where there is no library for them: tiles of the result, each by one block, sums in 32 bits.
#include "follow.cuh"
#include "hecate.cuh"

#define DEPTH 16
#define THREADS 256
// Threads stand as 16 rows of 16; each has every 16th row and column of a tile.
#define APART 16

// An operand `[batch, length, inner]` or `[batch, inner, length]`; `length` is that of the result's axis.
struct Operand {
    Array x;
    u64 length;
    u64 stride, inner_stride;
};

// out = a b for each of `batch` products; the structures of `matmul.rs` are its twins.
struct Product {
    Operand a, b;
    // [batch, rows, columns]
    Array out;
    u64 batch, inner;
    // Across the columns
    u64 tiles;
};

// What a thread reads of a tile `[DEPTH, TILE]` of an operand: every so many elements from `(k, i)` on, such that
// neighbours in memory are read together.
template <u32 TILE> struct Reader {
    static const u32 COUNT = TILE * DEPTH / THREADS;
    // Of the first element, and to the next
    u64 at, step;
    // To the next tile along the sums
    u64 depth_step;
    // How many of its elements the result's axis still has
    u64 inside;
    u32 k, i, next_k, next_i;
    u32 bits[COUNT];

    // Of the tile from row `first` of the result's axis, in the product that begins at `offset`.
    __device__ __forceinline__ Reader(const Operand& from, u64 offset, u64 first) {
        // Neighbouring threads go along whichever axis is contiguous.
        bool inner_first = from.inner_stride == 1;
        k = inner_first ? threadIdx.x % DEPTH : threadIdx.x / TILE;
        i = inner_first ? threadIdx.x / DEPTH : threadIdx.x % TILE;
        next_k = inner_first ? 0 : THREADS / TILE;
        next_i = inner_first ? THREADS / DEPTH : 0;
        at = offset + (first + i) * from.stride + k * from.inner_stride;
        step = next_i * from.stride + next_k * from.inner_stride;
        depth_step = DEPTH * from.inner_stride;
        inside = from.length > first + i ? from.length - first - i : 0;
    }

    // Reads elements of which `left` are left along the sums, zero after the ends, and moves on.
    __device__ __forceinline__ void read(Array from, u64 left) {
        if (from.type == 0) {
#pragma unroll
            for (u32 n = 0; n < COUNT; n++) bits[n] = has(n, left) ? ((const u32*)from.data)[at + n * step] : 0;
        } else {
#pragma unroll
            for (u32 n = 0; n < COUNT; n++) bits[n] = has(n, left) ? ((const u16*)from.data)[at + n * step] : 0;
        }
        at += depth_step;
    }

    // Whether element `n` is inside both axes.
    __device__ __forceinline__ bool has(u32 n, u64 left) const { return n * next_i < inside && k + n * next_k < left; }

    // Looks at what was read only here, so that it can be on its way until then.
    __device__ __forceinline__ void put(u32 type, float (*tile)[TILE + 1]) const {
#pragma unroll
        for (u32 n = 0; n < COUNT; n++)
            tile[k + n * next_k][i + n * next_i] = type == 0 ? __uint_as_float(bits[n]) : from_bits(type, bits[n]);
    }
};

// Block x is a tile of the result, block y every so many products.
template <u32 TILE> __device__ __forceinline__ void products(const Product& args) {
    // A thread makes OWN x OWN elements, APART rows and columns from each other, so that neighbours read neighbouring banks.
    const u32 OWN = TILE / APART;
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    // First row and column of the tile.
    u64 top = blockIdx.x / args.tiles * TILE, left = blockIdx.x % args.tiles * TILE;
    u64 rows = args.a.length, columns = args.b.length;
    u32 row = threadIdx.x / APART, column = threadIdx.x % APART;
    for (u64 n = blockIdx.y; n < args.batch; n += gridDim.y) {
        float sum[OWN][OWN] = {};
        // The first tiles of the sum.
        Reader<TILE> next_a(args.a, n * rows * args.inner, top), next_b(args.b, n * columns * args.inner, left);
        next_a.read(args.a.x, args.inner);
        next_b.read(args.b.x, args.inner);
        // The next tiles come from global memory while these are multiplied.
        for (u64 depth = 0; depth < args.inner; depth += DEPTH) {
            // The tile goes from registers to shared memory.
            next_a.put(args.a.x.type, a);
            next_b.put(args.b.x.type, b);
            __syncthreads();
            if (depth + DEPTH < args.inner) {
                next_a.read(args.a.x, args.inner - depth - DEPTH);
                next_b.read(args.b.x, args.inner - depth - DEPTH);
            }
#pragma unroll 2
            for (u32 k = 0; k < DEPTH; k++) {
                // A row of b serves all rows of a.
                float across[OWN];
#pragma unroll
                for (u32 j = 0; j < OWN; j++) across[j] = b[k][column + j * APART];
#pragma unroll
                for (u32 i = 0; i < OWN; i++) {
                    float down = a[k][row + i * APART];
#pragma unroll
                    for (u32 j = 0; j < OWN; j++) sum[i][j] += down * across[j];
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
#pragma unroll
            for (u32 j = 0; j < OWN; j++) {
                u64 r = top + row + i * APART, c = left + column + j * APART;
                if (r < rows && c < columns) store(args.out, (n * rows + r) * columns + c, sum[i][j]);
            }
        }
    }
}

// Tiles of 64 x 64 for small results, of 128 x 128 where there are blocks enough.
KERNEL(matmul_64, Product, THREADS) { products<64>(args); }

// out [rows,columns] = a @ b in tiles of 128 x 128.
KERNEL(matmul_128, Product, THREADS) { products<128>(args); }

// a [batch,rows,inner], b [batch,columns,inner], out [batch,rows,columns].
struct FewRows {
    Array a, b, out;
    u64 batch, rows, columns, inner;
};

// Rows of `a` whose sums a warp takes together: `b` is read once for them.
#define FEW 8

// Runs of a row of `b` that a lane asks for at once: those of 1,024 elements, or few where many rows of `a` meet them.
template <u32 N, u32 ROWS> constexpr u32 AT_ONCE = ROWS > 1 ? 2 : N == 8 ? 4 : 8;

// The sums of one row of `b`, from element `first` on, with ROWS rows of `a`, N neighbours at a time; lanes read side by side.
// Types are known while compiling and no branch stands between two reads, so that reads wait together.
template <u32 N, u32 ROWS>
__device__ __forceinline__ void row_sums(const FewRows& args, u64 n, Array b, u64 first, float (&sum)[ROWS]) {
    constexpr u32 COUNT = AT_ONCE<N, ROWS>, STEP = 32 * N;
    for (u64 i = threadIdx.x % 32 * N; i < args.inner; i += COUNT * STEP) {
        Run<N> y[COUNT];
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) y[k] = load_run_if<N>(i + k * STEP < args.inner, b, first + i + k * STEP);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            if (ROWS > 1 && r >= args.rows) break;
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) {
                u64 at = i + k * STEP;
                Run<N> x = load_run_if<N>(at < args.inner, args.a, (n * args.rows + r) * args.inner + at);
#pragma unroll
                for (u32 j = 0; j < N; j++) sum[r] += x.x[j] * y[k].x[j];
            }
        }
    }
}

// The sums over a warp, to column `column` of rows of `columns`.
template <u32 ROWS>
__device__ __forceinline__ void store_sums(const FewRows& args, u64 n, Array out, u64 columns, u64 column, float (&sum)[ROWS]) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if (ROWS > 1 && r >= args.rows) break;
        float total = warp_sum(sum[r]);
        if (threadIdx.x % 32 == 0) store(out, (n * args.rows + r) * columns + column, total);
    }
}

// A warp takes every so many columns.
template <u32 TYPE, u32 N, u32 ROWS> __device__ __forceinline__ void few_rows(FewRows args) {
    args.a.type = args.b.type = args.out.type = TYPE;
    for (u64 n = 0; n < args.batch; n++) {
        for (u64 column = grid_thread() / 32; column < args.columns; column += grid_threads() / 32) {
            float sum[ROWS] = {};
            row_sums<N>(args, n, args.b, (n * args.columns + column) * args.inner, sum);
            store_sums(args, n, args.out, args.columns, column, sum);
        }
    }
}

// What a generated token takes, and up to eight of them; N neighbours at a time where rows are multiples of as many.
KERNEL(matmul_few_rows, FewRows, THREADS) {
    if (args.inner % 4 != 0) BY_TYPE(args.a.type, few_rows<TYPE, 1, FEW>(args))
    else if (args.rows == 1) BY_TYPE(args.a.type, few_rows<TYPE, 4, 1>(args))
    else BY_TYPE(args.a.type, few_rows<TYPE, 4, FEW>(args))
}

// Most matrices of one launch.
#define MATRICES 8

// One of them, [columns,inner], its product, and the columns of those up to it.
struct Factor {
    void *b, *out;
    u64 end;
    // Of `b`
    u64 type;
};

// The same of several matrices that the rows of `a` meet, whose columns follow each other.
struct Each {
    FewRows rows;
    Factor factors[MATRICES];
};

// One column of one of them, with ROWS rows of `a` from row `top` on; these and the product are of type FROM.
template <u32 TYPE, u32 FROM, u32 N, u32 ROWS>
__device__ __forceinline__ void few_rows_of(FewRows args, const Factor& factor, u64 columns, u64 column, u64 top) {
    // The compiler knows it from here on.
    args.a.type = FROM;
    constexpr u64 size = FROM ? 2 : 4;
    // The rows before are not there.
    args.a.data = (u8*)args.a.data + top * args.inner * size;
    args.rows -= top;
    float sum[ROWS] = {};
    row_sums<N>(args, 0, Array{factor.b, TYPE}, column * args.inner, sum);
    store_sums(args, 0, Array{(u8*)factor.out + top * columns * size, FROM}, columns, column, sum);
}

// In runs of 16 bytes where rows are multiples of them; rows of `a` are of TYPE or of 32 bits.
template <u32 TYPE, u32 ROWS>
__device__ __forceinline__ void in_runs(const FewRows& args, const Factor& factor, u64 columns, u64 column, u64 top) {
    // Matrices are what is read most, so their type says how long runs are.
    constexpr u32 N = RUN_LENGTH<TYPE>;
    if (args.inner % N != 0) {
        if (args.a.type == TYPE) few_rows_of<TYPE, TYPE, 1, ROWS>(args, factor, columns, column, top);
        else few_rows_of<TYPE, 0, 1, ROWS>(args, factor, columns, column, top);
    } else if (args.a.type == TYPE) few_rows_of<TYPE, TYPE, N, ROWS>(args, factor, columns, column, top);
    else few_rows_of<TYPE, 0, N, ROWS>(args, factor, columns, column, top);
}

// Where a warp's column is: in which matrix, which of its columns, and how many that has.
struct Column {
    u32 matrix;
    u64 own, columns;
    // Finds the matrix and the column there of column `column` of all.
    __device__ __forceinline__ Column(const Factor* factors, u64 column) {
        matrix = 0;
        while (column >= factors[matrix].end) matrix++;
        const u64 first = matrix ? factors[matrix - 1].end : 0;
        own = column - first;
        columns = factors[matrix].end - first;
    }
};

// A warp has a column and up to ROWS rows: neighbours share a row of `b`, which comes from memory once.
template <u32 ROWS> __device__ __forceinline__ void each_column(const Each& args) {
    const u64 tiles = (args.rows.rows + ROWS - 1) / ROWS, count = args.rows.columns * tiles;
    if (grid_thread() / 32 < count) {
        // Matrices are seldom what the kernel before this made, so they can be on their way.
        const Column at(args.factors, place(grid_thread() / 32, tiles).row);
        const Factor& factor = args.factors[at.matrix];
        const u64 bytes = args.rows.inner * (factor.type ? 2 : 4);
        for (u64 i = threadIdx.x % 32 * 128; i < bytes; i += 32 * 128) ask_for((u8*)factor.b + at.own * bytes + i);
    }
    follow();
    // Rows of one column are neighbouring warps'.
    for (u64 i = grid_thread() / 32; i < count; i += grid_threads() / 32) {
        const Place unit = place(i, tiles);
        const Column at(args.factors, unit.row);
        const Factor& factor = args.factors[at.matrix];
        BY_TYPE(factor.type, in_runs<TYPE, ROWS>(args.rows, factor, at.columns, at.own, unit.column * ROWS))
    }
}

// With few registers a token's kernels leave room for those after them, which begin early. Later GPUs would spill.
#if __CUDA_ARCH__ >= 1000
#define TOGETHER 1
#else
#define TOGETHER 5
#endif
// out [1,columns] = a @ b.T of each of several matrices b.
KERNEL(matmul_each_row, Each, THREADS, TOGETHER) { each_column<1>(args); }
// Two to eight rows.
KERNEL(matmul_each, Each, THREADS) { each_column<FEW>(args); }
