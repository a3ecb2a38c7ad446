// Products with quantized matrices: few rows of `x` meet weights as they are decoded, in registers.
#include "quantized.cuh"

// Rows of `x` that a decoded weight meets. Few more would spill, and many are faster through a product of matrices.
#define TOGETHER 4

// Rows are whole blocks, so that runs of four never stand across the end of one.
// The four neighbours from element `i` on, a multiple of four.
__device__ __forceinline__ void load_four(Array x, u64 i, float (&four)[4]) {
    Run<4> run = load_run<4>(x, i);
#pragma unroll
    for (u32 n = 0; n < 4; n++) four[n] = run.x[n];
}

// Blocks of the grid's second axis have other rows of `x`. A warp has a row of weights, a lane every 32nd part of it. Lanes next
// to each other read parts next to each other, of the weights and of `x`, which the first level of the cache holds.
template <u32 FORMAT> __device__ __forceinline__ void few_rows(const QuantizedProduct& args) {
    // Parts of 16 values in a row
    u32 lane = threadIdx.x % 32, first = TOGETHER * blockIdx.y;
    u64 parts = args.inner / PART;
    for (u64 column = grid_thread() / 32; column < args.columns; column += grid_threads() / 32) {
        // Rows follow each other without a gap.
        const u8* row = args.weights + column * (args.inner / BLOCK<FORMAT>) * BYTES<FORMAT>;
        // One a row of `x`
        float sums[TOGETHER] = {};
        for (u64 part = lane; part < parts; part += 32) {
            // Decoded once for all rows of `x`
            float w[PART];
            decode<FORMAT>(row, part, w);
            // The branch is the same for all lanes.
#pragma unroll
            for (u32 n = 0; n < TOGETHER; n++) {
                if (first + n < args.rows)
#pragma unroll
                for (u32 i = 0; i < PART; i += 4) {
                    // 16 bytes at a time, or 8 of 16-bit elements
                    float x[4];
                    load_four(args.x, (first + n) * args.inner + PART * part + i, x);
                    sums[n] += w[i] * x[0] + w[i + 1] * x[1] + w[i + 2] * x[2] + w[i + 3] * x[3];
                }
            }
        }
#pragma unroll
        for (u32 n = 0; n < TOGETHER; n++) {
            // In the same order for every column
            float sum = warp_sum(sums[n]);
            if (lane == 0 && first + n < args.rows) store(args.y, (first + n) * args.columns + column, sum);
        }
    }
}

// y = x Wᵀ, TOGETHER rows a block
KERNEL(quantized_few_rows, QuantizedProduct, 256) { BY_FORMAT(args.format, few_rows<FORMAT>(args)) }

// All values, for products of many rows; `quantized.rs` has the twin.
struct Dequantize {
    // Blocks of all rows
    const u8* weights;
    Array out;
    // Of 16 values each
    u64 parts;
    u32 format;
};

// A thread has a part, and writes it 16 bytes at a time: neighbouring threads fill neighbouring lines.
// The format is known at run time alone; all threads take the same branch.
KERNEL(dequantize, Dequantize, 256) {
    for (u64 part = grid_thread(); part < args.parts; part += grid_threads()) {
        // 32 bits until they are rounded to what `out` holds
        float w[PART];
        BY_FORMAT(args.format, decode<FORMAT>(args.weights, part, w))
#pragma unroll
        for (u32 i = 0; i < PART; i += 8) {
            Run<8> run;
#pragma unroll
            for (u32 n = 0; n < 8; n++) run.x[n] = w[i + n];
            store_run<8>(args.out, PART * part + i, run);
        }
    }
}
