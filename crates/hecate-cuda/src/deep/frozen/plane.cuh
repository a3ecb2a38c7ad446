// Matrices of bfloat16 in shared memory, and their products by warps. A block has warps enough that each has a tile.
#pragma once
#include "frozen_product.cuh"
#include "tensor.cuh"

// Threads of a block: sixteen warps, and 128 registers a thread.
#define RESIDENT_THREADS 512

// Two elements of a word as floats: a bfloat16 is the upper half of one.
__device__ __forceinline__ float2 unpack_bf16(u32 both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
// What rounding left of two.
__device__ __forceinline__ u32 rest_of(float2 x, u32 rounded) {
    float2 y = unpack_bf16(rounded);
    return pack_bf16(x.x - y.x, x.y - y.y);
}

// A word to shared memory, by its address there.
__device__ __forceinline__ void put_word(u32 at, u32 x) { asm volatile("st.shared.b32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }

// Rows of `pieces` pieces of eight elements. Pieces change places within a row, so that eight rows lie in eight places.
struct Plane {
    u16* x;
    u32 pieces, shift;

    // Planes lie in shared memory, where nothing is constructed.
    __device__ __forceinline__ Plane() {}
    // Rows of `wide` elements.
    __device__ __forceinline__ Plane(void* x, u32 wide) : x((u16*)x), pieces(wide / 8) {
        // A row's pieces are moved by less than the largest power of two that divides their number. Of narrow rows several lie
        // in the same 128 bytes, and are moved alike.
        shift = pieces % 8 == 0 ? 0 : pieces % 4 == 0 ? 1 : pieces % 2 == 0 ? 2 : 3;
    }
    // By which number a row's pieces are exchanged.
    __device__ __forceinline__ u32 turn(u32 row) const { return row % 8 >> shift; }
    __device__ __forceinline__ u16* at(u32 i, u32 j) const { return x + (i * pieces + (j / 8 ^ turn(i))) * 8 + j % 8; }
    // Four neighbours, from a multiple of four.
    __device__ __forceinline__ float4 four(u32 i, u32 j) const {
        uint2 both = *(uint2*)at(i, j);
        float2 low = unpack_bf16(both.x), high = unpack_bf16(both.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }
    // Four numbers of 32 bits, rounded.
    __device__ __forceinline__ void set(u32 i, u32 j, float4 x) const {
        *(uint2*)at(i, j) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
    }
    static constexpr bool FINE = false;
};
// Twice as many bits of fraction: what rounding left has a plane of its own, `rest` elements further.
struct FinePlane : Plane {
    u32 rest;

    __device__ __forceinline__ FinePlane() {}
    __device__ __forceinline__ FinePlane(void* x, u32 height, u32 wide) : Plane(x, wide), rest(height * wide) {}
    __device__ __forceinline__ void set(u32 i, u32 j, float4 x) const {
        // The rest is exact, and is rounded in its turn.
        u32 low = pack_bf16(x.x, x.y), high = pack_bf16(x.z, x.w);
        u16* to = at(i, j);
        *(uint2*)to = make_uint2(low, high);
        *(uint2*)(to + rest) = make_uint2(rest_of(make_float2(x.x, x.y), low), rest_of(make_float2(x.z, x.w), high));
    }
    static constexpr bool FINE = true;
};

// A thread's part of a tile [16,8 N] as products leave it: two neighbours (m, n) are in row 8 m + g, from column 8 n + 2 t on.
struct Tile {
    u32 top, side;

    __device__ __forceinline__ u32 row(u32 m) const { return top + 8 * m + threadIdx.x % 32 / 4; }
    __device__ __forceinline__ u32 column(u32 n) const { return side + 8 * n + threadIdx.x % 4 * 2; }
};
// The same part of a plane: the address of each two by few instructions.
template <class P> struct PlanePart {
    u32 at, first, turn, down, rest;

    __device__ __forceinline__ PlanePart(const P& plane, const Tile& tile) {
        u32 row = tile.row(0);
        // Both of a thread's rows have their pieces at the same places: eight rows further all repeats.
        at = (u32)__cvta_generic_to_shared(plane.x) + row * plane.pieces * 16 + threadIdx.x % 4 * 4;
        first = tile.side / 8, turn = plane.turn(row), down = 128 * plane.pieces;
        if constexpr (P::FINE) rest = 2 * plane.rest;
    }
    __device__ __forceinline__ u32 place(u32 m, u32 n) const { return at + m * down + ((first + n ^ turn) << 4); }
    __device__ __forceinline__ void set(u32 m, u32 n, float2 x) const {
        u32 both = pack_bf16(x.x, x.y);
        put_word(place(m, n), both);
        if constexpr (P::FINE) put_word(place(m, n) + rest, rest_of(x, both));
    }
};
template <class P> __device__ __forceinline__ PlanePart<P> part(const P& plane, const Tile& tile) { return {plane, tile}; }
// And of a panel.
struct PanelPart {
    float* x;
    u32 down;

    __device__ __forceinline__ float2 operator()(u32 m, u32 n) const { return *(float2*)(x + m * down + 8 * n); }
    __device__ __forceinline__ void set(u32 m, u32 n, float2 of) const { *(float2*)(x + m * down + 8 * n) = of; }
};
__device__ __forceinline__ PanelPart part(const Panel& panel, const Tile& tile) {
    return {panel.row(tile.row(0)) + tile.column(0), 8 * panel.stride};
}

// What a lane names of a factor, of sixteen terms after another, for SIXTEENS times sixteen rows or columns of the result from
// `first` on. BY_DEPTH: rows of the plane are terms, and else rows or columns of the result.
template <bool BY_DEPTH, u32 SIXTEENS> struct Walk {
    // Addresses in shared memory: where rows are terms, one a sixteen, else that of the row.
    u32 at[BY_DEPTH ? SIXTEENS : 1];
    u32 turn, piece, apart;

    // Terms are multiples of sixteen apart, so that pieces of a lane's rows are exchanged alike.
    // Lane `8 i + r` names row r of the i'th of four matrices [8,8]; `down` and `on` are the i'th's place among these.
    __device__ __forceinline__ Walk(const Plane& plane, u32 first, u32 down, u32 on) {
        u32 r = threadIdx.x % 8, start = (u32)__cvta_generic_to_shared(plane.x);
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
    // For the n'th sixteen.
    __device__ __forceinline__ u32 place(u32 n) const {
        if constexpr (BY_DEPTH) return at[n];
        else return at[0] + n * apart + ((piece ^ turn) << 4);
    }
    // Sixteen terms further.
    __device__ __forceinline__ void go() {
        if constexpr (BY_DEPTH) {
#pragma unroll
            for (u32 n = 0; n < SIXTEENS; n++) at[n] += apart;
        } else {
            piece += 2;
        }
    }
};
// Four matrices [8,8], TURNED: transposed. The same as `load_matrices`, by addresses of 32 bits that go on by additions.
template <bool TURNED> __device__ __forceinline__ void load_at(u32 (&x)[4], u32 place) {
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place) : "memory");
}

// Sixteen terms of a tile.
template <u32 N> __device__ __forceinline__ void multiply_sixteen(float (&sum)[N][4], const u32 (&x)[4], const u32 (&y)[N / 2][4]) {
#pragma unroll
    for (u32 n = 0; n < N; n++) multiply_add_bf16(sum[n], x, y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
}
// sum [16,8 N] += a b of a tile, by a warp. A: `a` lies as its columns [depth,rows]; B: `b` lies as its columns [columns,depth].
template <bool A, bool B, u32 N, class L, class R>
__device__ __forceinline__ void add_product(float (&sum)[N][4], const L& a, const R& b, const Tile& tile, u32 depth) {
    u32 low = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2;
    Walk<A, 1> left(a, tile.top, low, high);
    Walk<!B, N / 2> right(b, tile.side, high, low);
    u32 rest_a = 0, rest_b = 0;
    if constexpr (L::FINE) rest_a = 2 * a.rest;
    if constexpr (R::FINE) rest_b = 2 * b.rest;
#pragma unroll 2
    for (u32 k = 0; k < depth; k += 16) {
        u32 x[4], y[N / 2][4], z[N / 2][4];
        load_at<A>(x, left.place(0));
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) load_at<!B>(y[n], right.place(n));
        multiply_sixteen(sum, x, y);
        // Products of two rests are below what is kept.
        if constexpr (R::FINE) {
#pragma unroll
            for (u32 n = 0; n < N / 2; n++) load_at<!B>(z[n], right.place(n) + rest_b);
            multiply_sixteen(sum, x, z);
        }
        if constexpr (L::FINE) {
            load_at<A>(x, left.place(0) + rest_a);
            multiply_sixteen(sum, x, y);
        }
        left.go(), right.go();
    }
}
// sum += (by ∘ a)ᵀ b, `by` a number a row: both lie as they are, [depth,rows] and [depth,columns]. Twice, with numbers of
// each; the second sum only if `both`.
template <u32 N, class R>
__device__ __forceinline__ void add_scaled(float (&x)[N][4], float (&s)[N][4], bool both, const Plane& a, const R& b,
                                           const Tile& tile, const float* by_x, const float* by_s, u32 depth) {
    u32 low = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2, t = threadIdx.x % 4, rest = 0;
    Walk<true, 1> left(a, tile.top, low, high);
    Walk<true, N / 2> right(b, tile.side, high, low);
    if constexpr (R::FINE) rest = 2 * b.rest;
#pragma unroll 1
    for (u32 k = 0; k < depth; k += 16) {
        u32 of[4], y[N / 2][4], z[N / 2][4];
        load_at<true>(of, left.place(0)), left.go();
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) {
            load_at<true>(y[n], right.place(n));
            if constexpr (R::FINE) load_at<true>(z[n], right.place(n) + rest);
        }
        right.go();
        auto add = [&](float (&sum)[N][4], const float* by) {
            // The product with a share has more bits than an argument: two factors.
            u32 scaled[4], left_over[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float2 x = unpack_bf16(of[i]), own = *(const float2*)(by + k + i / 2 * 8 + 2 * t);
                x.x *= own.x, x.y *= own.y;
                scaled[i] = pack_bf16(x.x, x.y), left_over[i] = rest_of(x, scaled[i]);
            }
            multiply_sixteen(sum, scaled, y), multiply_sixteen(sum, left_over, y);
            if constexpr (R::FINE) multiply_sixteen(sum, scaled, z);
        };
        add(x, by_x);
        if (both) add(s, by_s);
    }
}

// f(tile) for every tile [16,8 N] of [rows,columns], which these divide, a warp a tile.
template <u32 N, class F> __device__ __forceinline__ void tiles(u32 rows, u32 columns, F f) {
    u32 across = columns / (8 * N), all = rows / 16 * across;
    // Code for one tile: what is written out for more does not fit the cache of instructions.
#pragma unroll 1
    for (u32 tile = threadIdx.x / 32; tile < all; tile += blockDim.x / 32) f(Tile{tile / across * 16, tile % across * 8 * N});
}
// f(m, n, x) for every two neighbours of a tile, which may change them.
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
// Rows times a number each.
template <u32 N> __device__ __forceinline__ void scale_rows(float (&sum)[N][4], const float* by, const Tile& tile) {
    float of[2] = {by[tile.row(0)], by[tile.row(1)]};
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) sum[i / 4][i % 4] *= of[i % 4 / 2];
}
// And added to other sums.
template <u32 N> __device__ __forceinline__ void add_rows(float (&sum)[N][4], const float (&other)[N][4], const float* by, const Tile& tile) {
    float of[2] = {by[tile.row(0)], by[tile.row(1)]};
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) sum[i / 4][i % 4] += of[i % 4 / 2] * other[i / 4][i % 4];
}
