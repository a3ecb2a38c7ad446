// Matrices of fp16 in shared memory, where each tile [16,16] has a scale of its own, and their products by warps.
// A block has enough warps that each of them computes one tile of a product.
#pragma once
#include "frozen_product.cuh"
#include "tensor.cuh"

// A block has sixteen warps, which leaves 128 registers a thread.
#define RESIDENT_THREADS 512

// Unpacks two bfloat16 of a word into floats: a bfloat16 is the upper half of a float.
__device__ __forceinline__ float2 unpack_bf16(u32 both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

// Stores a word to shared memory at a 32-bit address, which takes fewer registers than a generic pointer.
__device__ __forceinline__ void put_word(u32 at, u32 x) { asm volatile("st.shared.b32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }
// Loads a word from shared memory by its 32-bit address.
__device__ __forceinline__ u32 get_word(u32 at) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
// Loads a float from shared memory by its 32-bit address.
__device__ __forceinline__ float get_number(u32 at) { return __uint_as_float(get_word(at)); }
// Stores a float to shared memory by its 32-bit address.
__device__ __forceinline__ void put_number(u32 at, float x) { put_word(at, __float_as_uint(x)); }

// d [16,8] = a [16,16] @ b [16,8]: one warp multiplies fp16 and sums in f32, with `multiply_add_halves`' layout of lanes.
__device__ __forceinline__ void multiply_halves(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// max(top, |x|) of floats as their bits. As bits an infinity exceeds every finite number, and NaN exceeds an infinity.
__device__ __forceinline__ u32 larger(u32 top, float x) { return max(top, __float_as_uint(x) & 0x7fffffffu); }
// max(top, |x|) over four elements, as bits.
__device__ __forceinline__ u32 larger(u32 top, float4 x) { return larger(larger(larger(larger(top, x.x), x.y), x.z), x.w); }
// Every lane gets the largest of a warp's values.
__device__ __forceinline__ u32 warp_larger(u32 top) { return __reduce_max_sync(0xffffffffu, top); }

// The power-of-two scale of an fp16 tile: stored = x * by, and x = stored * counts.
struct Unit {
    float by, counts;

    // Chooses the scale from the tile's largest magnitude, given as bits: scaled, it lies in [2^14, 2^15), so fp16 never overflows.
    // A tile smaller than 2^-46 keeps the scale of 2^-46. Infinities and NaN stay what they are.
    __device__ __forceinline__ explicit Unit(u32 top) {
        // By its exponent alone.
        u32 exponent = max(top >> 23, 81u);
        by = __uint_as_float((268 - exponent) << 23), counts = __uint_as_float((exponent - 14) << 23);
    }
};

// A matrix [height, 8 * pieces] of fp16 in shared memory, as rows of vectors of eight. Vectors are swizzled within their row, so
// that eight neighbouring rows lie in different banks.
struct Plane {
    // x is the address of the elements, units that of the tiles' scales `counts`. A row has `pieces` vectors of eight.
    u32 x, units, pieces, shift;

    // Planes lie in shared memory, where nothing is constructed.
    __device__ __forceinline__ Plane() {}
    // Places a plane [height,wide] at `place`; the scales of its tiles follow its elements.
    __device__ __forceinline__ Plane(const float* place, u32 height, u32 wide)
        : x((u32)__cvta_generic_to_shared(place)), units(x + 2 * height * wide), pieces(wide / 8) {
        // The swizzle XORs a vector's index with up to the largest power of two that divides a row's vectors. Narrow rows share
        // 128 bytes, and are swizzled alike.
        shift = pieces % 8 == 0 ? 0 : pieces % 4 == 0 ? 1 : pieces % 2 == 0 ? 2 : 3;
    }
    // Returns how many 32-bit words a plane [height,wide] takes, scales included.
    __device__ static u32 size(u32 height, u32 wide) { return height * wide / 2 + height * wide / 256; }
    // Returns the number that is XORed into the indices of a row's vectors.
    __device__ __forceinline__ u32 turn(u32 row) const { return row % 8 >> shift; }
    // Returns the shared address of element (i, j).
    __device__ __forceinline__ u32 at(u32 i, u32 j) const { return x + (i * pieces + (j / 8 ^ turn(i))) * 16 + j % 8 * 2; }
    // Returns the shared address of the scale of the tile [16,16] that holds (i, j).
    __device__ __forceinline__ u32 unit(u32 i, u32 j) const { return units + (i / 16 * (pieces / 2) + j / 16) * 4; }
    // Returns x[i, j:j+4] as floats; j is a multiple of four.
    __device__ __forceinline__ float4 four(u32 i, u32 j) const {
        float2 low = unpack_halves(get_word(at(i, j))), high = unpack_halves(get_word(at(i, j) + 4));
        float counts = get_number(unit(i, j));
        return make_float4(low.x * counts, low.y * counts, high.x * counts, high.y * counts);
    }
};

// to[i, j:j+4] = f(i, j) for a plane [height,wide]. A warp takes a tile [16,16] at a time and finds its scale; AT_ONCE tiles
// of it load together, to hide latency.
template <u32 AT_ONCE, class F> __device__ __forceinline__ void fill(const Plane& to, u32 height, u32 wide, F f) {
    u32 across = wide / 16, all = height / 16 * across, warps = blockDim.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 first = threadIdx.x / 32; first < all; first += AT_ONCE * warps) {
        float4 x[AT_ONCE][2];
        // A thread has two vectors of four, eight rows apart.
        u32 rows[AT_ONCE], columns[AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 tile = first + n * warps;
            rows[n] = tile / across * 16 + lane / 4, columns[n] = tile % across * 16 + lane % 4 * 4;
#pragma unroll
            for (u32 m = 0; m < 2; m++)
                if (tile < all) x[n][m] = f(rows[n] + 8 * m, columns[n]);
        }
        // A plane may be filled from itself: all lanes have read their tile before any of them writes.
        __syncwarp();
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            if (first + n * warps >= all) break;
            Unit unit(warp_larger(larger(larger(0, x[n][0]), x[n][1])));
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                float4 by = map([&](float x) { return x * unit.by; }, x[n][m]);
                u32 at = to.at(rows[n] + 8 * m, columns[n]);
                put_word(at, pack_halves(by.x, by.y)), put_word(at + 4, pack_halves(by.z, by.w));
            }
            if (first_lane()) put_number(to.unit(rows[n], columns[n]), unit.counts);
        }
    }
}

// The part of a product's tile [16, 8 * N] that an mma leaves to a thread: its pair (m, n) is at row 8 m + lane / 4 and
// columns 8 n + 2 (lane % 4) and the next.
struct Tile {
    u32 top, side;

    // Returns the row of a thread's pairs (m, n).
    __device__ __forceinline__ u32 row(u32 m) const { return top + 8 * m + threadIdx.x % 32 / 4; }
    // Returns the first column of a thread's pairs (m, n).
    __device__ __forceinline__ u32 column(u32 n) const { return side + 8 * n + threadIdx.x % 4 * 2; }
};
// The shared addresses of a thread's pairs in a tile of a plane, with what does not depend on (m, n) computed once.
struct PlanePart {
    u32 at, first, turn, down;

    // Computes what all pairs of the thread share: the row's address, the tile's first vector and the swizzle.
    __device__ __forceinline__ PlanePart(const Plane& plane, const Tile& tile) {
        u32 row = tile.row(0);
        // Both rows of a thread have the same swizzle, which repeats every eight rows.
        at = plane.x + row * plane.pieces * 16 + threadIdx.x % 4 * 4;
        first = tile.side / 8, turn = plane.turn(row), down = 128 * plane.pieces;
    }
    // Returns the shared address of pair (m, n).
    __device__ __forceinline__ u32 place(u32 m, u32 n) const { return at + m * down + ((first + n ^ turn) << 4); }
};
// Calls f(m, n, x) with each pair of a thread's part of a tile [16, 8 * N]; f may change the pair in place.
template <u32 N, class F> __device__ __forceinline__ void pairs(float (&sum)[N][4], F f) {
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            float2 x = make_float2(sum[n][2 * m], sum[n][2 * m + 1]);
            f(m, n, x);
            sum[n][2 * m] = x.x, sum[n][2 * m + 1] = x.y;
        }
}
// x = from[tile], scaled back to f32: x is a thread's part of a tile [16, 8 * N], with N even since scales are of 16 columns.
template <u32 N> __device__ __forceinline__ void get_tile(float (&x)[N][4], const Plane& from, const Tile& tile) {
    PlanePart part(from, tile);
    u32 units = from.unit(tile.top, tile.side);
    pairs(x, [&](u32 m, u32 n, float2& of) {
        float counts = get_number(units + n / 2 * 4);
        of = unpack_halves(get_word(part.place(m, n))), of.x *= counts, of.y *= counts;
    });
}
// to[tile] = x as fp16. The warp finds the scale of each 16 columns of the tile [16, 8 * N].
template <u32 N> __device__ __forceinline__ void set_tile(const Plane& to, const Tile& tile, const float (&x)[N][4]) {
    PlanePart part(to, tile);
    u32 units = to.unit(tile.top, tile.side);
#pragma unroll
    for (u32 k = 0; k < N; k += 2) {
        u32 top = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++) top = larger(top, x[k + i / 4][i % 4]);
        Unit unit(warp_larger(top));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 n = k + i / 2, m = i % 2;
            put_word(part.place(m, n), pack_halves(x[n][2 * m] * unit.by, x[n][2 * m + 1] * unit.by));
        }
        // Before a tile replaces itself, all lanes have read its old scale.
        __syncwarp();
        if (first_lane()) put_number(units + k / 2 * 4, unit.counts);
    }
}
// x = from[tile] for a panel of f32, which has no scales.
template <u32 N> __device__ __forceinline__ void get_tile(float (&x)[N][4], const Panel& from, const Tile& tile) {
    const float* first = from.row(tile.row(0)) + tile.column(0);
    u32 down = 8 * from.stride;
    pairs(x, [&](u32 m, u32 n, float2& of) { of = *(const float2*)(first + m * down + 8 * n); });
}
// to[tile] = x for a panel of f32.
template <u32 N> __device__ __forceinline__ void set_tile(const Panel& to, const Tile& tile, const float (&x)[N][4]) {
    float* first = to.row(tile.row(0)) + tile.column(0);
    u32 down = 8 * to.stride;
#pragma unroll
    for (u32 i = 0; i < 2 * N; i++)
        *(float2*)(first + i % 2 * down + i / 2 * 8) = make_float2(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// A matrix of f32 that only the thread which wrote an element reads again. A thread's eight elements of a tile [16,16] lie
// together and a warp's lanes follow each other, so that every access covers whole cache lines.
struct Own {
    float* x;
    u32 across;

    // Returns the address of this thread's eight elements of a tile [16,16], as two vectors of four.
    __device__ __forceinline__ float4* of(const Tile& tile) const {
        return (float4*)x + ((tile.top / 16 * across + tile.side / 16) * 32 + threadIdx.x % 32) * 2;
    }
};
// x = from[tile] of [16,16], this thread's part.
__device__ __forceinline__ void get_tile(float (&x)[2][4], const Own& from, const Tile& tile) {
    const float4* of = from.of(tile);
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        float4 four = of[n];
        x[n][0] = four.x, x[n][1] = four.y, x[n][2] = four.z, x[n][3] = four.w;
    }
}
// to[tile] = x of [16,16], this thread's part.
__device__ __forceinline__ void set_tile(const Own& to, const Tile& tile, const float (&x)[2][4]) {
    float4* of = to.of(tile);
#pragma unroll
    for (u32 n = 0; n < 2; n++) of[n] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
}

// The same in fp16 with a scale a tile, as planes have; the scales follow the elements.
struct OwnHalves {
    float* x;
    u32 across, height;

    // Returns the index of a tile [16,16], row by row.
    __device__ __forceinline__ u32 number(const Tile& tile) const { return tile.top / 16 * across + tile.side / 16; }
    // Returns the address of this thread's eight fp16 elements of a tile.
    __device__ __forceinline__ uint4* of(const Tile& tile) const { return (uint4*)x + number(tile) * 32 + threadIdx.x % 32; }
    // Returns the address of a tile's scale.
    __device__ __forceinline__ float* unit(const Tile& tile) const { return x + height * across * 8 + number(tile); }
};
// x = from[tile] of [16,16], scaled back to f32.
__device__ __forceinline__ void get_tile(float (&x)[2][4], const OwnHalves& from, const Tile& tile) {
    uint4 words = *from.of(tile);
    float counts = *from.unit(tile);
    u32 of[4] = {words.x, words.y, words.z, words.w};
    pairs(x, [&](u32 m, u32 n, float2& two) { two = unpack_halves(of[2 * n + m]), two.x *= counts, two.y *= counts; });
}
// to[tile] = x of [16,16] as fp16, with the scale that the warp finds.
__device__ __forceinline__ void set_tile(const OwnHalves& to, const Tile& tile, const float (&x)[2][4]) {
    u32 top = 0, of[4];
#pragma unroll
    for (u32 i = 0; i < 8; i++) top = larger(top, x[i / 4][i % 4]);
    Unit unit(warp_larger(top));
#pragma unroll
    for (u32 i = 0; i < 4; i++) of[i] = pack_halves(x[i / 2][i % 2 * 2] * unit.by, x[i / 2][i % 2 * 2 + 1] * unit.by);
    *to.of(tile) = make_uint4(of[0], of[1], of[2], of[3]);
    __syncwarp();
    if (first_lane()) *to.unit(tile) = unit.counts;
}

// Addresses that a lane gives to `ldmatrix` for a factor of a product: SIXTEENS tiles of the result from `first` on, and 16 terms
// of the sum at a time. BY_DEPTH: the plane's rows are the terms that are summed; else they are rows or columns of the result.
template <bool BY_DEPTH, u32 SIXTEENS> struct Walk {
    // Shared addresses: one a tile if rows are terms, else that of the lane's first row.
    u32 at[BY_DEPTH ? SIXTEENS : 1];
    u32 turn, piece, apart;

    // Steps are multiples of sixteen rows, so a lane's rows always have the same swizzle.
    // Lane 8 i + r gives row r of matrix i of four [8,8]; `down` and `on` say where that matrix lies among the four.
    __device__ __forceinline__ Walk(const Plane& plane, u32 first, u32 down, u32 on) {
        u32 r = threadIdx.x % 8, start = plane.x;
        turn = plane.turn(r), apart = 256 * plane.pieces;
        if constexpr (BY_DEPTH) {
            piece = 0;
#pragma unroll
            for (u32 n = 0; n < SIXTEENS; n++)
                at[n] = start + ((r + 8 * on) * plane.pieces + ((first / 8 + 2 * n + down) ^ turn)) * 16;
        } else {
            piece = on, at[0] = start + (first + r + 8 * down) * plane.pieces * 16;
        }
    }
    // Returns the address for tile n of SIXTEENS.
    __device__ __forceinline__ u32 place(u32 n) const {
        if constexpr (BY_DEPTH) return at[n];
        else return at[0] + n * apart + ((piece ^ turn) << 4);
    }
    // Moves on by sixteen terms of the sum.
    __device__ __forceinline__ void go() {
        if constexpr (BY_DEPTH) {
#pragma unroll
            for (u32 n = 0; n < SIXTEENS; n++) at[n] += apart;
        } else {
            piece += 2;
        }
    }
};
// Loads four matrices [8,8] of fp16 into a warp, TURNED transposed, from a 32-bit shared address.
template <bool TURNED> __device__ __forceinline__ void load_at(u32 (&x)[4], u32 place) {
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place) : "memory");
}

// Reads a factor's scales along the sum, sixteen terms at a time. DOWN: the terms are the plane's rows.
template <bool DOWN> struct Units {
    u32 at, step, apart;

    // Starts at the first term, for tiles of the result from `first` on.
    __device__ __forceinline__ Units(const Plane& plane, u32 first) {
        u32 down = plane.pieces * 2;
        at = plane.units + first / 16 * (DOWN ? 4 : down), step = DOWN ? down : 4, apart = DOWN ? 4 : down;
    }
    // Returns the scale `counts` of tile n of the result at the present sixteen terms.
    __device__ __forceinline__ float of(u32 n) const { return get_number(at + n * apart); }
    // Moves on by sixteen terms of the sum.
    __device__ __forceinline__ void go() { at += step; }
};
// sum [16, 8 * N] += by[n] * (x [16,16] @ y [16, 8 * N]), where `by[n]` is the product of both factors' scales for 16 columns.
template <u32 N>
__device__ __forceinline__ void multiply_sixteen(float (&sum)[N][4], const u32 (&x)[4], const u32 (&y)[N / 2][4], const float (&by)[N / 2]) {
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        float own[4];
        multiply_halves(own, x, y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum[n][i] += by[n / 2] * own[i];
    }
}
// sum [16, 8 * N] += (A ? a.T : a)[tile rows, :depth] @ (B ? b.T : b)[:depth, tile columns]. One warp computes one tile;
// A: `a` is stored [depth,rows], B: `b` is stored [columns,depth].
template <bool A, bool B, u32 N>
__device__ __forceinline__ void add_product(float (&sum)[N][4], const Plane& a, const Plane& b, const Tile& tile, u32 depth) {
    u32 low = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2;
    Walk<A, 1> left(a, tile.top, low, high);
    Walk<!B, N / 2> right(b, tile.side, high, low);
    Units<A> of_left(a, tile.top);
    Units<!B> of_right(b, tile.side);
    // The loop is not unrolled: small code is worth more here than the loop's overhead.
#pragma unroll 1
    for (u32 k = 0; k < depth; k += 16) {
        u32 x[4], y[N / 2][4];
        float by[N / 2];
        load_at<A>(x, left.place(0));
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) load_at<!B>(y[n], right.place(n)), by[n] = of_left.of(0) * of_right.of(n);
        multiply_sixteen(sum, x, y, by);
        left.go(), right.go(), of_left.go(), of_right.go();
    }
}
// x += (by_x[:, None] * a).T @ b and, if `both`, s += (by_s[:, None] * a).T @ b, one tile [16, 8 * N] a warp;
// a [depth,rows], b [depth,columns], by [depth].
template <u32 N>
__device__ __forceinline__ void add_scaled(float (&x)[N][4], float (&s)[N][4], bool both, const Plane& a, const Plane& b,
                                           const Tile& tile, const float* by_x, const float* by_s, u32 depth) {
    u32 low = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2, t = threadIdx.x % 4;
    Walk<true, 1> left(a, tile.top, low, high);
    Walk<true, N / 2> right(b, tile.side, high, low);
    Units<true> of_left(a, tile.top), of_right(b, tile.side);
#pragma unroll 1
    for (u32 k = 0; k < depth; k += 16) {
        u32 of[4], y[N / 2][4];
        load_at<true>(of, left.place(0));
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) load_at<true>(y[n], right.place(n));
        auto add = [&](float (&sum)[N][4], const float* by) {
            // The sixteen factors of `by` get a scale as well, so that the product with an fp16 element stays in range.
            float2 share[2] = {*(const float2*)(by + k + 2 * t), *(const float2*)(by + k + 8 + 2 * t)};
            Unit unit(warp_larger(larger(0, make_float4(share[0].x, share[0].y, share[1].x, share[1].y))));
            u32 scaled[4];
            float counts[N / 2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) share[i].x *= unit.by * 0x1p-15f, share[i].y *= unit.by * 0x1p-15f;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                // `a` is rounded a second time here, once more than an argument is.
                float2 x = unpack_halves(of[i]);
                scaled[i] = pack_halves(x.x * share[i / 2].x, x.y * share[i / 2].y);
            }
#pragma unroll
            for (u32 n = 0; n < N / 2; n++) counts[n] = unit.counts * 0x1p15f * of_left.of(0) * of_right.of(n);
            multiply_sixteen(sum, scaled, y, counts);
        };
        add(x, by_x);
        if (both) add(s, by_s);
        left.go(), right.go(), of_left.go(), of_right.go();
    }
}

// The tiles [16, 8 * N] of a matrix [rows,columns], counted row by row; both sides are whole tiles.
template <u32 N> struct Tiles {
    u32 across, all;

    // Counts the tiles of [rows,columns].
    __device__ __forceinline__ Tiles(u32 rows, u32 columns) : across(columns / (8 * N)), all(rows / 16 * across) {}
    // Returns the place of tile number `tile`.
    __device__ __forceinline__ Tile at(u32 tile) const { return {tile / across * 16, tile % across * 8 * N}; }
};
// Calls f(tile) for every tile [16, 8 * N] of [rows,columns]; warps take tiles in turn.
template <u32 N, class F> __device__ __forceinline__ void tiles(u32 rows, u32 columns, F f) {
    Tiles<N> of(rows, columns);
    // The loop is not unrolled, because more code would not fit the instruction cache.
#pragma unroll 1
    for (u32 tile = threadIdx.x / 32; tile < of.all; tile += blockDim.x / 32) f(of.at(tile));
}
// sum += by[:, None] * other for this tile's rows: by [rows], one factor a row.
template <u32 N> __device__ __forceinline__ void add_rows(float (&sum)[N][4], const float (&other)[N][4], const float* by, const Tile& tile) {
    float of[2] = {by[tile.row(0)], by[tile.row(1)]};
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) sum[i / 4][i % 4] += of[i % 4 / 2] * other[i / 4][i % 4];
}
