// Inner gradients of errors: equations (47)–(52), and (94) after them.
//
// Vectors are [V] in shared memory or scratch, elements by threads; all threads of the block call every function.
#pragma once
#include "deep_options.cuh"

// m^power for m > 0, without the library's general power where a root or product does.
__device__ inline float power(float m, float power) {
    if (power == 0.0f) return 1.0f;
    if (power == 0.5f) return sqrtf(m);
    if (power == 1.0f) return m;
    if (power == -0.5f) return 1.0f / sqrtf(m);
    return powf(m, power);
}

// −1, 0 or 1; NaN for NaN.
__device__ __forceinline__ float sign(float e) { return e > 0.0f ? 1.0f : e < 0.0f ? -1.0f : e; }

// ψ of one element by (48) or (49); |e| is smoothed by ε.
__device__ __forceinline__ float power_grad(const Options& o, float e) {
    float m = e * e + o.epsilon;
    return o.tanh ? o.p * tanhf(10.0f * e) * power(m, (o.p - 1.0f) / 2.0f) : o.p * e * power(m, (o.p - 2.0f) / 2.0f);
}
// Its derivative.
__device__ __forceinline__ float power_grad_slope(const Options& o, float e) {
    float m = e * e + o.epsilon;
    if (o.tanh) {
        // (49): the product rule, with the slope 10 (1 − t²) of the smoothed sign.
        float t = tanhf(10.0f * e), steep = 10.0f * (1.0f - t * t) * power(m, (o.p - 1.0f) / 2.0f);
        return o.p * (steep + t * (o.p - 1.0f) * e * power(m, (o.p - 3.0f) / 2.0f));
    }
    // (48), with e²/m in [0, 1) in place of a difference of powers.
    return o.p * power(m, (o.p - 2.0f) / 2.0f) * (1.0f + (o.p - 2.0f) * (e * e / m));
}

// u = ψ(e).
template <int BIAS> TOGETHER void inner_grad(const Options& o, const float* error, float delta, float* u) {
    u32 width = o.value;
    // (47).
    if (BIAS == L2) {
        EACH(i, width) u[i] = error[i];
    } else if (BIAS == LP) {
        EACH(i, width) u[i] = power_grad(o, error[i]);
    } else if (o.huber == COORDINATE) {
        EACH(i, width) u[i] = fabsf(error[i]) <= delta ? error[i] : delta * sign(error[i]);
    } else {
        // NORM and MIX compare the length of the whole error with δ.
        float length = sqrtf(dot(error, error, width));
        EACH(i, width) {
            float e = error[i];
            u[i] = length <= delta ? e : o.huber == NORM ? delta / length * e : delta * sign(e);
        }
    }
    __syncthreads();
}

// de += ψ′(e)ᵀ du; the gradient of δ is returned.
template <int BIAS>
TOGETHER float inner_grad_vjp(const Options& o, const float* error, float delta, const float* du, float* de) {
    u32 width = o.value;
    float ddelta = 0.0f;
    if (BIAS == L2) {
        EACH(i, width) de[i] += du[i];
    } else if (BIAS == LP) {
        EACH(i, width) de[i] += du[i] * power_grad_slope(o, error[i]);
    } else if (o.huber == COORDINATE) {
        EACH(i, width) {
            // Quadratic inside δ, linear outside.
            bool inside = fabsf(error[i]) <= delta;
            de[i] += inside ? du[i] : 0.0f;
            ddelta += inside ? 0.0f : du[i] * sign(error[i]);
        }
        ddelta = together(ddelta);
    } else {
        float length = sqrtf(dot(error, error, width));
        if (length <= delta) {
            EACH(i, width) de[i] += du[i];
        } else if (o.huber == NORM) {
            // NORM outside: u = δ e / |e|.
            ddelta = dot(error, du, width) / length;
            float own = delta / length, along = -delta / (length * length) * ddelta;
            EACH(i, width) de[i] += own * du[i] + along * error[i];
        } else {
            // MIX outside: every element is ±δ, so only δ has a gradient.
            EACH(i, width) ddelta += sign(error[i]) * du[i];
            ddelta = together(ddelta);
        }
    }
    __syncthreads();
    return ddelta;
}

// u ← s u of (94), or nothing where nothing is clipped. Returns s, 1 then.
TOGETHER float clip(const Options& o, float* u) {
    if (o.per_clip == 0.0f) return 1.0f;
    // The ratio first: lengths and c may be of any size, their squares may not.
    float ratio = sqrtf(dot(u, u, o.value)) * o.per_clip, shrink = 1.0f / sqrtf(1.0f + ratio * ratio);
    EACH(i, o.value) u[i] *= shrink;
    __syncthreads();
    return shrink;
}

// From the gradient of the clipped u to that of ψ, in place. What shortens an error grows with it: part of the gradient
// along it goes.
TOGETHER void clip_vjp(const Options& o, const float* u, float shrink, float* du) {
    if (o.per_clip == 0.0f) return;
    float along = dot(u, du, o.value) * o.per_clip * o.per_clip;
    EACH(i, o.value) du[i] = shrink * (du[i] - along * u[i]);
    __syncthreads();
}
