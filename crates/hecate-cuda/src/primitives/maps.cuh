// Functions that more than one file of kernels maps elements with.
#pragma once

// 1 / (1 + exp(-x))
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `log(1 + eˣ)`; NaN goes through the comparison.
__device__ __forceinline__ float softplus(float x) { return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }

// σ(x) and σ(−x).
struct Sides {
    float up, down;
};

// The denominator is between 1 and 2, where the short division is as good as the long one to an ulp.
__device__ __forceinline__ Sides sides(float x) {
    float small = expf(-fabsf(x)), near = __fdividef(1.0f, 1.0f + small), far = small * near;
    return x < 0.0f ? Sides{far, near} : Sides{near, far};
}

// x σ(x), and what its gradient is times.
__device__ __forceinline__ float silu(float x) { return x * sides(x).up; }
// The derivative of silu: σ(x) (1 + x σ(-x)).
__device__ __forceinline__ float silu_slope(float x) {
    Sides at = sides(x);
    return at.up * (1.0f + x * at.down);
}

// σ(x) where 16 bits are left of what follows: within 2⁻²¹ or so of it, in four instructions.
__device__ __forceinline__ float short_sigmoid(float x) { return short_reciprocal(1.0f + short_exp2(-1.44269504f * x)); }
