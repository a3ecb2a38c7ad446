// Gradients of a chunk with bfloat16: what a block gathers of each token, and the gradients of its gates.
#pragma once
#include "chunk_bf16/mask.cuh"
#include "chunk_bf16/products.cuh"

// GROUPS of warps share the keys, HALVES the columns of squares. The factors of (25), by their elements from OF_ERASE_A on,
// have gradients that are sums over keys.
// ADD: w comes after products with values.
template <u32 GROUPS, u32 HALVES, u32 WARPS, bool S, bool ADD>
struct Tokens {
    static constexpr u32 FACTORS = S ? 6 : 3, BLOCK = 32 * WARPS, SHARING = BLOCK / CHUNK;

    // w, r, a, η of each token
    __align__(16) Gates gates;
    // Gradients of factors, of each group
    float sums[GROUPS][FACTORS][CHUNK];
    // Of w; minus that of r, of the squares
    float dw[CHUNK], dr[HALVES][CHUNK];
    // <dM,M₀>, <dM,S₀>, <dS,S₀>
    float carried[3][WARPS];
    // ADD: those of reads and writes have their places, the others are `written`.
    __align__(16) float vectors[ADD ? OF_ERASE_B * CHUNK : ELEMENTS];
    MaskGradient<S> mask_gradient;

    // Gates and empty sums, then the mask's own columns; `join` of the mask follows after a barrier.
    __device__ __forceinline__ void begin(const Linear& p, const Chunk& chunk, Four gate) {
        const u32 t = threadIdx.x;
        if (t < CHUNK) {
            const Four of = token_gates(p, chunk, gate);
            gates[0][t] = of.x, gates[1][t] = of.y, gates[2][t] = of.z, gates[3][t] = of.w;
        }
        for (u32 i = t; i < GROUPS * FACTORS * CHUNK; i += BLOCK) (&sums[0][0][0])[i] = 0.0f;
        __syncthreads();
        mask_gradient.begin(gates);
    }

    // Where a group of warps adds up the gradient of a factor, by token.
    __device__ __forceinline__ float* sums_of(u32 group, u32 factor) { return sums[group][factor - OF_ERASE_A]; }
    // The gradient of a factor of token t, over all groups.
    __device__ __forceinline__ float total(u32 factor, u32 t) const {
        float sum = 0.0f;
        #pragma unroll
        for (u32 group = 0; group < GROUPS; group++) sum += sums[group][factor - OF_ERASE_A][t];
        return sum;
    }
    // One of <dM,M₀>, <dM,S₀>, <dS,S₀>, over all warps.
    __device__ __forceinline__ float total_carried(u32 i) const {
        float sum = 0.0f;
        #pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) sum += carried[i][warp];
        return sum;
    }
    // Over the threads of a token.
    static __device__ __forceinline__ float shared_sum(float sum) {
        #pragma unroll
        for (u32 mask = 1; mask < SHARING; mask *= 2) sum += shuffle_xor(sum, mask);
        return sum;
    }

    // What reads and erases give to A, or b, of the state after token t.
    __device__ __forceinline__ float after_token(const Linear& p, u32 n, u32 t, u32 matrix) const {
        // The token that reads the state after token t.
        const u32 reader = p.before ? t + 1 : t;
        float sum = reader < n ? total(OF_READ_A + 3 * matrix, reader) : 0.0f;
        if (t + 1 < n) sum -= gates[1][t + 1] * total(OF_ERASE_A + 3 * matrix, t + 1);
        return sum;
    }

    // ADD: what the reads of a sub-chunk give to w of each write of the chunk, in places of what has to do with r.
    __device__ __forceinline__ float* written(u32 sub_chunk) {
        return sub_chunk < 3 ? vectors + sub_chunk * CHUNK : dr[HALVES - 1];
    }
    // ADD: factors of (25) by the mask, of one token a thread; w goes along with c of a write.
    __device__ __forceinline__ void set_factors(const Linear& p) {
        const u32 t = threadIdx.x;
        if (t >= CHUNK) return;
        vectors[OF_READ_A * CHUNK + t] = p.before ? mask_gradient.a_of(t) : mask_gradient.mask.state(t);
        vectors[OF_LAST_C * CHUNK + t] = mask_gradient.mask.last(t) * gates[0][t];
    }
    // ADD: the gradient of w from that of c of the last token, and of reads before.
    __device__ __forceinline__ void join_writes(u32 t, float last) {
        float sum = mask_gradient.mask.last(t) * last;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) sum += written(i)[t];
        dw[t] = sum;
    }

    // All sums of one token a thread.
    __device__ __forceinline__ void join(const Linear& p, u32 n) {
        const u32 t = threadIdx.x;
        // dr: what the first state has, then the squares' part.
        float sum = mask_gradient.a_of(t) * total(OF_ERASE_A, t);
        if (S) sum += mask_gradient.b_of(t) * total(OF_ERASE_B, t);
        #pragma unroll
        for (u32 half = 0; half < HALVES; half++) sum += dr[half][t];
        dr[0][t] = p.erase ? sum : 0.0f;
        const float to_a = after_token(p, n, t, 0);
        if constexpr (S) mask_gradient.to_a[t] = to_a, mask_gradient.to_b[t] = after_token(p, n, t, 1);
        else {
            const float last = total(OF_LAST_C, t);
            if (ADD) join_writes(t, last);
            mask_gradient.finish(t, to_a + (t + 1 == n ? total_carried(0) : 0.0f), ADD ? gates[0][t] * last : last);
        }
    }

    // (32) and (14), with everything gathered.
    __device__ __forceinline__ void finish(const Bf16Gradients& args, const Chunk& chunk) {
        __syncthreads();
        const u32 t = threadIdx.x;
        if (t < CHUNK) join(args.p, chunk.tokens);
        __syncthreads();
        if constexpr (S) {
            const auto last = [&](u32 j) { return make_float2(total(OF_LAST_C, j), total(OF_LAST_E, j)); };
            const auto last_of_first = [&] { return Transition2x2{total_carried(0), total_carried(1), total_carried(2)}; };
            mask_gradient.back(gates, chunk.tokens, last, last_of_first);
            __syncthreads();
        }
        write(args, chunk);
    }
    // SHARING threads to a token.
    __device__ __forceinline__ void write(const Bf16Gradients& args, const Chunk& chunk) const {
        const u32 t = threadIdx.x / SHARING;
        float da, deta = 0.0f;
        if constexpr (S) {
            const float2 both = mask_gradient.template gradient<SHARING>(t, threadIdx.x % SHARING);
            da = shared_sum(both.x), deta = shared_sum(both.y);
        } else {
            da = shared_sum(mask_gradient.template gradient<SHARING>(t, threadIdx.x % SHARING));
        }
        // One thread a token writes; tokens after the last have none.
        if (threadIdx.x % SHARING != 0 || t >= chunk.tokens) return;
        const Four of = {gates[0][t], gates[1][t], gates[2][t], gates[3][t]};
        const GateGrads grads = lower_backward(args.p, of, dw[t], -dr[0][t], S ? da : 0.0f, deta);
        const u64 at = chunk.token(args.p, t);
        // Without momentum da of the mask is by log a already.
        args.log_a[at] = S ? grads.log_a : grads.log_a + da;
        args.theta[at] = grads.theta;
        if (args.log_eta) args.log_eta[at] = grads.log_eta;
        if (args.beta) args.beta[at] = grads.beta;
    }
};
