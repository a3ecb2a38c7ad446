// The way back of `sweep.cuh`: states and their gradients in registers, token by token from the last.
#pragma once
#include "mapped/sweep.cuh"

// What a layer's way back takes beside `Layer`, and what it leaves.
struct BackLayer {
    // Gradient of the state, in place; the sums of columns of what comes in [wide], of distributions.
    Panel d;
    float* columns;
    // Gradients of outputs, by columns, as they meet weights; and what columns of distributions take off, or for (54) `own` of
    // `Layer::pull`: [rows,wide].
    Panel given, taken;
    // Gradients of queries and keys [rows,height] and of values [rows,wide].
    Panel dquery, dkey, dvalue;
    // Of a, to which is added [rows], and of the anchor, to which is added [height,wide].
    float* da;
    Panel danchor;
};

// A read back: the state's gradient takes its part, and rows theirs of the query's.
template <int MAP>
__device__ __forceinline__ void look_back(const Layer& l, const float* token, float kappa, Tile& tile, Tile& d, float* dq) {
    // In the order of `put_on_stage`.
    const float* columns = token + 2 * l.height + tile.column;
    Quad q(token + l.height + tile.row);
    Columns given(columns + l.wide), taken(columns + 2 * l.wide), lse(columns + 3 * l.wide);
    tile.each([&](u32 i, u32 j) {
        float x = tile.x[i][j];
        if (MAP == SOFTMAX) {
            // P (x f − ȳ f), column by column; the factor of P is in both f.
            float w = short_exp2(x - lse.x[j]);
            dq[i] += w * given.x[j], d.x[i][j] += w * (q.x[i] * given.x[j] - taken.x[j]);
        } else {
            // Its own part, and κ by the norm.
            dq[i] += l.image<MAP>(x) * given.x[j], d.x[i][j] += l.pull<MAP>(x, q.x[i] * taken.x[j], kappa);
        }
    });
}

// The state before token t out of the one behind it; or where that would lose digits, out of the one before its chunk.
template <int MAP>
__device__ __forceinline__ void go_back(const Layer& l, const float* token, Tile& tile, const Tile& anchor, const float* kept, u32 t) {
    const float* numbers = token + l.staged() - NUMBERS;
    // The same for all threads.
    float back = numbers[BACK];
    if (back != 0.0f) {
        Quad k(token + tile.row);
        Columns z(token + 2 * l.height + tile.column);
        // (X' − gain kᵀ z − gain (1 − a) B) / carry, the reciprocal known.
        float by = -back * numbers[GAIN], rest = ANCHORED ? by * numbers[REST] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            float own = by * z.x[j];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                tile.x[i][j] = back * tile.x[i][j] + k.x[i] * own;
                if (ANCHORED) tile.x[i][j] += rest * anchor.x[i][j];
            }
        }
        return;
    }
    // The state before the chunk: kept, or the group's first.
    if (t >= CHUNK) tile.recall(kept + (t / CHUNK - 1) * TILE_SIZE);
    else tile.load(l.x, unit_of<MAP>(l, 0)), tile.count_from_equal<MAP>(l, unit_of<MAP>(l, 0));
#pragma unroll 1
    for (token = stage(); t % CHUNK; t--, token += l.staged()) tile.write(l, token, anchor);
}

// A token back: its read, then its write. Sums of rows and columns go to the warp's parts, and the gradient of a.
template <int MAP>
__device__ __forceinline__ void token_back(const Layer& l, Tile& tile, Tile& d, const Tile& anchor, Tile& danchor, const float* kept, u32 t, float* part) {
    u32 lane = threadIdx.x % 32, s = t % CHUNK;
    const float *token = stage() + s * l.staged(), *numbers = token + l.staged() - NUMBERS;
    // Of queries, then of keys.
    // Sums over this thread's elements.
    float sums[8] = {}, dz[8] = {}, da = 0.0f, a = numbers[OF_A];
    if (!l.reads_first()) look_back<MAP>(l, token, numbers[KAPPA], tile, d, sums);
    go_back<MAP>(l, token, tile, anchor, kept, t);
    Quad k(token + tile.row);
    Columns z(token + 2 * l.height + tile.column);
    // A column of gradients sums to 0. What its states have in common, which has no part in `da`, would leave its rounding.
    float unit = numbers[UNIT], rest = numbers[REST], centre[8];
    if (MAP == SOFTMAX) {
        Columns lse(token + 2 * l.height + tile.column + 3 * l.wide);
#pragma unroll
        for (u32 j = 0; j < 8; j++) centre[j] = lse.x[j];
    }
    // Gradients of the write, then what is left for the state before it.
    tile.each([&](u32 i, u32 j) {
        float own = d.x[i][j], x = tile.x[i][j];
        // What is kept of a state is its distance from the anchor.
        if (MAP == SOFTMAX) x -= centre[j];
        if (ANCHORED) x -= unit * anchor.x[i][j], danchor.x[i][j] += rest * own;
        da += own * x, sums[4 + i] += own * z.x[j], dz[j] += own * k.x[i];
        d.x[i][j] = a * own;
    });
    if (l.reads_first()) look_back<MAP>(l, token, numbers[KAPPA], tile, d, sums);
    // Columns of a row lie in four lanes.
    float* row = part + s * PART_ROW;
    float of_rows[4];
    halve(sums, 2), first_half(of_rows, sums), halve(of_rows, 1);
    *(float2*)(row + (lane & 2 ? TILE : 0) + lane / 4 * 4 + (lane & 1) * 2) = make_float2(of_rows[0], of_rows[1]);
    row[2 * TILE + column_of_lane()] = sum_columns(dz);
    // A number a warp and token.
    da = warp_sum(da);
    if (lane == 0) part[CHUNK * PART_ROW + s] = da;
}

// Adds what the round's warps left of a chunk, `count` tokens from `first` on, tile by tile in order. A warp has a token, and
// its lanes the rows or columns of a tile.
template <int MAP>
__device__ __forceinline__ void add_parts(const Layer& l, const BackLayer& b, const float* parts, u32 round, u32 first, u32 count) {
    u32 across = l.across(), tiles = min(l.tiles() - round, blockDim.x / 32), end = round + tiles, skipped = round % across;
    u32 lane = threadIdx.x % 32;
    ROWS(s, count) {
        u32 t = first + s;
        const float* own = parts + s * PART_ROW + lane;
        for (u32 top = 0, begin = 0; top < l.height; top += TILE, begin += across) {
            // The tiles of the round that have the rows follow each other.
            u32 from = max(begin, round), to = min(begin + across, end);
            if (from >= to) continue;
            // Nothing is there before the rows' first tile.
            float &to_query = b.dquery.at(t, top + lane), &to_key = b.dkey.at(t, top + lane);
            float query = begin >= round ? 0.0f : to_query, key = begin >= round ? 0.0f : to_key;
#pragma unroll 4
            for (u32 w = from - round; w < to - round; w++) query += own[w * PARTS], key += own[w * PARTS + TILE];
            to_query = query, to_key = key;
        }
        for (u32 side = 0; side < across; side++) {
            // The same of columns, whose tiles lie a row of tiles apart.
            float& to_value = b.dvalue.at(t, side * TILE + lane);
            // Nothing is there before the columns' first tile.
            float value = side >= round ? 0.0f : to_value;
#pragma unroll 4
            for (u32 w = side < skipped ? side + across - skipped : side - skipped; w < tiles; w += across)
                value += own[w * PARTS + 2 * TILE];
            to_value = value;
        }
        if (lane == 0) {
            // States counted in a unit of their own.
            float da = 0.0f;
#pragma unroll 8
            for (u32 w = 0; w < tiles; w++) da += parts[w * PARTS + CHUNK * PART_ROW + s];
            b.da[t] += da / unit_of<MAP>(l, t);
        }
    }
}

// The gradient of the state behind the group, and for distributions what their normalisation takes off.
template <int MAP> __device__ __forceinline__ void open_back(const Layer& l, const BackLayer& b, const Tile& tile, Tile& d) {
    d.load(b.d, 1.0f);
    if (MAP != SOFTMAX) return;
    Columns lse(&l.lse.at(l.looks() - 1, d.column)), sums(b.columns + d.column);
    d.each([&](u32 i, u32 j) { d.x[i][j] -= l.share * short_exp2(tile.x[i][j] - lse.x[j]) * sums.x[j]; });
}

// All tokens of the group back. `offset` is where parts begin in shared memory.
template <int MAP> TOGETHER void sweep_back(const Layer& of, const BackLayer& back, u32 offset) {
    Layer l = of;
    BackLayer b = back;
    // What columns have beside values.
    Panel more[3] = {b.given, b.taken, l.lse};
    float* parts = stage() + offset;
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, chunks = (l.tokens + CHUNK - 1) / CHUNK;
    for (u32 round = 0; round < l.tiles(); round += warps) {
        bool works = round + warp < l.tiles();
        u32 number = works ? round + warp : 0;
        Tile tile(l, number), d(l, number), anchor(l, number), danchor(l, number);
        if (works && ANCHORED) anchor.load(l.anchor, 1.0f), danchor.load(b.danchor, 1.0f);
        // After the branch fewer registers are live; what a warp without a tile has counts nowhere.
        if (ANCHORED) anchor.count_from_equal<MAP>(l, 1.0f);
        const float* kept = l.kept + (u64)number * l.chunks() * TILE_SIZE;
        for (u32 chunk = chunks; chunk-- > 0;) {
            u32 first = chunk * CHUNK, count = min(l.tokens - first, CHUNK);
            // Exactly what the forward had there: errors do not pass from chunk to chunk. Tokens are read meanwhile.
            if (works) tile.recall(kept + chunk * TILE_SIZE);
            put_on_stage<MAP, MAP == SOFTMAX ? 3 : 2>(l, more, first, count);
            if (works && chunk + 1 == chunks) open_back<MAP>(l, b, tile, d);
            __syncthreads();
            if (works) {
#pragma unroll 1
                for (u32 t = first + count; t-- > first;) token_back<MAP>(l, tile, d, anchor, danchor, kept, t, parts + warp * PARTS);
            }
            __syncthreads();
            add_parts<MAP>(l, b, parts, round, first, count);
        }
        // Of the state before the group, without what the gradient point adds.
        if (works) d.store(b.d, 1.0f);
        if (works && ANCHORED) danchor.store(b.danchor, 1.0f);
    }
    __syncthreads();
}
