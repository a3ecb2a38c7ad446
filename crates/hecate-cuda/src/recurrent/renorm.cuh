// Columns of a matrix that go back to the lengths of an anchor's, and the way back: equation (95). A column is one thread's.
#pragma once
#include "block.cuh"

// Added to squared lengths; `rules::COLUMN_EPSILON`.
#define COLUMN_EPSILON 1e-6f

// Of column c of x and b [rows, columns], `size` elements each: squared lengths, and x·dx where dx is there.
struct Column {
    float xx, bb, along;

    // Sums x², b² and, if dx is there, x dx down column c; the squares begin with a small epsilon.
    __device__ __forceinline__ Column(const float* x, const float* b, const float* dx, u64 size, u32 columns, u32 c)
        : xx(COLUMN_EPSILON), bb(COLUMN_EPSILON), along(0.0f) {
        // Neighbouring threads read neighbouring elements of each row.
        for (u64 i = c; i < size; i += columns) {
            xx += x[i] * x[i];
            bb += b[i] * b[i];
            if (dx) along += x[i] * dx[i];
        }
    }

    // Returns |b| / |x|, which gives x's column the length of b's.
    __device__ __forceinline__ float factor() const { return sqrtf(bb / xx); }
};

// y = f x; y may be x.
__device__ inline void renorm_matrix(const float* x, const float* b, float* y, u64 size, u32 columns) {
    EACH(c, columns) {
        float factor = Column(x, b, nullptr, size, columns, c).factor();
        for (u64 i = c; i < size; i += columns) y[i] = factor * x[i];
    }
}

// From the gradient of y to that of x, in place; adds to that of b.
__device__ inline void renorm_matrix_vjp(const float* x, const float* b, float* dx, float* db, u64 size, u32 columns) {
    EACH(c, columns) {
        Column column(x, b, dx, size, columns, c);
        float factor = column.factor();
        // What is taken off along x, and what joins along b.
        float off = factor * column.along / column.xx, more = factor * column.along / column.bb;
        for (u64 i = c; i < size; i += columns) {
            dx[i] = factor * dx[i] - off * x[i];
            db[i] += more * b[i];
        }
    }
}
