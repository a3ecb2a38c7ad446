// Blocks of quantized matrices, byte for byte as ggml has them; `hecate_core::quantized` says what they hold.
#pragma once
#include "hecate.cuh"

// Formats, as the host numbers them.
#define Q8_0 0
#define Q6_K 1
#define Q5_K 2
#define Q4_K 3

// Values that are decoded at once, under one scale. Every format has groups of 16 or of 32 values, so that 16 neighbours
// never meet two scales. 16 values are also what 16 bytes hold at 8 bits, and 64 bytes of floats.
#define PART 16

// Values and bytes of a block, and parts of it. Bytes are even, and those of q5_k and q4_k multiples of 16.
// A row is whole blocks, which the host made sure of.
template <u32 FORMAT> constexpr u32 BLOCK = FORMAT == Q8_0 ? 32 : 256;
template <u32 FORMAT> constexpr u32 BYTES = FORMAT == Q8_0 ? 34 : FORMAT == Q6_K ? 210 : FORMAT == Q5_K ? 176 : 144;
template <u32 FORMAT> constexpr u32 PARTS = BLOCK<FORMAT> / PART;

// 16 bytes from an even address on: blocks of 34 and of 210 bytes are aligned no better.
// They are read as halves of words. Neighbouring lanes read neighbouring bytes, so that lines of the cache are used up.
struct Bytes {
    // Sixteen bytes, the first in the lowest bits
    u32 word[4];
    __device__ __forceinline__ explicit Bytes(const u8* from) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) word[i] = ((const u16*)from)[2 * i] | (u32)((const u16*)from)[2 * i + 1] << 16;
    }
    __device__ __forceinline__ u32 operator[](u32 i) const { return word[i / 4] >> 8 * (i % 4) & 255; }
};

// Scale and minimum of group `j` of a block of q4_k or q5_k, times `d` and `d'`.
//
// 12 bytes hold 16 numbers of 6 bits. Of the first four groups, bytes 0 to 3 have scales and bytes 4 to 7 minima. Of the last four,
// bytes 8 to 11 have the lower bits of both, and the upper two bits of bytes 0 to 7 are what is missing.
__device__ __forceinline__ float2 scale_and_minimum(const u8* block, u32 j) {
    const u8* s = block + 4;
    u32 scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    u32 minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    float2 d = unpack_halves(*(const u32*)block);
    return make_float2(d.x * (float)scale, d.y * (float)minimum);
}

// The 16 values of part `part` of a block, as the equations have them, each rounded once.
// A scale that is not finite makes all of them so.
template <u32 FORMAT> __device__ __forceinline__ void decode(const u8* block, u32 part, float (&x)[PART]) {
    if constexpr (FORMAT == Q8_0) {
        // d, then 32 whole numbers with a sign
        float d = from_f16(*(const u16*)block);
        Bytes q(block + 2 + PART * part);
        // The byte with its sign, widened
#pragma unroll
        for (u32 i = 0; i < PART; i++) x[i] = d * (float)(signed char)q[i];
    } else if constexpr (FORMAT == Q6_K) {
        // Lower bits, upper bits, 16 scales, d
        float scale = from_f16(*(const u16*)(block + 208)) * (float)((const signed char*)block)[192 + part];
        // Of each half of eight parts, two parts share bytes of lower bits, four those of upper bits.
        u32 half = part / 8, quarter = part % 8 / 2, at = PART * (part % 2);
        Bytes low(block + 64 * half + 32 * (quarter % 2) + at), high(block + 128 + 32 * half + at);
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            u32 q = (low[i] >> 4 * (quarter / 2) & 15) | (high[i] >> 2 * quarter & 3) << 4;
            // Stored without a sign
            x[i] = scale * ((float)q - 32.0f);
        }
    } else {
        // A group of 32 is two parts; a byte has values of two groups.
        u32 j = part / 2, at = PART * (part % 2);
        float2 scale = scale_and_minimum(block, j);
        Bytes low(block + BYTES<FORMAT> - 128 + 32 * (j / 2) + at), high(block + 16 + at);
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            u32 q = low[i] >> 4 * (j % 2) & 15;
            // Bit `j` of a byte is that of group `j`.
            if constexpr (FORMAT == Q5_K) q |= (high[i] >> j & 1) << 4;
            x[i] = scale.x * (float)q - scale.y;
        }
    }
}

// What is done with FORMAT, known while compiling: each branch has the widths and shifts of its format as constants.
#define BY_FORMAT(format, ...) \
    switch (format) { \
        case Q8_0: { constexpr u32 FORMAT = Q8_0; __VA_ARGS__; break; } \
        case Q6_K: { constexpr u32 FORMAT = Q6_K; __VA_ARGS__; break; } \
        case Q5_K: { constexpr u32 FORMAT = Q5_K; __VA_ARGS__; break; } \
        default: { constexpr u32 FORMAT = Q4_K; __VA_ARGS__; } \
    }
