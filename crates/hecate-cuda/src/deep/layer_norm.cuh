// The layer norm without parameters, and its second derivative: equation (43).
//
// Vectors are [width], elements by threads. Barriers stand after each, since sums read what other threads wrote.
#pragma once
#include "block.cuh"

#define NORM_EPSILON 1e-6f

// x̂ in place of o; s is returned.
TOGETHER float normalise(float* o, u32 width) {
    float mean = total(o, width) / (float)width;
    EACH(i, width) o[i] -= mean;
    __syncthreads();
    float deviation = sqrtf(dot(o, o, width) / (float)width + NORM_EPSILON);
    float inverse = 1.0f / deviation;
    EACH(i, width) o[i] *= inverse;
    __syncthreads();
    return deviation;
}

// out += J e.
TOGETHER void add_jacobian(const float* normed, float deviation, const float* e, float* out, u32 width) {
    float mean = total(e, width) / (float)width, along = dot(normed, e, width) / (float)width;
    EACH(i, width) out[i] += (e[i] - mean - normed[i] * along) / deviation;
    __syncthreads();
}

// out = ∂⟨du_o, J(o) u⟩/∂o, with u_o = J u and du_o its gradient; `spare` is as long.
TOGETHER void second_derivative(const float* normed, float deviation, const float* u, const float* u_o, const float* du_o,
                            float* spare, float* out, u32 width) {
    // The derivative of J by o has two parts: through x̂, in `spare`, and through the deviation.
    float factor = -1.0f / (deviation * (float)width);
    float along_u = factor * dot(normed, u, width), along_du = factor * dot(normed, du_o, width);
    EACH(i, width) spare[i] = along_u * du_o[i] + along_du * u[i];
    __syncthreads();
    float ds = -(dot(du_o, u_o, width) + dot(spare, normed, width)) / deviation;
    float mean = total(spare, width) / (float)width;
    EACH(i, width) out[i] = (spare[i] - mean) / deviation + ds * normed[i] / (float)width;
    __syncthreads();
}
