// The way back of `sweep.cuh`: states and their gradients in registers, token by token from the last.
#pragma once
#include "mapped/sweep.cuh"

// What a layer's way back takes beside `Layer`, and what it leaves.
struct BackLayer {
    // Gradient of the state, in place; the sums of columns of what comes in [1,wide], of distributions.
    Panel d;
    const float* columns;
    // Gradients of outputs, by columns, as they meet weights; and what columns of distributions take off, or for (54) with what
    // X'² is multiplied: [rows,wide].
    Panel given, taken;
    // Gradients of queries and keys [rows,height] and of values [rows,wide], to which is added.
    Panel dquery, dkey, dvalue;
    // Of a, to which is added, and a itself [rows].
    float* da;
    const float* a;
    // A chunk's parts of sums, by warp [PARTS].
    float* parts;
};

// Parts of a warp: by token and row of queries and keys, by token and column, by token.
#define PART_OF_ROWS (2 * CHUNK * TILE_ROWS)
#define PART_OF_COLUMNS (CHUNK * TILE_COLUMNS)
#define PARTS (PART_OF_ROWS + PART_OF_COLUMNS + CHUNK)

// What a token needs on the way back.
struct BackToken {
    Quad k, q, z, given, taken, lse;

    template <int MAP> __device__ __forceinline__ void load(const Layer& l, const BackLayer& b, const Tile& tile, u32 t) {
        k = tile.by_rows(l.key, t), q = tile.by_rows(l.query, t), z = tile.by_columns(l.value, t);
        given = tile.by_columns(b.given, t), taken = tile.by_columns(b.taken, t);
        if (MAP == SOFTMAX) lse = tile.by_columns(l.lse, t);
    }
};

// A read back: the state's gradient takes its part, and rows theirs of the query's.
template <int MAP> __device__ __forceinline__ void look_back(const BackToken& o, float kappa, Tile& tile, Tile& d, float* dq) {
    tile.each([&](u32 i, u32 j) {
        float x = tile.x[i].x[j];
        if (MAP == SOFTMAX) {
            // P (x f − ȳ f), column by column.
            float w = short_exp2(x - o.lse.x[j]);
            dq[i] += w * o.given.x[j], d.x[i].x[j] += w * (o.q.x[i] * o.given.x[j] - o.taken.x[j]);
        } else {
            // X² (its own part + κ X).
            float square = x * x;
            dq[i] += square * x * o.given.x[j];
            d.x[i].x[j] += square * (o.q.x[i] * o.taken.x[j] + kappa * x);
        }
    });
}

// Adds what the round's warps left of a chunk, `count` tokens from `first` on, warp by warp in order.
template <int MAP> __device__ __forceinline__ void add_parts(const Layer& l, const BackLayer& b, u32 round, u32 first, u32 count) {
    u32 warps = blockDim.x / 32, across = l.across(), tiles = min(l.tiles() - round, warps);
    u32 of_rows = l.height / 4, of_columns = l.wide / 4;
    for (u32 n = threadIdx.x; n < 2 * count * of_rows; n += blockDim.x) {
        // Queries, then keys. The tiles of the round that have the row follow each other.
        u32 s = n / of_rows, row = n % of_rows * 4, part = row / TILE_ROWS, key = s >= count;
        s -= key * count;
        u32 from = max(part * across, round) - round, to = min((part + 1) * across, round + tiles);
        if (to <= round + from) continue;
        float4& sum = (key ? b.dkey : b.dquery).four(first + s, row);
        float4 all = sum;
        for (u32 w = from; w < to - round; w++)
            all = map([](float x, float y) { return x + y; }, all,
                      *(const float4*)(b.parts + w * PARTS + (2 * s + key) * TILE_ROWS + row % TILE_ROWS));
        sum = all;
    }
    for (u32 n = threadIdx.x; n < count * of_columns; n += blockDim.x) {
        // The same of columns, whose tiles lie a row of tiles apart.
        u32 s = n / of_columns, column = n % of_columns * 4, side = column / TILE_COLUMNS;
        float4& sum = b.dvalue.four(first + s, column);
        float4 all = sum;
        for (u32 w = (side + across - round % across) % across; w < tiles; w += across)
            all = map([](float x, float y) { return x + y; }, all,
                      *(const float4*)(b.parts + w * PARTS + PART_OF_ROWS + s * TILE_COLUMNS + column % TILE_COLUMNS));
        sum = all;
    }
    EACH(s, count) {
        // States counted in a unit of their own.
        float da = 0.0f;
        for (u32 w = 0; w < tiles; w++) da += b.parts[w * PARTS + PART_OF_ROWS + PART_OF_COLUMNS + s];
        b.da[first + s] += da / unit_of<MAP>(l, first + s);
    }
}

// The state before token t, out of the one after it, or where that would lose digits from the one before its chunk.
template <int MAP>
__device__ __forceinline__ void go_back(const Layer& l, Tile& tile, const float* kept, u32 t, const Quad& k, const Quad& z) {
    float back = l.back[t];
    if (back != 0.0f) {
        tile.each([&](u32 i, u32 j) { tile.x[i].x[j] = back * (tile.x[i].x[j] - k.x[i] * z.x[j]); });
        return;
    }
    u32 chunk = t / CHUNK;
    if (chunk > 0) tile.recall(kept + (chunk - 1) * TILE_SIZE);
    else tile.load(l.x, unit_of<MAP>(l, 0));
#pragma unroll 1
    for (u32 s = chunk * CHUNK; s < t; s++)
        tile.advance(l.carry[s], tile.by_rows(l.key, s), tile.by_columns(l.value, s).times(l.gain[s]));
}

// A token back: its read, then its write. Sums go to the warp's parts.
template <int MAP>
__device__ __forceinline__ void token_back(const Layer& l, const BackLayer& b, const BackToken& o, Tile& tile, Tile& d,
                                           const float* kept, u32 t, float* parts) {
    // Of queries, then of keys.
    float sums[8] = {}, dz[4] = {}, da = 0.0f, a = b.a[t];
    look_back<MAP>(o, MAP == SOFTMAX ? 0.0f : l.kappa[t], tile, d, sums);
    Quad z = o.z.times(l.gain[t]);
    go_back<MAP>(l, tile, kept, t, o.k, z);
    tile.each([&](u32 i, u32 j) {
        float own = d.x[i].x[j];
        da += own * tile.x[i].x[j], sums[4 + i] += own * o.z.x[j], dz[j] += own * o.k.x[i];
        d.x[i].x[j] = a * own;
    });
    // Columns of a row lie in four lanes, rows of a column in eight.
    u32 lane = threadIdx.x % 32, s = t % CHUNK;
    halve(sums, 2);
    float of_rows[4] = {sums[0], sums[1], sums[2], sums[3]};
    halve(of_rows, 1);
    *(float2*)(parts + s * 2 * TILE_ROWS + (lane & 2 ? TILE_ROWS : 0) + lane / 4 * 4 + (lane & 1 ? 2 : 0)) =
        make_float2(of_rows[0], of_rows[1]);
    halve(dz, 16);
    float two[2] = {dz[0], dz[1]};
    halve(two, 8);
    float one = two[0] + shuffle_xor(two[0], 4);
    if (!(lane & 4)) parts[PART_OF_ROWS + s * TILE_COLUMNS + lane % 4 * 4 + (lane & 16 ? 2 : 0) + (lane & 8 ? 1 : 0)] = one;
    da = warp_sum(da);
    if (lane == 0) parts[PART_OF_ROWS + PART_OF_COLUMNS + s] = da;
}

// The gradient of the state behind the group, and for distributions what their normalisation takes off.
template <int MAP> __device__ __forceinline__ void open_back(const Layer& l, const BackLayer& b, const Tile& tile, Tile& d) {
    d.load(b.d, 1.0f);
    if (MAP != SOFTMAX) return;
    Quad lse = d.by_columns(l.lse, l.tokens - 1), sums = Quad::of(*(const float4*)(b.columns + d.column));
    d.each([&](u32 i, u32 j) { d.x[i].x[j] -= short_exp2(tile.x[i].x[j] - lse.x[j]) * sums.x[j]; });
}

// All tokens of the group back. Gradients of queries, keys, values and a are added to.
template <int MAP> TOGETHER void sweep_back(const Layer& of, const BackLayer& back) {
    Layer l = of;
    BackLayer b = back;
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, chunks = (l.tokens + CHUNK - 1) / CHUNK;
    for (u32 round = 0; round < l.tiles(); round += warps) {
        // All warps meet by chunks; those without a tile have nothing else to do.
        bool works = round + warp < l.tiles();
        u32 number = works ? round + warp : 0;
        Tile tile(l, number), d(l, number);
        const float* kept = l.kept + (u64)number * l.chunks() * TILE_SIZE;
        float* parts = b.parts + warp * PARTS;
        BackToken token, next;
        next.load<MAP>(l, b, tile, l.tokens - 1);
        for (u32 chunk = chunks; chunk-- > 0;) {
            u32 first = chunk * CHUNK, count = min(l.tokens - first, CHUNK);
            if (works) {
                tile.recall(kept + chunk * TILE_SIZE);
                if (chunk + 1 == chunks) open_back<MAP>(l, b, tile, d);
#pragma unroll 1
                for (u32 t = first + count; t-- > first;) {
                    token = next;
                    next.load<MAP>(l, b, tile, t ? t - 1 : 0);
                    token_back<MAP>(l, b, token, tile, d, kept, t, parts);
                }
            }
            __syncthreads();
            add_parts<MAP>(l, b, round, first, count);
            __syncthreads();
        }
        if (works) d.store(b.d, 1.0f);
    }
    __syncthreads();
}
