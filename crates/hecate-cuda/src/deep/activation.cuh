// The functions inside MLP memories, with their first and second derivatives.
#pragma once
#include "block.cuh"

// In the order of `Activation`.
enum { SILU, GELU_TANH, GELU };

// A function's value, its first and its second derivative at one place.
struct Curve {
    float value, slope, second;
};

// σ(x) and σ(−x), each relative to itself.
struct Sigmoids {
    float up, down;

    // Both without cancellation, however large x is.
    __device__ explicit Sigmoids(float x) {
        // Never of a positive number: it cannot overflow.
        float e = expf(-fabsf(x));
        float large = 1.0f / (1.0f + e), small = e * large;
        up = x < 0.0f ? small : large;
        down = x < 0.0f ? large : small;
    }
};

// x σ(x), its first and its second derivative.
__device__ inline Curve silu(float x) {
    Sigmoids s(x);
    // The slope tends to 0 or 1 faster than any power of x grows.
    float near = x > 80.0f ? 80.0f : x < -80.0f ? -80.0f : x;
    return {x * s.up, s.up * (1.0f + near * s.down), s.up * s.down * (2.0f + near * (s.down - s.up))};
}

// With t = tanh u, 1 − t² = 4 σ(2u) σ(−2u).
__device__ inline Curve gelu_tanh(float x) {
    // Constants of the hyperbolic form; u, u′, u″ of its argument.
    const float cubic = 0.044715f, c = 0.7978845608028654f;
    float u = c * (x + cubic * x * x * x), u1 = c * (1.0f + 3.0f * cubic * x * x), u2 = 6.0f * c * cubic * x;
    Sigmoids s(2.0f * u);
    float t = s.up - s.down, h = 4.0f * s.up * s.down;
    return {x * s.up, s.up + 0.5f * x * h * u1, h * u1 + 0.5f * x * (h * u2 - 2.0f * t * h * u1 * u1)};
}

// The complementary error function keeps its digits where the other one would be lost in 1.
__device__ inline Curve gelu(float x) {
    float below = 0.5f * erfcf(-0.7071067811865476f * x), density = 0.3989422804014327f * expf(-0.5f * x * x);
    return {x * below, below + x * density, density * (2.0f - x * x)};
}

// The function of this kind at `x`.
__device__ inline Curve activation(u32 kind, float x) {
    if (kind == SILU) return silu(x);
    // Beyond it the functions are x or 0 to the last bit.
    if (x > 14.0f) return {x, 1.0f, 0.0f};
    if (x < -14.0f) return {0.0f, 0.0f, 0.0f};
    return kind == GELU ? gelu(x) : gelu_tanh(x);
}
