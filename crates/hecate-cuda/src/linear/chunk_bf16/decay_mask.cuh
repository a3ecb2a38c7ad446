// How much each write of a chunk counts in later states: c of (15)-(17).
//
// A chunk is four sub-chunks of 16 tokens. Full tables [CHUNK,CHUNK] would take 16 KiB of shared memory; these take 5.
#pragma once
#include "chunk.cuh"

// Products of a of the tokens of a chunk, out of which c is made where there is no momentum: c[t,j] = Π_{j < s ≤ t} a_s.
// Within a sub-chunk of 16 tokens by recursion. From one sub-chunk to a later one by what is after j in its own, the
// sub-chunks between, and what is up to t in its own. All are products of values in [0,1] that belong to c.
struct DecayMask {
    // c[t,j] of a sub-chunk, by t and j modulo 16
    float within[CHUNK][17];
    // Π over the sub-chunk's tokens up to t
    float up_to[CHUNK];
    // Π over the sub-chunks between two, by the later's number
    float between[4][4];

    // Of one token a thread, as row and as column; `a` is that of token `s` by `a(s)`.
    // Thread j has column j of its sub-chunk, and as row j the product up to it.
    template <class F>
    __device__ __forceinline__ void begin(u32 j, F a) {
        const u32 top = j / 16 * 16;
        // c[t,j] for t ≥ j, and the product up to token j.
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

    // After a barrier; of 16 threads.
    __device__ __forceinline__ void join(u32 i) {
        float product = 1.0f;
        for (u32 n = i % 4 + 1; n < i / 4; n++) product *= up_to[16 * n + 15];
        between[i / 4][i % 4] = product;
    }

    // c[t,j] of the last token.
    // Column j through its own sub-chunk, then through all later ones.
    __device__ __forceinline__ float last(u32 j) const {
        float product = within[j / 16 * 16 + 15][j % 16];
        for (u32 n = j / 16 + 1; n < 4; n++) product *= up_to[16 * n + 15];
        return product;
    }
    // c[t,j] of rows t = i, i + 8 and columns j, j + 1, and c[t-1,j]; 0 where j is later. Rows of a warp are of one sub-chunk,
    // columns too, so that all go one way.
    __device__ __forceinline__ void at(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        #pragma unroll
        for (u32 h = 0; h < 2; h++)
            #pragma unroll
            for (u32 e = 0; e < 2; e++) now[h][e] = before[h][e] = 0.0f;
        // Within one sub-chunk: as it was made.
        if (j / 16 == i / 16) {
            #pragma unroll
            for (u32 h = 0; h < 2; h++)
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    now[h][e] = within[i + 8 * h][j % 16 + e];
                    if (i + 8 * h > j + e) before[h][e] = within[i + 8 * h - 1][j % 16 + e];
                }
        } else if (j < i) {
            // To a later one: what is after j, what lies between, what is up to t.
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
        // Whole sub-chunks before that of t.
        for (u32 n = 0; n < t / 16; n++) product *= up_to[16 * n + 15];
        return product;
    }
};

// A token takes (c, E) to (a c + η E, η E); one token after another is such a triangle too, (c, E) to (a c + b E, e E).
struct Transition2x2 {
    // Of c by c, of c by E, of E by E: what is below the diagonal is 0.
    float a, b, e;

    // What leaves (c, E) as they are.
    static __device__ __forceinline__ Transition2x2 none() { return {1.0f, 0.0f, 1.0f}; }
    // What comes to (c, E), and what the gradients of what came give back.
    __device__ __forceinline__ float2 forth(float2 x) const { return make_float2(a * x.x + b * x.y, e * x.y); }
    // Returns the gradient of x, given that of `forth(x)`.
    __device__ __forceinline__ float2 back(float2 x) const { return make_float2(a * x.x, b * x.x + e * x.y); }
    // This one, then another.
    __device__ __forceinline__ Transition2x2 then(Transition2x2 next) const {
        return Transition2x2{next.a * a, next.a * b + next.b * e, next.e * e};
    }
    // What gradients by all three of a triangle after this one give to those of the one before.
    __device__ __forceinline__ Transition2x2 gradient(Transition2x2 of) const {
        return Transition2x2{a * of.a, a * of.b, b * of.b + e * of.e};
    }
};

// The same with momentum, out of triangles; tokens from `tokens` on leave c and E as they are.
struct MomentumMask {
    // c[t,j] of a sub-chunk
    float within[CHUNK][17];
    // c and E of a write after its sub-chunk
    float2 end[CHUNK];
    // Of the sub-chunk's tokens up to t
    Transition2x2 up_to[CHUNK];
    Transition2x2 between[4][4];

    // Of two threads a token.
    __device__ __forceinline__ void begin(u32 tokens, const Four* gates) {
        const u32 j = threadIdx.x % CHUNK, top = j / 16 * 16;
        if (threadIdx.x < CHUNK) {
            // c and E of the write, from its own token on.
            float now = 0.0f, pushed = 0.0f;
            #pragma unroll
            for (u32 i = 0; i < 16; i++) {
                const u32 s = top + i;
                const Four of = gates[s];
                if (s == j) now = pushed = 1.0f;
                if (s > j && s < tokens) pushed *= of.w, now = of.z * now + pushed;
                within[s][j % 16] = now;
            }
            end[j] = make_float2(now, pushed);
        } else if (threadIdx.x < 2 * CHUNK) {
            // All tokens of the sub-chunk up to j, one after another.
            Transition2x2 of = Transition2x2::none();
            #pragma unroll
            for (u32 i = 0; i < 16; i++) {
                const Four gate = gates[top + i];
                if (top + i <= j && top + i < tokens) of = of.then(Transition2x2{gate.z, gate.w, gate.w});
            }
            up_to[j] = of;
        }
    }
    // A whole sub-chunk.
    __device__ __forceinline__ Transition2x2 through(u32 sub_chunk) const { return up_to[16 * sub_chunk + 15]; }

    // After a barrier; of 16 threads.
    __device__ __forceinline__ void join(u32 i) {
        Transition2x2 of = Transition2x2::none();
        for (u32 n = i % 4 + 1; n < i / 4; n++) of = of.then(through(n));
        between[i / 4][i % 4] = of;
    }

    // c and E of the last token.
    __device__ __forceinline__ float2 last(u32 j) const {
        float2 x = end[j];
        for (u32 n = j / 16 + 1; n < 4; n++) x = through(n).forth(x);
        return x;
    }
    // As `DecayMask::at`: now c[t,j] and before c[t-1,j].
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
            // To a later sub-chunk: c and E of the write, through those between, then up to t.
            const Transition2x2 both = between[i / 16][j / 16];
            const float2 x[2] = {both.forth(end[j]), both.forth(end[j + 1])};
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const Transition2x2 row = up_to[i + 8 * h], above = h || i % 16 ? up_to[i + 8 * h - 1] : Transition2x2::none();
                #pragma unroll
                for (u32 e = 0; e < 2; e++) now[h][e] = row.forth(x[e]).x, before[h][e] = above.forth(x[e]).x;
            }
        }
    }
    // What all tokens up to t do to the state before the chunk: A, b and E are its elements.
    __device__ __forceinline__ Transition2x2 state(u32 t) const {
        Transition2x2 of = Transition2x2::none();
        for (u32 n = 0; n < t / 16; n++) of = of.then(through(n));
        return of.then(up_to[t]);
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
