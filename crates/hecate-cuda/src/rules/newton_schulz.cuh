// Newton-Schulz by one block: equations (88) to (92).
#pragma once
#include "block.cuh"
#include "product.cuh"

// `S [rows,columns]`, seen as `[p,n]` with `p ≤ n`: its transpose where it has more rows than columns. Everything of
// that size lies as `S` does.
struct NewtonSchulz {
    u32 steps, rows, columns;
    // `(α, β, κ)` and ε².
    float alpha, beta, kappa, epsilon;

    // The shorter and the longer side; elements of S and of a square.
    __device__ u32 p() const { return rows < columns ? rows : columns; }
    // Returns the longer side.
    __device__ u32 n() const { return rows < columns ? columns : rows; }
    // Returns the elements of S.
    __device__ u64 count() const { return (u64)rows * columns; }
    // Returns the elements of A, [p,p].
    __device__ u64 square() const { return (u64)p() * p(); }
    // Elements of a workspace.
    __device__ u64 workspace_size(u32 kept) const { return (kept + 1) * count() + 2 * kept * square(); }

    // An array of the size of S as [p,n], and one of that of A as [p,p].
    __device__ Matrix wide(float* x) const {
        Matrix all = {x, columns, 1};
        return rows > columns ? all.t() : all;
    }
    // Returns an array as a matrix [p,p].
    __device__ Matrix small(float* x) const { return {x, p(), 1}; }

    // Workspace: `X [kept + 1, p,n]`, then `A` and `B` `[kept,p,p]` each, with `kept` the number of steps where a backward
    // comes, or 1. Returns where `NS(S)` is; `inverse` is `1/ν`.
    __device__ float* forward(const float* s, float* workspace, u32 kept, float& inverse) const {
        float* a = workspace + (kept + 1) * count();
        float* b = a + kept * square();
        float sum = 0.0f;
        for (u64 i = threadIdx.x; i < count(); i += blockDim.x) sum += s[i] * s[i];
        inverse = 1.0f / sqrtf(together(sum) + epsilon);
        for (u64 i = threadIdx.x; i < count(); i += blockDim.x) workspace[i] = s[i] * inverse;
        // A = X Xᵀ, B = β A + κ A A, X = α X + B X.
        for (u32 step = 0; step < steps; step++) {
            Matrix x = wide(workspace + step % (kept + 1) * count()), next = wide(workspace + (step + 1) % (kept + 1) * count());
            Matrix own_a = small(a + step % kept * square()), own_b = small(b + step % kept * square());
            product(own_a, 0.0f, own_a, 1.0f, x, x.t(), p(), p(), n());
            product(own_b, beta, own_a, kappa, own_a, own_a, p(), p(), p());
            product(next, alpha, x, 1.0f, own_b, x, p(), n(), p());
        }
        return workspace + steps % (kept + 1) * count();
    }

    // `dS += NS′(S)ᵀ (factor dU)`, after a forward that kept all steps in `workspace`. Spare: `D [2,p,n]`, `dB`, `dA`
    // `[p,p]`.
    __device__ void backward(
        float factor, const float* du, float* ds, float* workspace, float* spare, float inverse
    ) const {
        float* a = workspace + (steps + 1) * count();
        float* b = a + steps * square();
        float *d = spare, *next = d + count();
        Matrix db = small(next + count()), da = small(next + count() + square());
        for (u64 i = threadIdx.x; i < count(); i += blockDim.x) d[i] = factor * du[i];
        for (u32 step = steps; step-- > 0;) {
            Matrix x = wide(workspace + step * count());
            Matrix own_a = small(a + step * square()), own_b = small(b + step * square());
            // dB = D Xᵀ; dA from both places of A in B; D = α D + B D + (dA + dAᵀ) X, B being symmetric.
            product(db, 0.0f, db, 1.0f, wide(d), x.t(), p(), p(), n());
            product(da, beta, db, kappa, db, own_a, p(), p(), p());
            product(da, 1.0f, da, kappa, own_a, db, p(), p(), p());
            // `dA + dAᵀ`, a pair of elements by one thread.
            for (u64 i = threadIdx.x; i < square(); i += blockDim.x) {
                u32 r = (u32)(i / p()), c = (u32)(i % p());
                if (r <= c) da.at(r, c) = da.at(c, r) = da.at(r, c) + da.at(c, r);
            }
            product(wide(next), alpha, wide(d), 1.0f, own_b, wide(d), p(), n(), p());
            product(wide(next), 1.0f, wide(next), 1.0f, da, x, p(), n(), p());
            float* last = d;
            d = next;
            next = last;
        }
        // (92) with X₀ = S/ν: dS = (D − X₀ ⟨D, X₀⟩)/ν.
        float along = 0.0f;
        for (u64 i = threadIdx.x; i < count(); i += blockDim.x) along += d[i] * workspace[i];
        along = together(along);
        for (u64 i = threadIdx.x; i < count(); i += blockDim.x) ds[i] += inverse * (d[i] - along * workspace[i]);
        __syncthreads();
    }
};
