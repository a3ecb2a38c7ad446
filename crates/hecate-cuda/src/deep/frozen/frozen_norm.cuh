// The layer norm behind the last matrix, x̂ = (o − mean o)/s, and its Jacobian J: (43) and (44), a warp a row.
#pragma once
#include "frozen_masks.cuh"

#define NORM_EPSILON 1e-6f

// x̂ in place of a row of outputs; s comes back. What a lane writes here it reads itself.
TOGETHER_OF float normalise_row(float* o, u32 width) {
    // The mean comes first: a sum of squares alone would lose what a row has in common.
    float sum = 0.0f, square = 0.0f;
    LANES(i, width) sum += o[i];
    float mean = warp_sum(sum) / (float)width;
    LANES(i, width) {
        float x = o[i] - mean;
        square += x * x;
    }
    float s = sqrtf(warp_sum(square) / (float)width + NORM_EPSILON);
    LANES(i, width) o[i] = (o[i] - mean) / s;
    return s;
}
// to = J e of a row, or ADD it; `to` may be e.
template <bool ADD> TOGETHER_OF void jacobian_row(const float* normed, float s, const float* e, float* to, u32 width) {
    float sum = 0.0f, along = 0.0f;
    LANES(i, width) sum += e[i], along += normed[i] * e[i];
    float mean = warp_sum(sum) / (float)width, by_normed = warp_sum(along) / (float)width;
    LANES(i, width) to[i] = (ADD ? to[i] : 0.0f) + (e[i] - mean - normed[i] * by_normed) / s;
}

// What a norm has of a group beside masks.
struct FrozenNorm : FrozenMasks {
    // x̂ at keys [rows,V], and s of each row; nothing without a norm.
    Panel normed;
    float* deviations;

    // By one thread, behind `u`: without a norm the inner gradient is written as it is.
    __device__ void place_norm(Arena& arena) {
        u32 height = o.norm ? rows : 0;
        deviations = arena.take(height), normed = panel(arena, height, o.value);
        inner_grad = panel(arena, height, o.value);
        if (!o.norm) inner_grad = u;
    }
    // Predictions out of all blocks' parts.
    TOGETHER_OF void predict(Panel part) const {
        Panel normed = this->normed;
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return total(part.row(t) + i); }, [&](u32 t, u32 i, float4 x) { normed.four(t, i) = x; });
        __syncthreads();
        ROWS(t, rows) {
            float s = normalise_row(normed.row(t), o.value);
            if (first_lane()) deviations[t] = s;
        }
        __syncthreads();
    }
    // u_o = J u of row t.
    __device__ void write_with(u32 t) const { jacobian_row<false>(normed.row(t), deviations[t], inner_grad.row(t), u.row(t), o.value); }
    // Back through u_o = J u of row t, (43): from ū_o in `d` to ū there; `to` gets what reaches the output by it.
    TOGETHER_OF void write_with_back(u32 t, float* d, float* to) const {
        const float *x = normed.row(t), *own = inner_grad.row(t), *with = u.row(t);
        float s = deviations[t], count = (float)o.value, sum = 0.0f, sum_own = 0.0f, along = 0.0f, along_own = 0.0f, both = 0.0f;
        LANES(i, o.value) sum += d[i], sum_own += own[i], along += x[i] * d[i], along_own += x[i] * own[i], both += d[i] * with[i];
        sum = warp_sum(sum), sum_own = warp_sum(sum_own), along = warp_sum(along), along_own = warp_sum(along_own), both = warp_sum(both);
        // x̄ = −(ū_o (x̂·u) + u (x̂·ū_o))/(s V): how much of either it has; its mean, and all that goes along x̂.
        float of_d = -along_own / (s * count), of_own = -along / (s * count), mean = (of_d * sum + of_own * sum_own) / count;
        float by_normed = (both + of_d * along + of_own * along_own) / (s * count);
        LANES(i, o.value) {
            to[i] = (of_d * d[i] + of_own * own[i] - mean) / s - by_normed * x[i];
            d[i] = (d[i] - sum / count - x[i] * (along / count)) / s;
        }
    }
    // From what row t was written with to its error, in `d`; behind a norm the gradient of the output goes to `output`.
    TOGETHER_OF void row_back(u32 t, float* d, Panel output) const {
        if (o.norm) write_with_back(t, d, output.row(t));
        if (huber || POWER_GRADS || o.per_clip != 0.0f) inner_grad_row_vjp(t, d);
        if (o.norm) jacobian_row<true>(normed.row(t), deviations[t], d, output.row(t), o.value);
    }
    // Outputs x̂ of `count` tokens from `first` on, `apart` of each other, to rows of `to`, out of all blocks' parts.
    TOGETHER_OF void normed_outputs(Panel part, Panel to, u32 first, u32 apart, u32 count) const {
        fours<2>(count, o.value, [&](u32 i, u32 j) { return total(part.row(first + i * apart) + j); },
              [&](u32 i, u32 j, float4 x) { to.four(i, j) = x; });
        __syncthreads();
        ROWS(i, count) normalise_row(to.row(i), o.value);
        __syncthreads();
    }
    // Where a backward leaves its part of outputs: nobody reads the other place of predictions any more, for all have met since.
    __device__ Panel outputs_again() const { return {sums + (u64)(turn ^ 1) * rows * o.value, o.value}; }
    // Gradients of outputs in `d` to those of what was read of the last matrix; `read` is a place for that.
    TOGETHER_OF void outputs_vjp(Panel read, Panel d) const {
        Panel part = outputs_again();
        cluster.meet();
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return total(part.row(t) + i); }, [&](u32 t, u32 i, float4 x) { read.four(t, i) = x; });
        __syncthreads();
        ROWS(t, rows) output_vjp(read.row(t), d.row(t));
        __syncthreads();
    }
    // The same of a row; what was read is lost.
    __device__ void output_vjp(float* read, float* d) const {
        float s = normalise_row(read, o.value);
        jacobian_row<false>(read, s, d, d, o.value);
    }
};
