// Up to eight rows of a residual stream through a norm, products with several matrices and what follows them, in one launch.
// out_i = norm(x) b_iᵀ, or norm(x) b₀ᵀ silu(norm(x) b₁ᵀ), or norm(x) b₀ᵀ + residual. Sums have 32 bits.
#include "follow.cuh"
#include "hecate.cuh"
#include "maps.cuh"

// Threads of a block are what its shared memory is laid out for.
// More matrices than this go to the next launch.
static constexpr u32 MATRICES = 8, THREADS = 256, WARPS = THREADS / 32, FEW = 8;

// A matrix [columns,inner], its product [rows,columns], and the columns of those up to it; `Factor` of `matmul.rs`.
struct Factor {
    const void* b;
    float* out;
    // Columns, and the type of `b`
    u64 end, type;
};

// `projection::FewRows` is its twin.
struct Projection {
    // [rows,inner], [inner] or null for no norm, [rows,columns] or null
    const float *x, *norm, *residual;
    // Of all matrices; of the result where two make one
    u64 columns;
    u32 rows, inner;
    // Added to mean squares
    float epsilon;
    // 1 where the second matrix makes the gate of the first
    u32 gated;
    // Runs of 16 bytes that a lane asks for at once, of each column
    u32 ahead;
    // 1 where no kernel that may still run writes the matrices
    u32 settled;
    Factor factors[MATRICES];
};

// Rows of `x` times the norm's weight, in shared memory, and what each is times after the products.
template <u32 ROWS> struct Rows {
    const float4* staged;
    u32 fours;
    float scale[ROWS];

    // Where four neighbours stand: every other four in a half of its own, so that lanes with eight read all banks.
    __device__ __forceinline__ u32 place(u32 row, u32 i) const { return row * fours + i % 2 * (fours / 2) + i / 2; }

    // `squares` holds a number a warp and row.
    __device__ __forceinline__ Rows(const Projection& args, float4* to, float* squares) : staged(to), fours(args.inner / 4) {
        // Of this thread's part of each row.
        float square[ROWS] = {};
#pragma unroll 1
        for (u32 i = threadIdx.x; i < fours; i += THREADS) {
            // Reads of all rows wait together.
            float4 x[ROWS], w = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) x[r] = ((const float4*)args.x)[(r < args.rows ? r : 0) * fours + i];
            // Rows after the last are the first again, and nobody reads what becomes of them.
            if (args.norm) w = ((const float4*)args.norm)[i];
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                const float4 y = x[r];
                square[r] += y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w;
                to[place(r, i)] = make_float4(y.x * w.x, y.y * w.y, y.z * w.z, y.w * w.w);
            }
        }
        // The norm's factor is the same for all of a row, so it can wait until the sums are there.
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            const float sum = warp_sum(square[r]);
            if (threadIdx.x % 32 == 0) squares[r * WARPS + threadIdx.x / 32] = sum;
        }
        __syncthreads();
        // In the order of warps, so that the same call gives the same bits.
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < WARPS; i++) sum += squares[r * WARPS + i];
            scale[r] = args.norm ? 1.0f / sqrtf(sum / (float)args.inner + args.epsilon) : 1.0f;
        }
    }
};

// Which matrix a column of all is of, and which of its columns.
struct Column {
    const Factor* factor;
    u64 own, columns;
    // Finds the matrix and the column there of column `column` of all.
    __device__ __forceinline__ Column(const Projection& args, u64 column) {
        u32 i = 0;
        while (column >= args.factors[i].end) i++;
        // Ends count the columns of all matrices up to one.
        const u64 before = i ? args.factors[i - 1].end : 0;
        factor = args.factors + i;
        own = column - before;
        columns = factor->end - before;
    }
};

// Runs of 16 bytes of a column of COUNT matrices that a lane has at once. They come to shared memory, each read by the lane that
// asked for it. So loops over them need not be unrolled: a token waits for instructions that it meets once.
template <u32 COUNT> struct Ahead {
    // [COUNT,runs,THREADS]
    uint4* place;

    // From run `first` of the lane on.
    __device__ __forceinline__ void read(const Projection& args, const Column& at, u32 first) const {
#pragma unroll 1
        for (u32 m = 0; m < COUNT; m++) {
            // Matrices of a gate are of one type.
            const u32 runs = args.inner / (at.factor[m].type ? 8 : 4);
            const uint4* b = (const uint4*)at.factor[m].b + at.own * runs;
#pragma unroll 1
            for (u32 k = 0; k < args.ahead && first + 32 * k < runs; k++)
                copy_16(place + (m * args.ahead + k) * THREADS, b + first + 32 * k, true);
        }
        copies_commit();
    }

    // Adds the products of these runs with each row.
    template <u32 TYPE, u32 ROWS>
    __device__ __forceinline__ void add(const Projection& args, const Rows<ROWS>& rows, u32 first, float (&sum)[COUNT][ROWS]) const {
        constexpr u32 N = RUN_LENGTH<TYPE>;
        // A thread reads its own copies alone, so the block need not meet.
        copies_wait<0>();
#pragma unroll 1
        for (u32 k = 0; k < args.ahead && first + 32 * k < args.inner / N; k++) {
            const u32 at = (first + 32 * k) * N / 4;
#pragma unroll
            for (u32 m = 0; m < COUNT; m++) {
                // Weights are made wide here, and rows keep 32 bits.
                const Run<N> y = run_of<N, TYPE>(place[(m * args.ahead + k) * THREADS]);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    if (ROWS > 1 && r >= args.rows) break;
#pragma unroll
                    for (u32 j = 0; j < N; j += 4) {
                        const float4 x = rows.staged[rows.place(r, at + j / 4)];
                        sum[m][r] += x.x * y.x[j] + x.y * y.x[j + 1] + x.z * y.x[j + 2] + x.w * y.x[j + 3];
                    }
                }
            }
        }
    }
};

// The sums of a column with each row; `ahead` has its first. Lane `r` has row `r` at the end.
template <u32 TYPE, u32 COUNT, u32 ROWS>
__device__ __forceinline__ float product(const Projection& args, const Rows<ROWS>& rows, const Column& at, const Ahead<COUNT>& ahead) {
    float sum[COUNT][ROWS] = {}, own = 0.0f;
#pragma unroll 1
    for (u32 first = threadIdx.x % 32; first < args.inner / RUN_LENGTH<TYPE>; first += 32 * args.ahead) {
        // Long columns come in several rounds.
        if (first >= 32) ahead.read(args, at, first);
        ahead.template add<TYPE>(args, rows, first, sum);
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if (ROWS > 1 && r >= args.rows) break;
        // All lanes have the sum; the gate's is next.
        float y = warp_sum(sum[0][r]) * rows.scale[r];
        if constexpr (COUNT == 2) y *= silu(warp_sum(sum[1][r]) * rows.scale[r]);
        if (threadIdx.x % 32 == r) own = y;
    }
    return own;
}

// A warp has every so many columns, of one matrix or of two that make one result.
template <u32 COUNT, u32 ROWS> __device__ __forceinline__ void columns(const Projection& args, float4* shared) {
    const u32 lane = threadIdx.x % 32;
    // Warps of all blocks.
    const u64 step = grid_threads() / 32;
    u64 column = grid_thread() / 32;
    const Ahead<COUNT> ahead = {(uint4*)shared + threadIdx.x};
    float4* staged = shared + COUNT * args.ahead * THREADS;
    if (column < args.columns) ahead.read(args, Column(args, column), lane);
    // What the kernel before wrote is there, now at the latest.
    if (args.settled) follow();
    // Meanwhile; the block meets here.
    const Rows<ROWS> rows(args, staged, (float*)(staged + ROWS * (args.inner / 4)));
#pragma unroll 1
    for (; column < args.columns; column += step) {
        const Column at(args, column);
        // Asked for before the sums, which it is added to.
        const bool here = lane < args.rows;
        const float onto = here && args.residual ? args.residual[lane * at.columns + at.own] : 0.0f;
        float y;
        BY_TYPE(at.factor->type, y = (product<TYPE, COUNT, ROWS>(args, rows, at, ahead)))
        // The next column is on its way while this one is written.
        if (column + step < args.columns) ahead.read(args, Column(args, column + step), lane);
        if (here) at.factor->out[lane * at.columns + at.own] = y + onto;
    }
}

// Shared memory: runs of matrices [ahead,THREADS], rows [rows,inner], then the squares of each warp.
template <u32 ROWS> __device__ __forceinline__ void project(const Projection& args, float4* shared) {
    if (!args.settled && grid_thread() / 32 < args.columns) {
        // Matrices are seldom what the kernel before this made, so they can be on their way.
        const Column at(args, grid_thread() / 32);
#pragma unroll 1
        for (u32 m = 0; m <= args.gated; m++) {
            const u64 bytes = (u64)args.inner * (at.factor[m].type ? 2 : 4);
#pragma unroll 1
            for (u64 i = threadIdx.x % 32 * 128; i < bytes; i += 32 * 128)
                ask_for((const u8*)at.factor[m].b + at.own * bytes + i);
        }
    }
    // Other matrices may be what the kernel before this makes.
    if (!args.settled) follow();
    if (args.gated) columns<2, ROWS>(args, shared);
    else columns<1, ROWS>(args, shared);
}

// Columns side by side that a warp takes at once, and runs of 16 bytes of each that a lane waits for together.
static constexpr u32 SIDE = 4, DEEP = 3;

// The products of a row with a matrix of many columns. A warp's columns share what it reads of the row, and their loads wait
// together.
template <u32 TYPE> __device__ __forceinline__ void many_columns(const Projection& args, const Rows<1>& row) {
    constexpr u32 N = RUN_LENGTH<TYPE>;
    const u32 lane = threadIdx.x % 32, runs = args.inner / N;
    const uint4* b = (const uint4*)args.factors[0].b;
#pragma unroll 1
    for (u64 column = grid_thread() / 32 * SIDE; column < args.columns; column += grid_threads() / 32 * SIDE) {
        float sum[SIDE] = {};
#pragma unroll 1
        for (u32 first = lane; first < runs; first += 32 * DEEP) {
            uint4 y[DEEP][SIDE];
#pragma unroll
            for (u32 k = 0; k < DEEP; k++)
#pragma unroll
                for (u32 m = 0; m < SIDE; m++) {
                    // Beyond the last column that one is read again, and the sum is not stored.
                    const u64 own = min(column + m, args.columns - 1);
                    if (first + 32 * k < runs) y[k][m] = b[own * runs + first + 32 * k];
                }
#pragma unroll
            for (u32 k = 0; k < DEEP; k++) {
                if (first + 32 * k >= runs) break;
                float4 x[N / 4];
#pragma unroll
                for (u32 j = 0; j < N / 4; j++) x[j] = row.staged[row.place(0, (first + 32 * k) * N / 4 + j)];
#pragma unroll
                for (u32 m = 0; m < SIDE; m++) {
                    const Run<N> of = run_of<N, TYPE>(y[k][m]);
#pragma unroll
                    for (u32 j = 0; j < N; j += 4) {
                        const float4 z = x[j / 4];
                        sum[m] += z.x * of.x[j] + z.y * of.x[j + 1] + z.z * of.x[j + 2] + z.w * of.x[j + 3];
                    }
                }
            }
        }
#pragma unroll
        for (u32 m = 0; m < SIDE; m++) {
            // All lanes have each sum; one stores it.
            const float out = warp_sum(sum[m]) * row.scale[0];
            if (lane == m && column + m < args.columns) args.factors[0].out[column + m] = out;
        }
    }
}

// The columns that this warp begins with, on their way to the cache: they lie side by side.
__device__ __forceinline__ void ask_for_columns(const Projection& args) {
    const u64 bytes = (u64)args.inner * (args.factors[0].type ? 2 : 4), first = grid_thread() / 32 * SIDE * bytes;
    const u64 end = min(first + SIDE * bytes, args.columns * bytes);
    // A lane asks for a line of 128 bytes.
#pragma unroll 1
    for (u64 i = first + threadIdx.x % 32 * 128; i < end; i += 32 * 128) ask_for((const u8*)args.factors[0].b + i);
}

// Shared memory: the row, then the squares of each warp.
KERNEL(project_wide, Projection, THREADS, 2) {
    DYNAMIC_SHARED(float4, shared);
    ask_for_columns(args);
    // The row is not there before this.
    follow();
    const Rows<1> row(args, shared, (float*)(shared + args.inner / 4));
    BY_TYPE(args.factors[0].type, many_columns<TYPE>(args, row))
}

// A single row, and two to eight.
KERNEL(project_row, Projection, THREADS, 4) {
    DYNAMIC_SHARED(float4, shared);
    project<1>(args, shared);
}
KERNEL(project_few, Projection, THREADS) {
    DYNAMIC_SHARED(float4, shared);
    project<FEW>(args, shared);
}
