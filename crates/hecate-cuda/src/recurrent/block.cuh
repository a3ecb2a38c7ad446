// What the threads of one block do together to rows and matrices, in global or shared memory alike.
//
// All of them call each function. What they read must be visible to the whole block by then; what they wrote is, when
// they come back. Sums go in an order that depends on the sizes and the number of threads alone.
#pragma once
#include "hecate.cuh"

// Threads of a block at most; `recurrent::MOST_THREADS`.
#define MOST_THREADS 512

// How these functions are declared: compiled once, and called. Their loops and barriers are long beside a call, and a
// kernel that had them written out at each of their many places would take seconds to compile.
#define TOGETHER __device__ __noinline__

// This thread's elements of a row, and its share of a matrix: a warp a row.
#define EACH(i, count) for (u32 i = threadIdx.x; i < (count); i += blockDim.x)
#define ROWS(r, rows) for (u32 r = threadIdx.x / 32; r < (rows); r += blockDim.x / 32)
#define LANES(c, columns) for (u32 c = threadIdx.x % 32; c < (columns); c += 32)

// One element a thread.
__device__ __forceinline__ float* partial() {
    __shared__ float partials[MOST_THREADS];
    return partials;
}

// A sum over the block, in every thread.
TOGETHER float together(float x) {
    float sum = block_sum(x, partial());
    __syncthreads();
    return sum;
}

// The same in 64 bits.
TOGETHER double together(double x) {
    __shared__ double partials[MOST_THREADS];
    partials[threadIdx.x] = x;
    __syncthreads();
    // Blocks are whole warps, but not always powers of two.
    for (u32 count = blockDim.x; count > 1;) {
        u32 half = (count + 1) / 2;
        if (threadIdx.x + half < count) partials[threadIdx.x] += partials[threadIdx.x + half];
        count = half;
        __syncthreads();
    }
    double sum = partials[0];
    __syncthreads();
    return sum;
}

// x·y, in every thread.
TOGETHER float dot(const float* x, const float* y, u64 count) {
    float sum = 0.0f;
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) sum += x[i] * y[i];
    return together(sum);
}

// The sum of a row.
TOGETHER float total(const float* x, u32 count) {
    float sum = 0.0f;
    EACH(i, count) sum += x[i];
    return together(sum);
}

// Each element is one thread's, and visible to the block afterwards.
TOGETHER void fill(float* out, float value, u64 count) {
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) out[i] = value;
    __syncthreads();
}

// out = x.
TOGETHER void copy(float* out, const float* x, u64 count) {
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) out[i] = x[i];
    __syncthreads();
}

// out += factor x.
TOGETHER void axpy(float* out, float factor, const float* x, u64 count) {
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) out[i] += factor * x[i];
    __syncthreads();
}

// out *= factor.
TOGETHER void scale(float* out, float factor, u64 count) {
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) out[i] *= factor;
    __syncthreads();
}

// Hands every column c of a matrix of `rows` rows what `take(sum, term(r, c))` makes of its rows, by `done(c, sum)`.
// Where columns are fewer than threads, several threads share a column.
template <class Term, class Take, class Done>
__device__ __forceinline__ void down_columns(u32 rows, u32 columns, float start, Term term, Take take, Done done) {
    float* partials = partial();
    // Neighbouring threads have neighbouring columns, so that a row is read in whole lines.
    u32 width = columns < blockDim.x ? columns : blockDim.x, parts = blockDim.x / width;
    u32 part = threadIdx.x / width, column = threadIdx.x % width;
    for (u32 first = 0; first < columns; first += width) {
        u32 c = first + column;
        bool mine = part < parts && c < columns;
        float sum = start;
        if (mine) {
#pragma unroll 4
            for (u32 r = part; r < rows; r += parts) sum = take(sum, term(r, c));
        }
        partials[threadIdx.x] = sum;
        __syncthreads();
        if (mine && part == 0) {
            // Parts are put together in order by the first thread of a column.
            for (u32 p = 1; p < parts; p++) sum = take(sum, partials[p * width + column]);
            done(c, sum);
        }
        __syncthreads();
    }
}

// Down each column the sum of `term(r, c)`, to `done(c, sum)`.
template <class Term, class Done>
__device__ __forceinline__ void column_sums(u32 rows, u32 columns, Term term, Done done) {
    down_columns(rows, columns, 0.0f, term, [](float sum, float x) { return sum + x; }, done);
}

// y = x M, for M [rows, columns].
TOGETHER void read(float* y, const float* x, const float* m, u32 rows, u32 columns) {
    column_sums(
        rows, columns, [&](u32 r, u32 c) { return x[r] * m[(u64)r * columns + c]; }, [&](u32 c, float sum) { y[c] = sum; });
}

// y += x M.
TOGETHER void add_read(float* y, const float* x, const float* m, u32 rows, u32 columns) {
    column_sums(
        rows, columns, [&](u32 r, u32 c) { return x[r] * m[(u64)r * columns + c]; }, [&](u32 c, float sum) { y[c] += sum; });
}

// Hands every row r of M [rows, columns] `(M y)[r]`, by `done(r, sum)` in one lane of a warp. Four rows at once, so that
// their loads and exchanges overlap.
template <class Done>
__device__ __forceinline__ void along_rows(const float* y, const float* m, u32 rows, u32 columns, Done done) {
    u32 warps = blockDim.x / 32;
    for (u32 first = threadIdx.x / 32; first < rows; first += 4 * warps) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        LANES(c, columns) {
            // Read once for four rows.
            float own = y[c];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 r = first + i * warps;
                if (r < rows) sums[i] += own * m[(u64)r * columns + c];
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float sum = warp_sum(sums[i]);
            u32 r = first + i * warps;
            if (threadIdx.x % 32 == 0 && r < rows) done(r, sum);
        }
    }
    __syncthreads();
}

// x = y Mᵀ, for M [rows, columns]; y must not be x.
TOGETHER void read_transposed(float* x, const float* y, const float* m, u32 rows, u32 columns) {
    along_rows(y, m, rows, columns, [&](u32 r, float sum) { x[r] = sum; });
}

// x += y Mᵀ.
TOGETHER void add_transposed(float* x, const float* y, const float* m, u32 rows, u32 columns) {
    along_rows(y, m, rows, columns, [&](u32 r, float sum) { x[r] += sum; });
}

// M += factor xᵀ y.
TOGETHER void add_outer(float* m, float factor, const float* x, const float* y, u32 rows, u32 columns) {
    ROWS(r, rows) {
        // A row is a warp's.
        float own = factor * x[r];
        float* row = m + (u64)r * columns;
        LANES(c, columns) row[c] += own * y[c];
    }
    __syncthreads();
}

// M = keep M + xᵀ y.
TOGETHER void update(float* m, float keep, const float* x, const float* y, u32 rows, u32 columns) {
    ROWS(r, rows) {
        float own = x[r];
        float* row = m + (u64)r * columns;
        LANES(c, columns) row[c] = keep * row[c] + own * y[c];
    }
    __syncthreads();
}

// Whether this thread is the first lane of its warp, or belongs to the first warp.
__device__ __forceinline__ bool first_lane() { return threadIdx.x % 32 == 0; }
// True in the first warp of a block.
__device__ __forceinline__ bool first_warp() { return threadIdx.x < 32; }

// `x·y` by one warp, in every lane.
__device__ __forceinline__ float warp_dot(const float* x, const float* y, u32 count) {
    float sum = 0.0f;
    LANES(i, count) sum += x[i] * y[i];
    return warp_sum(sum);
}

// The sum of a row by one warp, in every lane.
__device__ __forceinline__ float warp_total(const float* x, u32 count) {
    float sum = 0.0f;
    LANES(i, count) sum += x[i];
    return warp_sum(sum);
}
