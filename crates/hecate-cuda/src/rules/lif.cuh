// One leaky integrate-and-fire neuron: equations (100) to (106).
#pragma once
#include "hecate.cuh"

enum { ARCTAN, FAST_SIGMOID, TRIANGLE };
enum { ZERO, SUBTRACT };

// (100). One rounding, and the same one on the way back: a spike must be the same spike there.
__device__ __forceinline__ float charge(float a, float u, float w, float v) { return fmaf(a, u, w * v); }

// Options of a neuron.
struct Neuron {
    // Of the enumerations; whether no gradient goes through the reset.
    u32 surrogate, subtracts, detached;
    // α, ϑ and δ.
    float slope, threshold, taken;

    // (101); NaN stays, so that it is seen.
    __device__ __forceinline__ float fire(float h) const { return h >= threshold ? 1.0f : h < threshold ? 0.0f : h; }

    // u = h - δ s where a reset subtracts, else (1 - s) * h: equation (102).
    __device__ __forceinline__ float reset(float h, float s) const {
        if (subtracts) return h - taken * s;
        return s == 1.0f ? 0.0f : h;
    }

    // The surrogate's derivative of the spike by h, a curve around the threshold with slope α: equation (104).
    __device__ __forceinline__ float derivative(float h) const {
        float x = h - threshold;
        if (surrogate == ARCTAN) {
            float far = 1.57079632679f * slope * x;
            return 0.5f * slope / (1.0f + far * far);
        }
        if (surrogate == FAST_SIGMOID) {
            float near = 1.0f / (1.0f + slope * fabsf(x));
            return near * near;
        }
        float height = slope - slope * slope * fabsf(x);
        // A NaN is not smaller, and stays.
        return height < 0.0f ? 0.0f : height;
    }

    // (105) and (106) as a linear function of the gradient `du` after the token: dh = keep du + spike ds.
    __device__ __forceinline__ void linear(float h, float s, float& keep, float& spike) const {
        spike = derivative(h);
        keep = subtracts ? 1.0f : 1.0f - s;
        if (!detached) keep -= spike * (subtracts ? taken : h);
    }

    // The same for a gradient `ds` of the spike by what reads it.
    __device__ __forceinline__ float charge_vjp(float h, float s, float du, float ds) const {
        float keep, spike;
        linear(h, s, keep, spike);
        return keep * du + spike * ds;
    }
};
