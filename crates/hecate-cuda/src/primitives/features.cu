// Polynomial features of rows; a block for each row of `x [rows, width]`.
#include "hecate.cuh"

// Features `1 + width + width (width + 1) / 2` of each row; `features::Poly2` is its twin.
struct Poly2 {
    Array x;
    // [rows, features]
    Array y;
    u64 features;
    u32 width;
    // Roots of the coefficients
    float zeroth, first, second;
};

#define ROOT2 1.41421356f

// Pairs `(i, j)`, `j ≥ i`, stand one row of the triangle after another: the first of row `i`.
__device__ __forceinline__ u32 row_start(u32 i, u32 width) { return i * width - i * (i - 1) / 2; }

// y = (√c₀, √c₁ x_i, √c₂ w_ij x_i x_j), w_ii = 1, else √2
KERNEL(poly2, Poly2, 256) {
    u64 row = blockIdx.x, x = row * args.width, y = row * args.features;
    // Of the quadratic equation for a pair's row.
    float side = 2.0f * args.width + 1.0f;
    for (u64 f = threadIdx.x; f < args.features; f += blockDim.x) {
        float feature;
        if (f == 0) feature = args.zeroth;
        else if (f <= args.width) feature = args.first * load(args.x, x + f - 1);
        else {
            u32 pair = (u32)(f - 1 - args.width);
            // The root of `row_start(i) = pair`, at most one off: whole numbers here are under 2^24.
            u32 i = (u32)((side - sqrtf(fmaxf(side * side - 8.0f * pair, 0.0f))) * 0.5f);
            if (i >= args.width) i = args.width - 1;
            while (row_start(i, args.width) > pair) i--;
            while (i + 1 < args.width && row_start(i + 1, args.width) <= pair) i++;
            u32 j = i + (pair - row_start(i, args.width));
            float factor = i == j ? args.second : args.second * ROOT2;
            feature = factor * load(args.x, x + i) * load(args.x, x + j);
        }
        store(args.y, y + f, feature);
    }
}

// `features::Poly2Backward` is its twin.
struct Poly2Backward {
    Array x, dx;
    // [rows, features]
    Array dy;
    u64 features;
    u32 width;
    float first, second;
};

// dx_i = √c₁ dy_i + √c₂ (2 x_i dy_ii + √2 Σ_{j≠i} x_j dy_ij)
KERNEL(poly2_backward, Poly2Backward, 256) {
    u64 row = blockIdx.x, x = row * args.width, dy = row * args.features + 1, pairs = dy + args.width;
    for (u32 i = threadIdx.x; i < args.width; i += blockDim.x) {
        // A thread has one element of the row: it goes through the pairs that have it.
        float others = 0.0f;
        for (u32 j = 0; j < args.width; j++) {
            // A pair stands under its smaller place.
            u32 low = i < j ? i : j, high = i < j ? j : i;
            float slope = load(args.dy, pairs + row_start(low, args.width) + (high - low));
            if (j != i) others += load(args.x, x + j) * slope;
        }
        float own = 2.0f * load(args.x, x + i) * load(args.dy, pairs + row_start(i, args.width));
        store(args.dx, x + i, args.first * load(args.dy, dy + i) + args.second * (own + ROOT2 * others));
    }
}
