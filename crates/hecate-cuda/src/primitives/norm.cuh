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

// r w x
template <u32 N> __device__ __forceinline__ Run<N> scaled(Run<N> x, float r, const Array& weight, u32 l2, u64 i) {
#pragma unroll
    for (u32 n = 0; n < N; n++) x.x[n] *= r;
    if (!l2) {
        // Weights are the same for all rows and come from the cache.
        Run<N> w = load_run<N>(weight, i);
#pragma unroll
        for (u32 n = 0; n < N; n++) x.x[n] *= w.x[n];
    }
    return x;
}

// y silu(g) where there is a gate, which stands at `i`.
template <u32 N> __device__ __forceinline__ Run<N> let_through(Run<N> y, const Array& gate, u64 i) {
    if (gate.data) {
        Run<N> g = load_run<N>(gate, i);
#pragma unroll
        for (u32 n = 0; n < N; n++) y.x[n] *= silu(g.x[n]);
    }
    return y;
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
