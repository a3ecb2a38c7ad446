// What the tokens of a group do to one layer's state, one after another, element by element: the state stays in registers.
//
// Frozen writes depend on no read. So warps go through a chunk of tokens by themselves, each with a tile of its own, and leave
// parts of sums. A state is kept as X' = X / σ, in a unit of its own before every token; X' ← carry X' + kᵀ (gain z).
#pragma once
#include "bias.cuh"
#include "frozen_product.cuh"

// Whether all states of a file go back to an anchor.
#ifndef ANCHORED
#define ANCHORED false
#endif

// How states become weights: (55); (54) with q = 4 and the mirror; (54) with q = 2, or from 2¼ to 6, and either map.
enum { SOFTMAX, CUBES, POWERS };
// What takes the place of an element of zero, whose logarithm has no power of q = 2.
#define TINY 1e-37f

// A warp's tile is 32 rows by as many columns. A thread has four neighbours of its rows, and four of both halves of its columns.
#define TILE 32
#define TILE_SIZE (TILE * TILE)
// Tokens that warps go through before they meet, and from one state that a backward keeps to the next.
#define CHUNK 8
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// What a warp leaves of a chunk: by token three rows of 32, of columns or of rows, then a number by token.
#define PART_ROW (3 * TILE)
#define PARTS (CHUNK * PART_ROW + CHUNK)
// Numbers of a token.
#define NUMBERS 8
// Distributions have the mean of a query in the place of κ, where that is taken off.
enum { CARRY, BACK, GAIN, CAREFUL, KAPPA, OF_A, REST, UNIT };

// A layer's part of this block, and its group of tokens. Heights and widths are whole tiles.
struct Layer {
    // Of the state; of the panels below; tokens of the group.
    u32 height, wide, rows, tokens;
    // Whether a token reads what it wrote, and whether the group is a call's first: then columns need be no distributions.
    bool after, opens;
    // State [height,wide]; keys and queries [rows,height], values [rows,wide].
    Panel x, key, query, value;
    // By token [NUMBERS, rows]: `carry`; its reciprocal, or 0 where states are not to be computed backwards; `gain`.
    // Then over 0 where exponentials need the largest of a column; κ of (54), at first without what the norm meets; a and 1 − a.
    // The last is X' / X of the state before.
    float* numbers;
    // σ by state [rows + 1], and by token from sums over X' to outputs; the last is of the weights before the group, as κ is.
    float *sigma, *omega;
    // Parts of what is read, of the sums of columns, and the exponents they are relative to: [rows,wide], and where nothing reads
    // the last state a row for its sums. Parts [rows] of ΣX'⁴.
    float *reads, *sums, *tops, *norms;
    // States behind chunks [tiles, chunks, TILE_SIZE], for a backward.
    float* kept;
    // Outputs [rows,wide], and as many rows as above of the logarithms of columns' sums.
    Panel y, lse;
    // Where states go back to, in global memory; null: zero. Its largest magnitude.
    Panel anchor;
    float farthest;
    // Of distributions: ln of all blocks' rows. States count from equal shares in registers, as X + ln rows, so that columns that
    // are near equal keep the digits in which they differ; their shares are `share` eˣ.
    float equal, share;
    // q and the map of (54), for POWERS.
    float q;
    bool literal;

    // Returns the exponent q of the norm.
    template <int MAP> __device__ __forceinline__ float norm() const { return MAP == CUBES ? 4.0f : q; }
    // True if a weight is the power |x|^{q-2} x of a state's element (the mirror map), false if it is the element itself.
    template <int MAP> __device__ __forceinline__ bool mirrors() const { return MAP == CUBES || !literal; }
    // |x|^{q−2}: an error of the logarithm is one of the power where that is next to nothing.
    template <int MAP> __device__ __forceinline__ float raise(float x) const {
        return MAP == CUBES ? x * x : short_exp2((q - 2.0f) * __log2f(fmaxf(fabsf(x), TINY)));
    }
    // What of an element of X' is read, times `by`, and the norm's part of it: |x|^{q−2} x or x, and |x|^q.
    template <int MAP> __device__ __forceinline__ float image(float x, float by = 1.0f) const {
        // With q = 4 the order of products counts: gradients with an anchor depend on how they round.
        return MAP == CUBES ? by * x * x * x : mirrors<MAP>() ? by * (raise<MAP>(x) * x) : by * x;
    }
    // Returns |x|^q, an element's part of the norm.
    template <int MAP> __device__ __forceinline__ float part(float x) const { return raise<MAP>(x) * (x * x); }
    // An element's gradient: `own` as its weight's, with `steep` in it, and `shared` as the norm's.
    template <int MAP> __device__ __forceinline__ float pull(float x, float own, float shared) const {
        float power = raise<MAP>(x);
        return mirrors<MAP>() ? power * (own + shared * x) : own + shared * (power * x);
    }
    // Returns the derivative's factor of the map: q - 1 with the mirror, else 1.
    template <int MAP> __device__ __forceinline__ float steep() const { return mirrors<MAP>() ? norm<MAP>() - 1.0f : 1.0f; }

    // Whether a token reads before it writes, which no memory with an anchor does; the state that it sees; rows of sums.
    __device__ __forceinline__ bool reads_first() const { return !ANCHORED && !after; }
    // Returns the index of the state that token t reads: t before its write, t + 1 after it.
    __device__ __forceinline__ u32 seen(u32 t) const { return reads_first() ? t : t + 1; }
    // Whether token t sees a state of a call as it is, and no distributions made of it.
    __device__ __forceinline__ bool sees_given(u32 t) const { return reads_first() && opens && t == 0; }
    // Returns how many states have sums of columns: one a token, and the last one if tokens read first.
    __device__ __forceinline__ u32 looks() const { return reads_first() ? tokens + 1 : tokens; }
    // Returns the tiles side by side.
    __device__ u32 across() const { return wide / TILE; }
    // Returns the tiles of the state [height,wide].
    __device__ u32 tiles() const { return height / TILE * across(); }
    // Returns the chunks of CHUNK tokens in a group.
    __device__ u32 chunks() const { return (rows + CHUNK - 1) / CHUNK; }
    // Returns the array [rows] of the per-token scalar `which`.
    __device__ float* number(u32 which) const { return numbers + which * rows; }
    // A token's elements in shared memory: key, query, value, what else columns have on the way back, numbers.
    __device__ u32 staged() const { return 2 * height + 4 * wide + NUMBERS; }
};

// A chunk's tokens in shared memory, and behind them the warps' parts: the first arrays of all.
__device__ __forceinline__ float* stage() {
    DYNAMIC_SHARED(float, near);
    return near;
}

// Tokens from `first` on, with up to three more panels of columns: a warp a token.
template <int MAP, u32 MORE> __device__ __forceinline__ void put_on_stage(const Layer& l, const Panel (&more)[3], u32 first, u32 count) {
    // One loop for rows of both widths.
    u32 widest = l.height > l.wide ? l.height : l.wide, lane = threadIdx.x % 32;
    ROWS(s, count) {
        float* to = stage() + s * l.staged();
        u32 t = first + s;
        float number = lane < NUMBERS ? l.numbers[lane * l.rows + t] : 0.0f, mean = MAP == SOFTMAX ? l.number(KAPPA)[t] : 0.0f;
        for (u32 i = lane * 4; i < widest; i += 128) {
            bool row = i < l.height, column = i < l.wide;
            float* own = to + i;
            // All loads stand before the first store.
            float4 k, q, z, x[3];
            if (row) k = l.key.four(t, i), q = map([&](float x) { return x - mean; }, l.query.four(t, i));
            if (column) z = l.value.four(t, i);
#pragma unroll
            for (u32 m = 0; m < MORE; m++)
                if (column) x[m] = more[m].four(t, i);
            if (row) *(float4*)own = k, *(float4*)(own + l.height) = q;
            own += 2 * l.height;
            if (column) *(float4*)own = z;
#pragma unroll
            for (u32 m = 0; m < MORE; m++)
                if (column) *(float4*)(own + (m + 1) * l.wide) = x[m];
        }
        // Numbers stand behind a token's rows.
        if (lane < NUMBERS) to[l.staged() - NUMBERS + lane] = number;
    }
}

// Four and eight neighbours.
struct Quad {
    float x[4];
    // Loads x[0:4] from a multiple of 16 bytes.
    __device__ __forceinline__ explicit Quad(const float* from) {
        float4 all = *(const float4*)from;
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
};
struct Columns {
    float x[8];
    // Four of either half of a tile's columns.
    __device__ __forceinline__ explicit Columns(const float* from) {
        // The halves lie half a tile apart.
        Quad low(from), high(from + TILE / 2);
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = low.x[j], x[4 + j] = high.x[j];
    }
};

// A thread's part of a tile, rows by columns, and where it lies.
struct Tile {
    float x[4][8];
    u32 row, column;

    // Finds where the thread's part of tile number `tile` begins.
    __device__ __forceinline__ Tile(const Layer& l, u32 tile) {
        // Eight lanes down, four across.
        u32 across = l.across(), lane = threadIdx.x % 32;
        row = tile / across * TILE + lane / 4 * 4, column = tile % across * TILE + lane % 4 * 4;
    }
    // Every element of the thread, by row and column.
    template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
#pragma unroll
            for (u32 j = 0; j < 8; j++) f(i, j);
        }
    }
    // Rows of states are read once a group.
    // x = unit × a matrix's part, and back.
    __device__ __forceinline__ void load(Panel from, float unit) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            Columns of(&from.at(row + i, column));
#pragma unroll
            for (u32 j = 0; j < 8; j++) x[i][j] = unit * of.x[j];
        }
    }
    // x = x + unit × ln rows, of logarithms of shares: they count from equal ones. One rounding with the product of `load` keeps
    // the digits in which elements next to equal shares differ.
    template <int MAP> __device__ __forceinline__ void count_from_equal(const Layer& l, float unit) {
        if (MAP == SOFTMAX) each([&](u32 i, u32 j) { x[i][j] += unit * l.equal; });
    }
    // to[tile] = unit * x
    __device__ __forceinline__ void store(Panel to, float unit) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            to.four(row + i, column) = make_float4(unit * x[i][0], unit * x[i][1], unit * x[i][2], unit * x[i][3]);
            to.four(row + i, column + TILE / 2) = make_float4(unit * x[i][4], unit * x[i][5], unit * x[i][6], unit * x[i][7]);
        }
    }
    // The same as it lies in a thread, in whole lines.
    __device__ __forceinline__ void keep(float* to) const {
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            const float* of = x[n / 2] + n % 2 * 4;
            ((float4*)to)[n * 32 + threadIdx.x % 32] = make_float4(of[0], of[1], of[2], of[3]);
        }
    }
    // Reads back what `keep` stored.
    __device__ __forceinline__ void recall(const float* from) {
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            float4 of = ((const float4*)from)[n * 32 + threadIdx.x % 32];
            float* to = x[n / 2] + n % 2 * 4;
            to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
        }
    }
    // X' ← carry X' + gain kᵀ z, and the rest of it from the anchor.
    __device__ __forceinline__ void advance(const float* numbers, const Quad& k, const Columns& z, const Tile& anchor) {
        float carry = numbers[CARRY], gain = numbers[GAIN], rest = ANCHORED ? gain * numbers[REST] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            // The gain once a column, not once an element.
            float own = gain * z.x[j];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                x[i][j] = carry * x[i][j] + k.x[i] * own;
                if (ANCHORED) x[i][j] += rest * anchor.x[i][j];
            }
        }
    }
    // The same with a token as `put_on_stage` left it.
    __device__ __forceinline__ void write(const Layer& l, const float* token, const Tile& anchor) {
        advance(token + l.staged() - NUMBERS, Quad(token + row), Columns(token + 2 * l.height + column), anchor);
    }
};

// Halves a thread's sums with the lane `mask` away: one has the sums of the first half of both, the other those of the last.
template <u32 N> __device__ __forceinline__ void halve(float (&sums)[N], u32 mask) {
    // Which half this lane keeps.
    bool last = threadIdx.x & mask;
#pragma unroll
    for (u32 n = 0; n < N / 2; n++) {
        float away = last ? sums[n] : sums[n + N / 2], own = last ? sums[n + N / 2] : sums[n];
        sums[n] = own + shuffle_xor(away, mask);
    }
}
// to [N / 2] = from[:N / 2]
template <u32 N> __device__ __forceinline__ void first_half(float (&to)[N / 2], const float (&from)[N]) {
#pragma unroll
    for (u32 n = 0; n < N / 2; n++) to[n] = from[n];
}
// Sums eight columns over a tile's 32 rows, which lie in lanes four apart: each lane returns the sum of one column.
__device__ __forceinline__ float sum_columns(float (&sums)[8]) {
    // Eight sums by eight lanes take seven exchanges.
    float four[4], two[2];
    halve(sums, 16), first_half(four, sums), halve(four, 8), first_half(two, four), halve(two, 4);
    return two[0];
}
// Returns the column of the tile whose sum `sum_columns` leaves in this lane.
__device__ __forceinline__ u32 column_of_lane() {
    u32 lane = threadIdx.x % 32;
    return (lane & 16) + lane % 4 * 4 + (lane & 8) / 4 + (lane & 4) / 4;
}

// Exponentials of a tile are relative to its columns' largest.
__device__ __forceinline__ void take_largest(Tile& tile, float (&top)[8]) {
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
        top[j] = fmaxf(fmaxf(tile.x[0][j], tile.x[1][j]), fmaxf(tile.x[2][j], tile.x[3][j]));
#pragma unroll
        for (u32 mask = 4; mask < 32; mask *= 2) top[j] = fmaxf(top[j], shuffle_xor(top[j], mask));
    }
    // The tile is moved back behind the read: a rounding of its last digit.
    tile.each([&](u32 i, u32 j) { tile.x[i][j] -= top[j]; });
}

// What a token's query sees of the tile, to the warp's parts: what is read, sums, exponents; for (54) a norm.
template <int MAP> __device__ __forceinline__ void look(const Layer& l, Tile& tile, const Quad& query, bool careful, float* part, float* norm_part) {
    u32 lane = threadIdx.x % 32, column = column_of_lane();
    float reads[8] = {};
    if (MAP == SOFTMAX) {
        float sums[8] = {}, top[8] = {};
        if (careful) take_largest(tile, top);
        tile.each([&](u32 i, u32 j) {
            float w = short_exp2(tile.x[i][j]);
            reads[j] += query.x[i] * w, sums[j] += w;
        });
        if (careful) tile.each([&](u32 i, u32 j) { tile.x[i][j] += top[j]; });
        // A column of the tile is one lane's now.
        float read = sum_columns(reads), sum = sum_columns(sums);
        part[column] = read, part[TILE + column] = sum;
        // Lanes of the first rows have all columns.
        if (lane < 4) {
            float4* to = (float4*)(part + 2 * TILE + lane * 4);
            to[0] = make_float4(top[0], top[1], top[2], top[3]), to[TILE / 8] = make_float4(top[4], top[5], top[6], top[7]);
        }
    } else {
        // Of q = 4 third powers are read, and fourth ones make the norm.
        float norm = 0.0f;
        tile.each([&](u32 i, u32 j) {
            float x = tile.x[i][j];
            reads[j] += query.x[i] * l.image<MAP>(x), norm += l.part<MAP>(x);
        });
        part[column] = sum_columns(reads);
        norm = warp_sum(norm);
        if (lane == 0) *norm_part = norm;
    }
}

// What X is multiplied by for X', by state.
template <int MAP> __device__ __forceinline__ float unit_of(const Layer& l, u32 state) {
    return MAP == SOFTMAX ? LOG2_E : 1.0f / l.sigma[state];
}

// Puts together what the round's warps left of a chunk, `count` tokens from `first` on, tile by tile in order. A warp has a
// token, and its lanes the columns of a tile.
template <int MAP> __device__ __forceinline__ void add_looks(const Layer& l, const float* parts, u32 round, u32 first, u32 count) {
    u32 across = l.across(), tiles = min(l.tiles() - round, blockDim.x / 32), skipped = round % across, lane = threadIdx.x % 32;
    ROWS(s, count) {
        u64 at = (u64)(first + s) * l.wide + lane;
        for (u32 side = 0; side < across; side++, at += TILE) {
            // Tiles of a column lie a row of tiles apart.
            u32 from = side < skipped ? side + across - skipped : side - skipped;
            const float* of = parts + s * PART_ROW + lane;
            // Rounds are more than one where a layer has more tiles than the block has warps.
            // What earlier rounds left.
            bool begun = side < round;
            float read = begun ? l.reads[at] : 0.0f;
            if (MAP == SOFTMAX) {
                float sum = begun ? l.sums[at] : 0.0f, old = begun ? l.tops[at] : -INFINITE, top = old;
                for (u32 w = from; w < tiles; w += across) top = fmaxf(top, of[w * PARTS + 2 * TILE]);
                if (begun) read *= short_exp2(old - top), sum *= short_exp2(old - top);
                for (u32 w = from; w < tiles; w += across) {
                    float by = short_exp2(of[w * PARTS + 2 * TILE] - top);
                    read += by * of[w * PARTS], sum += by * of[w * PARTS + TILE];
                }
                // Exponents go along, since other blocks have others.
                l.sums[at] = sum, l.tops[at] = top;
            } else {
                for (u32 w = from; w < tiles; w += across) read += of[w * PARTS];
            }
            l.reads[at] = read;
        }
        if (MAP != SOFTMAX && lane == 0) {
            float norm = round ? l.norms[first + s] : 0.0f;
            for (u32 w = 0; w < tiles; w++) norm += parts[w * PARTS + CHUNK * PART_ROW + s];
            l.norms[first + s] = norm;
        }
    }
}

// All tokens of the group, forward. `leave` writes the state behind them over the one before; of distributions it is not yet
// normalised. `offset` is where parts begin in shared memory.
template <int MAP> TOGETHER void sweep(const Layer& of, u32 offset, bool leave) {
    // A copy: stores could change what lies in shared memory.
    Layer l = of;
    // A forward needs no other panels.
    Panel none[3] = {};
    float* parts = stage() + offset;
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, staged = l.staged();
    for (u32 round = 0; round < l.tiles(); round += warps) {
        // All warps meet by chunks; those without a tile have nothing else to do.
        // A warp without a tile names the first, and touches nothing of it.
        bool works = round + warp < l.tiles();
        u32 number = works ? round + warp : 0;
        Tile tile(l, number), anchor(l, number);
        if (works) tile.load(l.x, unit_of<MAP>(l, 0)), tile.count_from_equal<MAP>(l, unit_of<MAP>(l, 0));
        if (works && ANCHORED) anchor.load(l.anchor, 1.0f), anchor.count_from_equal<MAP>(l, 1.0f);
        float* kept = l.kept + (u64)number * l.chunks() * TILE_SIZE;
        for (u32 first = 0; first < l.tokens; first += CHUNK) {
            u32 count = min(l.tokens - first, CHUNK);
            // Whoever read the last chunk is behind a barrier.
            put_on_stage<MAP, 0>(l, none, first, count);
            __syncthreads();
            if (works) {
                // Before a token reads comes its own write, or the one before it.
                const float* write = stage() - (l.reads_first() ? staged : 0);
#pragma unroll 1
                for (u32 s = 0; s < count; s++, write += staged) {
                    if (!l.reads_first() || s > 0) tile.write(l, write, anchor);
                    const float *token = stage() + s * staged, *numbers = token + staged - NUMBERS;
                    float* part = parts + warp * PARTS;
                    look<MAP>(l, tile, Quad(token + l.height + tile.row), numbers[CAREFUL] > 0.0f, part + s * PART_ROW, part + CHUNK * PART_ROW + s);
                }
                if (l.reads_first()) tile.write(l, write, anchor);
                // A forward without a backward keeps nothing here.
                if (l.kept) tile.keep(kept + first / CHUNK * TILE_SIZE);
            }
            __syncthreads();
            add_looks<MAP>(l, parts, round, first, count);
        }
        // Columns of the last state are added up where no token reads it, whatever asks.
        if (MAP == SOFTMAX && l.reads_first()) {
            __syncthreads();
            if (works) look<MAP>(l, tile, Quad(stage() + tile.row), true, parts + warp * PARTS, parts);
            __syncthreads();
            add_looks<MAP>(l, parts, round, l.tokens, 1);
        }
        // A backward needs the state before the group again.
        if (works && leave) tile.store(l.x, 1.0f / unit_of<MAP>(l, l.tokens));
    }
    __syncthreads();
}

// A row's largest magnitude, by a warp.
__device__ __forceinline__ float warp_largest(const float* row, u32 count) {
    // A lane has every 32nd element.
    float most = 0.0f;
    LANES(i, count) most = fmaxf(most, fabsf(row[i]));
    return warp_max(most);
}

// The power of two that is at least x and 1.
__device__ __forceinline__ float unit_over(float x) {
    // NaN too: what it meets shows it.
    if (!(x > 1.0f)) return 1.0f;
    // Infinities keep the largest power.
    u32 bits = __float_as_uint(x), exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
    return __uint_as_float(min(exponent, 253u) << 23);
}

// The numbers by which the layer's tokens go: units of states, or where exponentials may be too large. `most` is the largest
// magnitude of the state before. `a` and 1 − a by token.
template <int MAP> TOGETHER void plan(const Layer& of, const float* a, const float* lost, float most) {
    Layer l = of;
    float *gain = l.number(GAIN), *carry = l.number(CARRY);
    // How far each token moves an element at most, beside keeping a part of it.
    ROWS(t, l.rows) {
        float move = warp_largest(l.key.row(t), l.height) * warp_largest(l.value.row(t), l.wide);
        if (first_lane()) gain[t] = ANCHORED ? move + lost[t] * l.farthest : move;
    }
    __syncthreads();
    // How large a state's elements are at most; of distributions the largest of a column, whose sum starts at 1.
    float* bounds = l.number(KAPPA);
    if (threadIdx.x == 0) {
        float bound = MAP == SOFTMAX ? 0.0f : most;
        for (u32 top = 0; top < l.rows; top += 4) {
            // Numbers are read ahead of the chain that needs them.
            float4 of_a = *(const float4*)(a + top), move = *(const float4*)(gain + top), now;
            now.x = of_a.x * bound + move.x, now.y = of_a.y * now.x + move.y;
            now.z = of_a.z * now.y + move.z, now.w = bound = of_a.w * now.z + move.w;
            *(float4*)(bounds + top) = now;
        }
    }
    __syncthreads();
    EACH(t, l.rows) {
        l.number(OF_A)[t] = a[t], l.number(REST)[t] = lost[t];
        if (MAP == SOFTMAX) {
            // The first state's columns are distributions, unless they are the call's.
            float bound = !l.reads_first() ? bounds[t] : t ? bounds[t - 1] : 0.0f;
            bool large = l.opens || !(bound < 30.0f);
            gain[t] = LOG2_E, carry[t] = a[t], l.number(CAREFUL)[t] = large ? 1.0f : 0.0f, l.number(UNIT)[t] = LOG2_E;
            continue;
        }
        float before = unit_over(t ? bounds[t - 1] : most), sigma = unit_over(bounds[t]);
        gain[t] = 1.0f / sigma, carry[t] = a[t] * (before / sigma), l.sigma[t + 1] = sigma;
        if (t == 0) l.sigma[0] = before;
        l.number(UNIT)[t] = 1.0f / before;
    }
    __syncthreads();
    EACH(t, l.rows) {
        // Backwards through a chunk errors grow by at most 2⁸.
        float product = 1.0f;
        for (u32 s = t / CHUNK * CHUNK; s < t / CHUNK * CHUNK + CHUNK; s++) product *= fminf(carry[s], 1.0f);
        l.number(BACK)[t] = product >= 1.0f / 256.0f ? 1.0f / carry[t] : 0.0f;
    }
    __syncthreads();
}
