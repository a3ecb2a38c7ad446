// Factors that are IEEE halves. T, Y ∘ Q Kᵀ and what meets them inside a chunk nearly cancel where keys are alike, and 8
// bits are too few there. Halves have 11, between 2^-14 and 2^16 only: so what is made into halves is taken times a power
// of two by which the largest lies in [2^14,2^15). That of a square is one scalar of its chunk. That of dO is one of a chunk
// and the columns of a block. That of other left factors is one of each row. What is 2^29 times smaller than the largest
// loses bits.
#pragma once
#include "chunk_bf16/tile.cuh"

// A power of two, and one over it.
struct Scale {
    float up, down;

    // Of elements up to `most`.
    static __device__ __forceinline__ Scale of(float most) {
        // The biased exponent of the largest; below 15 a power of two would be none any more.
        const u32 exponent = max(__float_as_uint(most) >> 23, 15u);
        return {__uint_as_float(268 - exponent << 23), __uint_as_float(exponent - 14 << 23)};
    }
};

// A solution is a sum of 64 products of two elements below 2^15: times this it is below 2^15 again.
static constexpr float SOLVED_UP = 1.0f / (1 << 21), SOLVED_DOWN = 1 << 21;

// Of both rows that a thread holds of sums of a warp, over those who share them: as bfloat16 cut off, side by side, since a
// scale asks for the exponent alone.
__device__ __forceinline__ void largest_of_rows(float (&most)[2]) {
    // Upper halves of both: sign, exponent and seven bits.
    u32 both = __byte_perm(__float_as_uint(most[0]), __float_as_uint(most[1]), 0x7632);
    #pragma unroll
    for (u32 mask = 1; mask < 4; mask *= 2) both = larger_bf16(both, __shfl_xor_sync(0xffffffffu, both, mask));
    most[0] = low_half(both), most[1] = high_half(both);
}
// Of a warp, of elements that are not negative.
__device__ __forceinline__ float largest_of_warp(float most) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
}
