// The exact chunk form with bfloat16: what depends on keys, queries and gates only, equations (15)-(18).
#include "bf16.cuh"

struct Bf16Prepare {
    Linear p;
    u8* ready;                 // [kept,H,READY]
    u32 chunks, unused;        // of the longest sequence
};

// c and, with momentum, E of one write at each later token, a column a thread, rows in `c [CHUNK,WIDE]`; and the numbers
// of the state before, by one thread more.
template <bool S>
__device__ __forceinline__ void build_tables(const Linear& p, u32 tokens, const Four* gates, float* c, float* numbers) {
    const u32 j = threadIdx.x;
    if (j < CHUNK) {
        float now = 0.0f, e = 0.0f;
        #pragma unroll 8
        for (u32 s = 0; s < CHUNK; s++) {
            const Four of = gates[s];
            if (S) e = s == j ? 1.0f : s > j ? e * of.w : 0.0f;
            else e = s == j ? 1.0f : 0.0f;
            now = s > j ? of.z * now + e : e;
            c[s * WIDE + j] = now;
            if (s + 1 == tokens) {
                numbers[OF_LAST_C * CHUNK + j] = now;
                numbers[OF_LAST_E * CHUNK + j] = e;
            }
        }
    } else if (j == CHUNK) {
        float a = 1.0f, b = 0.0f, e = 1.0f;
        #pragma unroll 8
        for (u32 s = 0; s < CHUNK; s++) {
            const Four of = gates[s];
            numbers[OF_W * CHUNK + s] = of.x;
            numbers[OF_R * CHUNK + s] = of.y;
            numbers[OF_ERASE_A * CHUNK + s] = of.y * a;
            numbers[OF_ERASE_B * CHUNK + s] = of.y * b;
            const float before_a = a, before_b = b;
            if (S) e *= of.w;
            a *= of.z;
            if (S) b = of.z * b + e;
            numbers[OF_READ_A * CHUNK + s] = p.before ? before_a : a;
            numbers[OF_READ_B * CHUNK + s] = p.before ? before_b : b;
            if (s + 1 == tokens) numbers[SCALARS] = a, numbers[SCALARS + 1] = b, numbers[SCALARS + 2] = e;
        }
        numbers[SCALARS + 3] = 0.0f;
    }
}

// K Kᵀ and Q Kᵀ: 16 rows and 32 columns a warp; nothing above the diagonal.
template <u32 KEYS>
__device__ __forceinline__ void squares(const u16* k, const u16* q, u32 row, u32 column, Sums<4>& n, Sums<4>& g) {
    n.clear(), g.clear();
    if (column >= row + 16) return;
    #pragma unroll
    for (u32 s = 0; s < KEYS; s += 16) {
        u32 key[4], query[4], b[4];
        left(key, k, KEYS + 8, row, s);
        left(query, q, KEYS + 8, row, s);
        #pragma unroll
        for (u32 i = 0; i < 4; i += 2) {
            right(b, k, KEYS + 8, column + 8 * i, s);
            multiply_pair(n.x[i], n.x[i + 1], key, b);
            multiply_pair(g.x[i], g.x[i + 1], query, b);
        }
    }
}

// T of a block [16,16] on the diagonal, a column a lane, by forward substitution.
__device__ __forceinline__ void invert_block(const float* triangle, float* inverse) {
    const u32 j = threadIdx.x % 32;
    float x[16];
    if (j < 16) {
        #pragma unroll
        for (u32 i = 0; i < 16; i++) {
            float sum = i == j ? 1.0f : 0.0f;
            #pragma unroll
            for (u32 s = 0; s < i; s++) sum -= triangle[i * WIDE + s] * x[s];
            x[i] = sum;
            inverse[i * WIDE + j] = sum;
        }
    }
}

// T = (I + triangle)⁻¹ [CHUNK,CHUNK] by blocks: those on the diagonal, then each diagonal below out of those above it,
// T_ij = -T_ii Σ_{j ≤ k < i} L_ik T_kj. `inverse` holds zeros above the diagonal.
__device__ __forceinline__ void invert(const float* triangle, float* inverse) {
    const u32 warp = threadIdx.x / 32;
    if (warp < 4) invert_block(triangle + 16 * warp * (WIDE + 1), inverse + 16 * warp * (WIDE + 1));
    __syncthreads();
    for (u32 below = 1; below < 4; below++) {
        if (warp < 2 * (4 - below)) {
            const u32 j = 16 * (warp / 2), i = j + 16 * below, column = j + 8 * (warp % 2);
            Sum<1> x;
            x.clear();
            product(x, i, column, 16 * below, [&](u32 r, u32 k) { return triangle[r * WIDE + j + k]; },
                    [&](u32 k, u32 c) { return inverse[(j + k) * WIDE + c]; });
            x.each(i, column, [&](u32 r, u32 c, float value) { inverse[r * WIDE + c] = value; });
            __syncwarp();
            x.clear();
            product(x, i, column, 16, [&](u32 r, u32 k) { return inverse[r * WIDE + i + k]; },
                    [&](u32 k, u32 c) { return inverse[(i + k) * WIDE + c]; });
            __syncwarp();
            x.each(i, column, [&](u32 r, u32 c, float value) { inverse[r * WIDE + c] = -value; });
        }
        __syncthreads();
    }
}

// Masks on the squares: r∗(L ∘ K Kᵀ) to `triangle`, where there is erase, and Y ∘ Q Kᵀ.
__device__ __forceinline__ void mask(
    const Linear& p, const Four* gates, const float* c, u32 row, u32 column, const Sums<4>& n, const Sums<4>& g,
    float* triangle, u16* reads
) {
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 tile = 0; tile < 4; tile++)
        #pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 i = row + lane / 4 + 8 * half, j = column + 8 * tile + lane % 4 * 2;
            float read[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                // What an earlier token would take of a later one's key is nothing, not zero times it.
                float before = i > j + e ? c[(i - 1) * WIDE + j + e] : 0.0f;
                float now = i >= j + e ? c[i * WIDE + j + e] : 0.0f;
                if (p.erase) triangle[i * WIDE + j + e] = i > j + e ? gates[i].y * before * n.x[tile][2 * half + e] : 0.0f;
                bool seen = i >= j + e + p.before;
                read[e] = seen ? (p.before ? before : now) * g.x[tile][2 * half + e] : 0.0f;
            }
            *(u32*)(reads + i * CHUNK + j) = pack_bf16(read[0], read[1]);
        }
}

template <u32 KEYS>
__device__ __forceinline__ void prepare(const Bf16Prepare& args, u8* shared) {
    const Linear& p = args.p;
    const Chunk chunk(p, blockIdx.x / args.chunks, blockIdx.x % args.chunks);
    if (chunk.tokens == 0) return;
    u16 *k = (u16*)shared, *q = k + CHUNK * (KEYS + 8);
    float *c = (float*)(q + CHUNK * (KEYS + 8)), *triangle = c + CHUNK * WIDE;
    __shared__ Four gates[CHUNK];
    __shared__ __align__(16) float numbers[NUMBERS];
    fetch_rows<KEYS, THREADS>(p, chunk, p.k.data, p.key, 0, k, KEYS + 8);
    fetch_rows<KEYS, THREADS>(p, chunk, p.q.data, p.key, 0, q, KEYS + 8);
    copies_commit();
    if (threadIdx.x < CHUNK) {
        bool inside = threadIdx.x < chunk.tokens;
        gates[threadIdx.x] = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
    }
    __syncthreads();
    if (p.log_eta) build_tables<true>(p, chunk.tokens, gates, c, numbers);
    else build_tables<false>(p, chunk.tokens, gates, c, numbers);
    copies_wait<0>();
    __syncthreads();
    const u32 row = threadIdx.x / 32 % 4 * 16, column = threadIdx.x / 128 * 32;
    Sums<4> n, g;
    squares<KEYS>(k, q, row, column, n, g);
    u8* to = args.ready + chunk.kept * READY;
    mask(p, gates, c, row, column, n, g, triangle, (u16*)to + SQUARE);
    float* numbers_to = (float*)(to + 4 * SQUARE);
    for (u32 i = threadIdx.x; i < NUMBERS; i += THREADS) numbers_to[i] = numbers[i];
    if (!p.erase) return;
    __syncthreads();
    // The tables are no longer needed.
    float* inverse = c;
    for (u32 i = threadIdx.x; i < CHUNK * WIDE; i += THREADS) inverse[i] = 0.0f;
    __syncthreads();
    invert(triangle, inverse);
    #pragma unroll
    for (u32 i = threadIdx.x; i < SQUARE / 4; i += THREADS) {
        float4 of = *(const float4*)(inverse + i / (CHUNK / 4) * WIDE + i % (CHUNK / 4) * 4);
        uint2 bits;
        bits.x = pack_bf16(of.x, of.y);
        bits.y = pack_bf16(of.z, of.w);
        ((uint2*)to)[i] = bits;
    }
}

KERNEL(bf16_prepare_64, Bf16Prepare, 256, 4) {
    DYNAMIC_SHARED(u8, shared);
    prepare<64>(args, shared);
}
KERNEL(bf16_prepare_128, Bf16Prepare, 256, 3) {
    DYNAMIC_SHARED(u8, shared);
    prepare<128>(args, shared);
}
