// The exact chunk form, equations (15)-(32), with q, k and v of bfloat16: what its kernels share.
//
// Tiles lie in shared memory as they come, as bfloat16, or as halves; the tensor cores take them from there and add up in 32
// bits.
// Masks, the solve and the memory stay in 32 bits; the memory is rounded where it is a factor.
//
// A warp that goes from chunk to chunk holds 16 value columns of the memory, turned over: M^T [16,K], as sums of the
// tensor cores. Everything else it needs of a chunk, X^T [16,64], Z^T, O^T, lies in registers in the same way, in which
// a sum is at once a left factor. So warps exchange nothing; they share the right factors, which are read ahead.
#pragma once
#include "bf16_halves.cuh"

// What depends on keys, queries and gates only, of each chunk: T and Y ∘ Q Kᵀ [CHUNK,CHUNK] as halves, then vectors [CHUNK]
// of 32 bits by these numbers, those of momentum last, then A[n], b[n], E[n,0], where n is the chunk's last token, and what
// T and Y ∘ Q Kᵀ are to be multiplied by. In shared memory there is a place behind that for the same of dO.
enum { OF_W, OF_R, OF_ERASE_A, OF_READ_A, OF_LAST_C, OF_ERASE_B, OF_READ_B, OF_LAST_E, OF_END };
static constexpr u32 END_OF_PLAIN = OF_ERASE_B, SCALARS = OF_END * CHUNK, OF_SOLUTION = SCALARS + 3, OF_READS = SCALARS + 4;
static constexpr u32 NUMBERS = SCALARS + 8, OF_OUTPUTS = NUMBERS;
static constexpr u32 READY = 2 * 2 * SQUARE + 4 * NUMBERS;  // bytes

static constexpr u32 SIDE = CHUNK + 8;  // bfloat16 from row to row of a square

// Vectors from `first` up to `end`, and what stands behind them all.
template <u32 COUNT>
__device__ __forceinline__ void fetch_numbers(const float* x, float* to, u32 who, u32 first, u32 end) {
    for (u32 i = who; i < NUMBERS / 4; i += COUNT)
        if (4 * i >= first * CHUNK && 4 * i < end * CHUNK || 4 * i >= SCALARS) copy_16(to + 4 * i, x + 4 * i, true);
}

// Sums [16,16] as a left factor.
__device__ __forceinline__ void as_left(u32 (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = pack_bf16(x[0], x[1]);
    a[1] = pack_bf16(x[2], x[3]);
    a[2] = pack_bf16(y[0], y[1]);
    a[3] = pack_bf16(y[2], y[3]);
}

// A left factor in shared memory, 16 bytes a lane: four matrices [8,8], rows 0-7 and 8-15, then the same of columns 8-15.
template <bool BY_MATRICES = GROUPS_MULTIPLY>
__device__ __forceinline__ void hand(uint4* to, const u32 (&x)[4]) {
    if constexpr (BY_MATRICES) {
        store_matrices(x, to);
    } else {
        const u32 lane = threadIdx.x % 32;
        u32* tile = (u32*)(to - lane) + lane;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) tile[32 * i] = x[i];
    }
}
__device__ __forceinline__ void take(const uint4* from, u32 (&x)[4]) { load_matrices(x, from); }

// Gates of a chunk, of one token a thread: to be asked for before all else, since what is read in front of them takes longer
// than they do. Then w, r, a, η; behind the last token nothing is written or forgotten.
__device__ __forceinline__ Four read_gates(const Linear& p, const Chunk& chunk) {
    return threadIdx.x < chunk.tokens ? gates_of(p, chunk.token(p, threadIdx.x)) : Four{};
}
__device__ __forceinline__ Four gate_numbers(const Linear& p, const Chunk& chunk, Four gate) {
    return threadIdx.x < chunk.tokens ? lower(p, gate) : Four{0.0f, 0.0f, 1.0f, 1.0f};
}

// Numbers of a chunk's tokens: of those of tile `n` that are a thread's, two neighbours.
struct ByToken {
    const float* x;
    __device__ __forceinline__ float2 operator()(u32 n) const { return *(const float2*)(x + 8 * n + threadIdx.x % 4 * 2); }
};
// The same, read ahead.
struct Held {
    float2 x[CHUNK / 8];
    __device__ __forceinline__ void of(ByToken by) {
        #pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++) x[n] = by(n);
    }
    __device__ __forceinline__ float2 operator()(u32 n) const { return x[n]; }
};

// Sums of a warp, [16,8 TILES].
template <u32 TILES>
struct Sums {
    float x[TILES][4];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] = 0.0f;
    }

    __device__ __forceinline__ void add(const Sums& y) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) x[n][i] += y.x[n][i];
    }

    // x = x by(column), and x -= y by(column); `by` gives the numbers of two neighbours of a tile.
    template <class F>
    __device__ __forceinline__ void scale(const F& by) {
        #pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            const float2 f = by(n);
            x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
        }
    }
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

// Rows of a chunk from column `first` out of left factors of a warp that are turned over, [16,CHUNK].
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
// To shared memory instead, of which `at(t, c)` is the place of the warp's column c of token t, and of as many behind it as lie
// in one piece of eight.
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

// x [16,CHUNK] += left [16,16] times columns 16 step + [0,16) of rows [CHUNK,·], turned over.
template <u32 COLUMNS>
__device__ __forceinline__ void times_step(Sums<8>& x, const u32 (&a)[4], Tile<COLUMNS, false> rows, u32 step) {
    #pragma unroll
    for (u32 n = 0; n < 4; n++) {
        u32 b[4];
        right(b, rows.x, rows.STRIDE, 16 * n, 16 * step);
        multiply_pair(x.x[2 * n], x.x[2 * n + 1], a, b);
    }
}
// x = left [16,16 STEPS] times all of them, of a group's warps each, which do something else `meanwhile`.
template <u32 STEPS, class F>
__device__ __forceinline__ void times_all(Sums<8>& x, const Lefts<STEPS>& a, Tile<16 * STEPS, true> rows, F meanwhile) {
    const u64 tile = described(rows.x);
    group_begin();
    #pragma unroll
    for (u32 i = 0; i < STEPS; i++) group_multiply<false, 8, 0>(x.x, a.x[i], along(tile, i), i > 0);
    group_commit();
    meanwhile();
    group_wait();
    hold(x.x);
}
struct Nothing {
    __device__ __forceinline__ void operator()() const {}
};

// A warp's 16 columns of a matrix of the memory, turned over: [16,KEYS].
template <u32 KEYS>
struct Columns {
    static constexpr u32 TILES = KEYS / 8;
    Sums<TILES> sums;

    // Calls `f` with element `i` of tile `n`, where it lies in a matrix `x` [K,V] from column `first` on, and whether it is
    // inside: K and V are multiples of 8, so that a warp's lanes agree.
    template <class X, class F>
    static __device__ __forceinline__ void each(const Linear& p, X* x, u32 first, F f) {
        const u32 key = threadIdx.x % 4 * 2, value = first + threadIdx.x % 32 / 4;
        X *even = x + (u64)key * p.value + value, *odd = even + p.value;
        const u64 further = (u64)8 * p.value;
        #pragma unroll
        for (u32 n = 0; n < TILES; n++, even += further, odd += further)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(n, i, (i % 2 ? odd : even) + i / 2 * 8, 8 * n < p.key && first + i / 2 * 8 < p.value);
    }
    __device__ __forceinline__ void read(const Linear& p, const float* x, u32 first) {
        each(p, x, first, [&](u32 n, u32 i, const float* at, bool inside) { sums.x[n][i] = inside ? *at : 0.0f; });
    }
    __device__ __forceinline__ void write(const Linear& p, float* x, u32 first) const {
        each(p, x, first, [&](u32 n, u32 i, float* at, bool inside) { if (inside) *at = sums.x[n][i]; });
    }

    // Left factor `i`, which is handed on.
    __device__ __forceinline__ void step(u32 (&a)[4], uint4* to, u32 i) const {
        as_left(a, sums.x[2 * i], sums.x[2 * i + 1]);
        hand(to + 32 * i, a);
    }
    __device__ __forceinline__ void hand_on(uint4* to) const {
        u32 a[4];
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) step(a, to, i);
    }
    // x [16,CHUNK] = this times rows [CHUNK,KEYS], turned over; this is handed on.
    template <bool GROUP, class F = Nothing>
    __device__ __forceinline__ void times_rows(Sums<8>& x, Tile<KEYS, GROUP> rows, uint4* to, F meanwhile = {}) const {
        if constexpr (GROUP) {
            Lefts<KEYS / 16> a;
            #pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++) step(a.x[i], to, i);
            times_all(x, a, rows, meanwhile);
        } else {
            meanwhile();
            x.clear();
            #pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++) {
                u32 a[4];
                step(a, to, i);
                times_step(x, a, rows, i);
            }
        }
    }

    // This += left [16,CHUNK] rows [CHUNK,KEYS]. Groups go on while they multiply, and neither sums nor factor are theirs until
    // they finished.
    template <bool GROUP>
    __device__ __forceinline__ void begin_add(const Lefts<4>& factor, Tile<KEYS, GROUP> rows) {
        if constexpr (GROUP) {
            const u64 tile = described(rows.x);
            group_begin();
            #pragma unroll
            for (u32 s = 0; s < 4; s++) add_panels<0>(factor.x[s], tile, s);
            group_commit();
        } else {
            #pragma unroll
            for (u32 s = 0; s < 4; s++)
                #pragma unroll
                for (u32 n = 0; n < KEYS / 16; n++) {
                    u32 b[4];
                    right_across(b, rows.x, rows.STRIDE, 16 * n, 16 * s);
                    multiply_pair(sums.x[2 * n], sums.x[2 * n + 1], factor.x[s], b);
                }
        }
    }
    template <bool GROUP>
    __device__ __forceinline__ void finish_add() {
        if constexpr (GROUP) {
            group_wait();
            hold(sums.x);
        }
    }
    template <u32 N>
    __device__ __forceinline__ void add_panels(const u32 (&a)[4], u64 tile, u32 s) {
        group_multiply<true, 8, 8 * N>(sums.x, a, across<CHUNK>(tile, s, 64 * N), true);
        if constexpr (64 * N + 64 < KEYS) add_panels<N + 1>(a, tile, s);
    }
};

// x [16,CHUNK] = left factors that were handed on times rows [CHUNK,16 STEPS], turned over.
template <u32 STEPS, bool GROUP>
__device__ __forceinline__ void handed_times(Sums<8>& x, const uint4* from, Tile<16 * STEPS, GROUP> rows) {
    if constexpr (GROUP) {
        Lefts<STEPS> a;
        #pragma unroll
        for (u32 i = 0; i < STEPS; i++) take(from + 32 * i, a.x[i]);
        times_all(x, a, rows, Nothing{});
    } else {
        x.clear();
        #pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            u32 a[4];
            take(from + 32 * i, a);
            times_step(x, a, rows, i);
        }
    }
}

// A state [K,V] that is kept for the backward: as bfloat16 [V,KEYS] in tiles [16,16], one behind the other as rows of
// tiles, each of them four [8,8]: rows 0-7, rows 8-15, and the same of columns 8-15. So a left factor of a warp is written
// in whole lines. Tiles are whole: outside they have zeros.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_size(const Linear& p) { return KEYS * ((p.value + 15) / 16 * 16); }
// Where eight columns from `column` of row `v` lie.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_at(u32 v, u32 column) {
    return (v / 16 * (KEYS / 16) + column / 16) * 256 + column / 8 % 2 * 128 + v % 16 * 8;
}
// Keeps the left factors of 16 columns from `first`, which were handed on from `from` on; by a warp, whose first lane has
// `stores_commit` and what waits to say where pieces are stored.
template <u32 KEYS, bool PIECES = GROUPS_MULTIPLY>
__device__ __forceinline__ void keep(const Linear& p, const uint4* from, u16* to, u32 first) {
    if (first >= p.value) return;
    uint4* tiles = (uint4*)(to + kept_at<KEYS>(first, 0));
    const u32 lane = threadIdx.x % 32;
    if constexpr (PIECES) {
        if (lane == 0) store_piece(tiles, from, 2 * 16 * KEYS);
    } else {
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) tiles[32 * i + lane] = from[32 * i + lane];
    }
}

// Products of left [16,CHUNK] with squares, all halves. x = left times a square whose blocks above the diagonal are zeros,
// turned over; of a group's warps each, which do something else `meanwhile`: LEFT of its commits are not waited for.
template <bool ACROSS, u32 LEFT, class F>
__device__ __forceinline__ void times_square(Sums<8>& x, const Lefts<4>& factor, Tile<CHUNK, true> square, F meanwhile) {
    const u64 tile = described(square.x);
    group_begin();
    #pragma unroll
    for (u32 s = 0; s < 4; s++) {
        const u64 right = ACROSS ? across<CHUNK>(tile, s, 0) : along(tile, s);
        group_multiply<ACROSS, 8, 0, true>(x.x, factor.x[s], right, s > 0);
    }
    group_commit();
    meanwhile();
    group_wait<LEFT>();
    hold(x.x);
}

// x = left times a lower square, turned over: x[·,i] = Σ_{j ≤ i} left[·,j] square[i,j].
template <bool GROUP, class F = Nothing>
__device__ __forceinline__ void times_lower(Sums<8>& x, const Lefts<4>& factor, Tile<CHUNK, GROUP> square, F meanwhile = {}) {
    if constexpr (GROUP) return times_square<false, 0>(x, factor, square, meanwhile);
    else {
        meanwhile();
        x.clear();
        #pragma unroll
        for (u32 n = 0; n < 4; n++)
            #pragma unroll
            for (u32 s = 0; s <= n; s++) {
                u32 b[4];
                right(b, square.x, square.STRIDE, 16 * n, 16 * s);
                multiply_halves(x.x[2 * n], x.x[2 * n + 1], factor.x[s], b);
            }
    }
}

// x = left times a lower square: x[·,j] = Σ_{i ≥ j} left[·,i] square[i,j].
template <u32 LEFT = 0, bool GROUP, class F = Nothing>
__device__ __forceinline__ void times_upper(Sums<8>& x, const Lefts<4>& factor, Tile<CHUNK, GROUP> square, F meanwhile = {}) {
    if constexpr (GROUP) return times_square<true, LEFT>(x, factor, square, meanwhile);
    else {
        meanwhile();
        x.clear();
        #pragma unroll
        for (u32 n = 0; n < 4; n++)
            #pragma unroll
            for (u32 s = n; s < 4; s++) {
                u32 b[4];
                right_across(b, square.x, square.STRIDE, 16 * n, 16 * s);
                multiply_halves(x.x[2 * n], x.x[2 * n + 1], factor.x[s], b);
            }
    }
}
