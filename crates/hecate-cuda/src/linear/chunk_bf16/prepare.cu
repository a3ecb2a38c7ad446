// The exact chunk form with bfloat16: everything of a chunk that depends on keys, queries and gates only, equations (15)-(18).
#include "chunk_bf16/fragments.cuh"
#include "chunk_bf16/decay_mask.cuh"

// `prepare::PrepareArguments` is its twin.
struct Bf16Prepare {
    Linear p;
    // [kept,H,READY]
    u8* ready;
    // Chunks of each sequence from `first` on, `chunks` of them
    u32 first, chunks;
};

// Threads: 16 rows of the squares to a warp
static constexpr u32 BLOCK = 128;
// Row strides, in elements, of blocks [16,16] of bfloat16 and of f32
static constexpr u32 LOW = 16 + 8, OWN = 16 + 4;

// vectors [8,CHUNK] of the chunk, one token a thread: w, r and the masks' factors that the other kernels read. `before` and
// `after` are the transitions of the state before the chunk up to before and after this token; `last` is c and E of its
// write after the chunk's last token.
__device__ __forceinline__ void build_vectors(
    const Linear& p, const Four* gates, Transition2x2 before, Transition2x2 after, float2 last, float* vectors
) {
    const u32 t = threadIdx.x;
    // w, r, a, η.
    const Four of = gates[t];
    const Transition2x2 read = p.before ? before : after;
    // In the order of the enumeration, [8,CHUNK].
    vectors[OF_W * CHUNK + t] = of.x;
    vectors[OF_R * CHUNK + t] = of.y;
    vectors[OF_ERASE_A * CHUNK + t] = of.y * before.a;
    vectors[OF_READ_A * CHUNK + t] = read.a;
    vectors[OF_LAST_C * CHUNK + t] = last.x;
    vectors[OF_ERASE_B * CHUNK + t] = of.y * before.b;
    vectors[OF_READ_B * CHUNK + t] = read.b;
    vectors[OF_LAST_E * CHUNK + t] = last.y;
    // A[C], c[C,0], E[C,0].
    if (t == CHUNK - 1) vectors[SCALARS] = after.a, vectors[SCALARS + 1] = after.b, vectors[SCALARS + 2] = after.e;
}

// n = k @ k.T and g = q @ k.T [16,CHUNK] of the warp's rows, up to the diagonal.
template <u32 KEYS>
__device__ __forceinline__ void squares(const u16* k, const u16* q, u32 row, Sums<8>& n, Sums<8>& g) {
    // Keys are the right factors of both products, and read once.
    n.clear(), g.clear();
    #pragma unroll
    for (u32 s = 0; s < KEYS; s += 16) {
        u32 key[4], query[4], b[4];
        left(key, k, KEYS + 8, row, s);
        left(query, q, KEYS + 8, row, s);
        #pragma unroll
        // Two tiles of keys at once, up to the diagonal.
        for (u32 i = 0; i < 8; i += 2) {
            if (8 * i > row) break;
            right(b, k, KEYS + 8, 8 * i, s);
            multiply_pair(n.x[i], n.x[i + 1], key, b);
            multiply_pair(g.x[i], g.x[i + 1], query, b);
        }
    }
}

// Splits two floats into bfloat16 in two parts, x ≈ high + low, two neighbours a word.
__device__ __forceinline__ void split(float x, float y, u32& high, u32& low) {
    // Each part has 8 bits of fraction: together 16 of a float's 24.
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_half(high), y - high_half(high));
}

// One block column of T = (I + L)⁻¹ [CHUNK,CHUNK] in a warp: the diagonal block in f32, a column a lane, and the blocks below it
// transposed, in two parts of bfloat16, by their distance n from the diagonal.
struct Solution {
    float own[16];
    u32 high[4][4], low[4][4];

    // Returns the largest magnitude of this lane's elements, up to `below` blocks under the diagonal.
    __device__ __forceinline__ float largest(u32 below) const {
        float most = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < 16; i++) most = fmaxf(most, fabsf(own[i]));
        #pragma unroll
        for (u32 n = 1; n < 4; n++)
            #pragma unroll
            for (u32 h = 0; h < 4; h++)
                if (n <= below) most = fmaxf(most, fmaxf(fabsf(low_half(high[n][h])), fabsf(high_half(high[n][h]))));
        return most;
    }
};

// x = (I + block)⁻¹ of one diagonal block [16,16] by forward substitution, a column a lane; also stored in two parts.
__device__ __forceinline__ void invert_block(float (&x)[16], const float* block, u16* to_high, u16* to_low) {
    // Both halves of a warp compute the same columns, so that no lane waits for another.
    const u32 j = threadIdx.x % 16;
    #pragma unroll
    for (u32 i = 0; i < 16; i++) {
        // Row i of the inverse is row i of I minus the known rows times row i of the block.
        float sum = i == j ? 1.0f : 0.0f;
        #pragma unroll
        for (u32 s = 0; s < i; s += 4) {
            const float4 of = *(const float4*)(block + i * OWN + s);
            sum -= of.x * x[s];
            if (s + 1 < i) sum -= of.y * x[s + 1];
            if (s + 2 < i) sum -= of.z * x[s + 2];
            if (s + 3 < i) sum -= of.w * x[s + 3];
        }
        x[i] = sum;
        u32 of, rest;
        split(sum, 0.0f, of, rest);
        if (threadIdx.x % 32 < 16) to_high[i * LOW + j] = (u16)of, to_low[i * LOW + j] = (u16)rest;
    }
}

// x += a @ b of blocks [16,16], both in two parts of bfloat16; b's tiles are stored transposed.
// The sum is high low + low high + high high: low low is below 2^-16 of the product and left out.
__device__ __forceinline__ void multiply_blocks(
    float (&x)[2][4], const u32 (&high)[4], const u32 (&low)[4], const u16* b_high, const u16* b_low, u32 stride
) {
    u32 b[4];
    right(b, b_low, stride, 0, 0);
    multiply_pair(x[0], x[1], high, b);
    right(b, b_high, stride, 0, 0);
    multiply_pair(x[0], x[1], low, b);
    multiply_pair(x[0], x[1], high, b);
}

// T = (I + L)⁻¹ [CHUNK,CHUNK] by blocks [16,16]: one warp inverts one block column. L's diagonal blocks are in f32 by
// themselves, the others in two parts of bfloat16. T_jj is inverted directly; below it, downwards,
// T_ij = -T_ii Σ_{j ≤ k < i} L_ik T_kj, a column of blocks a warp.
__device__ __forceinline__ void invert(
    Solution& t, const float* blocks, const u16* high, const u16* low, u16* own_high, u16* own_low
) {
    // Warp j has column j of blocks.
    const u32 j = threadIdx.x / 32;
    // Each warp inverts one of the four diagonal blocks.
    invert_block(t.own, blocks + 16 * j * OWN, own_high + 16 * j * LOW, own_low + 16 * j * LOW);
    __syncthreads();
    // The inverse of its own diagonal block, transposed, as a left factor.
    left_across(t.high[0], own_high, LOW, 0, 16 * j);
    left_across(t.low[0], own_low, LOW, 0, 16 * j);
    #pragma unroll
    for (u32 n = 1; n < 4; n++) {
        const u32 i = j + n;
        if (i >= 4) break;
        // Σ L_ik T_kj, then minus T_ii times that.
        float x[2][4] = {}, y[2][4] = {};
        #pragma unroll
        for (u32 k = 0; k < n; k++) {
            const u32 at = 16 * i * SIDE + 16 * (j + k);
            multiply_blocks(x, t.high[k], t.low[k], high + at, low + at, SIDE);
        }
        u32 a[4], b[4];
        #pragma unroll
        for (u32 h = 0; h < 4; h++) split(x[h / 2][h % 2 * 2], x[h / 2][h % 2 * 2 + 1], a[h], b[h]);
        multiply_blocks(y, a, b, own_high + 16 * i * LOW, own_low + 16 * i * LOW, LOW);
        #pragma unroll
        for (u32 h = 0; h < 4; h++) split(-y[h / 2][h % 2 * 2], -y[h / 2][h % 2 * 2 + 1], t.high[n][h], t.low[n][h]);
    }
}

// Returns the largest value of the block's threads, through of_warps [4], which every warp writes.
__device__ __forceinline__ float largest(float most, float* of_warps) {
    most = largest_of_warp(most);
    // One element a warp; the barrier makes it visible.
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    return fmaxf(fmaxf(of_warps[0], of_warps[1]), fmaxf(of_warps[2], of_warps[3]));
}

// Stores a warp's block [16,16] by way of `place` [16,LOW] in shared memory, so that whole sectors of 32 bytes are written.
// Words of x are rows 0-7 and 8-15 of columns 0-7, then of columns 8-15.
__device__ __forceinline__ void store_block(u16* place, const u32 (&x)[4], u16* to) {
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 h = 0; h < 4; h++) *(u32*)(place + (h / 2 * 8 + lane / 4) * LOW + h % 2 * 8 + lane % 4 * 2) = x[h];
    __syncwarp();
    *(uint4*)(to + lane / 2 * CHUNK + lane % 2 * 8) = *(const uint4*)(place + lane / 2 * LOW + lane % 2 * 8);
    __syncwarp();
}

// Stores up * T as fp16: blocks on and below the diagonal, one block column a warp.
__device__ __forceinline__ void store_solution(const Solution& t, float up, u16* place, u16* to) {
    const u32 j = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The block on the diagonal of column j.
    to += 16 * j * (CHUNK + 1);
    #pragma unroll
    for (u32 i = 0; i < 16; i++)
        if (lane < 16) place[i * LOW + lane] = to_f16(up * t.own[i]);
    __syncwarp();
    *(uint4*)(to + lane / 2 * CHUNK + lane % 2 * 8) = *(const uint4*)(place + lane / 2 * LOW + lane % 2 * 8);
    __syncwarp();
    #pragma unroll
    for (u32 n = 1; n < 4; n++) {
        if (j + n >= 4) continue;
        u32 block[4];
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            const u32 high = t.high[n][h], low = t.low[n][h];
            const float x = low_half(high) + low_half(low), y = high_half(high) + high_half(low);
            block[h] = transpose_matrix(pack_halves(up * x, up * y));
        }
        store_block(place, block, to + 16 * n * CHUNK);
    }
}

// L = r[:, None] * mask * (k @ k.T) goes to `blocks` on the diagonal (f32), and to `high` and `low` elsewhere. g = Y ∘ (q @ k.T) in
// place, of which the largest magnitude is returned. `masks` gives c[t,j] and c[t-1,j]. Elements above the diagonal are set
// to zero, not multiplied by it, so that an infinity there is no NaN.
template <class F>
__device__ __forceinline__ float apply_masks(
    const Linear& p, const Four* gates, u32 row, const Sums<8>& n, Sums<8>& g, float* blocks, u16* high, u16* low, F masks
) {
    float most = 0.0f;
    // A thread has rows i and i + 8 and two columns of each tile.
    const u32 lane = threadIdx.x % 32, i = row + lane / 4;
    #pragma unroll
    for (u32 tile = 0; tile < 8; tile++) {
        if (8 * tile >= row + 16) break;
        const u32 j = 8 * tile + lane % 4 * 2;
        float now[2][2], before[2][2];
        masks(i, j, now, before);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 t = i + 8 * h;
            const float r = gates[t].y;
            float erase[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                erase[e] = t > j + e ? r * before[h][e] * n.x[tile][2 * h + e] : 0.0f;
                float& read = g.x[tile][2 * h + e];
                read = t >= j + e + p.before ? (p.before ? before[h][e] : now[h][e]) * read : 0.0f;
                most = fmaxf(most, fabsf(read));
            }
            // The diagonal block stays in f32, the others are split.
            if (p.erase && 8 * tile >= row) *(float2*)(blocks + t * OWN + j - row) = make_float2(erase[0], erase[1]);
            else if (p.erase) split(erase[0], erase[1], *(u32*)(high + t * SIDE + j), *(u32*)(low + t * SIDE + j));
        }
    }
    return most;
}

// Stores up * Y ∘ (q @ k.T) as fp16, the warp's 16 rows.
__device__ __forceinline__ void store_reads(u32 row, const Sums<8>& x, float up, u16* place, u16* to) {
    #pragma unroll
    for (u32 b = 0; b < 4; b++) {
        if (16 * b > row) continue;
        const auto pair = [&](u32 tile, u32 h) { return pack_halves(up * x.x[tile][2 * h], up * x.x[tile][2 * h + 1]); };
        const u32 block[4] = {pair(2 * b, 0), pair(2 * b + 1, 0), pair(2 * b, 1), pair(2 * b + 1, 1)};
        store_block(place, block, to + row * CHUNK + 16 * b);
    }
}

// The mask's type without and with momentum.
template <bool S> struct Masks;
template <> struct Masks<false> { using Of = DecayMask; };
template <> struct Masks<true> { using Of = MomentumMask; };
template <bool S> using MasksOf = typename Masks<S>::Of;

// T, Y ∘ (q @ k.T) and the vectors of one chunk of one head, by a block of four warps.
//
// Dynamic shared memory: keys and queries [CHUNK,KEYS + 8] of bfloat16; after the squares are made, L in two parts
// [CHUNK,SIDE], and blocks [16,16] of T and of L. Static: gates [CHUNK], the mask, the vectors, maxima of the warps.
template <u32 KEYS, bool S>
__device__ __forceinline__ void prepare(const Bf16Prepare& args, u8* shared) {
    const Linear& p = args.p;
    // Blocks have the chunks of a head one after another.
    const Chunk chunk(p, blockIdx.x / args.chunks, args.first + blockIdx.x % args.chunks);
    if (chunk.tokens == 0) return;
    // Later arrays take the place of keys and queries: L in two parts, then the diagonal blocks of T and of L.
    u16 *k = (u16*)shared, *q = k + CHUNK * (KEYS + 8), *high = k, *low = high + CHUNK * SIDE;
    u16 *own_high = low + CHUNK * SIDE, *own_low = own_high + CHUNK * LOW;
    float *blocks = (float*)(own_low + CHUNK * LOW);
    __shared__ Four gates[CHUNK];
    __shared__ MasksOf<S> mask;
    __shared__ __align__(16) float vectors[ELEMENTS];
    __shared__ float of_warps[2][BLOCK / 32];
    const Four gate = read_gates(p, chunk);
    fetch_rows<KEYS, BLOCK>(p, chunk, p.k.data, p.key, 0, k, KEYS + 8, threadIdx.x);
    fetch_rows<KEYS, BLOCK>(p, chunk, p.q.data, p.key, 0, q, KEYS + 8, threadIdx.x);
    copies_commit();
    if (threadIdx.x < CHUNK) gates[threadIdx.x] = token_gates(p, chunk, gate);
    __syncthreads();
    if constexpr (S) mask.begin(chunk.tokens, gates);
    else if (threadIdx.x < CHUNK) mask.begin(threadIdx.x, [&](u32 s) { return gates[s].z; });
    // Keys and queries have arrived, and each sub-chunk's own mask is built.
    copies_wait<0>();
    __syncthreads();
    if (threadIdx.x < 16) mask.join(threadIdx.x);
    // Rows of the squares that are the warp's.
    const u32 row = threadIdx.x / 32 * 16;
    Sums<8> n, g;
    // Both products stay in registers until the masks are applied.
    squares<KEYS>(k, q, row, n, g);
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        const u32 t = threadIdx.x;
        if constexpr (S) {
            build_vectors(p, gates, t ? mask.state(t - 1) : Transition2x2::none(), mask.state(t), mask.last(t), vectors);
        } else {
            const Transition2x2 before = {t ? mask.state(t - 1) : 1.0f, 0.0f, 0.0f}, after = {mask.state(t), 0.0f, 0.0f};
            build_vectors(p, gates, before, after, make_float2(mask.last(t), 0.0f), vectors);
        }
    }
    // This chunk's place: T, Y ∘ Q Kᵀ, vectors.
    u8* to = args.ready + chunk.kept * READY;
    const auto masks = [&](u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) { mask.at(i, j, now, before); };
    const float most = apply_masks(p, gates, row, n, g, blocks, high, low, masks);
    // Results pass through the place of T's diagonal blocks, before these are made and after they were needed.
    u16* place = own_high + row * LOW;
    // One power of two scales the whole square, so that its largest element fits fp16.
    const Scale scale = Scale::of(largest(most, of_warps[0]));
    // Every warp stores through a place [16,LOW] of its own.
    store_reads(row, g, scale.up, place, (u16*)to + SQUARE);
    float* vectors_to = (float*)(to + 4 * SQUARE);
    // All threads copy the vectors and scalars.
    for (u32 i = threadIdx.x; i < OF_SOLUTION; i += BLOCK) vectors_to[i] = vectors[i];
    // Without erase T is the identity, and nobody reads it.
    float solution = 1.0f;
    if (p.erase) {
        // Each warp has a block column in registers.
        Solution t;
        invert(t, blocks, high, low, own_high, own_low);
        const Scale of = Scale::of(largest(t.largest(3 - threadIdx.x / 32), of_warps[1]));
        store_solution(t, of.up, place, (u16*)to);
        solution = of.down;
    }
    const u32 i = OF_SOLUTION + threadIdx.x;
    if (i < ELEMENTS) vectors_to[i] = i == OF_SOLUTION ? solution : i == OF_READS ? scale.down : 0.0f;
}

// BLOCKS of these blocks fit a multiprocessor, which bounds the registers.
#define PREPARE(name, KEYS, S, BLOCKS)             \
    KERNEL(name, Bf16Prepare, 128, BLOCKS) {       \
        DYNAMIC_SHARED(u8, shared);                \
        prepare<KEYS, S>(args, shared);            \
    }

// Name, keys, momentum, blocks of a multiprocessor.
PREPARE(bf16_prepare_64, 64, false, 5)
PREPARE(bf16_prepare_128, 128, false, 5)
PREPARE(bf16_prepare_256, 256, false, 3)
PREPARE(bf16_prepare_64_momentum, 64, true, 5)
PREPARE(bf16_prepare_128_momentum, 128, true, 5)
