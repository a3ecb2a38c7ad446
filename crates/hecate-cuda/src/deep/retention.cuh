// From the state to the weights, and back: equations (53)–(55).
//
// A state is one matrix X of one sequence and head, or each of two; all threads of a block call every function.
#pragma once
#include "bias.cuh"

#define LQ_EPSILON 1e-12

// ν, in 64 bits: fourth powers of large values are larger than a 32-bit float.
TOGETHER double lq_norm(const float* x, u64 count, float q) {
    // Powers of whole q are products, which are much faster than `pow` in 64 bits.
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
        double wide = fabs((double)x[i]);
        if (q == 2.0f) sum += wide * wide;
        else if (q == 3.0f) sum += wide * wide * wide;
        else if (q == 4.0f) sum += (wide * wide) * (wide * wide);
        else sum += pow(wide, (double)q);
    }
    // ε is over 0, so a memory of zeros has a ν to divide by.
    return pow(together(sum) + LQ_EPSILON, 1.0 / (double)q);
}

// |x|^{q−2} x.
__device__ __forceinline__ float lq_image(float x, float q) { return x * power(x * x, (q - 2.0f) / 2.0f); }

// Weights of one matrix from its state; not called for DECAY, where they are the same.
template <int RETENTION> TOGETHER void to_weights(const Options& o, const float* x, float* w, u64 count) {
    if (RETENTION == KL) {
        for (u64 i = threadIdx.x; i < count; i += blockDim.x) w[i] = o.scale * expf(x[i]);
    } else {
        // ν^{2−q}, once for the matrix.
        float factor = (float)pow(lq_norm(x, count, o.q), 2.0 - (double)o.q);
        for (u64 i = threadIdx.x; i < count; i += blockDim.x)
            w[i] = factor * (o.literal ? x[i] : lq_image(x[i], o.q));
    }
    __syncthreads();
}

// dx += the gradient of a matrix's state, given that of its weights.
template <int RETENTION>
TOGETHER void pullback(const Options& o, const float* x, const float* dw, float* dx, u64 count) {
    if (RETENTION == KL) {
        for (u64 i = threadIdx.x; i < count; i += blockDim.x) dx[i] += o.scale * expf(x[i]) * dw[i];
    } else {
        // The gradient by the norm is shared by all elements: one sum over the matrix.
        double norm = lq_norm(x, count, o.q), q = (double)o.q, along = 0.0;
        for (u64 i = threadIdx.x; i < count; i += blockDim.x)
            along += (double)((o.literal ? x[i] : lq_image(x[i], o.q)) * dw[i]);
        along = together(along);
        float factor = (float)pow(norm, 2.0 - q);
        // (2−q) ν^{2−2q} ⟨W̄, ·⟩ of (54).
        float shared = (float)((2.0 - q) * pow(norm, 2.0 - 2.0 * q) * along);
        for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
            float own = o.literal ? factor : (o.q - 1.0f) * power(x[i] * x[i], (o.q - 2.0f) / 2.0f) * factor;
            dx[i] += own * dw[i] + shared * lq_image(x[i], o.q);
        }
    }
    __syncthreads();
}

// Log-softmax down each column of x [rows, columns], in place; `logs` holds a number a column.
TOGETHER void normalise_columns(float* x, u32 rows, u32 columns, float* logs) {
    down_columns(
        rows, columns, -INFINITE, [&](u32 r, u32 c) { return x[(u64)r * columns + c]; },
        [](float top, float x) { return x <= top ? top : x; }, [&](u32 c, float top) { logs[c] = top; });
    // The largest of a column first: no exponential overflows, and the logarithm does not round with it.
    ROWS(r, rows) LANES(c, columns) x[(u64)r * columns + c] -= logs[c];
    __syncthreads();
    column_sums(
        rows, columns, [&](u32 r, u32 c) { return expf(x[(u64)r * columns + c]); }, [&](u32 c, float sum) { logs[c] = logf(sum); });
    ROWS(r, rows) LANES(c, columns) x[(u64)r * columns + c] -= logs[c];
    __syncthreads();
}

// Adjoint of `normalise_columns` in place, x being its result: dx −= eˣ ∘ (column sums of dx).
TOGETHER void normalise_columns_vjp(const float* x, float* dx, u32 rows, u32 columns, float* sums) {
    column_sums(
        rows, columns, [&](u32 r, u32 c) { return dx[(u64)r * columns + c]; }, [&](u32 c, float sum) { sums[c] = sum; });
    ROWS(r, rows) LANES(c, columns) {
        u64 i = (u64)r * columns + c;
        dx[i] -= expf(x[i]) * sums[c];
    }
    __syncthreads();
}

// ⟨dx, x − column means of x⟩.
TOGETHER float centred_dot(const float* dx, const float* x, u32 rows, u32 columns, float* means) {
    // With Σ dx = 0 down each column this is ⟨dx, x⟩, without the rounding of large means.
    float inverse = 1.0f / (float)rows;
    column_sums(
        rows, columns, [&](u32 r, u32 c) { return x[(u64)r * columns + c]; },
        [&](u32 c, float sum) { means[c] = inverse * sum; });
    float sum = 0.0f;
    ROWS(r, rows) LANES(c, columns) {
        u64 i = (u64)r * columns + c;
        sum += dx[i] * (x[i] - means[c]);
    }
    return together(sum);
}
