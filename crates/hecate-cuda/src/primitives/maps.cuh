// Functions that more than one file of kernels maps numbers by.
#pragma once

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `log(1 + eˣ)`; NaN goes through the comparison.
__device__ __forceinline__ float softplus(float x) { return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }
