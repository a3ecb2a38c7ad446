// Newton-Schulz of a matrix [64,64] by a block of eight warps, on tensor cores: equations (88) to (92).
//
// What is added to itself stays in registers with 32 bits, so that rounding of factors reaches directions that `S` hardly
// has only with what is multiplied by them.
#pragma once
#include "square.cuh"

// Singular values of X stay under 1.3, so that its elements and those of A and B are far from the largest half.
// Factors are this many times as large as what they stand for: lower halves stay far from the smallest ones.
#define RAISED 64.0f
#define LOWERED (1.0f / (RAISED * RAISED))

// D of a backward grows up to 485 times: times this power of two its largest element starts between 1/16 and 1/8. NaN, which
// the largest leaves out, stays in the elements.
struct PowerOfTwo {
    // The exponent's bits.
    int field;

    // Picks the power of two that brings `most` into [2^-4, 2^-3).
    __device__ __forceinline__ explicit PowerOfTwo(float most) : field(250 - (int)(__float_as_uint(most) >> 23)) {
        field = field < 1 ? 1 : field;
    }
    // It, and one over it.
    __device__ __forceinline__ float up() const { return __uint_as_float((u32)field << 23); }
    // Returns one over the power.
    __device__ __forceinline__ float down() const { return __uint_as_float((u32)(254 - field) << 23); }
};

struct NewtonSchulzHalves {
    u32 steps;
    // `(α, β, κ)` and ε².
    float alpha, beta, kappa, epsilon;
    // Places of factors: no two products that wait for one barrier write to the same one.
    // X of the last `kept` steps; A, B; of a backward D, P. Rows of 65 for transposes lie where B does.
    Halves x, a, b, d, p;
    u32 kept;

    // Returns the place of X of a step; the last `kept` steps have one.
    __device__ Halves of_step(u32 step) const { return {x.at + step % kept * 2 * Halves::SIZE}; }

    // A = X Xᵀ to its place, raised; the registers hold it unscaled.
    __device__ __forceinline__ Square gram(Halves own) const {
        Square sum = {};
        add_product<true>(sum, own, own);
        sum.scale(LOWERED);
        a.put(sum, RAISED);
        return sum;
    }
    // B = βA + κ A A to its place, raised.
    __device__ __forceinline__ void polynomial(const Square& of_a) const {
        Square sum = {};
        add_product<true>(sum, a, a);
        sum.add(kappa * LOWERED, beta, of_a);
        // Whoever reads rows for transposes there is through with it.
        __syncthreads();
        b.put(sum, RAISED);
    }

    // NS(S); `inverse` is 1/ν.
    __device__ __forceinline__ Square forward(const Square& s, float& inverse) const {
        // (88)
        inverse = 1.0f / sqrtf(together(s.dot(s)) + epsilon);
        Square own = s;
        own.scale(inverse);
        for (u32 step = 0; step < steps; step++) {
            // (89), (90): three products, each behind a barrier that shows its factors.
            Halves factor = of_step(step);
            factor.put(own, RAISED);
            __syncthreads();
            Square of_a = gram(factor);
            __syncthreads();
            polynomial(of_a);
            __syncthreads();
            Square sum = {};
            add_product<false>(sum, b, factor);
            own.add(alpha, LOWERED, sum);
        }
        return own;
    }

    // The transpose of what all threads hold, through rows of 65.
    __device__ __forceinline__ Square transposed(const Square& of) const {
        // Rows of 65 elements: a column is in as many banks as it has rows.
        float* rows = (float*)b.at;
        Square result;
#pragma unroll
        for (u32 n = 0; n < 16; n++) rows[Square::row(n) * (SIDE + 1) + Square::column(n)] = of.x[n];
        __syncthreads();
#pragma unroll
        for (u32 n = 0; n < 16; n++) result.x[n] = rows[Square::column(n) * (SIDE + 1) + Square::row(n)];
        return result;
    }

    // (91): D of one step earlier.
    __device__ __forceinline__ void step_vjp(Square& own, Halves factor) const {
        // Whoever reads factors of the step after is through with them.
        __syncthreads();
        d.put(own, 1.0f);
        Square of_a = gram(factor);
        __syncthreads();
        // A is symmetric, and so is dA + dAᵀ: one product is enough where there are four.
        // P = dB + dBᵀ, of which dA + dAᵀ = β P + κ (P A + A P).
        Square of_p = {};
        add_product<true>(of_p, d, factor);
        of_p.scale(1.0f / RAISED);
        of_p.add(1.0f, 1.0f, transposed(of_p));
        p.put(of_p, 1.0f);
        __syncthreads();
        Square of_q = {};
        add_product<false>(of_q, p, a);
        of_q.scale(1.0f / RAISED);
        of_q.add(1.0f, 1.0f, transposed(of_q));
        of_p.add(beta, kappa, of_q);
        // Lower by as much as its factor is raised, far from the largest half.
        p.put(of_p, 1.0f / RAISED);
        polynomial(of_a);
        __syncthreads();
        // D ← αD + B D + (dA + dAᵀ) X
        Square of_b = {}, of_x = {};
        add_product<false>(of_b, b, d);
        add_product<false>(of_x, p, factor);
        own.add(alpha, 1.0f / RAISED, of_b);
        own.add(1.0f, 1.0f, of_x);
    }

    // NS′(S)ᵀ D, after a forward that kept all steps.
    __device__ __forceinline__ Square backward(const Square& s, float inverse, Square own) const {
        const PowerOfTwo start(block_max(own.most(), partial()));
        own.scale(start.up());
        for (u32 step = steps; step-- > 0;) step_vjp(own, of_step(step));
        // (92) with X₀ = S/ν.
        float along = together(own.dot(s)) * inverse * inverse;
        own.add(1.0f, -along, s);
        own.scale(inverse);
        own.scale(start.down());
        return own;
    }
};
