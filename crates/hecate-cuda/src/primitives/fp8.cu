// Matrices as 8-bit floats with their terms side by side, as products take them.
#include "hecate.cuh"

// Numbers of `Fp8::ALL`.
enum { E4M3, E5M2 };

// `fp8::Largest` is its twin.
struct Largest {
    Array x;
    // Of x; a multiple of 16
    u64 count;
    // [1]
    float* largest;
};

// `fp8::Cast` is its twin.
struct Cast {
    // [rows, columns], multiples of 16
    Array x;
    // [rows, columns], or across [columns, rows]
    u8* out;
    u64 rows, columns;
    // Where the scale is known, else null
    const float* scale;
    // Else the largest magnitude that it comes of
    const float* largest;
    // Where it goes for the product
    float* used_scale;
    // Raised to the largest magnitude; may be null
    float* maximum;
    u32 format;
};

// The larger of two; NaN where there is one.
__device__ __forceinline__ float larger(float x, float y) { return (x > y || x != x) ? x : y; }

// Raises a number that is not negative, in an order that does not matter: bits of such numbers are ordered as they are, and
// those of NaN come last.
__device__ __forceinline__ void raise(float* to, float x) {
    u32 bits = __float_as_uint(x) & 0x7fffffffu;
    // Most blocks find that there is nothing to do.
    if (bits > *(volatile u32*)to) atomicMax((u32*)to, bits);
}

// Elements of a thread.
#define PART 16

// Elements of a part as 32-bit floats, from `i` on, a multiple of 16.
template <u32 TYPE> __device__ __forceinline__ void load_part(float (&x)[PART], Array array, u64 i) {
    constexpr u32 N = RUN_LENGTH<TYPE>;
    array.type = TYPE;
#pragma unroll
    for (u32 n = 0; n < PART; n += N) {
        Run<N> run = load_run<N>(array, i + n);
#pragma unroll
        for (u32 m = 0; m < N; m++) x[n + m] = run.x[m];
    }
}

// The largest magnitude of a part.
__device__ __forceinline__ float largest_of(const float (&x)[PART]) {
    float most = 0.0f;
#pragma unroll
    for (u32 n = 0; n < PART; n++) most = larger(most, fabsf(x[n]));
    return most;
}

// largest = max(largest, |x|.max()) of x [count].
KERNEL(fp8_largest, Largest, 256) {
    __shared__ float shared[32];
    float most = 0.0f;
    for (u64 i = PART * grid_thread(); i < args.count; i += PART * grid_threads()) {
        float x[PART];
        BY_TYPE(args.x.type, load_part<TYPE>(x, args.x, i))
        most = larger(most, largest_of(x));
    }
    most = block_max(most, shared);
    if (threadIdx.x == 0) raise(args.largest, most);
}

// The smallest power of two that brings `largest` into range: both formats end at 1.75 times a power of two.
__device__ __forceinline__ float smallest_scale(float largest, u32 format) {
    u32 bits = __float_as_uint(largest);
    // Zeros and what is no number take any.
    if (bits == 0 || bits >= 0x7f800000u) return 1.0f;
    int top = format == E4M3 ? 8 : 15, exponent = max((int)(bits >> 23), 1) - 127;
    int over = (bits & 0x7fffffu) > 0x600000u;
    return __uint_as_float((u32)(min(max(exponent - top + over, -126), 126) + 127) << 23);
}

// The scale of a matrix, which one thread of all writes down.
__device__ __forceinline__ float scale_of(const Cast& args) {
    float scale = args.scale ? *args.scale : smallest_scale(*args.largest, args.format);
    if (grid_thread() == 0) *args.used_scale = scale;
    return scale;
}

// A number without its sign as bits of a format of M bits of mantissa, whose smallest normal number is `2^least`.
template <u32 M, int LEAST> __device__ __forceinline__ u32 to_bits(float x, float end) {
    if (x != x) return 0x7f;
    x = fminf(x, end);
    // Below the normal numbers all stand equally far apart.
    if (x < __uint_as_float((u32)(LEAST + 127) << 23)) return (u32)__float2int_rn(x * __uint_as_float((u32)(127 + M - LEAST) << 23));
    // The lowest kept bit decides ties, so that they go to even.
    u32 bits = __float_as_uint(x);
    bits += (1u << (22 - M)) - 1 + ((bits >> (23 - M)) & 1u);
    return (bits >> (23 - M)) - ((u32)(LEAST + 126) << M);
}

// Two numbers as 8-bit floats, `low` in the low byte; what is too large becomes the largest.
__device__ __forceinline__ u32 pack(u32 format, float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 both;
    if (format == E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
#else
    u32 both = 0;
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        float x = n == 0 ? low : high;
        u32 bits = format == E4M3 ? to_bits<3, -6>(fabsf(x), 448.0f) : to_bits<2, -14>(fabsf(x), 57344.0f);
        both |= (bits | __float_as_uint(x) >> 24 & 0x80u) << 8 * n;
    }
    return both;
#endif
}

// A part in 16 bytes. Infinities become NaN, which saturation would hide.
__device__ __forceinline__ uint4 rounded(const float (&x)[PART], float inverse, u32 format) {
    u32 words[PART / 4];
#pragma unroll
    for (u32 n = 0; n < PART; n += 4) {
        float y[4];
#pragma unroll
        for (u32 m = 0; m < 4; m++) y[m] = fabsf(x[n + m]) < INFINITE ? x[n + m] * inverse : NOT_A_NUMBER;
        words[n / 4] = pack(format, y[0], y[1]) | pack(format, y[2], y[3]) << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// out [rows,columns] = fp8(x / scale), and maximum = max(maximum, |x|.max()).
KERNEL(fp8_cast, Cast, 256) {
    __shared__ float shared[32];
    float inverse = 1.0f / scale_of(args), most = 0.0f;
    for (u64 i = PART * grid_thread(); i < args.rows * args.columns; i += PART * grid_threads()) {
        float x[PART];
        BY_TYPE(args.x.type, load_part<TYPE>(x, args.x, i))
        ((uint4*)args.out)[i / PART] = rounded(x, inverse, args.format);
        most = larger(most, largest_of(x));
    }
    if (args.maximum == nullptr) return;
    most = block_max(most, shared);
    if (threadIdx.x == 0) raise(args.maximum, most);
}

// Rows and columns of a tile.
#define TILE 64

// A block a tile, which it turns in shared memory.
KERNEL(fp8_cast_across, Cast, 256) {
    __shared__ float shared[32];
    // Rows a word longer than they need to be, so that columns lie in several banks.
    __shared__ u32 tile[TILE][TILE / 4 + 1];
    float inverse = 1.0f / scale_of(args), most = 0.0f;
    u64 across = (args.columns + TILE - 1) / TILE;
    u64 top = blockIdx.x / across * TILE, left = blockIdx.x % across * TILE;
    // Four threads a row, each with a part.
    u32 row = threadIdx.x / 4, part = threadIdx.x % 4 * PART;
    if (top + row < args.rows && left + part < args.columns) {
        float x[PART];
        BY_TYPE(args.x.type, load_part<TYPE>(x, args.x, (top + row) * args.columns + left + part))
        uint4 words = rounded(x, inverse, args.format);
        u32* to = &tile[row][part / 4];
        to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
        most = largest_of(x);
    }
    __syncthreads();
    // Now four threads a column.
    if (left + row < args.columns && top + part < args.rows) {
        u32 words[PART / 4] = {};
#pragma unroll
        for (u32 n = 0; n < PART; n++) words[n / 4] |= (u32)((const u8*)tile[part + n])[row] << n % 4 * 8;
        *(uint4*)(args.out + (left + row) * args.rows + top + part) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (args.maximum == nullptr) return;
    most = block_max(most, shared);
    if (threadIdx.x == 0) raise(args.maximum, most);
}
