// Products of 32-bit matrices by a block on tensor cores.
#pragma once
#include "block.cuh"
#include "cluster.cuh"

// Element (i, j) lies at `x[i * row + j * column]`.
struct Factor {
    const float* x;
    u32 row, column;
};

// Rows of `stride` elements in shared or global memory.
struct Panel {
    float* x;
    u32 stride;

    // Returns element (i, j).
    __device__ __forceinline__ float& at(u32 i, u32 j) const { return x[(u64)i * stride + j]; }
    // Returns row i.
    __device__ __forceinline__ float* row(u32 i) const { return x + (u64)i * stride; }
    // Four neighbours; columns and strides are multiples of four.
    __device__ __forceinline__ float4& four(u32 i, u32 j) const { return *(float4*)(x + (u64)i * stride + j); }
    // As a factor, and its transpose.
    __device__ __forceinline__ Factor own() const { return {x, stride, 1}; }
    // Returns the transpose, as a factor.
    __device__ __forceinline__ Factor t() const { return {x, 1, stride}; }
};

// f(x), element by element.
template <class F> __device__ __forceinline__ float4 map(F f, float4 x) { return make_float4(f(x.x), f(x.y), f(x.z), f(x.w)); }
// f(x, y), element by element.
template <class F> __device__ __forceinline__ float4 map(F f, float4 x, float4 y) {
    return make_float4(f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w));
}
// f(x, y, z), element by element.
template <class F> __device__ __forceinline__ float4 map(F f, float4 x, float4 y, float4 z) {
    return make_float4(f(x.x, y.x, z.x), f(x.y, y.y, z.y), f(x.z, y.z, z.z), f(x.w, y.w, z.w));
}
// x·y of fours.
__device__ __forceinline__ float dot(float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }

// Whether factors of the block's products count with 20 bits of fraction, in two parts, and not with 10.
__device__ __forceinline__ bool& whole_factors() {
    __shared__ bool whole;
    return whole;
}

// To the nearest of 10 bits of fraction: a tenth of what rounding arguments to bfloat16 costs. NaN stays.
__device__ __forceinline__ u32 to_factor(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// Every four neighbours (i, j) of [height,wide]: `store(i, j, load(i, j))`. A thread's next AT_ONCE loads wait together.
template <u32 AT_ONCE, class Load, class Store>
__device__ __forceinline__ void fours(u32 height, u32 wide, Load load, Store store) {
    // Elements are numbered row by row, whatever the width: no thread is idle at narrow rows. Rows and columns go on by
    // additions, for divisions take longer than what is done with an element.
    u32 across = wide / 4, all = height * across, i = threadIdx.x / across, j = threadIdx.x % across;
    u32 down = blockDim.x / across, on = blockDim.x % across;
    for (u32 first = threadIdx.x; first < all; first += AT_ONCE * blockDim.x) {
        // All loads stand before the first store: the compiler cannot know that they are of other places.
        decltype(load(0, 0)) x[AT_ONCE];
        u32 rows[AT_ONCE], columns[AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            rows[n] = i, columns[n] = 4 * j;
            if (i < height) x[n] = load(i, 4 * j);
            i += down, j += on;
            if (j >= across) j -= across, i++;
        }
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++)
            if (rows[n] < height) store(rows[n], columns[n], x[n]);
    }
}
// The same, a warp a row: `done(i, sum)` in one lane with the sum over a row of `take(i, j, load(i, j))`.
template <u32 AT_ONCE, class Load, class Take, class Done>
__device__ __forceinline__ void fours_by_row(u32 height, u32 wide, Load load, Take take, Done done) {
    // Rows of a warp are `warps` apart.
    u32 warps = blockDim.x / 32;
    for (u32 first = threadIdx.x / 32; first < height; first += AT_ONCE * warps) {
        float sums[AT_ONCE] = {};
        for (u32 j = threadIdx.x % 32 * 4; j < wide; j += 128) {
            decltype(load(0, 0)) x[AT_ONCE];
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; n++)
                if (first + n * warps < height) x[n] = load(first + n * warps, j);
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; n++)
                if (first + n * warps < height) sums[n] += take(first + n * warps, j, x[n]);
        }
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            // The order of a sum depends on the width alone.
            float sum = warp_sum(sums[n]);
            if (first_lane() && first + n * warps < height) done(first + n * warps, sum);
        }
    }
}

// by ∘ (a b), `by` a number a row of a, null for 1. The depth is a multiple of eight.
struct Term {
    Factor a, b;
    const float* by;
    u32 depth;
};

// Where a thread's elements of a factor lie: in shared memory, where an address has 32 bits, or anywhere.
template <bool NEAR> struct Reader {
    const float* x;
    // Generic addresses: global memory, or whatever it is.
    __device__ __forceinline__ void at(const float* first) { x = first; }
    // Returns the element.
    __device__ __forceinline__ float read() const { return *x; }
    // Moves on by so many elements.
    __device__ __forceinline__ void go(u32 elements) { x += elements; }
};
template <> struct Reader<true> {
    u32 x;
    // Starts at `first`, in shared memory.
    __device__ __forceinline__ void at(const float* first) { x = (u32)__cvta_generic_to_shared(first); }
    // Returns the element.
    __device__ __forceinline__ float read() const {
        float y;
        asm("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(x));
        return y;
    }
    // Moves on by so many elements.
    __device__ __forceinline__ void go(u32 elements) { x += 4 * elements; }
};

// sum [16,32] += x [16,8] y [8,32] over a warp, of factors in one part or in two.
__device__ __forceinline__ void add_eight(float (&sum)[4][4], const float (&x)[4], const float (&y)[4][2], bool whole) {
    u32 high[4], low[4], other[2], rest[2];
    if (!whole) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) high[i] = to_factor(x[i]);
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            other[0] = to_factor(y[n][0]), other[1] = to_factor(y[n][1]);
            multiply_add(sum[n], high, other);
        }
        return;
    }
    // The product of both small parts is below what a sum of 32 bits keeps.
#pragma unroll
    for (u32 i = 0; i < 4; i++) split(x[i], high[i], low[i]);
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        split(y[n][0], other[0], rest[0]), split(y[n][1], other[1], rest[1]);
        multiply_add(sum[n], low, other);
        multiply_add(sum[n], high, rest);
        multiply_add(sum[n], high, other);
    }
}

// sum [16,32] += a term's part of a tile whose first row and column are named, by a warp.
template <bool NEAR_A, bool NEAR_B>
__device__ __forceinline__ void add_term(float (&sum)[4][4], const Term& term, u32 top, u32 side, u32 rows, u32 columns) {
    bool whole = whole_factors();
    // A warp's threads as `multiply_add` numbers them.
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Factor a = term.a, b = term.b;
    // A thread has two of eight terms, whichever: those by which a warp finds most banks.
    bool pairs = b.column == 1;
    u32 own = pairs ? 2 * t : t, half = pairs ? 1 : 4;
    // Beyond an edge the last row or column is read in place of others, and the result is not stored.
    Reader<NEAR_A> left[2][2];
    Reader<NEAR_B> right[4][2];
    // Factors of the two rows that a thread has.
    float by[2];
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
        u32 row = min(top + 8 * m + g, rows - 1);
        const float* first = a.x + (u64)row * a.row + own * a.column;
        left[m][0].at(first), left[m][1].at(first + half * a.column), by[m] = term.by ? term.by[row] : 1.0f;
    }
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        const float* first = b.x + (u64)min(side + 8 * n + g, columns - 1) * b.column + own * b.row;
        right[n][0].at(first), right[n][1].at(first + half * b.row);
    }
    // Addresses go on by additions alone: with indices they would take more instructions than the products.
    u32 step_a = 8 * a.column, step_b = 8 * b.row;
#pragma unroll 4
    for (u32 k = term.depth; k > 0; k -= 8) {
        float x[4], y[4][2];
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = left[i % 2][i / 2].read(), left[i % 2][i / 2].go(step_a);
#pragma unroll
        for (u32 i = 0; i < 8; i++) y[i / 2][i % 2] = right[i / 2][i % 2].read(), right[i / 2][i % 2].go(step_b);
        // Rounded here and not where they are stored: weights keep 32 bits.
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] *= by[i % 2];
        add_eight(sum, x, y, whole);
    }
}

// Threads of a block. Fewer have more registers each, so that calls leave little in local memory.
#define FROZEN_THREADS 256

// The terms of the next product: one thread writes them, so that they take no thread's registers or local memory.
__device__ __forceinline__ Term* terms_of_block() {
    __shared__ Term terms[4];
    return terms;
}

// out [rows,columns] = keep out + the sum of the block's first `count` terms; `out` is no factor. A warp makes tiles [16,32].
TOGETHER void multiply_terms(Panel out, float keep, u32 count, u32 rows, u32 columns) {
    // The terms, and all that was written before, are seen by the block.
    const Term* terms = terms_of_block();
    __syncthreads();
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 across = (columns + 31) / 32, tiles = (rows + 15) / 16 * across;
    for (u32 tile = threadIdx.x / 32; tile < tiles; tile += blockDim.x / 32) {
        u32 top = tile / across * 16, side = tile % across * 32;
        // Sums stay in registers over all terms.
        float sum[4][4] = {};
        for (u32 n = 0; n < count; n++) {
            Term term = terms[n];
            // The same for all threads.
            bool a = __isShared(term.a.x), b = __isShared(term.b.x);
            if (a && b) add_term<true, true>(sum, term, top, side, rows, columns);
            else if (a) add_term<true, false>(sum, term, top, side, rows, columns);
            else if (b) add_term<false, true>(sum, term, top, side, rows, columns);
            else add_term<false, false>(sum, term, top, side, rows, columns);
        }
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            u32 i = top + 8 * m + g;
            if (i >= rows) continue;
            float* row = out.row(i);
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                u32 j = side + 8 * n + 2 * t;
                // Widths are even: a pair is inside or outside.
                if (j >= columns) continue;
                float2 old = keep == 0.0f ? make_float2(0.0f, 0.0f) : *(float2*)(row + j);
                *(float2*)(row + j) = make_float2(keep * old.x + sum[n][2 * m], keep * old.y + sum[n][2 * m + 1]);
            }
        }
    }
    __syncthreads();
}

// The same of one term, out [rows,columns] = keep out + by ∘ (a b).
__device__ __forceinline__ void multiply(Panel out, float keep, const float* by, Factor a, Factor b, u32 rows, u32 columns, u32 depth) {
    // Whoever read the terms before is behind a barrier.
    if (threadIdx.x == 0) terms_of_block()[0] = {a, b, by, depth};
    multiply_terms(out, keep, 1, rows, columns);
}
