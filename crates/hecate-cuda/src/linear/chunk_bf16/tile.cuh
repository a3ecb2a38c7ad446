// Tiles of bfloat16 in shared memory, and how they come there and to the tensor cores.
#pragma once
#include "chunk.cuh"
#include "group.cuh"

// Rows [CHUNK,COLUMNS] of tokens: with 8 columns between one row and the next, or as groups of warps need them, in panels
// of 64 columns.
template <u32 COLUMNS, bool GROUP>
struct Tile {
    static constexpr u32 STRIDE = GROUP ? 64 : COLUMNS + 8, SIZE = CHUNK * (GROUP ? COLUMNS : STRIDE);
    static_assert(!GROUP || COLUMNS % 64 == 0, "panels are whole");
    u16* x;

    // `further` pieces of 8 columns from there: fewer than a power of two of them that `column` is a multiple of.
    __device__ __forceinline__ u16* at(u32 row, u32 column, u32 further = 0) const {
        if constexpr (GROUP) return x + column / 64 * (CHUNK * 64) + in_panel(row, column, further);
        else return x + row * STRIDE + column + 8 * further;
    }
};

// Bytes of tiles, and of what lies after them, up to where other tiles may begin.
template <bool GROUP>
static constexpr __device__ u32 whole(u32 bytes) { return GROUP ? (bytes + 1023) / 1024 * 1024 : bytes; }

// The part of one thread of copying rows of `x [rows,H,width]` of a chunk, from column `first`; zeros outside. Widths and
// `first` are multiples of 8. COUNT threads copy WIDTH columns; `to` is where this one, number `who`, begins, and the rows
// it copies are `apart` in what it copies to.
template <u32 WIDTH, u32 COUNT>
__device__ __forceinline__ void fetch_part(
    const Linear& p, const Chunk& chunk, const void* x, u32 width, u32 first, u16* to, u32 apart, u32 who
) {
    // Neighbouring threads copy neighbouring pieces of a row; a thread's rows are STEP apart.
    constexpr u32 STEP = COUNT / (WIDTH / 8);
    const u32 c = who % (WIDTH / 8) * 8, t = who / (WIDTH / 8);
    // Elements between two of the thread's rows.
    const u64 further = (u64)STEP * p.heads * width;
    const u16* from = (const u16*)x + chunk.token(p, t) * width + first + c;
    if (chunk.tokens == CHUNK && first + WIDTH <= width) {
        #pragma unroll
        for (u32 i = 0; i < CHUNK / STEP; i++, from += further) copy_16(to + i * apart, from, true);
    } else {
        // A copy of zeros still needs an address.
        for (u32 i = 0; i < CHUNK / STEP; i++, from += further) {
            bool inside = first + c < width && t + i * STEP < chunk.tokens;
            copy_16(to + i * apart, inside ? from : (const u16*)x, inside);
        }
    }
}

// Rows of a chunk as a tile, or [CHUNK,WIDTH] with `stride`.
template <u32 COUNT, u32 WIDTH, bool GROUP>
__device__ __forceinline__ void fetch_tile(
    const Linear& p, const Chunk& chunk, const void* x, u32 width, u32 first, Tile<WIDTH, GROUP> to, u32 who
) {
    constexpr u32 STEP = COUNT / (WIDTH / 8);
    static_assert(!GROUP || STEP % 8 == 0, "a thread's pieces lie at one place of their rows");
    u16* at = to.at(who / (WIDTH / 8), who % (WIDTH / 8) * 8);
    fetch_part<WIDTH, COUNT>(p, chunk, x, width, first, at, STEP * to.STRIDE, who);
}
// Starts copies of the chunk's rows of x [rows,H,width], WIDTH columns from `first` on, to rows of `to` that lie `stride` apart.
template <u32 WIDTH, u32 COUNT>
__device__ __forceinline__ void fetch_rows(
    const Linear& p, const Chunk& chunk, const void* x, u32 width, u32 first, u16* to, u32 stride, u32 who
) {
    to += who / (WIDTH / 8) * stride + who % (WIDTH / 8) * 8;
    fetch_part<WIDTH, COUNT>(p, chunk, x, width, first, to, COUNT / (WIDTH / 8) * stride, who);
}

// A square [CHUNK,CHUNK] as it was prepared, without blocks [16,16] above the diagonal.
template <u32 COUNT, bool GROUP>
__device__ __forceinline__ void fetch_square(const u16* x, Tile<CHUNK, GROUP> to, u32 who) {
    static_assert(COUNT % 64 == 0, "a thread's pieces lie at one place of their rows");
    // Eight pieces a row.
    const u32 row = who / 8, column = who % 8 * 8;
    u16* at = to.at(row, column);
    x += 8 * who;
    #pragma unroll
    for (u32 i = 0; i < SQUARE / 8 / COUNT; i++)
        if (column < (row + i * (COUNT / 8)) / 16 * 16 + 16)
            copy_16(at + i * (COUNT / 8) * to.STRIDE, x + i * 8 * COUNT, true);
}
// These blocks, for products that do not leave them out.
template <u32 COUNT, bool GROUP>
__device__ __forceinline__ void clear_above(Tile<CHUNK, GROUP> square, u32 who) {
    if constexpr (GROUP) {
        for (u32 i = who; i < SQUARE / 8; i += COUNT)
            if (i % 8 * 8 >= i / 8 / 16 * 16 + 16) *(uint4*)square.at(i / 8, i % 8 * 8) = uint4{};
    }
}

// Both bfloat16 of a word as 32-bit floats: their bits are the upper half of a float's.
__device__ __forceinline__ float low_half(u32 x) { return __uint_as_float(x << 16); }
// Returns the upper bfloat16 of a word as a float.
__device__ __forceinline__ float high_half(u32 x) { return __uint_as_float(x & 0xffff0000u); }

// Two right factors [16,8] side by side, [16,16], out of a tile whose rows are their columns, or, across, are their rows.
// Also a left factor [16,16]: across, out of a tile whose rows are its columns, in the order 0, 2, 1, 3.
__device__ __forceinline__ void right(u32 (&x)[4], const u16* tile, u32 stride, u32 column, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(x, tile + (column + lane / 16 * 8 + lane % 8) * stride + depth + lane / 8 % 2 * 8);
}
// The same of a tile whose rows are the factor's rows.
__device__ __forceinline__ void right_across(u32 (&x)[4], const u16* tile, u32 stride, u32 column, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_across(x, tile + (depth + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8);
}
// A left factor [16,16] out of a tile whose rows are its rows, or, across, are its columns.
__device__ __forceinline__ void left(u32 (&x)[4], const u16* tile, u32 stride, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(x, tile + (row + lane / 8 % 2 * 8 + lane % 8) * stride + depth + lane / 16 * 8);
}
// The same of a tile whose rows are the factor's columns.
__device__ __forceinline__ void left_across(u32 (&x)[4], const u16* tile, u32 stride, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_across(x, tile + (depth + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8);
}
// The same out of tiles of either form.
template <u32 COLUMNS, bool GROUP>
__device__ __forceinline__ void left(u32 (&x)[4], Tile<COLUMNS, GROUP> tile, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(x, tile.at(row + lane / 8 % 2 * 8 + lane % 8, depth + lane / 16 * 8));
}
// Loads a left factor [16,16] out of a tile whose rows are its columns.
template <u32 COLUMNS, bool GROUP>
__device__ __forceinline__ void left_across(u32 (&x)[4], Tile<COLUMNS, GROUP> tile, u32 row, u32 depth) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_across(x, tile.at(depth + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
}

// x [16,16] += a b, of two tiles of sums.
__device__ __forceinline__ void multiply_pair(float (&x)[4], float (&y)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    multiply_add_bf16(x, a, b[0], b[1]);
    multiply_add_bf16(y, a, b[2], b[3]);
}

// The same of IEEE halves.
__device__ __forceinline__ void multiply_halves(float (&x)[4], float (&y)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    multiply_add_halves(x, a, b[0], b[1]);
    multiply_add_halves(y, a, b[2], b[3]);
}

// A group's factors of depth 16 step. Either out of a tile's rows from `first` on, which are rows of a left factor or
// columns of a right one. Or, across, out of panels of ROWS rows, the other way round. A unit is 16 bytes.
__device__ __forceinline__ u64 along(u64 tile, u32 step, u32 first = 0) {
    return tile + step / 4 * (CHUNK * 8) + first * 8 + step % 4 * 2;
}
// The same of factors that lie the other way round, in panels of ROWS rows.
template <u32 ROWS>
__device__ __forceinline__ u64 across(u64 panels, u32 step, u32 column = 0) {
    return panels + column / 64 * (ROWS * 8) + column % 64 / 8 + step * 128;
}
