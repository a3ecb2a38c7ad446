// A rule of the family at known sizes.
#pragma once
#include "block.cuh"

enum { L2, LP, HUBER };
enum { DECAY, LQ, KL };
// In the order of `Huber`.
enum { COORDINATE, NORM, MIX };

// Twin of `DeepOptions` of `hecate_core::families`.
struct Options {
    // K, D (0 for a matrix), V.
    u32 key, hidden, value;
    // In the order of `Activation`.
    u32 activation;
    // Whether inputs are added to outputs, outputs pass a layer norm, tokens read after their own write, momentum looks ahead.
    u32 residual, norm, read_after, look_ahead;
    u32 huber;
    // Whether the sign of an error is a hyperbolic tangent; whether weights are the paper's image of the dual variable.
    u32 tanh, literal;
    // Bias (48), (49) and retention (54), (55).
    float p, epsilon, q, scale;
    // 1 / c of (94), 0 where nothing is clipped.
    float per_clip;

    // Elements of the first weight matrix, and of all.
    __device__ __forceinline__ u64 first() const { return (u64)key * (hidden ? hidden : value); }
    // Returns the elements of all weight matrices.
    __device__ __forceinline__ u64 all() const { return hidden ? (u64)(key + value) * hidden : (u64)key * value; }
};
