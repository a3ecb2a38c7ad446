// How much each write of a chunk counts in later states: c of (15)-(17).
#pragma once
#include "chunk.cuh"

// Products of a of the tokens of a chunk, out of which c is made where there is no momentum: c[t,j] = Π_{j < s ≤ t} a_s.
// Within a stretch of 16 tokens by recursion; from one stretch to a later one by what is behind j in its own, the
// stretches between, and what is up to t in its own. All are products of numbers in [0,1] that belong to c.
struct Decays {
    float within[CHUNK][17];       // c[t,j] of a stretch, by t and j modulo 16
    float up_to[CHUNK];            // Π over the stretch's tokens up to t
    float between[4][4];           // Π over the stretches between two, by the later's number

    // Of one token a thread, as row and as column; `a` is that of token `s` by `a(s)`.
    template <class F>
    __device__ __forceinline__ void begin(u32 j, F a) {
        const u32 top = j / 16 * 16;
        float c = 1.0f, product = 1.0f;
        #pragma unroll
        for (u32 i = 0; i < 16; i++) {
            const float now = a(top + i);
            if (top + i > j) c *= now;
            if (top + i <= j) product *= now;
            within[top + i][j % 16] = top + i >= j ? c : 0.0f;
        }
        up_to[j] = product;
    }

    // Behind a barrier; of 16 threads.
    __device__ __forceinline__ void join(u32 i) {
        float product = 1.0f;
        for (u32 n = i % 4 + 1; n < i / 4; n++) product *= up_to[16 * n + 15];
        between[i / 4][i % 4] = product;
    }

    // c[t,j] of the last token.
    __device__ __forceinline__ float last(u32 j) const {
        float product = within[j / 16 * 16 + 15][j % 16];
        for (u32 n = j / 16 + 1; n < 4; n++) product *= up_to[16 * n + 15];
        return product;
    }
    // c[t,j] of rows t = i, i + 8 and columns j, j + 1, and c[t-1,j]; 0 where j is later. Rows of a warp are of one stretch,
    // columns too, so that all go one way.
    __device__ __forceinline__ void at(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        #pragma unroll
        for (u32 h = 0; h < 2; h++)
            #pragma unroll
            for (u32 e = 0; e < 2; e++) now[h][e] = before[h][e] = 0.0f;
        if (j / 16 == i / 16) {
            #pragma unroll
            for (u32 h = 0; h < 2; h++)
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    now[h][e] = within[i + 8 * h][j % 16 + e];
                    if (i + 8 * h > j + e) before[h][e] = within[i + 8 * h - 1][j % 16 + e];
                }
        } else if (j < i) {
            const float between_both = between[i / 16][j / 16], *end = within[j / 16 * 16 + 15] + j % 16;
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const float row = up_to[i + 8 * h], above = h || i % 16 ? up_to[i + 8 * h - 1] : 1.0f;
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    now[h][e] = row * (between_both * end[e]);
                    before[h][e] = above * (between_both * end[e]);
                }
            }
        }
    }
    // A[t + 1], of the state before the chunk.
    __device__ __forceinline__ float state(u32 t) const {
        float product = up_to[t];
        for (u32 n = 0; n < t / 16; n++) product *= up_to[16 * n + 15];
        return product;
    }
};

// The same where c lies in a table [CHUNK,WIDE].
__device__ __forceinline__ void masks_at(const float* c, u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) {
    #pragma unroll
    for (u32 h = 0; h < 2; h++)
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            const u32 t = i + 8 * h;
            now[h][e] = t >= j + e ? c[t * WIDE + j + e] : 0.0f;
            before[h][e] = t > j + e ? c[(t - 1) * WIDE + j + e] : 0.0f;
        }
}
