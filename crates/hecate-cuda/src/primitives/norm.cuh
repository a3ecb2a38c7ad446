// Rows that several threads share: how they are laid out, summed, read and kept in registers.
#pragma once
#include "hecate.cuh"
#include "maps.cuh"

// This thread's row in a step of the grid, its place there, and how many rows a step has.
struct RowThread {
    // rows of long arrays go on in steps of the whole grid
    u64 row, rows;
    u32 index;
};

// Threads of a row are neighbours.
__device__ __forceinline__ RowThread row_thread(u32 lanes) {
    // Rows that a block has at once.
    u32 together = blockDim.x / lanes;
    return RowThread{(u64)blockIdx.x * together + threadIdx.x / lanes, (u64)gridDim.x * together, threadIdx.x % lanes};
}

// What a norm is times, and how groups of a row are told apart: in kernels a group is a row of its own.
struct Scale {
    // [groups width]; not read for l2
    Array weight;
    // Rows that one weight serves.
    u32 groups;
    // Added to weights: 0 or 1.
    float offset;
};

// The sum over the threads of a row: a warp, or the whole block.
// All threads of the block call it, since a block's sum has barriers.
__device__ __forceinline__ float lanes_sum(float x, u32 lanes, float* shared) {
    return lanes == 32 ? warp_sum(x) : block_sum(x, shared);
}

// The sum over `lanes` neighbouring lanes, a power of two of them, in each; all 32 lanes of a warp call it.
__device__ __forceinline__ float neighbours_sum(float x, u32 lanes) {
    // A butterfly: every lane ends with the same bits.
    for (u32 mask = 1; mask < lanes; mask *= 2) x += shuffle_xor(x, mask);
    return x;
}

// Σ a b of a run.
template <u32 N> __device__ __forceinline__ float dot(const Run<N>& a, const Run<N>& b) {
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += a.x[n] * b.x[n];
    return sum;
}

// Weights of a row from `column` on: the same for all rows of a group, so they come from the cache.
template <u32 N, class Args> __device__ __forceinline__ Run<N> weights(const Args& args, u64 row, u64 column) {
    const u64 first = args.scale.groups > 1 ? row % args.scale.groups * args.width : 0;
    Run<N> w = load_run<N>(args.scale.weight, first + column);
#pragma unroll
    for (u32 n = 0; n < N; n++) w.x[n] += args.scale.offset;
    return w;
}

// r * x * w of a run at (row, column); without w where the norm is l2.
template <u32 N, class Args>
__device__ __forceinline__ Run<N> scaled(Run<N> x, float r, const Args& args, u64 row, u64 column) {
#pragma unroll
    for (u32 n = 0; n < N; n++) x.x[n] *= r;
    if (!args.l2) {
        const Run<N> w = weights<N>(args, row, column);
#pragma unroll
        for (u32 n = 0; n < N; n++) x.x[n] *= w.x[n];
    }
    return x;
}

// A gate [rows, width], or null, and its function.
struct Gate {
    Array g;
    // else SiLU
    u32 sigmoid;

    // Returns sigmoid(x), or silu(x).
    __device__ __forceinline__ float value(float x) const { return sigmoid ? sides(x).up : silu(x); }
    // Returns the derivative of `value` at x.
    __device__ __forceinline__ float slope(float x) const {
        if (!sigmoid) return silu_slope(x);
        const Sides at = sides(x);
        return at.up * at.down;
    }
};

// y act(g) where there is a gate, which stands at `i`.
template <u32 N> __device__ __forceinline__ Run<N> let_through(Run<N> y, const Gate& gate, u64 i) {
    if (gate.g.data) {
        Run<N> g = load_run<N>(gate.g, i);
#pragma unroll
        for (u32 n = 0; n < N; n++) y.x[n] *= gate.value(g.x[n]);
    }
    return y;
}

// Sums of a block down columns: RUNS runs a thread of the rows that it went through, one row for each `lanes` of its threads.
// `parts [width]` takes them, in 64 bits; `shared` has an element a thread and place.
template <u32 N, u32 RUNS>
__device__ __forceinline__ void add_up_rows(const Run<N> (&own)[RUNS], u32 lanes, u64 width, float* shared, double* parts) {
    // Whoever used `shared` before is through with it.
    __syncthreads();
#pragma unroll
    for (u32 run = 0; run < RUNS; run++)
#pragma unroll
        for (u32 n = 0; n < N; n++) shared[(run * N + n) * blockDim.x + threadIdx.x] = own[run].x[n];
    __syncthreads();
    const u32 together = blockDim.x / lanes;
    // The rows of a block in order.
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
        // Who has this column of the block's first row; `lanes` further is who has it of the next.
        const u32 run = column / N / lanes, owner = column / N % lanes;
        const float* first = shared + (run * N + column % N) * blockDim.x + owner;
        double sum = 0.0;
        for (u32 i = 0; i < together; i++) sum += first[i * lanes];
        parts[column] = sum;
    }
}

// The same where the block has one row at a time: each thread has columns of its own, and 32 bits hold their sums.
template <u32 N, u32 RUNS>
__device__ __forceinline__ void put_rows(const Run<N> (&own)[RUNS], u32 lanes, u64 width, float* parts) {
    const Array sums = {parts, 0};
#pragma unroll
    for (u32 run = 0; run < RUNS; run++) {
        const u32 column = N * (run * lanes + threadIdx.x);
        // Threads after the end of the row added up nothing.
        if (column >= width) continue;
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            Run<4> four;
#pragma unroll
            for (u32 i = 0; i < 4; i++) four.x[i] = own[run].x[n + i];
            store_run<4>(sums, column + n, four);
        }
    }
}

// Asks for what a block reads of its next row of x and dy, and of the gate where there is a GATE; a lane in eight names a line,
// since runs have 16 bytes.
template <bool GATE = false, class Args> __device__ __forceinline__ void ask_for_next(const Args& args, u64 row, u32 column) {
    if (threadIdx.x % 8 != 0 || row >= args.rows || column >= args.width) return;
    // Both arrays have one type, so that an element lies in the same place of each.
    const u64 bytes = (row * args.width + column) * (args.x.type ? 2 : 4);
    ask_for((const u8*)args.x.data + bytes), ask_for((const u8*)args.dy.data + bytes);
    if constexpr (GATE) ask_for((const u8*)args.gate.g.data + bytes);
}

// A run as the array holds it: what is read of it after `store_run`.
template <u32 N> __device__ __forceinline__ Run<N> rounded(const Array& x, Run<N> run) {
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        if (x.type == 1) run.x[n] = from_bf16(to_bf16(run.x[n]));
        if (x.type == 2) run.x[n] = from_f16(to_f16(run.x[n]));
    }
    return run;
}

// A run of a row that a thread keeps from the sum to the result, so that the array is read once. A block has ROWS rows for
// as many threads as a row has, each of them `run` < RUNS runs of all; those that the array does not have are zeros.
struct Piece {
    u64 row;
    u32 column;
    bool inside;
};

// Threads of a row are neighbours, rows of a block too; `run` goes across the row.
template <u32 N, u32 ROWS, class Args> __device__ __forceinline__ Piece piece(const Args& args, u32 r, u32 run) {
    u32 together = blockDim.x / args.lanes;
    u64 row = ((u64)blockIdx.x * ROWS + r) * together + threadIdx.x / args.lanes;
    u32 column = N * (run * args.lanes + threadIdx.x % args.lanes);
    return Piece{row, column, row < args.rows && column < args.width};
}

// Reads all runs of the thread's rows; zeros outside.
template <u32 N, u32 RUNS, u32 ROWS, class Args>
__device__ __forceinline__ void keep(Run<N> (&kept)[ROWS][RUNS], const Args& args, const Array& x) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            kept[r][run] = load_run_if<N>(at.inside, x, at.row * args.width + at.column);
        }
}

// The sum with the residual, as it is kept for others, in place of x.
template <u32 N, u32 RUNS, u32 ROWS, class Args>
__device__ __forceinline__ void add_residual(Run<N> (&x)[ROWS][RUNS], const Args& args) {
    Run<N> residual[ROWS][RUNS];
    keep(residual, args, args.residual);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
#pragma unroll
            for (u32 n = 0; n < N; n++) x[r][run].x[n] += residual[r][run].x[n];
            x[r][run] = rounded(args.sum, x[r][run]);
            if (at.inside) store_run<N>(args.sum, at.row * args.width + at.column, x[r][run]);
        }
}

// What the gate lets through, in place of x; zeros stay what they are. It has 32 bits, as nobody else reads it.
template <u32 N, u32 RUNS, u32 ROWS, class Args>
__device__ __forceinline__ void open_rows(Run<N> (&x)[ROWS][RUNS], const Args& args) {
    // Asked for before x is looked at.
    Run<N> g[ROWS][RUNS];
    keep(g, args, args.gate.g);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 run = 0; run < RUNS; run++)
#pragma unroll
            for (u32 n = 0; n < N; n++) x[r][run].x[n] *= args.gate.value(g[r][run].x[n]);
}

// Asks for the gate of kept rows, which is read after their sums; a lane in eight names a line.
template <u32 N, u32 RUNS, u32 ROWS, class Args> __device__ __forceinline__ void ask_for_gate(const Args& args) {
    if (!args.gate.g.data || threadIdx.x % 8 != 0) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const Piece at = piece<N, ROWS>(args, r, run);
            const u64 i = at.row * args.width + at.column;
            // No address outside of the array is named.
            if (at.inside) ask_for((const u8*)args.gate.g.data + i * (args.gate.g.type ? 2 : 4));
        }
}
