// The exact chunk form: what depends on keys, queries and gates only, equations (15)-(18).
#include "chunk.cuh"

// `chunk::Prepare` is its twin.
struct Prepare {
    Linear p;
    // [kept,H,PREPARED]
    float* prepared;
    // Of the longest sequence
    u32 chunks, unused;
};

// Tables, column by column: c and E of one write at each later token, and those of the state before.
// `triangle` becomes r∗(L ∘ K Kᵀ), transposed, and `reads` Y ∘ Q Kᵀ; `gates` holds r, a, η.
__device__ __forceinline__ void build_tables(
    const Linear& p, u32 tokens, const float (*gates)[CHUNK], float* triangle, float* reads, float* vectors
) {
    // Thread j < 64 goes down column j of the masks; thread 64 has the state before the chunk. The others wait.
    const u32 j = threadIdx.x;
    if (j < CHUNK) {
        float c = 0.0f, e = 0.0f;
        for (u32 s = 0; s < CHUNK; s++) {
            // c of the token before, which erases and early reads see.
            float before = c;
            if (s >= j) {
                e = s == j ? 1.0f : e * gates[2][s];
                c = gates[1][s] * c + e;
            }
            // What an earlier token would take of a later one's key is nothing, not zero times it.
            float *erased = triangle + j * WIDE + s, *read = reads + s * WIDE + j;
            *erased = s > j ? gates[0][s] * before * *erased : 0.0f;
            *read = s >= j + p.before ? (p.before ? before : c) * *read : 0.0f;
            // The chunk's last token: what (21) and (22) need.
            if (s + 1 == tokens) {
                vectors[AT_C + j] = c;
                vectors[AT_E + j] = e;
            }
        }
    } else if (j == CHUNK) {
        float a = 1.0f, b = 0.0f, e = 1.0f;
        // Before the first token the state is itself.
        vectors[AT_A] = a;
        vectors[AT_B] = b;
        for (u32 s = 0; s < CHUNK; s++) {
            e *= gates[2][s];
            a *= gates[1][s];
            b = gates[1][s] * b + e;
            vectors[AT_A + s + 1] = a;
            vectors[AT_B + s + 1] = b;
            if (s + 1 == tokens) vectors[AT_E0] = e;
        }
    }
}

// T = (I + r∗(L ∘ K Kᵀ))⁻¹ [CHUNK,CHUNK], four threads to a column, four rows at a time; `triangle` is transposed.
__device__ __forceinline__ void invert(const float* triangle, float* inverse) {
    // A column of the inverse needs no other column: forward substitution runs without barriers.
    const u32 j = threadIdx.x / 4, part = threadIdx.x % 4;
    for (u32 row = 0; row < CHUNK; row += 4) {
        // Four rows of column j; the first of its threads begins with the unit matrix.
        float x[4];
        #pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = part == 0 && row + i == j ? 1.0f : 0.0f;
        // Minus what is known of the column, a quarter of it a thread.
        for (u32 s = part; s < row; s += 4) {
            float known = inverse[s * WIDE + j];
            Four of = *(const Four*)(triangle + s * WIDE + row);
            x[0] -= of.x * known;
            x[1] -= of.y * known;
            x[2] -= of.z * known;
            x[3] -= of.w * known;
        }
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // The four threads of the column together.
            x[i] += shuffle_xor(x[i], 1);
            x[i] += shuffle_xor(x[i], 2);
        }
        #pragma unroll
        for (u32 i = 1; i < 4; i++)
            #pragma unroll
            for (u32 s = 0; s < i; s++) x[i] -= triangle[(row + s) * WIDE + row + i] * x[s];
        // Each of the four threads writes one of the four rows.
        inverse[(row + part) * WIDE + j] = part == 0 ? x[0] : part == 1 ? x[1] : part == 2 ? x[2] : x[3];
        __syncwarp();
    }
}

// A block has chunk `blockIdx.x % chunks` of one head.
template <u32 KEYS>
__device__ __forceinline__ void prepare(const Prepare& args, float* shared) {
    const Linear& p = args.p;
    // A block has one chunk of one head. Shared memory: keys and queries [CHUNK,KEYS + 4], K Kᵀ transposed and Q Kᵀ
    // [CHUNK,WIDE]. The inverse takes the place of the keys.
    const u32 stride = KEYS + 4;
    const Chunk chunk(p, blockIdx.x / args.chunks, blockIdx.x % args.chunks);
    if (chunk.tokens == 0) return;
    float *k = shared, *q = k + CHUNK * stride, *triangle = q + CHUNK * stride, *reads = triangle + CHUNK * WIDE;
    __shared__ float gates[3][CHUNK], vectors[VECTORS];
    read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, stride);
    read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, stride);
    if (threadIdx.x < CHUNK) {
        bool inside = threadIdx.x < chunk.tokens;
        Four x = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
        gates[0][threadIdx.x] = x.y;
        gates[1][threadIdx.x] = x.z;
        gates[2][threadIdx.x] = x.w;
    }
    __syncthreads();
    const Share<CHUNK, CHUNK> share;
    // A warp makes 16 rows and 32 columns of each square.
    Sum<4> x;
    auto key = [&](u32 t, u32 j) { return k[t * stride + j]; };
    auto key_across = [&](u32 j, u32 t) { return k[t * stride + j]; };
    auto query = [&](u32 t, u32 j) { return q[t * stride + j]; };
    // K Kᵀ, then Q Kᵀ.
    x.clear();
    product(x, share.row, share.column, KEYS, key, key_across);
    x.each(share.row, share.column, [&](u32 t, u32 j, float value) { triangle[j * WIDE + t] = value; });
    x.clear();
    product(x, share.row, share.column, KEYS, query, key_across);
    x.each(share.row, share.column, [&](u32 t, u32 j, float value) { reads[t * WIDE + j] = value; });
    __syncthreads();
    // Masks on both squares, and the vectors.
    build_tables(p, chunk.tokens, gates, triangle, reads, vectors);
    __syncthreads();
    // Keys and queries are no longer needed.
    float* inverse = k;
    if (p.erase) invert(triangle, inverse);
    __syncthreads();
    // The chunk's place: T, Y ∘ Q Kᵀ, vectors.
    float* to = args.prepared + chunk.kept * PREPARED;
    #pragma unroll
    for (u32 n = 0; n < SQUARE / 4 / THREADS; n++) {
        u32 i = 4 * (threadIdx.x + n * THREADS), at = i / CHUNK * WIDE + i % CHUNK;
        if (p.erase) *(float4*)(to + i) = *(const float4*)(inverse + at);
        *(float4*)(to + SQUARE + i) = *(const float4*)(reads + at);
    }
    for (u32 i = threadIdx.x; i < VECTORS; i += THREADS) to[2 * SQUARE + i] = vectors[i];
}

// Keys of up to 32 elements, of up to 64, and of up to 128.
KERNEL(chunk_prepare_32, Prepare, 256) {
    DYNAMIC_SHARED(float, shared);
    prepare<32>(args, shared);
}
KERNEL(chunk_prepare_64, Prepare, 256) {
    DYNAMIC_SHARED(float, shared);
    prepare<64>(args, shared);
}
KERNEL(chunk_prepare_128, Prepare, 256) {
    DYNAMIC_SHARED(float, shared);
    prepare<128>(args, shared);
}
