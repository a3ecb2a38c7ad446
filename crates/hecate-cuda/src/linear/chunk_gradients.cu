// The exact chunk form: gradients of what a chunk was given, once its columns are through. Tables of c and E give those of
// keys, queries and gates: equations (26)-(28), (31) and (32).
#include "chunk_gradients.cuh"

// (15)-(17), a column a thread: E of the state before is left in `first`.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void Gradients<KEYS, WIDTH, S>::build_tables(float* first) {
    // [CHUNK,WIDE] each.
    float *c = table(0), *e = table(1);
    const u32 j = threadIdx.x;
    // c and E of write j at token s.
    float now = 0.0f, pushed = 0.0f;
    for (u32 s = 0; s < CHUNK; s++) {
        if (j < CHUNK) {
            if (s >= j) {
                pushed = s == j ? 1.0f : pushed * gates[3][s];
                now = gates[2][s] * now + pushed;
            }
            c[s * WIDE + j] = now;
            e[s * WIDE + j] = pushed;
        } else if (j == CHUNK) {
            pushed = s == 0 ? 1.0f : pushed * gates[3][s - 1];
            first[s] = pushed;
        }
    }
}

// dN, dG, and dc of (31), then the squares' part of dQ and dK: (26)-(28).
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void Gradients<KEYS, WIDTH, S>::squares() {
    float *c = table(0), *dn = table(2), *dg = table(3), *dc = table(4);
    // A warp's part of both squares.
    Sum<Square::TILES> n, g;
    // K Kᵀ and Q Kᵀ again: keeping them would take the columns' place.
    n.clear(), g.clear();
    auto key_across = [&](u32 j, u32 i) { return k[i * STRIDE + j]; };
    product(n, square.row, square.column, KEYS, [&](u32 i, u32 j) { return k[i * STRIDE + j]; }, key_across);
    product(g, square.row, square.column, KEYS, [&](u32 i, u32 j) { return q[i * STRIDE + j]; }, key_across);
    RowSums rows;
    across_square([&](u32 i, u32 j, u32 tile, u32 e) {
        float before = i > j ? c[(i - 1) * WIDE + j] : 0.0f, after = i >= j ? c[i * WIDE + j] : 0.0f;
        // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
        rows.add(e, erased.x[tile][e] * before * n.x[tile][e]);
        erased.x[tile][e] *= -gates[1][i];
        // dN, dG and dc of token i and write j.
        dn[i * WIDE + j] = before * erased.x[tile][e];
        dg[i * WIDE + j] = (p.before ? before : after) * read.x[tile][e];
        dc[i * WIDE + j] = i >= j && !p.before ? g.x[tile][e] * read.x[tile][e] : 0.0f;
    });
    if (p.erase) rows.finish(square.row, sums[square.side][DR]);
    __syncthreads();
    across_square([&](u32 i, u32 j, u32 tile, u32 e) {
        if (i <= j) return;
        // Gradients of c of the token before, added where that token's stand.
        float more = n.x[tile][e] * erased.x[tile][e] + (p.before ? g.x[tile][e] * read.x[tile][e] : 0.0f);
        dc[(i - 1) * WIDE + j] += more;
    });
    auto key = [&](u32 i, u32 j) { return k[i * STRIDE + j]; };
    product(dq, keys.row, keys.column, CHUNK, [&](u32 i, u32 j) { return dg[i * WIDE + j]; }, key);
    product(dk, keys.row, keys.column, CHUNK, [&](u32 i, u32 j) { return dg[j * WIDE + i]; },
            [&](u32 i, u32 j) { return q[i * STRIDE + j]; });
    if (p.erase)
        product(dk, keys.row, keys.column, CHUNK, [&](u32 i, u32 j) { return dn[i * WIDE + j] + dn[j * WIDE + i]; }, key);
    // Elements of tokens and keys that the arrays have.
    auto write = [&](Array to) {
        return [this, to](u32 i, u32 j, float value) {
            if (i < chunk.tokens && j < p.key) store(to, chunk.token(p, i) * p.key + j, value);
        };
    };
    dq.each(keys.row, keys.column, write(args.dq));
    dk.each(keys.row, keys.column, write(args.dk));
}

// (32), a column a thread: what each write's influence gives to a and η, in place of dc and c.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void Gradients<KEYS, WIDTH, S>::back_through_tables() {
    float *c = table(0), *e = table(1), *dc = table(4);
    const u32 j = threadIdx.x, n = chunk.tokens;
    // What the token after gives to c and E of write j.
    float next_c = 0.0f, next_e = 0.0f;
    for (u32 s = CHUNK; s-- > 0;) {
        float da = 0.0f, deta = 0.0f;
        if (s < n && s >= j) {
            // The last token's c and E have gradients of their own: (31).
            float last = s + 1 == n ? 1.0f : 0.0f;
            float now = dc[s * WIDE + j] + next_c + (last != 0.0f ? sum_of(DC_LAST, j) : 0.0f);
            float pushed = now + next_e + (S && last != 0.0f ? sum_of(DE_LAST, j) : 0.0f);
            if (s > j) da = now * c[(s - 1) * WIDE + j], deta = pushed * e[(s - 1) * WIDE + j];
            next_c = gates[2][s] * now, next_e = gates[3][s] * pushed;
        }
        dc[s * WIDE + j] = da;
        c[s * WIDE + j] = deta;
    }
}

// The same of the states before the chunk, by one thread: [0] to a, [1] to η; `first` holds E.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void Gradients<KEYS, WIDTH, S>::back_to_first(const float* first, const float* last, float (*to)[CHUNK]) {
    const u32 n = chunk.tokens;
    // What the token after gives to A, b and E.
    float next_a = last[0], next_b = last[1], next_e = last[2];
    for (u32 s = n; s-- > 0;) {
        u32 t = s + 1;
        float da = next_a + (seen ? sum_of(DA_READ, s) : t < n ? sum_of(DA_READ, t) : 0.0f);
        float db = next_b + (seen ? sum_of(DB_READ, s) : t < n ? sum_of(DB_READ, t) : 0.0f);
        if (t < n) da -= gates[1][t] * sum_of(DA_ERASE, t), db -= gates[1][t] * sum_of(DB_ERASE, t);
        float de = next_e + db;
        to[0][s] = da * a()[s] + db * b()[s];
        to[1][s] = de * first[s];
        next_a = gates[2][s] * da, next_b = gates[2][s] * db, next_e = gates[3][s] * de;
    }
}

// Gradients of the gates: four threads to a token.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void Gradients<KEYS, WIDTH, S>::write_gates(const float (*first)[CHUNK]) {
    // Sums over a row of dc and c, which hold what each write gives to a and η, and what the first state gives.
    const u32 i = threadIdx.x / 4;
    float da = 0.0f, deta = 0.0f;
    for (u32 j = threadIdx.x % 4; j < CHUNK; j += 4) {
        // Four threads go through a row of each table.
        da += table(4)[i * WIDE + j];
        deta += table(0)[i * WIDE + j];
    }
    #pragma unroll
    for (u32 mask = 1; mask < 4; mask *= 2) {
        da += shuffle_xor(da, mask);
        deta += shuffle_xor(deta, mask);
    }
    // One of the four threads writes.
    if (threadIdx.x % 4 != 0 || i >= chunk.tokens) return;
    const Four of = {gates[0][i], gates[1][i], gates[2][i], gates[3][i]};
    GateGrads grads = lower_backward(p, of, sum_of(DW, i), -sum_of(DR, i), da + first[0][i], deta + first[1][i]);
    const u64 at = chunk.token(p, i);
    args.log_a[at] = grads.log_a;
    args.theta[at] = grads.theta;
    if (args.log_eta) args.log_eta[at] = grads.log_eta;
    if (args.beta) args.beta[at] = grads.beta;
}

// A block has chunk `blockIdx.x % chunks` of one head.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void gradients(const ChunkGradients& args, float* shared) {
    __shared__ float gates[4][CHUNK], vectors[VECTORS], sums[2][SUMS][CHUNK], first[CHUNK], grads[2][CHUNK], few[32];
    __shared__ float erase[2][CHUNK];
    Gradients<KEYS, WIDTH, S> of(args, shared, gates, vectors, sums, erase);
    if (of.chunk.tokens == 0) return;
    // Shared memory that does not depend on sizes is static, the rest is dynamic.
    of.begin();
    for (u32 column = 0; column < args.p.value; column += WIDTH) of.columns(column);
    // <dM,M₀>, <dM,S₀>, <dS,S₀> over the block.
    float last[3];
    #pragma unroll
    for (u32 i = 0; i < 3; i++) last[i] = block_sum(of.carried[i], few);
    of.build_tables(first);
    __syncthreads();
    of.squares();
    __syncthreads();
    // Columns of the tables are threads'; the state before the chunk is one more thread's.
    if (threadIdx.x < CHUNK) of.back_through_tables();
    else if (threadIdx.x == CHUNK) of.back_to_first(first, last, grads);
    __syncthreads();
    of.write_gates(grads);
}

// With momentum, keys of 128 leave room for 16 columns alone.
#define GRADIENTS(name, KEYS, WIDTH, S)           \
    KERNEL(name, ChunkGradients, 256) {           \
        DYNAMIC_SHARED(float, shared);            \
        gradients<KEYS, WIDTH, S>(args, shared);  \
    }

// Name, keys, value columns at a time, momentum.
GRADIENTS(chunk_gradients_32, 32, 32, false)
GRADIENTS(chunk_gradients_64, 64, 32, false)
GRADIENTS(chunk_gradients_128, 128, 32, false)
GRADIENTS(chunk_gradients_32_momentum, 32, 32, true)
GRADIENTS(chunk_gradients_64_momentum, 64, 32, true)
GRADIENTS(chunk_gradients_128_momentum, 128, 16, true)
