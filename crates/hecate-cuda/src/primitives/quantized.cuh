// Blocks of quantized matrices, byte for byte as ggml has them; `hecate_core::quantized` says what they hold.
#pragma once
#include "hecate.cuh"

// Formats, as the host numbers them.
#define Q8_0 0
#define Q6_K 1
#define Q5_K 2
#define Q4_K 3

// `x [rows, inner]`, weights `[columns, inner]` in blocks, `y [rows, columns]`; `quantized.rs` has the twin.
struct QuantizedProduct {
    Array x, y;
    const u8* weights;
    u64 columns, inner;
    u32 rows, format;
};

// Values that are decoded at once, under one scale. Every format has groups of 16 or of 32 values, so that 16 neighbours
// never meet two scales. 16 values are also what 16 bytes hold at 8 bits, and 64 bytes of floats.
#define PART 16

// Values and bytes of a block, and parts of it. Bytes are even, and those of q5_k and q4_k multiples of 16.
// A row is whole blocks, which the host made sure of.
template <u32 FORMAT> constexpr u32 BLOCK = FORMAT == Q8_0 ? 32 : 256;
template <u32 FORMAT> constexpr u32 BYTES = FORMAT == Q8_0 ? 34 : FORMAT == Q6_K ? 210 : FORMAT == Q5_K ? 176 : 144;
template <u32 FORMAT> constexpr u32 PARTS = BLOCK<FORMAT> / PART;

// 16 bytes, the first in the lowest bits: blocks of 34 and of 210 bytes are aligned to even addresses, the others to 16.
struct Bytes {
    u32 word[4];
    __device__ __forceinline__ u32 operator[](u32 i) const { return word[i / 4] >> 8 * (i % 4) & 255; }
};
// From an even address on they are read as halves of words. Neighbouring lanes read neighbouring bytes, so that lines of the
// cache are used up.
template <bool ALIGNED> __device__ __forceinline__ Bytes read_bytes(const u8* from) {
    Bytes bytes;
    if constexpr (ALIGNED) {
        const uint4 all = *(const uint4*)from;
        bytes.word[0] = all.x, bytes.word[1] = all.y, bytes.word[2] = all.z, bytes.word[3] = all.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) bytes.word[i] = ((const u16*)from)[2 * i] | (u32)((const u16*)from)[2 * i + 1] << 16;
    }
    return bytes;
}

// A part as it lies in a block, so that it can be on its way while others are decoded. Zeros are a part of zeros.
struct RawPart {
    // Lower bits, and upper bits where they lie apart
    Bytes low, high;
    // `d`, above it `d'` of q4_k and q5_k; what scales of its group are made of
    u32 d, scales;
};

// Bytes of the scale and minimum of group `j` of a block of q4_k or q5_k.
//
// 12 bytes hold 16 numbers of 6 bits. Of the first four groups, bytes 0 to 3 have scales and bytes 4 to 7 minima. Of the last four,
// bytes 8 to 11 have the lower bits of both, and the upper two bits of bytes 0 to 7 are what is missing.
__device__ __forceinline__ u32 bytes_of_scales(const u8* s, u32 j) {
    return j < 4 ? s[j] | (u32)s[j + 4] << 8 : s[j + 4] | (u32)s[j - 4] << 8 | (u32)s[j] << 16;
}
// Scale and minimum, times `d` and `d'`.
__device__ __forceinline__ float2 scale_and_minimum(u32 d, u32 bytes, u32 j) {
    const u32 first = bytes & 255, second = bytes >> 8 & 255, third = bytes >> 16;
    const u32 scale = j < 4 ? first & 63 : (first & 15) | second >> 6 << 4;
    const u32 minimum = j < 4 ? second & 63 : first >> 4 | third >> 6 << 4;
    const float2 both = unpack_halves(d);
    return make_float2(both.x * (float)scale, both.y * (float)minimum);
}

// Part `part` of a block.
template <u32 FORMAT> __device__ __forceinline__ RawPart read_part(const u8* block, u32 part) {
    RawPart raw = {};
    if constexpr (FORMAT == Q8_0) {
        // d, then 32 whole numbers with a sign
        raw.d = *(const u16*)block;
        raw.low = read_bytes<false>(block + 2 + PART * part);
    } else if constexpr (FORMAT == Q6_K) {
        // Lower bits, upper bits, 16 scales, d
        raw.d = *(const u16*)(block + 208), raw.scales = block[192 + part];
        // Of each half of eight parts, two parts share bytes of lower bits, four those of upper bits.
        const u32 half = part / 8, quarter = part % 8 / 2, at = PART * (part % 2);
        raw.low = read_bytes<false>(block + 64 * half + 32 * (quarter % 2) + at);
        raw.high = read_bytes<false>(block + 128 + 32 * half + at);
    } else {
        // A group of 32 is two parts; a byte has values of two groups.
        const u32 j = part / 2, at = PART * (part % 2);
        raw.d = *(const u32*)block, raw.scales = bytes_of_scales(block + 4, j);
        raw.low = read_bytes<true>(block + BYTES<FORMAT> - 128 + 32 * (j / 2) + at);
        if constexpr (FORMAT == Q5_K) raw.high = read_bytes<true>(block + 16 + at);
    }
    return raw;
}

// Its 16 values, as the equations have them, each rounded once. A scale that is not finite makes all of them so.
template <u32 FORMAT> __device__ __forceinline__ void decode(const RawPart& raw, u32 part, float (&x)[PART]) {
    if constexpr (FORMAT == Q8_0) {
        const float d = from_f16((u16)raw.d);
        // The byte with its sign, widened
#pragma unroll
        for (u32 i = 0; i < PART; i++) x[i] = d * (float)(signed char)raw.low[i];
    } else if constexpr (FORMAT == Q6_K) {
        const float scale = from_f16((u16)raw.d) * (float)(signed char)raw.scales;
        const u32 quarter = part % 8 / 2;
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            const u32 q = (raw.low[i] >> 4 * (quarter / 2) & 15) | (raw.high[i] >> 2 * quarter & 3) << 4;
            // Stored without a sign
            x[i] = scale * ((float)q - 32.0f);
        }
    } else {
        const u32 j = part / 2;
        const float2 scale = scale_and_minimum(raw.d, raw.scales, j);
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            u32 q = raw.low[i] >> 4 * (j % 2) & 15;
            // Bit `j` of a byte is that of group `j`.
            if constexpr (FORMAT == Q5_K) q |= (raw.high[i] >> j & 1) << 4;
            x[i] = scale.x * (float)q - scale.y;
        }
    }
}
// Part `part` of a row of weights.
template <u32 FORMAT> __device__ __forceinline__ RawPart part_of_row(const u8* row, u64 part) {
    return read_part<FORMAT>(row + part / PARTS<FORMAT> * BYTES<FORMAT>, (u32)(part % PARTS<FORMAT>));
}

// What is done with FORMAT, known while compiling: each branch has the widths and shifts of its format as constants.
#define BY_FORMAT(format, ...) \
    switch (format) { \
        case Q8_0: { constexpr u32 FORMAT = Q8_0; __VA_ARGS__; break; } \
        case Q6_K: { constexpr u32 FORMAT = Q6_K; __VA_ARGS__; break; } \
        case Q5_K: { constexpr u32 FORMAT = Q5_K; __VA_ARGS__; break; } \
        default: { constexpr u32 FORMAT = Q4_K; __VA_ARGS__; } \
    }
