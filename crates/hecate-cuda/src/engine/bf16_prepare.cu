// The exact chunk form with bfloat16: what depends on keys, queries and gates only, equations (15)-(18).
#include "bf16.cuh"
#include "bf16_decays.cuh"

struct Bf16Prepare {
    Linear p;
    u8* ready;                 // [kept,H,READY]
    u32 first, chunks;         // of each sequence, those from here on
};

static constexpr u32 BLOCK = 128;  // threads: 16 rows of the squares to a warp
static constexpr u32 LOW = 16 + 8, OWN = 16 + 4;  // numbers from row to row of blocks [16,16] of bfloat16 and of 32 bits

// With momentum, c and E of one write at each later token, a column a thread, rows in `c [CHUNK,WIDE]`; and the numbers
// of the state before, by one thread more.
__device__ __forceinline__ void build_tables(const Linear& p, u32 tokens, const Four* gates, float* c, float* numbers) {
    const u32 j = threadIdx.x;
    if (j < CHUNK) {
        float now = 0.0f, e = 0.0f;
        #pragma unroll 8
        for (u32 s = 0; s < CHUNK; s++) {
            const Four of = gates[s];
            e = s == j ? 1.0f : s > j ? e * of.w : 0.0f;
            now = s > j ? of.z * now + e : e;
            c[s * WIDE + j] = now;
            if (s + 1 == tokens) {
                numbers[OF_LAST_C * CHUNK + j] = now;
                numbers[OF_LAST_E * CHUNK + j] = e;
            }
        }
        numbers[OF_W * CHUNK + j] = gates[j].x;
        numbers[OF_R * CHUNK + j] = gates[j].y;
    } else if (j == CHUNK) {
        numbers[SCALARS + 3] = 0.0f;
        float a = 1.0f, b = 0.0f, e = 1.0f;
        #pragma unroll 8
        for (u32 s = 0; s < CHUNK; s++) {
            const Four of = gates[s];
            numbers[OF_ERASE_A * CHUNK + s] = of.y * a;
            numbers[OF_ERASE_B * CHUNK + s] = of.y * b;
            const float before_a = a, before_b = b;
            e *= of.w;
            a *= of.z;
            b = of.z * b + e;
            numbers[OF_READ_A * CHUNK + s] = p.before ? before_a : a;
            numbers[OF_READ_B * CHUNK + s] = p.before ? before_b : b;
        }
        // Behind the chunk's end a and η are 1, but E goes on into b.
        if (tokens == CHUNK) numbers[SCALARS] = a, numbers[SCALARS + 1] = b, numbers[SCALARS + 2] = e;
    } else if (j == CHUNK + 32 && tokens < CHUNK) {
        float a = 1.0f, b = 0.0f, e = 1.0f;
        for (u32 s = 0; s < tokens; s++) e *= gates[s].w, a *= gates[s].z, b = gates[s].z * b + e;
        numbers[SCALARS] = a, numbers[SCALARS + 1] = b, numbers[SCALARS + 2] = e;
    }
}

// Without momentum, the numbers of one token a thread, out of products of a; behind the chunk's end a is 1.
__device__ __forceinline__ void build_numbers(const Linear& p, const Four* gates, const Decays& decays, float* numbers) {
    const u32 t = threadIdx.x;
    const float after = decays.state(t), before = t ? decays.state(t - 1) : 1.0f;
    numbers[OF_W * CHUNK + t] = gates[t].x;
    numbers[OF_R * CHUNK + t] = gates[t].y;
    numbers[OF_ERASE_A * CHUNK + t] = gates[t].y * before;
    numbers[OF_READ_A * CHUNK + t] = p.before ? before : after;
    numbers[OF_LAST_C * CHUNK + t] = decays.last(t);
    numbers[OF_ERASE_B * CHUNK + t] = numbers[OF_READ_B * CHUNK + t] = numbers[OF_LAST_E * CHUNK + t] = 0.0f;
    if (t < 4) numbers[SCALARS + t] = t == 0 ? decays.state(CHUNK - 1) : 0.0f;
}

// K Kᵀ and Q Kᵀ of a warp's rows; nothing above the diagonal.
template <u32 KEYS>
__device__ __forceinline__ void squares(const u16* k, const u16* q, u32 row, Sums<8>& n, Sums<8>& g) {
    n.clear(), g.clear();
    #pragma unroll
    for (u32 s = 0; s < KEYS; s += 16) {
        u32 key[4], query[4], b[4];
        left(key, k, KEYS + 8, row, s);
        left(query, q, KEYS + 8, row, s);
        #pragma unroll
        for (u32 i = 0; i < 8; i += 2) {
            if (8 * i > row) break;
            right(b, k, KEYS + 8, 8 * i, s);
            multiply_pair(n.x[i], n.x[i + 1], key, b);
            multiply_pair(g.x[i], g.x[i + 1], query, b);
        }
    }
}

// Numbers of 32 bits as two of bfloat16 each, of which the second is what the first leaves.
__device__ __forceinline__ void split(float x, float y, u32& high, u32& low) {
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_half(high), y - high_half(high));
}

// T of a block [16,16] on the diagonal, in two parts, a column a lane, by forward substitution.
__device__ __forceinline__ void invert_block(const float* block, u16* to_high, u16* to_low) {
    const u32 j = threadIdx.x % 16;
    float x[16];
    #pragma unroll
    for (u32 i = 0; i < 16; i++) {
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
        if (threadIdx.x % 32 < 16) to_high[i * SIDE + j] = (u16)of, to_low[i * LOW + j] = (u16)rest;
    }
}

// x += a b of blocks [16,16], both in two parts; rows of b's tiles are its columns.
__device__ __forceinline__ void multiply_blocks(
    float (&x)[2][4], const u32 (&high)[4], const u32 (&low)[4], const u16* b_high, const u16* b_low, u32 low_stride
) {
    u32 b[4];
    right(b, b_low, low_stride, 0, 0);
    multiply_pair(x[0], x[1], high, b);
    right(b, b_high, SIDE, 0, 0);
    multiply_pair(x[0], x[1], low, b);
    multiply_pair(x[0], x[1], high, b);
}

// T = (I + triangle)⁻¹ [CHUNK,CHUNK] by blocks. Of the triangle those on the diagonal have 32 bits, the others lie in two
// parts; of T those on the diagonal. First they are made, then, down from each, T_ij = -T_ii Σ_{j ≤ k < i} L_ik T_kj, a
// column of blocks a warp, turned over.
__device__ __forceinline__ void invert(const float* blocks, const u16* high, const u16* low, u16* to_high, u16* to_low) {
    const u32 j = threadIdx.x / 32, lane = threadIdx.x % 32;
    invert_block(blocks + 16 * j * OWN, to_high + 16 * j * (SIDE + 1), to_low + 16 * j * LOW);
    __syncthreads();
    if (j >= 3) return;
    u32 of[3][4], rest[3][4];  // T_kj, turned over, in two parts; those above the diagonal are nothing
    left_across(of[0], to_high, SIDE, 16 * j, 16 * j);
    left_across(rest[0], to_low, LOW, 0, 16 * j);
    #pragma unroll
    for (u32 n = 1; n < 4; n++) {
        const u32 i = j + n;
        if (i >= 4) break;
        float x[2][4] = {}, y[2][4] = {};
        #pragma unroll
        for (u32 k = 0; k < n; k++) {
            const u32 at = 16 * i * SIDE + 16 * (j + k);
            multiply_blocks(x, of[k], rest[k], high + at, low + at, SIDE);
        }
        u32 a[4], b[4];
        #pragma unroll
        for (u32 h = 0; h < 4; h++) split(x[h / 2][h % 2 * 2], x[h / 2][h % 2 * 2 + 1], a[h], b[h]);
        multiply_blocks(y, a, b, to_high + 16 * i * (SIDE + 1), to_low + 16 * i * LOW, LOW);
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            u32 up, down;
            split(-y[h / 2][h % 2 * 2], -y[h / 2][h % 2 * 2 + 1], up, down);
            if (n < 3) of[n][h] = up, rest[n][h] = down;
            const u32 turned = transpose_matrix(up), row = 16 * i + h / 2 * 8 + lane / 4, column = 16 * j + h % 2 * 8;
            *(u32*)(to_high + row * SIDE + column + lane % 4 * 2) = turned;
        }
    }
}

// Masks on the squares: r∗(L ∘ K Kᵀ), where there is erase, to `blocks` on the diagonal, elsewhere in two parts to `high`
// and `low`; and Y ∘ Q Kᵀ to `reads`. `masks` gives c of rows and
// columns and c of the token before. What an earlier token would take of a later one's key is nothing, not zero times it.
template <class F>
__device__ __forceinline__ void mask(
    const Linear& p, const Four* gates, u32 row, const Sums<8>& n, const Sums<8>& g, float* blocks, u16* high, u16* low,
    u16* reads, F masks
) {
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
            float erase[2], read[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                erase[e] = t > j + e ? r * before[h][e] * n.x[tile][2 * h + e] : 0.0f;
                read[e] = t >= j + e + p.before ? (p.before ? before[h][e] : now[h][e]) * g.x[tile][2 * h + e] : 0.0f;
            }
            if (p.erase && 8 * tile >= row) *(float2*)(blocks + t * OWN + j - row) = make_float2(erase[0], erase[1]);
            else if (p.erase) split(erase[0], erase[1], *(u32*)(high + t * SIDE + j), *(u32*)(low + t * SIDE + j));
            *(u32*)(reads + t * CHUNK + j) = pack_bf16(read[0], read[1]);
        }
    }
}

template <u32 KEYS>
__device__ __forceinline__ void prepare(const Bf16Prepare& args, u8* shared) {
    const Linear& p = args.p;
    const Chunk chunk(p, blockIdx.x / args.chunks, args.first + blockIdx.x % args.chunks);
    if (chunk.tokens == 0) return;
    // Where keys and queries were there lie later: L in two parts, T in two parts, L's blocks on the diagonal.
    constexpr u32 TILES = 2 * CHUNK * (KEYS + 8), LATER = CHUNK * (3 * SIDE + LOW + 2 * OWN);
    u16 *k = (u16*)shared, *q = k + CHUNK * (KEYS + 8), *high = k, *low = high + CHUNK * SIDE;
    u16 *to_high = low + CHUNK * SIDE, *to_low = to_high + CHUNK * SIDE;
    float *blocks = (float*)(to_low + CHUNK * LOW), *c = (float*)(k + (TILES > LATER ? TILES : LATER));
    __shared__ Four gates[CHUNK];
    __shared__ Decays decays;
    __shared__ __align__(16) float numbers[NUMBERS];
    fetch_rows<KEYS, BLOCK>(p, chunk, p.k.data, p.key, 0, k, KEYS + 8, threadIdx.x);
    fetch_rows<KEYS, BLOCK>(p, chunk, p.q.data, p.key, 0, q, KEYS + 8, threadIdx.x);
    copies_commit();
    if (threadIdx.x < CHUNK) {
        bool inside = threadIdx.x < chunk.tokens;
        gates[threadIdx.x] = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
    }
    __syncthreads();
    if (p.log_eta) build_tables(p, chunk.tokens, gates, c, numbers);
    else if (threadIdx.x < CHUNK) decays.begin(threadIdx.x, [&](u32 s) { return gates[s].z; });
    copies_wait<0>();
    __syncthreads();
    if (!p.log_eta && threadIdx.x < 16) decays.join(threadIdx.x);
    const u32 row = threadIdx.x / 32 * 16;
    Sums<8> n, g;
    squares<KEYS>(k, q, row, n, g);
    __syncthreads();
    if (!p.log_eta && threadIdx.x < CHUNK) build_numbers(p, gates, decays, numbers);
    u8* to = args.ready + chunk.kept * READY;
    u16* reads = (u16*)to + SQUARE;
    auto table = [&](u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) { masks_at(c, i, j, now, before); };
    auto products = [&](u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) { decays.at(i, j, now, before); };
    if (p.log_eta) mask(p, gates, row, n, g, blocks, high, low, reads, table);
    else mask(p, gates, row, n, g, blocks, high, low, reads, products);
    __syncthreads();
    float* numbers_to = (float*)(to + 4 * SQUARE);
    for (u32 i = threadIdx.x; i < NUMBERS; i += BLOCK) numbers_to[i] = numbers[i];
    if (!p.erase) return;
    invert(blocks, high, low, to_high, to_low);
    __syncthreads();
    #pragma unroll
    for (u32 i = threadIdx.x; i < SQUARE / 8; i += BLOCK)
        if (i % 8 * 8 < i / 8 / 16 * 16 + 16) ((uint4*)to)[i] = *(const uint4*)(to_high + i / 8 * SIDE + i % 8 * 8);
}

KERNEL(bf16_prepare_64, Bf16Prepare, 128, 5) {
    DYNAMIC_SHARED(u8, shared);
    prepare<64>(args, shared);
}
KERNEL(bf16_prepare_128, Bf16Prepare, 128, 5) {
    DYNAMIC_SHARED(u8, shared);
    prepare<128>(args, shared);
}
KERNEL(bf16_prepare_256, Bf16Prepare, 128, 3) {
    DYNAMIC_SHARED(u8, shared);
    prepare<256>(args, shared);
}
