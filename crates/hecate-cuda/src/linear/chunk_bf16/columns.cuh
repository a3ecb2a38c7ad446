// A warp's 16 value columns of the memory, transposed, and their products with the rows of a chunk.
#pragma once
#include "chunk_bf16/fragments.cuh"

// x [16,CHUNK] += left [16,16] times columns 16 step + [0,16) of rows [CHUNK,·], transposed.
template <u32 COLUMNS>
__device__ __forceinline__ void times_step(Sums<8>& x, const u32 (&a)[4], Tile<COLUMNS, false> rows, u32 step) {
    #pragma unroll
    for (u32 n = 0; n < 4; n++) {
        // Two tiles [16,8] of keys as right factors.
        u32 b[4];
        right(b, rows.x, rows.STRIDE, 16 * n, 16 * step);
        multiply_pair(x.x[2 * n], x.x[2 * n + 1], a, b);
    }
}
// x = left [16,16 STEPS] times all of them, of a group's warps each, which do something else `meanwhile`.
template <u32 STEPS, class F>
__device__ __forceinline__ void times_all(Sums<8>& x, const Lefts<STEPS>& a, Tile<16 * STEPS, true> rows, F meanwhile) {
    // All STEPS products are begun before the first is waited for.
    const u64 tile = described(rows.x);
    group_begin();
    #pragma unroll
    for (u32 i = 0; i < STEPS; i++) group_multiply<false, 8, 0>(x.x, a.x[i], along(tile, i), i > 0);
    group_commit();
    meanwhile();
    group_wait();
    hold(x.x);
}
// What a caller does meanwhile that has nothing to do.
// Costs no instruction.
struct Nothing {
    // Does nothing.
    __device__ __forceinline__ void operator()() const {}
};

// A warp's 16 columns of a matrix of the memory, transposed: [16,KEYS].
// A thread holds KEYS / 2 elements: of tile n, rows lane / 4 and 8 more, columns 8 n + lane % 4 * 2 and 1 more.
template <u32 KEYS>
struct Columns {
    static constexpr u32 TILES = KEYS / 8;
    // 32 bits: the state keeps them from chunk to chunk, and only factors are rounded.
    Sums<TILES> sums;

    // Calls `f` with element `i` of tile `n`, its place in a matrix `x` [K,V] from column `first` on, and whether it is
    // inside. K and V are multiples of 8, so that a warp's lanes agree.
    template <class X, class F>
    static __device__ __forceinline__ void each(const Linear& p, X* x, u32 first, F f) {
        // The lane's first row and column of the matrix.
        // As sums of a product lie among the lanes of a warp.
        const u32 key = threadIdx.x % 4 * 2, value = first + threadIdx.x % 32 / 4;
        X *even = x + (u64)key * p.value + value, *odd = even + p.value;
        // From tile to tile.
        const u64 further = (u64)8 * p.value;
        #pragma unroll
        for (u32 n = 0; n < TILES; n++, even += further, odd += further)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(n, i, (i % 2 ? odd : even) + i / 2 * 8, 8 * n < p.key && first + i / 2 * 8 < p.value);
    }
    // From and to a matrix [K,V] of 32-bit floats, columns from `first` on.
    __device__ __forceinline__ void read(const Linear& p, const float* x, u32 first) {
        each(p, x, first, [&](u32 n, u32 i, const float* at, bool inside) { sums.x[n][i] = inside ? *at : 0.0f; });
    }
    // Stores the columns to a matrix [K,V] of floats.
    __device__ __forceinline__ void write(const Linear& p, float* x, u32 first) const {
        each(p, x, first, [&](u32 n, u32 i, float* at, bool inside) { if (inside) *at = sums.x[n][i]; });
    }

    // Left factor `i`, which is stored too.
    __device__ __forceinline__ void step(u32 (&a)[4], uint4* to, u32 i) const {
        // Rounded to bfloat16 here, and only here.
        as_left(a, sums.x[2 * i], sums.x[2 * i + 1]);
        store_fragment(to + 32 * i, a);
    }
    // All left factors, to the places of this warp.
    __device__ __forceinline__ void store_left(uint4* to) const {
        u32 a[4];
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) step(a, to, i);
    }
    // x [16,CHUNK] = this times rows [CHUNK,KEYS], transposed; this is stored as left factors.
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
    // they finished. Step LAST of the factor is multiplied last: until then `meanwhile` may change it, and it alone.
    template <u32 LAST = 3, bool GROUP, class F = Nothing>
    __device__ __forceinline__ void begin_add(const Lefts<4>& factor, Tile<KEYS, GROUP> rows, F meanwhile = {}) {
        if constexpr (GROUP) {
            const u64 tile = described(rows.x);
            group_begin();
            #pragma unroll
            for (u32 s = 0; s < 4; s++)
                if (s != LAST) add_panels<0>(factor.x[s], tile, s);
            meanwhile();
            // For registers that it wrote.
            group_begin();
            add_panels<0>(factor.x[LAST], tile, LAST);
            group_commit();
        } else {
            meanwhile();
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
    // The same of x [16,CHUNK] times `by` of each column, rounded, in `factor`. The sums of its rows are kept, by columns of step
    // LAST: keys that are alike make of 64 large writes a small change, where rounding would not cancel.
    template <u32 LAST, bool GROUP, class F>
    __device__ __forceinline__ void begin_add_sums(
        Lefts<4>& factor, const Sums<8>& x, const F& by, Tile<KEYS, GROUP> rows
    ) {
        factor.of(x, by);
        float left[2];
        factor.taken(left, x, by);
        begin_add<LAST>(factor, rows, [&] { factor.give_back(left, LAST); });
    }
    // Groups wait for what they began; a warp's products are done already.
    template <bool GROUP>
    __device__ __forceinline__ void finish_add() {
        if constexpr (GROUP) {
            group_wait();
            hold(sums.x);
        }
    }
    // Panels of 64 keys, one product each; sums of 8 tiles belong to a panel.
    template <u32 N>
    __device__ __forceinline__ void add_panels(const u32 (&a)[4], u64 tile, u32 s) {
        group_multiply<true, 8, 8 * N>(sums.x, a, across<CHUNK>(tile, s, 64 * N), true);
        if constexpr (64 * N + 64 < KEYS) add_panels<N + 1>(a, tile, s);
    }
};

// x [16,CHUNK] = stored left factors times rows [CHUNK,16 STEPS], transposed.
template <u32 STEPS, bool GROUP>
__device__ __forceinline__ void left_factors_times(Sums<8>& x, const uint4* from, Tile<16 * STEPS, GROUP> rows) {
    if constexpr (GROUP) {
        // All factors in registers, as a group needs them.
        Lefts<STEPS> a;
        #pragma unroll
        for (u32 i = 0; i < STEPS; i++) load_fragment(from + 32 * i, a.x[i]);
        times_all(x, a, rows, Nothing{});
    } else {
        x.clear();
        #pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            u32 a[4];
            load_fragment(from + 32 * i, a);
            times_step(x, a, rows, i);
        }
    }
}

// A state [K,V] that is kept for the backward, as bfloat16 [V,KEYS]. It lies in tiles [16,16], one after another as rows
// of tiles. Each is four [8,8]: rows 0-7, rows 8-15, and the same of columns 8-15. So a left factor of a warp is written
// in whole lines. Tiles are whole: outside they have zeros.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_size(const Linear& p) { return KEYS * ((p.value + 15) / 16 * 16); }
// Where eight columns from `column` of row `v` lie.
template <u32 KEYS>
__device__ __forceinline__ u32 kept_at(u32 v, u32 column) {
    return (v / 16 * (KEYS / 16) + column / 16) * 256 + column / 8 % 2 * 128 + v % 16 * 8;
}
// Keeps the left factors of 16 columns from `first`, which are stored from `from` on. By a warp: where pieces are
// stored, its first lane must call `stores_commit` and wait.
template <u32 KEYS, bool PIECES = GROUPS_MULTIPLY>
__device__ __forceinline__ void keep(const Linear& p, const uint4* from, u16* to, u32 first) {
    // Columns that the array does not have are nobody's.
    if (first >= p.value) return;
    uint4* tiles = (uint4*)(to + kept_at<KEYS>(first, 0));
    const u32 lane = threadIdx.x % 32;
    if constexpr (PIECES) {
        // 32 KEYS bytes lie one after another both here and there.
        if (lane == 0) store_piece(tiles, from, 2 * 16 * KEYS);
    } else {
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) tiles[32 * i + lane] = from[32 * i + lane];
    }
}

// Products of left [16,CHUNK] with squares, all halves. x = left times a square whose blocks above the diagonal are zeros,
// transposed; of a group's warps each, which do something else `meanwhile`: LEFT of its commits are not waited for.
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
    // Sums are the hardware's until it has finished.
    group_wait<LEFT>();
    hold(x.x);
}

// x = left times a lower square, transposed: x[·,i] = Σ_{j ≤ i} left[·,j] square[i,j].
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
