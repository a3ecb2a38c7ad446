// Products of few rows with q4_k, the format of fewest bits: bytes stream by at the memory's rate.
//
// Eight lanes of a warp share a block of 256 weights, 16 bytes of values each: of a pair of groups one half of the first
// (lower bits of bytes) and one half of the second (upper bits). A warp has two rows of weights, so that what it reads of `x`
// serves both.
//
// A value `q` of four bits is put into the fraction of a float as `1 + q/16`, by a shift and one more instruction. With
// `S = Σ x` and `P = Σ x (1 + q/16)` the sum that is wanted is `16 (P − S)`; minima need `S` as well.
#include "follow.cuh"
#include "quantized.cuh"

// `x [rows, inner]`, weights `[columns, inner]` in blocks, `y [rows, columns]`; `quantized.rs` has the twins.
struct FewRowsQ4K {
    Array x, y;
    const u8* weights;
    u64 columns, inner;
    u32 rows;
};

// Of a block
#define WARPS 8
// Rows of weights of a warp
#define COLUMNS 2
// Blocks that a warp reads at a time
#define BLOCKS 4
// Values of `x` in shared memory: 32 KiB, and four words more for every 64
#define TILE 8192

// What a lane reads of a block: scales, and values. Zeros stand for a block after the end: they add nothing, since `x` is zero
// there too.
struct Piece {
    uint4 head, q;
};

// Word `i` of 16 bytes; `i` is known while compiling.
__device__ __forceinline__ u32 word(const uint4& x, u32 i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// Where a value of `x` stands in shared memory: four more after 64, so that lanes of a block use all banks.
__device__ __forceinline__ u32 padded(u32 i) { return i + 4 * (i / 64); }

// Of row `column` block `block`, zeros after the end.
__device__ __forceinline__ Piece fetch(const FewRowsQ4K& args, u64 column, u64 block) {
    u64 blocks = args.inner / 256;
    if (block >= blocks || column >= args.columns) return Piece{};
    // Blocks of 144 bytes are aligned to 16. All eight lanes read the same head, which costs one access.
    const uint4* from = (const uint4*)(args.weights + (column * blocks + block) * BYTES<Q4_K>);
    return Piece{from[0], from[1 + threadIdx.x % 8]};
}

// Scales and minima of the two groups of a lane: (s, s', m, m').
__device__ __forceinline__ float4 scales_of(const uint4& head, u32 pair) {
    // Four groups at a time, as the bytes of a word: the first four, then the last four.
    u32 s = head.y & 0x3f3f3f3f, m = head.z & 0x3f3f3f3f;
    if (pair >= 2) {
        s = (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030);
        m = (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030);
    }
    // A pair of groups is half a word.
    u32 shift = 16 * (pair % 2);
    s >>= shift;
    m >>= shift;
    float2 d = unpack_halves(head.x);
    return make_float4(d.x * (float)(s & 255), d.x * (float)(s >> 8 & 255), d.y * (float)(m & 255), d.y * (float)(m >> 8 & 255));
}

// 1 + q/16 of the lower and of the upper bits of byte `i` of a word: the four upper bits of a fraction are 19 to 22.
// A conversion of whole numbers to floats takes four times as long as these two instructions.
__device__ __forceinline__ float low_of(u32 word, u32 i) {
    u32 bits = i < 3 ? word << (19 - 8 * i) : word >> 5;
    return __uint_as_float((bits & 0x00780000) | 0x3f800000);
}
// Returns 1 + q / 16 for the upper four bits q of byte i.
__device__ __forceinline__ float high_of(u32 word, u32 i) {
    u32 bits = i < 2 ? word << (15 - 8 * i) : word >> (8 * i - 15);
    return __uint_as_float((bits & 0x00780000) | 0x3f800000);
}

// Of 32 lanes, eight have a block each; all go through the same instructions.
// Adds what a block gives to the sums of ROWS rows of `x`, which lie in `shared` `at` so many values after another.
template <u32 ROWS>
__device__ __forceinline__ void add_block(float (&sums)[ROWS][COLUMNS], const Piece (&piece)[COLUMNS], const float* shared, u32 stride) {
    // Which groups, `2 pair` and `2 pair + 1`
    u32 pair = threadIdx.x % 8 / 2;
    // Of both rows of weights
    float4 scales[COLUMNS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) scales[c] = scales_of(piece[c].head, pair);
#pragma unroll
    for (u32 n = 0; n < ROWS; n++) {
        const float* x = shared + n * stride;
        // Σ x and Σ x (1 + q/16) of each group
        float plain[2] = {}, weighted[COLUMNS][2] = {};
#pragma unroll
        for (u32 t = 0; t < 4; t++) {
            // Four values of either group, which one word of weights holds
            float4 low = *(const float4*)(x + 4 * t), high = *(const float4*)(x + 32 + 4 * t);
            float each[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
            // Sums of either group apart, so that there are several chains
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                plain[0] += each[0][i];
                plain[1] += each[1][i];
#pragma unroll
                for (u32 c = 0; c < COLUMNS; c++) {
                    weighted[c][0] = fmaf(each[0][i], low_of(word(piece[c].q, t), i), weighted[c][0]);
                    weighted[c][1] = fmaf(each[1][i], high_of(word(piece[c].q, t), i), weighted[c][1]);
                }
            }
        }
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            // 16 (P − S) times the scale, less the minimum times S
            float4 s = scales[c];
            sums[n][c] += 16.0f * (s.x * (weighted[c][0] - plain[0]) + s.y * (weighted[c][1] - plain[1]));
            sums[n][c] -= s.z * plain[0] + s.w * plain[1];
        }
    }
}

// Weights are never what the kernel before this made, so they can be on their way: a warp's first two steps.
__device__ __forceinline__ void ask_for_weights(const FewRowsQ4K& args, u64 column) {
    const u64 row = args.inner / 256 * BYTES<Q4_K>, at = threadIdx.x % 32 * 128;
    if (at >= row || at >= 2 * BLOCKS * BYTES<Q4_K>) return;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++)
        if (column + c < args.columns) ask_for(args.weights + (column + c) * row + at);
}

// y = x Wᵀ, ROWS rows a block of the grid's second axis.
template <u32 ROWS> __device__ __forceinline__ void q4_k_few_rows(const FewRowsQ4K& args) {
    // Whole steps of a warp, two by two
    constexpr u32 LENGTH = TILE / ROWS, STRIDE = LENGTH + LENGTH / 16, STEP = 256 * BLOCKS;
    __shared__ __align__(16) float shared[ROWS * STRIDE];
    // Rows of weights of neighbouring warps lie next to each other.
    u32 lane = threadIdx.x % 32, first = ROWS > 1 ? ROWS * blockIdx.y : 0;
    u64 column = ((u64)blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    ask_for_weights(args, column);
    follow();
    // Of this lane's share of blocks
    float sums[ROWS][COLUMNS] = {};
    // Two steps are on their way while one is used: some 36 KiB on a multiprocessor, which is about what the memory's delay
    // asks for at its rate.
    // Named apart, so that no index is known only at run time
    Piece even[COLUMNS], odd[COLUMNS];
    // The block that this lane reads of the first step
    u64 block = lane / 8;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) even[c] = fetch(args, column + c, block), odd[c] = fetch(args, column + c, block + BLOCKS);
    for (u64 start = 0; start < args.inner; start += LENGTH) {
        u32 length = args.inner - start < LENGTH ? (u32)(args.inner - start) : LENGTH;
        // The whole row at once, unless it is longer than the tile.
        // Zeros after the end of a row, up to whole steps
        u32 staged = (length + 2 * STEP - 1) / (2 * STEP) * (2 * STEP);
        // Nobody reads the tile before any more.
        __syncthreads();
        for (u32 i = 4 * threadIdx.x; i < ROWS * staged; i += 4 * blockDim.x) {
            u32 n = i / staged, k = i % staged;
            bool inside = k < length && first + n < args.rows;
            Run<4> run = load_run_if<4>(inside, args.x, (first + n) * args.inner + start + k);
            *(float4*)(shared + n * STRIDE + padded(k)) = make_float4(run.x[0], run.x[1], run.x[2], run.x[3]);
        }
        __syncthreads();
        // After the end pieces are zeros, and so is `x`.
        u32 at = padded(256 * (lane / 8) + 64 * (lane % 8 / 2)) + 16 * (lane % 2);
        for (u32 step = 0; step < length; step += 2 * STEP, block += 2 * BLOCKS) {
            add_block<ROWS>(sums, even, shared + at + padded(step), STRIDE);
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) even[c] = fetch(args, column + c, block + 2 * BLOCKS);
            // As soon as a step is used, the one after the next is asked for.
            add_block<ROWS>(sums, odd, shared + at + padded(step + STEP), STRIDE);
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) odd[c] = fetch(args, column + c, block + 3 * BLOCKS);
        }
    }
#pragma unroll
    for (u32 n = 0; n < ROWS; n++) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            // Lanes have other blocks, or other parts of them.
            float sum = warp_sum(sums[n][c]);
            const u64 row = first + n;
            if (lane == 0 && row < args.rows && column + c < args.columns) store(args.y, row * args.columns + column + c, sum);
        }
    }
}

// Of the token that is generated: two blocks a multiprocessor, all of a GPU at once for 4,096 rows of weights.
KERNEL(q4_k_one_row, FewRowsQ4K, 256, 2) { q4_k_few_rows<1>(args); }
KERNEL(q4_k_four_rows, FewRowsQ4K, 256) { q4_k_few_rows<4>(args); }
