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

// 16 bytes, the first in the lowest bits.
struct Bytes {
    u32 word[4];
    // Returns byte i of the sixteen.
    __device__ __forceinline__ u32 operator[](u32 i) const { return word[i / 4] >> 8 * (i % 4) & 255; }
};

// 16 bytes from an even address on, as the words that have them: blocks of 34 and of 210 bytes are aligned no better.
struct EvenBytes {
    u32 word[5];
    u32 shift;
    // Nothing is done with words here: whoever computes with one waits for it.
    __device__ __forceinline__ void read(const u8* from) {
        const u32* words = (const u32*)((u64)from & ~3ull);
        shift = (u32)((u64)from & 2) * 8;
#pragma unroll
        for (u32 i = 0; i < 4; i++) word[i] = words[i];
        // The last may be behind the end where nothing of it is wanted.
        if (shift) word[4] = words[4];
    }
    // Returns the sixteen bytes, shifted into place.
    __device__ __forceinline__ Bytes bytes() const {
        Bytes all;
#pragma unroll
        for (u32 i = 0; i < 4; i++) all.word[i] = __funnelshift_r(word[i], word[i + 1], shift);
        return all;
    }
};
// 16 bytes from a multiple of 16 on.
struct WholeBytes {
    uint4 word;
    // Loads sixteen bytes at once.
    __device__ __forceinline__ void read(const u8* from) { word = *(const uint4*)from; }
    // Returns the sixteen bytes.
    __device__ __forceinline__ Bytes bytes() const { return {{word.x, word.y, word.z, word.w}}; }
};

// Scale and minimum of group `j` of a block of q4_k or q5_k, times `d` and `d'`, which its first 16 bytes have.
//
// Of these the last 12 hold 16 numbers of 6 bits. Of the first four groups, bytes 0 to 3 have scales and bytes 4 to 7 minima. Of the
// last four, bytes 8 to 11 have the lower bits of both, and the upper two bits of bytes 0 to 7 are what is missing.
__device__ __forceinline__ float2 scale_and_minimum(const Bytes& head, u32 j) {
    const u32 at = 8 * (j % 4), s = head.word[1] >> at & 255, m = head.word[2] >> at & 255, last = head.word[3] >> at & 255;
    const u32 scale = j < 4 ? s & 63 : (last & 15) | s >> 6 << 4;
    const u32 minimum = j < 4 ? m & 63 : last >> 4 | m >> 6 << 4;
    const float2 both = unpack_halves(head.word[0]);
    return make_float2(both.x * (float)scale, both.y * (float)minimum);
}

// Part `part` of a block as it lies there, so that it can be on its way while others are decoded; then its 16 values, as
// the equations have them, each rounded once. A scale that is not finite makes all of them so. Zeros are a part of zeros.
template <u32 FORMAT> struct RawPart {
    // q4_k and q5_k: d and d', scales, upper bits of q5_k, lower bits. A group of 32 is two parts; a byte has values of two groups.
    WholeBytes head, high, low;

    // Starts loading what part `part` of a block of q4_k or q5_k needs: head, lower and upper bits.
    __device__ __forceinline__ void read(const u8* block, u32 part) {
        // A byte of lower bits has two groups' values, one of upper bits all eight groups'.
        const u32 at = PART * (part % 2);
        head.read(block), low.read(block + BYTES<FORMAT> - 128 + 32 * (part / 4) + at);
        if constexpr (FORMAT == Q5_K) high.read(block + 16 + at);
    }
    // x [16] = scale * q - minimum, with q of 4 or 5 bits.
    __device__ __forceinline__ void decode(u32 part, float (&x)[PART]) const {
        // The group of 32
        const u32 j = part / 2;
        const float2 scale = scale_and_minimum(head.bytes(), j);
        const Bytes lower = low.bytes(), upper = high.bytes();
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            u32 q = lower[i] >> 4 * (j % 2) & 15;
            // Bit `j` of a byte is that of group `j`.
            if constexpr (FORMAT == Q5_K) q |= (upper[i] >> j & 1) << 4;
            x[i] = scale.x * (float)q - scale.y;
        }
    }
};
// d, then 32 whole numbers with a sign.
template <> struct RawPart<Q8_0> {
    // The scale, and whole numbers
    u16 d;
    EvenBytes q;

    // Starts loading the scale and sixteen bytes of a block of q8_0.
    __device__ __forceinline__ void read(const u8* block, u32 part) { d = *(const u16*)block, q.read(block + 2 + PART * part); }
    // x [16] = d * q, with q of 8 bits and a sign.
    __device__ __forceinline__ void decode(u32, float (&x)[PART]) const {
        const float scale = from_f16(d);
        const Bytes all = q.bytes();
        // The byte with its sign, widened
#pragma unroll
        for (u32 i = 0; i < PART; i++) x[i] = scale * (float)(signed char)all[i];
    }
};
// Lower bits, upper bits, 16 scales, d. Of each half of eight parts, two share bytes of lower bits, four those of upper bits.
template <> struct RawPart<Q6_K> {
    u16 d;
    signed char scale;
    EvenBytes low, high;

    // Starts loading both scales, lower and upper bits of a part of a q6_k block.
    __device__ __forceinline__ void read(const u8* block, u32 part) {
        // Which bytes the part shares with others.
        const u32 half = part / 8, quarter = part % 8 / 2, at = PART * (part % 2);
        d = *(const u16*)(block + 208), scale = ((const signed char*)block)[192 + part];
        low.read(block + 64 * half + 32 * (quarter % 2) + at), high.read(block + 128 + 32 * half + at);
    }
    // x [16] = d * scale * (q - 32), with q of 6 bits.
    __device__ __forceinline__ void decode(u32 part, float (&x)[PART]) const {
        // One scale for all 16 values
        const u32 quarter = part % 8 / 2;
        const float by = from_f16(d) * (float)scale;
        const Bytes lower = low.bytes(), upper = high.bytes();
#pragma unroll
        for (u32 i = 0; i < PART; i++) {
            const u32 q = (lower[i] >> 4 * (quarter / 2) & 15) | (upper[i] >> 2 * quarter & 3) << 4;
            // Stored without a sign
            x[i] = by * ((float)q - 32.0f);
        }
    }
};

// Part `part` of a row of weights.
template <u32 FORMAT> __device__ __forceinline__ void read_part(RawPart<FORMAT>& raw, const u8* row, u64 part) {
    raw.read(row + part / PARTS<FORMAT> * BYTES<FORMAT>, (u32)(part % PARTS<FORMAT>));
}
// x [16] = part `part` of a row of weights, decoded.
template <u32 FORMAT> __device__ __forceinline__ void decode(const u8* row, u64 part, float (&x)[PART]) {
    RawPart<FORMAT> raw;
    read_part(raw, row, part);
    raw.decode((u32)(part % PARTS<FORMAT>), x);
}

// What is done with FORMAT, known while compiling: each branch has the widths and shifts of its format as constants.
#define BY_FORMAT(format, ...) \
    switch (format) { \
        case Q8_0: { constexpr u32 FORMAT = Q8_0; __VA_ARGS__; break; } \
        case Q6_K: { constexpr u32 FORMAT = Q6_K; __VA_ARGS__; break; } \
        case Q5_K: { constexpr u32 FORMAT = Q5_K; __VA_ARGS__; break; } \
        default: { constexpr u32 FORMAT = Q4_K; __VA_ARGS__; } \
    }
