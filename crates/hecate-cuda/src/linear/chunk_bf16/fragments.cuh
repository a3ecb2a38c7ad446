// The exact chunk form, equations (15)-(32), with q, k and v of bfloat16: what its kernels share.
//
// Tiles lie in shared memory as they come, as bfloat16, or as halves; the tensor cores take them from there and add up in 32
// bits.
// Masks, the solve and the memory stay in 32 bits; the memory is rounded where it is a factor.
//
// A warp that goes from chunk to chunk holds 16 value columns of the memory, transposed: M^T [16,K], as sums of the
// tensor cores. Everything else it needs of a chunk, X^T [16,64], Z^T, O^T, lies in registers in the same way, in which
// a sum is at once a left factor. So warps exchange nothing; they share the right factors, which are read ahead.
#pragma once
#include "chunk_bf16/halves.cuh"

// What depends on keys, queries and gates only, of each chunk: T and Y ∘ Q Kᵀ [CHUNK,CHUNK] as halves, then vectors [CHUNK]
// of 32 bits in this order. Those of momentum are last. Then come A[n], b[n], E[n,0], where n is the chunk's last token,
// and the factors of T and of Y ∘ Q Kᵀ. In shared memory there is a place after that for the same of dO.
enum { OF_W, OF_R, OF_ERASE_A, OF_READ_A, OF_LAST_C, OF_ERASE_B, OF_READ_B, OF_LAST_E, OF_END };
// Where the vectors without momentum end, scalars begin, and the two factors of the squares are.
static constexpr u32 END_OF_PLAIN = OF_ERASE_B, SCALARS = OF_END * CHUNK, OF_SOLUTION = SCALARS + 3, OF_READS = SCALARS + 4;
static constexpr u32 ELEMENTS = SCALARS + 8, OF_OUTPUTS = ELEMENTS;
// In bytes.
static constexpr u32 READY = 2 * 2 * SQUARE + 4 * ELEMENTS;

// Elements of 16 bits from row to row of a square: eight more than it has, so that eight rows lie in other banks.
static constexpr u32 SIDE = CHUNK + 8;

// Vectors from `first` up to `end`, and what stands after them all.
template <u32 COUNT>
__device__ __forceinline__ void fetch_vectors(const float* x, float* to, u32 who, u32 first, u32 end) {
    for (u32 i = who; i < ELEMENTS / 4; i += COUNT)
        if (4 * i >= first * CHUNK && 4 * i < end * CHUNK || 4 * i >= SCALARS) copy_16(to + 4 * i, x + 4 * i, true);
}

// Sums [16,16] as a left factor.
__device__ __forceinline__ void as_left(u32 (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = pack_bf16(x[0], x[1]);
    a[1] = pack_bf16(x[2], x[3]);
    a[2] = pack_bf16(y[0], y[1]);
    a[3] = pack_bf16(y[2], y[3]);
}

// Two neighbours as bfloat16. The first also gets what is `left` of rounding those before, unless it is zero. Then what
// rounding takes from both is left.
__device__ __forceinline__ u32 pack_with_rest(float first, float second, float& left) {
    const float with = first != 0.0f ? first + left : first;
    const u32 both = pack_bf16(with, second);
    const float kept = first != 0.0f ? 0.0f : left;
    left = kept + (with - low_half(both)) + (second - high_half(both));
    return both;
}

// A left factor in shared memory, 16 bytes a lane: four matrices [8,8], rows 0-7 and 8-15, then the same of columns 8-15.
template <bool BY_MATRICES = GROUPS_MULTIPLY>
__device__ __forceinline__ void store_fragment(uint4* to, const u32 (&x)[4]) {
    if constexpr (BY_MATRICES) {
        store_matrices(x, to);
    } else {
        const u32 lane = threadIdx.x % 32;
        u32* tile = (u32*)(to - lane) + lane;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) tile[32 * i] = x[i];
    }
}
// The same back to registers.
__device__ __forceinline__ void load_fragment(const uint4* from, u32 (&x)[4]) { load_matrices(x, from); }

// Gates of a chunk, of one token a thread: to be asked for before all else, since what is read in front of them takes longer
// than they do. Then w, r, a, η; after the last token nothing is written or forgotten.
__device__ __forceinline__ Four read_gates(const Linear& p, const Chunk& chunk) {
    return threadIdx.x < chunk.tokens ? gates_of(p, chunk.token(p, threadIdx.x)) : Four{};
}
// Returns w, r, a, η of this thread's token; 0, 0, 1, 1 after the chunk's last one.
__device__ __forceinline__ Four token_gates(const Linear& p, const Chunk& chunk, Four gate) {
    return threadIdx.x < chunk.tokens ? lower(p, gate) : Four{0.0f, 0.0f, 1.0f, 1.0f};
}

// A vector [CHUNK] of one element a token, in shared memory. A tile of sums is [16,8], with tokens as its columns. A thread
// holds two neighbouring columns of each row: these are the two elements that it multiplies them by.
struct ByToken {
    const float* x;
    // Returns the thread's two elements of tile n.
    __device__ __forceinline__ float2 operator()(u32 n) const { return *(const float2*)(x + 8 * n + threadIdx.x % 4 * 2); }
};
// The same, read ahead.
struct Held {
    float2 x[CHUNK / 8];
    // Reads a thread's elements of all eight tiles.
    __device__ __forceinline__ void of(ByToken by) {
        #pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++) x[n] = by(n);
    }
    // Returns the thread's two elements of tile n.
    __device__ __forceinline__ float2 operator()(u32 n) const { return x[n]; }
};

// Sums of a warp, [16,8 TILES].
template <u32 TILES>
struct Sums {
    float x[TILES][4];

    // x [16, 8 * TILES] = 0
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] = 0.0f;
    }

    // x += y, both [16, 8 * TILES]
    __device__ __forceinline__ void add(const Sums& y) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] += y.x[n][i];
    }

    // x = x by(column), and x -= y by(column); `by` gives the elements of two neighbours of a tile.
    template <class F>
    __device__ __forceinline__ void scale(const F& by) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            const float2 f = by(n);
            x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
        }
    }
    // x -= by[None, :] * y, with one factor for each token, a column.
    template <class F>
    __device__ __forceinline__ void subtract(const Sums& y, const F& by) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            const float2 f = by(n);
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] -= (i % 2 ? f.y : f.x) * y.x[n][i];
        }
    }
    // x = x by[row], of a thread's two rows.
    __device__ __forceinline__ void scale_rows(float upper, float lower) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) x[n][0] *= upper, x[n][1] *= upper, x[n][2] *= lower, x[n][3] *= lower;
    }
    // x += y by[row].
    __device__ __forceinline__ void add_rows(const Sums& y, float upper, float lower) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] += (i < 2 ? upper : lower) * y.x[n][i];
    }
    // Powers of two for its rows.
    __device__ __forceinline__ void scales(Scale (&rows)[2]) const {
        float most[2] = {};
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) most[i / 2] = fmaxf(most[i / 2], fabsf(x[n][i]));
        largest_of_rows(most);
        rows[0] = Scale::of(most[0]), rows[1] = Scale::of(most[1]);
    }
};

// Left factors of a warp, [16,16 STEPS].
template <u32 STEPS>
struct Lefts {
    u32 x[STEPS][4];

    // Two neighbouring tiles of sums are one left factor [16,16] as they lie: nothing is exchanged.
    __device__ __forceinline__ void of(const Sums<2 * STEPS>& sums) {
        #pragma unroll
        for (u32 s = 0; s < STEPS; s++) as_left(x[s], sums.x[2 * s], sums.x[2 * s + 1]);
    }
    // Of sums whose columns are scaled.
    template <class F>
    __device__ __forceinline__ void of(const Sums<2 * STEPS>& sums, const F& by) {
        Sums<2 * STEPS> scaled = sums;
        scaled.scale(by);
        of(scaled);
    }
    // What rounding took from a thread's part of each of its two rows.
    template <class F>
    __device__ __forceinline__ void taken(float (&left)[2], const Sums<2 * STEPS>& sums, const F& by) const {
        left[0] = left[1] = 0.0f;
        #pragma unroll
        for (u32 s = 0; s < STEPS; s++)
            #pragma unroll
            for (u32 h = 0; h < 4; h++) {
                const u32 n = 2 * s + h / 2, i = h % 2 * 2;
                const float2 f = by(n);
                const float first = f.x * sums.x[n][i] - low_half(x[s][h]);
                left[h % 2] += first + (f.y * sums.x[n][i + 1] - high_half(x[s][h]));
            }
    }
    // Gives it back to the thread's columns of a step, in turn, each what rounding left of the one before. Columns that are
    // zero, of tokens that write nothing or are forgotten, stay zero.
    __device__ __forceinline__ void give_back(float (&left)[2], u32 step) {
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            float both[2] = {low_half(x[step][h]), high_half(x[step][h])}, &rest = left[h % 2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                const float with = both[e] + rest, rounded = low_half(pack_bf16(with, 0.0f));
                if (both[e] != 0.0f) both[e] = rounded, rest = with - rounded;
            }
            x[step][h] = pack_bf16(both[0], both[1]);
        }
    }
    // As halves, of sums whose rows are scaled.
    __device__ __forceinline__ void halves_of(const Sums<2 * STEPS>& sums, float upper, float lower) {
        #pragma unroll
        for (u32 s = 0; s < STEPS; s++)
            #pragma unroll
            for (u32 h = 0; h < 4; h++) {
                const float by = h % 2 ? lower : upper, *pair = sums.x[2 * s + h / 2] + h % 2 * 2;
                x[s][h] = pack_halves(by * pair[0], by * pair[1]);
            }
    }
};

// Rows of a chunk from column `first` out of left factors of a warp that are transposed, [16,CHUNK].
// A warp's lane has column `c` and eight to the right of it, of every eighth token. Tiles are transposed in registers.
__device__ __forceinline__ void store_rows(const Linear& p, const Chunk& chunk, const Lefts<4>& x, u16* to, u32 first) {
    const u32 t = threadIdx.x % 32 / 4, c = first + threadIdx.x % 4 * 2;
    u16* row = to + chunk.token(p, t) * p.value + c;
    const u64 apart = (u64)8 * p.heads * p.value;
    u32 of[8][2];
    #pragma unroll
    for (u32 n = 0; n < 8; n++)
        #pragma unroll
        for (u32 i = 0; i < 2; i++) of[n][i] = transpose_matrix(x.x[n / 2][n % 2 * 2 + i]);
    // All at once where nothing has to be asked.
    if (chunk.tokens == CHUNK && first + 16 <= p.value) {
        #pragma unroll
        for (u32 n = 0; n < 8; n++, row += apart) ((u32*)row)[0] = of[n][0], ((u32*)row)[4] = of[n][1];
        return;
    }
    #pragma unroll
    for (u32 n = 0; n < 8; n++, row += apart) {
        if (8 * n + t < chunk.tokens && c < p.value) ((u32*)row)[0] = of[n][0];
        if (8 * n + t < chunk.tokens && c + 8 < p.value) ((u32*)row)[4] = of[n][1];
    }
}
// To shared memory instead, of which `at(t, c)` is the place of the warp's column c of token t, and of as many after it as lie
// in one piece of eight.
// BY_MATRICES: capability 9.0 transposes while it stores.
template <bool BY_MATRICES = GROUPS_MULTIPLY, class F>
__device__ __forceinline__ void place_rows(F at, const Lefts<4>& x) {
    const u32 lane = threadIdx.x % 32;
    if constexpr (BY_MATRICES) {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) store_matrices_across(x.x[i], at(16 * i + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
    } else {
        #pragma unroll
        for (u32 n = 0; n < 8; n++)
            #pragma unroll
            for (u32 i = 0; i < 2; i++)
                *(u32*)at(8 * n + lane / 4, 8 * i + lane % 4 * 2) = transpose_matrix(x.x[n / 2][n % 2 * 2 + i]);
    }
}
// The same by way of there; what lies there is not needed any more.
// So a lane writes 16 bytes at once, and two lanes a row of 32.
template <class F>
__device__ __forceinline__ void store_rows_by(
    F at, const Linear& p, const Chunk& chunk, const Lefts<4>& x, u16* to, u32 first
) {
    const u32 lane = threadIdx.x % 32, c = first + lane % 2 * 8;
    __syncwarp();
    place_rows(at, x);
    __syncwarp();
    u16* row = to + chunk.token(p, lane / 2) * p.value + c;
    #pragma unroll
    for (u32 i = 0; i < 4; i++, row += (u64)16 * p.heads * p.value) {
        const u32 t = 16 * i + lane / 2;
        const uint4 of = *(const uint4*)at(t, lane % 2 * 8);
        if (t < chunk.tokens && c < p.value) *(uint4*)row = of;
    }
}
