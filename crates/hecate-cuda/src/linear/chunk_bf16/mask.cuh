// How much each write of a chunk counts in later states: c of (15)-(17), and what its gradient gives to the gates, (31)
// and (32).
//
// The gradient of c comes in blocks [16,16] of tokens t and writes j, as a warp's sums lie: `now` of c[t,j], `before` of
// c[t-1,j]. Without momentum it comes times c, the gradient of its logarithm, so that token s gets Σ_{t ≥ s > j} of it.
#pragma once
#include "chunk_bf16/fragments.cuh"
#include "chunk_bf16/decay_mask.cuh"

// Of the rows t of a tile [16,8] what stands in t + 1; nothing after the last.
__device__ __forceinline__ void row_after(const float (&x)[4], float (&y)[4]) {
    // A row of a tile is four neighbouring lanes'; the next row is four lanes on, or in the lower half.
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 e = 0; e < 2; e++) {
        y[e] = shuffle(lane < 4 ? x[2 + e] : x[e], lane + 4);
        y[2 + e] = shuffle(lane < 4 ? 0.0f : x[2 + e], lane + 4);
    }
}

// Gates of a chunk's tokens: w, r, a, η.
// In shared memory.
typedef float Gates[4][CHUNK];

// N elements that lie one after another, 16 bytes at once.
template <u32 N>
__device__ __forceinline__ void read_all(float (&x)[N], const float* from) {
    #pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        // Arrays begin at multiples of 16 bytes.
        const float4 of = *(const float4*)(from + i);
        x[i] = of.x, x[i + 1] = of.y, x[i + 2] = of.z, x[i + 3] = of.w;
    }
}

// c of the tokens of a chunk, and its gradient; S: with momentum. Both forms have the same functions.
template <bool S>
struct MaskGradient;

// Without momentum: no table of c, and of its gradient only what lies on the diagonal, and sums of the blocks below.
template <>
struct MaskGradient<false> {
    DecayMask mask;
    // Of the own sub-chunk, by t and j modulo 16
    float block[CHUNK][17];
    // Sums over each earlier sub-chunk's writes
    __align__(16) float now[CHUNK][4], before[CHUNK][4];
    // Sums over each later sub-chunk's tokens
    float later[4][CHUNK];
    // Of c of the last token; of A after each token
    float ends[CHUNK], first[CHUNK];

    // With a barrier in front; another one after it, `join`, and one more.
    __device__ __forceinline__ void begin(const Gates& gates) {
        if (threadIdx.x < CHUNK) mask.begin(threadIdx.x, [&](u32 s) { return gates[2][s]; });
    }
    // Of 16 threads: what lies between two sub-chunks.
    template <u32 PARTS>
    __device__ __forceinline__ void join() {
        if (threadIdx.x < 16) mask.join(threadIdx.x);
    }
    // Loads c[t,j] and c[t-1,j] of a thread's two rows and two columns.
    __device__ __forceinline__ void at(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        mask.at(i, j, now, before);
    }
    // A and b of the state before token t.
    __device__ __forceinline__ float a_of(u32 t) const { return t ? mask.state(t - 1) : 1.0f; }
    // Without momentum there is no b.
    __device__ __forceinline__ float b_of(u32) const { return 0.0f; }

    // The gradient of a block's c, of a warp.
    __device__ __forceinline__ void take(u32 row, u32 column, const float (&of)[2][4], const float (&of_before)[2][4]) {
        const u32 lane = threadIdx.x % 32, t = row + lane / 4, j = lane % 4 * 2;
        // On the diagonal every element is needed: it stands in the sub-chunk's block.
        if (column == row) {
            #pragma unroll
            for (u32 tile = 0; tile < 2; tile++) {
                float up[4];
                row_after(of_before[tile], up);
                #pragma unroll
                for (u32 x = 0; x < 4; x++) block[t + x / 2 * 8][8 * tile + j + x % 2] = of[tile][x] + up[x];
            }
            return;
        }
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float x = of[0][2 * h] + of[0][2 * h + 1] + of[1][2 * h] + of[1][2 * h + 1];
            float y = of_before[0][2 * h] + of_before[0][2 * h + 1] + of_before[1][2 * h] + of_before[1][2 * h + 1];
            x += shuffle_xor(x, 1), y += shuffle_xor(y, 1);
            x += shuffle_xor(x, 2), y += shuffle_xor(y, 2);
            // Below it sums over the writes of a sub-chunk are enough,
            if (lane % 4 == 0) now[t + 8 * h][column / 16] = x, before[t + 8 * h][column / 16] = y;
        }
        #pragma unroll
        for (u32 x = 0; x < 4; x++) {
            float sum = of[x / 2][x % 2] + of[x / 2][2 + x % 2] + of_before[x / 2][x % 2] + of_before[x / 2][2 + x % 2];
            #pragma unroll
            for (u32 mask = 4; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
            // and sums over the tokens of a sub-chunk.
            if (lane < 4) later[row / 16][column + x / 2 * 8 + j + x % 2] = sum;
        }
    }

    // Of one token a thread, all blocks taken: `to_a` belongs to A after it, `last` to c of the last token.
    __device__ __forceinline__ void finish(u32 t, float to_a, float last) {
        // Running sums over the writes of the own sub-chunk before each,
        float sum = 0.0f;
        #pragma unroll
        for (u32 j = 0; j < 16; j++) {
            const float x = block[t][j];
            block[t][j] = sum;
            sum += x;
        }
        // over the writes of earlier sub-chunks,
        float of_now = 0.0f, of_before = 0.0f, after = 0.0f;
        for (u32 i = 0; i < t / 16; i++) {
            const float x = now[t][i], y = before[t][i];
            now[t][i] = of_now, before[t][i] = of_before;
            of_now += x, of_before += y;
        }
        now[t][t / 16] = of_now, before[t][t / 16] = of_before;
        // and over later tokens.
        for (u32 i = t / 16 + 1; i < 4; i++) after += later[i][t];
        later[0][t] = after;
        ends[t] = last * mask.last(t);
        first[t] = mask.state(t) * to_a;
    }

    // The gradient of log a of token s, the `part`th of PARTS; after a barrier.
    template <u32 PARTS>
    __device__ __forceinline__ float gradient(u32 s, u32 part) const {
        // log a of token s is in c[t,j] of every t ≥ s > j.
        const u32 top = s / 16 * 16;
        float sum = 0.0f;
        for (u32 t = s + part; t < CHUNK; t += PARTS)
            // Rows t ≥ s: the first state and earlier sub-chunks.
            sum += first[t] + now[t][s / 16] + (t > s ? before[t][s / 16] : 0.0f);
        // Columns j < s: the last token's c and later sub-chunks.
        for (u32 j = part; j < s; j += PARTS) sum += ends[j] + (j >= top ? later[0][j] : 0.0f);
        // The own sub-chunk, element by element.
        for (u32 t = s + part; t < top + 16; t += PARTS) sum += block[t][s % 16];
        return sum;
    }
};

// With momentum: tables. Stretches of 16 tokens go side by side, and what goes from one to a later one goes by triangles.
template <>
struct MaskGradient<true> {
    __align__(16) float dc[CHUNK][WIDE];
    float c[CHUNK][WIDE], e[CHUNK][WIDE];
    // Of c of the token before the first of a sub-chunk
    float edge[4][CHUNK];
    // A, b and E of the state before each token
    float a[CHUNK], b[CHUNK], first[CHUNK];
    // Gradients of A and b after each token
    float to_a[CHUNK], to_b[CHUNK];
    // What the states before the chunk give to a and η
    float grads[2][CHUNK];
    // Of the sub-chunk's tokens up to t
    Transition2x2 up_to[CHUNK];
    // What a sub-chunk gives to c and E, of earlier writes, before it
    float2 before[4][CHUNK];
    // And to A, b and E
    Transition2x2 first_before[4];

    // A whole sub-chunk.
    __device__ __forceinline__ Transition2x2 through(u32 sub_chunk) const { return up_to[16 * sub_chunk + 15]; }

    // Gates a and η of a sub-chunk, all read at once: nothing below waits for one after another.
    struct SubChunkGates {
        float a[16], eta[16];
        // Reads the gates of 16 tokens from `top` on.
        __device__ __forceinline__ SubChunkGates(const Gates& gates, u32 top) {
            read_all(a, gates[2] + top);
            read_all(eta, gates[3] + top);
        }
    };

    // A column a thread, of its own sub-chunk; the triangle of a token by one more.
    __device__ __forceinline__ void begin(const Gates& gates) {
        // Two threads a column: one for c and E, one for the transition.
        if (threadIdx.x >= 2 * CHUNK) return;
        const u32 j = threadIdx.x % CHUNK, top = j / 16 * 16;
        const SubChunkGates of(gates, top);
        if (threadIdx.x < CHUNK) {
            float now = 0.0f, pushed = 0.0f;
            #pragma unroll
            for (u32 i = 0; i < 16; i++) {
                const u32 s = top + i;
                // (16), (17).
                pushed = s == j ? 1.0f : s > j ? pushed * of.eta[i] : 0.0f;
                now = s > j ? of.a[i] * now + pushed : pushed;
                c[s][j] = now;
                e[s][j] = pushed;
            }
        } else {
            Transition2x2 up_to_j = Transition2x2::none();
            #pragma unroll
            for (u32 i = 0; i < 16; i++)
                if (top + i <= j) up_to_j = up_to_j.then(Transition2x2{of.a[i], of.eta[i], of.eta[i]});
            up_to[j] = up_to_j;
        }
    }
    // After a barrier, with PARTS threads a column: later sub-chunks; A, b and E by a token a thread.
    template <u32 PARTS>
    __device__ __forceinline__ void join() {
        // Column j, of sub-chunk `own`; PARTS threads take its later tokens in turn.
        const u32 j = threadIdx.x % CHUNK, own = j / 16, part = threadIdx.x / CHUNK;
        // c and E at the end of the own sub-chunk.
        float2 x = make_float2(c[16 * own + 15][j], e[16 * own + 15][j]);
        // All transitions are read before the first is used.
        Transition2x2 to[3][16 / PARTS], whole[3];
        #pragma unroll
        for (u32 n = 0; n < 3; n++) {
            whole[n] = through(n);
            #pragma unroll
            for (u32 i = 0; i < 16 / PARTS; i++) to[n][i] = up_to[16 * (n + 1) + part + i * PARTS];
        }
        #pragma unroll
        for (u32 sub_chunk = 1; sub_chunk < 4; sub_chunk++) {
            if (sub_chunk <= own) continue;
            if (sub_chunk > own + 1) x = whole[sub_chunk - 1].forth(x);
            #pragma unroll
            for (u32 i = 0; i < 16 / PARTS; i++) {
                const u32 t = 16 * sub_chunk + part + i * PARTS;
                const float2 of = to[sub_chunk - 1][i].forth(x);
                c[t][j] = of.x, e[t][j] = of.y;
            }
        }
        // A, b and E of the state before token j: whole sub-chunks, then tokens of the own one.
        if (part > 0) return;
        Transition2x2 of = Transition2x2::none();
        #pragma unroll
        for (u32 n = 0; n < 3; n++)
            if (n < own) of = of.then(whole[n]);
        if (j % 16 > 0) of = of.then(up_to[j - 1]);
        a[j] = of.a, b[j] = of.b, first[j] = of.e;
    }
    // c[t,j] and c[t-1,j] of a thread's two rows and two columns.
    __device__ __forceinline__ void at(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        masks_at(&c[0][0], i, j, now, before);
    }
    // Returns A of the state before token t.
    __device__ __forceinline__ float a_of(u32 t) const { return a[t]; }
    // Returns b of the state before token t.
    __device__ __forceinline__ float b_of(u32 t) const { return b[t]; }

    // The gradient of a block's c [16,16], of a warp: each element has its place in the table.
    __device__ __forceinline__ void take(u32 row, u32 column, const float (&of)[2][4], const float (&of_before)[2][4]) {
        const u32 lane = threadIdx.x % 32, t = row + lane / 4;
        #pragma unroll
        for (u32 tile = 0; tile < 2; tile++) {
            const u32 j = column + 8 * tile + lane % 4 * 2;
            float up[4];
            row_after(of_before[tile], up);
            *(float2*)&dc[t][j] = make_float2(of[tile][0] + up[0], of[tile][1] + up[1]);
            *(float2*)&dc[t + 8][j] = make_float2(of[tile][2] + up[2], of[tile][3] + up[3]);
            if (lane < 4) *(float2*)&edge[row / 16][j] = make_float2(of_before[tile][0], of_before[tile][1]);
        }
    }

    // (32): what each write's influence gives to a and η, in place of dc and c; n tokens. `last` of a write belongs to c and E
    // of the last token, `last_of_first` to A, b and E after it. First each sub-chunk by itself, as if nothing came from
    // later ones, for what it gives to earlier ones; then with all that comes.
    template <class F, class G>
    __device__ __forceinline__ void back(const Gates& gates, u32 n, F last, G last_of_first) {
        // A thread has column j of one sub-chunk; `final` has the last token.
        const u32 sub_chunk = threadIdx.x / CHUNK, j = threadIdx.x % CHUNK, final = (n - 1) / 16;
        const u32 chain = threadIdx.x - (blockDim.x - 4);  // a sub-chunk too, of those few that have A, b and E
        const bool later = sub_chunk < 4 && sub_chunk > j / 16;
        float2 of = {};
        float above = 0.0f;
        if (sub_chunk == final) of = last(j);
        if (later) {
            before[sub_chunk][j] = back_through<false>(gates, sub_chunk, j, n, float2{}, of, 0.0f);
            // Another one writes over it.
            above = c[16 * sub_chunk - 1][j];
        }
        // The last four threads of the block have the states before the chunk, a sub-chunk each.
        Transition2x2 of_first = {};
        if (chain < 4) {
            if (chain == final) of_first = last_of_first();
            first_before[chain] = first_back_through<false>(gates, chain, n, Transition2x2{}, of_first);
        }
        // What each sub-chunk gives by itself is there.
        __syncthreads();
        if (sub_chunk < 4) {
            float2 after = {};
            for (u32 i = 3; i > sub_chunk; i--) {
                after = through(i).back(after);
                if (i > j / 16) after.x += before[i][j].x, after.y += before[i][j].y;
            }
            back_through<true>(gates, sub_chunk, j, n, after, of, above);
        }
        if (chain < 4) {
            Transition2x2 after = {};
            for (u32 i = 3; i > chain; i--) {
                after = through(i).gradient(after);
                after.a += first_before[i].a, after.b += first_before[i].b, after.e += first_before[i].e;
            }
            first_back_through<true>(gates, chain, n, after, of_first);
        }
    }
    // A write through a sub-chunk: from what belongs to its c and E after the sub-chunk, and to the last token's, to what
    // belongs to them before. `above`: c before the sub-chunk.
    template <bool STORE>
    __device__ __forceinline__ float2 back_through(
        const Gates& gates, u32 sub_chunk, u32 j, u32 n, float2 of, float2 last, float above
    ) {
        const u32 top = 16 * sub_chunk;
        const SubChunkGates gate(gates, top);
        // All is read before the recursion, which then waits for nothing.
        float to_c[16], now_c[16], now_e[16];
        #pragma unroll
        for (u32 i = 0; i < 16; i++) {
            to_c[i] = dc[top + i][j];
            if (STORE && i < 15) now_c[i] = c[top + i][j];
            if (STORE) now_e[i] = top + i > 0 ? e[top + i - 1][j] : 0.0f;
        }
        if (sub_chunk < 3) to_c[15] += edge[sub_chunk + 1][j];
        #pragma unroll
        for (u32 i = 16; i-- > 0;) {
            const u32 s = top + i;
            float da = 0.0f, deta = 0.0f;
            if (s < n && s >= j) {
                // The last token's c and E have gradients of their own.
                if (s + 1 == n) of.x += last.x, of.y += last.y;
                // Gradients of c and E of token s.
                const float now = to_c[i] + of.x, pushed = now + of.y;
                if (STORE && s > j) da = now * (i > 0 ? now_c[i - 1] : above), deta = pushed * now_e[i];
                // To those of the token before.
                of.x = gate.a[i] * now, of.y = gate.eta[i] * pushed;
            }
            if (STORE) dc[s][j] = da, c[s][j] = deta;
        }
        return of;
    }
    // The same of the states before the chunk. After its last token nothing comes in, and a and η are 1.
    template <bool STORE>
    __device__ __forceinline__ Transition2x2 first_back_through(
        const Gates& gates, u32 sub_chunk, u32 n, Transition2x2 of, Transition2x2 last
    ) {
        #pragma unroll 1
        for (u32 half = 2; half-- > 0;) {
            const u32 top = 16 * sub_chunk + 8 * half;
            float gate[8], eta[8], with_a[8], with_b[8], now_a[8], now_b[8], now_e[8];
            read_all(gate, gates[2] + top), read_all(eta, gates[3] + top);
            read_all(with_a, to_a + top), read_all(with_b, to_b + top);
            if (STORE) read_all(now_a, a + top), read_all(now_b, b + top), read_all(now_e, first + top);
            #pragma unroll
            for (u32 i = 8; i-- > 0;) {
                const u32 s = top + i;
                if (s + 1 == n) of.a += last.a, of.b += last.b, of.e += last.e;
                // Gradients of A, b and E after token s.
                const float da = of.a + with_a[i], db = of.b + with_b[i], de = of.e + db;
                if (STORE) grads[0][s] = da * now_a[i] + db * now_b[i], grads[1][s] = de * now_e[i];
                of = Transition2x2{gate[i] * da, gate[i] * db, eta[i] * de};
            }
        }
        return of;
    }
    // Sums over writes, the `part`th of PARTS.
    template <u32 PARTS>
    __device__ __forceinline__ float2 gradient(u32 s, u32 part) const {
        float2 sum = part == 0 ? make_float2(grads[0][s], grads[1][s]) : make_float2(0.0f, 0.0f);
        for (u32 j = part; j < CHUNK; j += PARTS) sum.x += dc[s][j], sum.y += c[s][j];
        return sum;
    }
};
