// What the tokens of a group do to one layer's state, one after another, element by element: the state stays in registers.
//
// Frozen writes depend on no read. So warps go through all tokens by themselves, each with tiles of its own, and leave parts of
// sums. A state is kept as X' = X / σ, in a unit of its own before every token; X' ← carry X' + kᵀ (gain z).
#pragma once
#include "bias.cuh"
#include "frozen_product.cuh"

// How states become weights: (55), or (54) with q = 4 and the mirror.
enum { SOFTMAX, CUBES };

// A warp's tile. A thread has four neighbours of its columns in four neighbours of its rows.
#define TILE_ROWS 32
#define TILE_COLUMNS 16
#define TILE_SIZE (TILE_ROWS * TILE_COLUMNS)
// Tokens from one state that a backward keeps to the next.
#define CHUNK 8
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// A layer's part of this block, and its group of tokens. Heights and widths are whole tiles.
struct Layer {
    // Of the state; of the panels below; tokens of the group.
    u32 height, wide, rows, tokens;
    // State [height,wide]; keys and queries [rows,height], values [rows,wide].
    Panel x, key, query, value;
    // By token: `carry`, its reciprocal or 0 where states are not to be computed backwards, `gain`.
    float *carry, *back, *gain;
    // σ by state [rows + 1].
    float* sigma;
    // By token: from sums over X' to outputs, and κ of (54), at first without what the norm meets.
    float *omega, *kappa;
    // By token, over 0 where exponentials need the largest of a column.
    float* careful;
    // Parts [parts,rows,wide] of what is read, of the sums of columns, and the exponents they are relative to.
    float *reads, *sums, *tops;
    // Parts [tiles,rows] of ΣX'⁴.
    float* norms;
    // States behind chunks [tiles, chunks, TILE_SIZE], for a backward.
    float* kept;
    // Outputs, and the logarithms of columns' sums [rows,wide].
    Panel y, lse;

    __device__ u32 parts() const { return height / TILE_ROWS; }
    __device__ u32 across() const { return wide / TILE_COLUMNS; }
    __device__ u32 tiles() const { return parts() * across(); }
    __device__ u32 chunks() const { return (rows + CHUNK - 1) / CHUNK; }
};

// Four neighbours.
struct Quad {
    float x[4];
    __device__ __forceinline__ static Quad of(float4 x) { return {x.x, x.y, x.z, x.w}; }
    __device__ __forceinline__ float4 all() const { return make_float4(x[0], x[1], x[2], x[3]); }
    __device__ __forceinline__ Quad times(float by) const { return {by * x[0], by * x[1], by * x[2], by * x[3]}; }
};

// A thread's part of a tile, rows by columns, and where it lies.
struct Tile {
    Quad x[4];
    u32 part, row, column;

    __device__ __forceinline__ Tile(const Layer& l, u32 tile) {
        u32 across = l.across(), lane = threadIdx.x % 32;
        part = tile / across;
        row = part * TILE_ROWS + lane / 4 * 4, column = tile % across * TILE_COLUMNS + lane % 4 * 4;
    }
    // Every element of the thread, by row and column.
    template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) f(i, j);
        }
    }
    // x = unit × a matrix's part, and back.
    __device__ __forceinline__ void load(Panel from, float unit) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = Quad::of(from.four(row + i, column)).times(unit);
    }
    __device__ __forceinline__ void store(Panel to, float unit) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) to.four(row + i, column) = x[i].times(unit).all();
    }
    // The same as it lies in a thread, in whole lines.
    __device__ __forceinline__ void keep(float* to) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) ((float4*)to)[i * 32 + threadIdx.x % 32] = x[i].all();
    }
    __device__ __forceinline__ void recall(const float* from) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = Quad::of(((const float4*)from)[i * 32 + threadIdx.x % 32]);
    }
    // What token t has for the thread's rows, and for its columns.
    __device__ __forceinline__ Quad by_rows(const Panel& from, u32 t) const { return Quad::of(from.four(t, row)); }
    __device__ __forceinline__ Quad by_columns(const Panel& from, u32 t) const { return Quad::of(from.four(t, column)); }
    // X' ← carry X' + kᵀ z.
    __device__ __forceinline__ void advance(float carry, const Quad& k, const Quad& z) {
        each([&](u32 i, u32 j) { x[i].x[j] = carry * x[i].x[j] + k.x[i] * z.x[j]; });
    }
};

// Halves a thread's sums with the lane `mask` away: one has the sums of the first half of both, the other those of the last.
template <u32 N> __device__ __forceinline__ void halve(float (&sums)[N], u32 mask) {
    bool last = threadIdx.x & mask;
#pragma unroll
    for (u32 n = 0; n < N / 2; n++) {
        float away = last ? sums[n] : sums[n + N / 2], own = last ? sums[n + N / 2] : sums[n];
        sums[n] = own + shuffle_xor(away, mask);
    }
}

// What the query of token t sees of the tile, to parts of sums.
template <int MAP> __device__ __forceinline__ void look(const Layer& l, Tile& tile, u32 number, u32 t, const Quad& query) {
    u32 lane = threadIdx.x % 32;
    u64 at = ((u64)tile.part * l.rows + t) * l.wide + tile.column;
    if (MAP == SOFTMAX) {
        // What is read, then sums.
        float sums[8] = {}, top[4] = {};
        bool careful = l.careful[t] > 0.0f;
        if (careful) {
            for (float& x : top) x = -INFINITE;
            tile.each([&](u32 i, u32 j) { top[j] = fmaxf(top[j], tile.x[i].x[j]); });
#pragma unroll
            for (u32 mask = 4; mask < 32; mask *= 2) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) top[j] = fmaxf(top[j], shuffle_xor(top[j], mask));
            }
            tile.each([&](u32 i, u32 j) { tile.x[i].x[j] -= top[j]; });
        }
        tile.each([&](u32 i, u32 j) {
            float w = short_exp2(tile.x[i].x[j]);
            sums[j] += query.x[i] * w, sums[4 + j] += w;
        });
        if (careful) tile.each([&](u32 i, u32 j) { tile.x[i].x[j] += top[j]; });
        // Rows lie in lanes four apart.
        halve(sums, 16);
        float four[4] = {sums[0], sums[1], sums[2], sums[3]};
        halve(four, 8);
        float two[2] = {four[0], four[1]};
        halve(two, 4);
        (lane & 16 ? l.sums : l.reads)[at + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0)] = two[0];
        if (lane < 4) *(float4*)(l.tops + at) = make_float4(top[0], top[1], top[2], top[3]);
    } else {
        float sums[4] = {}, norm = 0.0f;
        tile.each([&](u32 i, u32 j) {
            float x = tile.x[i].x[j], square = x * x;
            sums[j] += query.x[i] * (square * x), norm += square * square;
        });
        halve(sums, 16);
        float two[2] = {sums[0], sums[1]};
        halve(two, 8);
        float one = two[0] + shuffle_xor(two[0], 4);
        if (!(lane & 4)) l.reads[at + (lane & 16 ? 2 : 0) + (lane & 8 ? 1 : 0)] = one;
        norm = warp_sum(norm);
        if (lane == 0) l.norms[number * l.rows + t] = norm;
    }
}

// What X is multiplied by for X', by state.
template <int MAP> __device__ __forceinline__ float unit_of(const Layer& l, u32 state) {
    return MAP == SOFTMAX ? LOG2_E : 1.0f / l.sigma[state];
}

// All tokens of the group, forward. `leave` writes the state behind them over the one before; of distributions it is not yet
// normalised.
template <int MAP> TOGETHER void sweep(const Layer& of, bool leave) {
    // A copy: stores could change what lies in shared memory.
    Layer l = of;
    for (u32 number = threadIdx.x / 32; number < l.tiles(); number += blockDim.x / 32) {
        Tile tile(l, number);
        tile.load(l.x, unit_of<MAP>(l, 0));
        float* kept = l.kept + (u64)number * l.chunks() * TILE_SIZE;
        // What a token needs is read while the one before it is in work.
        Quad k = tile.by_rows(l.key, 0), q = tile.by_rows(l.query, 0), z = tile.by_columns(l.value, 0);
        float carry = l.carry[0], gain = l.gain[0];
#pragma unroll 1
        for (u32 t = 0; t < l.tokens; t++) {
            tile.advance(carry, k, z.times(gain));
            Quad query = q;
            u32 next = min(t + 1, l.tokens - 1);
            k = tile.by_rows(l.key, next), q = tile.by_rows(l.query, next), z = tile.by_columns(l.value, next);
            carry = l.carry[next], gain = l.gain[next];
            look<MAP>(l, tile, number, t, query);
            if (l.kept && ((t + 1) % CHUNK == 0 || t + 1 == l.tokens)) tile.keep(kept + t / CHUNK * TILE_SIZE);
        }
        if (leave) tile.store(l.x, 1.0f / unit_of<MAP>(l, l.tokens));
    }
    __syncthreads();
}

// A row's largest magnitude, by a warp.
__device__ __forceinline__ float warp_largest(const float* row, u32 count) {
    float most = 0.0f;
    LANES(i, count) most = fmaxf(most, fabsf(row[i]));
    return warp_max(most);
}

// The power of two that is at least x and 1.
__device__ __forceinline__ float unit_over(float x) {
    if (!(x > 1.0f)) return 1.0f;
    // Infinities keep the largest power.
    u32 bits = __float_as_uint(x), exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
    return __uint_as_float(min(exponent, 253u) << 23);
}

// The numbers by which the layer's tokens go: units of states, or where exponentials may be too large. `most` is the largest
// magnitude of the state before; `whole` says that its columns are not known to be distributions. `a` by token.
template <int MAP> TOGETHER void plan(const Layer& of, const float* a, float most, bool whole) {
    Layer l = of;
    // How far each token moves an element at most.
    ROWS(t, l.rows) {
        float move = warp_largest(l.key.row(t), l.height) * warp_largest(l.value.row(t), l.wide);
        if (first_lane()) l.gain[t] = move;
    }
    __syncthreads();
    // How large a state's elements are at most; of distributions the largest of a column, whose sum starts at 1.
    float* bounds = l.careful;
    if (threadIdx.x == 0) {
        float bound = MAP == SOFTMAX ? 0.0f : most;
        for (u32 top = 0; top < l.rows; top += 4) {
            // Numbers are read ahead of the chain that needs them.
            float4 of_a = *(const float4*)(a + top), move = *(const float4*)(l.gain + top), now;
            now.x = of_a.x * bound + move.x, now.y = of_a.y * now.x + move.y;
            now.z = of_a.z * now.y + move.z, now.w = bound = of_a.w * now.z + move.w;
            *(float4*)(bounds + top) = now;
        }
    }
    __syncthreads();
    EACH(t, l.rows) {
        if (MAP == SOFTMAX) {
            bool large = whole || !(bounds[t] < 30.0f);
            l.gain[t] = LOG2_E, l.carry[t] = a[t], l.careful[t] = large ? 1.0f : 0.0f;
            continue;
        }
        float before = unit_over(t ? bounds[t - 1] : most), sigma = unit_over(bounds[t]);
        l.gain[t] = 1.0f / sigma, l.carry[t] = a[t] * (before / sigma), l.sigma[t + 1] = sigma;
        if (t == 0) l.sigma[0] = before;
    }
    __syncthreads();
    EACH(t, l.rows) {
        // Backwards through a chunk errors grow by at most 2⁸.
        float product = 1.0f;
        for (u32 s = t / CHUNK * CHUNK; s < t / CHUNK * CHUNK + CHUNK; s++) product *= fminf(l.carry[s], 1.0f);
        l.back[t] = product >= 1.0f / 256.0f ? 1.0f / l.carry[t] : 0.0f;
    }
    __syncthreads();
}
