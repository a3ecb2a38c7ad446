// What the kernels of attention share: where queries and keys lie, and products of tiles of them.
//
// Under one key-value head, the queries of a sequence are its units: unit u is query head u % group of token u / group.
// Keys are counted as tokens are, from the sequence's first; those before it, of the cache, have negative numbers. A
// block of 256 threads takes tiles of 64 units and of 64 keys. Of a tile of 64 x 64 elements, thread (ty, tx) of 16 x 16
// holds rows 4 ty .. 4 ty + 3 and columns 4 tx .. 4 tx + 3.
#pragma once
#include "hecate.cuh"

const int THREADS = 256;
// Bounds of a kernel of which so many blocks are to fit a multiprocessor: left to itself, the compiler spills a register
// or two for one block more.
#define BLOCKS(number) 256, number
// Units, and keys, of a tile.
const int TILE = 64;
// Distance of rows of a tile in shared memory.
const int PITCH = TILE + 4;
// How much of a sum is in shared memory at a time.
const int DEEP = 16;
// Most columns of results that a block makes; it makes 64 at a time.
const int SLAB = 128;

// Arrays and sizes of a call; `attention::AttentionCall` is its twin.
struct AttentionCall {
    // [rows, Hq, d], [rows, Hkv, d], [rows, Hkv, dv]
    Array q, k, v;
    // [N, P, Hkv, d], [N, P, Hkv, dv], or null
    Array cache_k, cache_v;
    // [Np, Hkv, d], [Np, Hkv, dv], or null
    Array prefix_k, prefix_v;
    // [N, P], null without a cache
    const float* valid;
    // Four elements a job, of which there are `count`; after them a counter of those that were taken
    const u32* jobs;
    int query_heads, heads, key, value, prefix, kept, count;
    float scale;
};

// y and the logarithm of each row's sum of exponentials; `attention::Forward` is its twin.
struct Forward {
    AttentionCall call;
    // [rows, Hq, dv]
    Array y;
    // [rows, Hq]
    float* lse;
    // Blocks of columns, and parts of the keys, of which each has a y and an lse of its own, `apart` rows on
    int slabs, parts;
    u64 apart;
};

// dq, and D of each query; `attention::QueryGrads` is its twin.
struct QueryGrads {
    AttentionCall call;
    // [rows, Hq, dv], [rows, Hq, d]
    Array dy, dq;
    const float* lse;
    // D [rows, Hq]
    float* along;
    int slabs;
};

// dk and dv; `attention::KeyGrads` is its twin.
struct KeyGrads {
    AttentionCall call;
    Array dy;
    // Gradient of the cache after the call [N, P, Hkv, ..], or null
    Array last_k, last_v;
    // [N, P, Hkv, ..], null without a cache
    Array dcache_k, dcache_v;
    // [rows, Hkv, ..]; for the prefix, a part of the sums for each job [.., Np, Hkv, ..]
    Array dk, dv;
    const float *lse, *along;
    // Units of a job, for the prefix
    int slabs, segment;
};

// Work of a block: a tile, or a segment of tiles, of one sequence under one head, and the columns of the results.
struct Job {
    // The sequence, its first row, its tokens
    u32 n, start, length;
    // Unit or key
    int first;
    int head, slab, part;
};

// 64 units and 64 keys, as addresses of rows (0: none, read as zeros) and who sees whom.
struct Rows {
    u64 q[TILE], dy[TILE], k[TILE], v[TILE];
    // Of a unit; -1: none
    int token[TILE];
    // Tokens that see a key
    int first[TILE], last[TILE];
    // Of a unit
    float lse[TILE], along[TILE];
};

// Four neighbours in shared memory, read at once.
struct __align__(16) Four {
    float x[4];
};

// Four neighbours from a multiple of 16 bytes.
__device__ __forceinline__ Four four(const float* x) { return *(const Four*)x; }

// A thread among 16 x 16.
__device__ __forceinline__ int thread_row() { return threadIdx.x / 16; }
// Returns the thread's column among 16.
__device__ __forceinline__ int thread_column() { return threadIdx.x % 16; }

// Blocks are counted by job, then head, then part of the keys, then slab of columns.
__device__ __forceinline__ Job job_of_block(const AttentionCall& call, int slabs, int parts = 1) {
    u32 index = blockIdx.x / slabs, head = index / parts;
    const u32* job = call.jobs + (u64)(head / call.heads) * 4;
    return Job{job[0], job[1], job[2], (int)job[3], (int)(head % call.heads), (int)(blockIdx.x % slabs),
        (int)(index % parts)};
}

// Where a row of `width` elements begins.
__device__ __forceinline__ u64 address(Array x, u64 row, int width) {
    return (u64)x.data + row * width * (x.type == 0 ? 4 : 2);
}

// Row of a unit in arrays [rows, Hq, ..].
__device__ __forceinline__ u64 unit_row(const AttentionCall& call, const Job& job, int unit) {
    int group = call.query_heads / call.heads;
    return ((u64)job.start + unit / group) * call.query_heads + job.head * group + unit % group;
}

// Row of a key of the cache, and of a token, in arrays [.., Hkv, ..].
__device__ __forceinline__ u64 cache_row(const AttentionCall& call, const Job& job, int place) {
    return ((u64)job.n * call.kept + place) * call.heads + job.head;
}
// Returns the row of a token of this call in arrays [rows,Hkv,..].
__device__ __forceinline__ u64 token_row(const AttentionCall& call, const Job& job, int token) {
    return ((u64)job.start + token) * call.heads + job.head;
}

// A place without a key: its rows are zeros, and no token sees it. `K` is any structure that has keys.
template <class K> __device__ __forceinline__ void no_key(K& rows, int slot) {
    rows.k[slot] = rows.v[slot] = 0;
    rows.first[slot] = 0;
    rows.last[slot] = -1;
}

// Key `place` of the prefix, which every token sees.
template <class K>
__device__ __forceinline__ void prefix_key(K& rows, const AttentionCall& call, const Job& job, int slot, int place) {
    u64 row = (u64)place * call.heads + job.head;
    rows.k[slot] = address(call.prefix_k, row, call.key);
    rows.v[slot] = address(call.prefix_v, row, call.value);
    rows.first[slot] = 0;
    rows.last[slot] = 0x7fffffff;
}

// Key `at`, which tokens at .. at + P see. Whatever lies in places of the cache that do not count is not looked at.
template <class K>
__device__ __forceinline__ void window_key(K& rows, const AttentionCall& call, const Job& job, int slot, int at) {
    bool old = at < 0;
    if (old && !(call.valid[(u64)job.n * call.kept + (call.kept + at)] > 0.5f)) return no_key(rows, slot);
    // Old keys lie in the cache.
    u64 row = old ? cache_row(call, job, call.kept + at) : token_row(call, job, at);
    rows.k[slot] = address(old ? call.cache_k : call.k, row, call.key);
    rows.v[slot] = address(old ? call.cache_v : call.v, row, call.value);
    rows.first[slot] = old ? 0 : at;
    rows.last[slot] = at + call.kept;
}

// Whether the token of a query sees a key of the tile.
__device__ __forceinline__ bool sees(const Rows& rows, int unit, int key) {
    int token = rows.token[unit];
    return token >= rows.first[key] && token <= rows.last[key];
}

// Number `column` of a row, 0 after its end.
__device__ __forceinline__ float element(u64 row, u32 type, int column, int width) {
    return row != 0 && column < width ? load(Array{(void*)row, type}, column) : 0.0f;
}

// Writes two neighbours from element `i` on, an even number.
__device__ __forceinline__ void store_pair(Array x, u64 i, float low, float high) {
    if (x.type == 0) ((float2*)x.data)[i / 2] = make_float2(low, high);
    else ((u32*)x.data)[i / 2] = to_word(x.type, low, high);
}

// Columns start .. start + DEEP of 64 rows, as out [DEEP, PITCH]. A warp reads 8 columns of 4 rows: its writes meet no
// bank twice.
__device__ __forceinline__ void stage_columns(float* out, const u64* rows, u32 type, int start, int width) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 4;
#pragma unroll
    for (int part = 0; part < 4; part++) {
        int row = (first + part) / 2 * 4 + lane / 8, column = part % 2 * 8 + lane % 8;
        out[column * PITCH + row] = element(rows[row], type, start + column, width);
    }
}

// out[i][j] += sum over c < width of a[4 ty + i, c] b[4 tx + j, c]; `stage` holds 2 x DEEP x PITCH elements.
__device__ __forceinline__ void scores(
    float (&out)[4][4], const u64* a, const u64* b, u32 type, int width, float* stage) {
    float *left = stage, *right = stage + DEEP * PITCH;
    for (int start = 0; start < width; start += DEEP) {
        __syncthreads();
        stage_columns(left, a, type, start, width);
        stage_columns(right, b, type, start, width);
        __syncthreads();
#pragma unroll 4
        for (int c = 0; c < DEEP; c++) {
            // Four rows and four columns of the thread, 16 bytes each.
            Four x = four(left + c * PITCH + 4 * thread_row()), y = four(right + c * PITCH + 4 * thread_column());
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) out[i][j] += x.x[i] * y.x[j];
        }
    }
}

// Keeps a tile of weights transposed, so that `weigh` sums over its columns.
__device__ __forceinline__ void keep(float* weights, const float (&tile)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        // A column of the thread's part is four neighbours of a transposed row.
        Four column = {{tile[0][j], tile[1][j], tile[2][j], tile[3][j]}};
        *(Four*)(weights + (4 * thread_column() + j) * PITCH + 4 * thread_row()) = column;
    }
}

// out[kind][i][4 h + j] += sum over r < count of weights[kind][r, 4 ty + i] x[r, start + 64 h + 4 tx + j], for x of 64
// rows. `stage` holds DEEP x SLAB elements.
template <int HALVES, int KINDS>
__device__ __forceinline__ void weigh(float (&out)[KINDS][4][4 * HALVES], const float (*weights)[TILE * PITCH],
    int count, const u64* x, u32 type, int start, int width, float* stage) {
    const int columns = TILE * HALVES;
    for (int first = 0; first < count; first += DEEP) {
        __syncthreads();
#pragma unroll
        for (int part = 0; part < DEEP * columns / THREADS; part++) {
            int i = part * THREADS + threadIdx.x;
            stage[i] = element(x[first + i / columns], type, start + i % columns, width);
        }
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < DEEP; r++) {
            Four row[HALVES];
#pragma unroll
            for (int h = 0; h < HALVES; h++) row[h] = four(stage + r * columns + h * TILE + 4 * thread_column());
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++) {
                Four weight = four(weights[kind] + (first + r) * PITCH + 4 * thread_row());
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4 * HALVES; j++) out[kind][i][j] += weight.x[i] * row[j / 4].x[j % 4];
            }
        }
    }
}

// The column of a result that number `j` of a thread's rows belongs to.
__device__ __forceinline__ int result_column(const Job& job, int j) {
    return job.slab * SLAB + j / 4 * TILE + 4 * thread_column() + j % 4;
}

// Sum and maximum over the 16 threads of a row; all threads call it.
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (u32 mask = 8; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}
// Returns the largest of a row's 16 threads.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (u32 mask = 8; mask > 0; mask >>= 1) {
        float other = shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

// Keys that the units of a tile see, in order: the prefix, then the window from `low` on.
struct Seen {
    int low, count;
};

// The window of the first query of a tile of `units`, up to the token of its last.
__device__ __forceinline__ Seen seen(const AttentionCall& call, const Job& job, int units = TILE) {
    int group = call.query_heads / call.heads;
    // Tokens of the tile's first and last query.
    int from = job.first / group, to = (job.first + units - 1) / group;
    to = to < (int)job.length ? to : (int)job.length - 1;
    int start = call.valid ? -call.kept : 0, low = from - call.kept;
    low = low > start ? low : start;
    return Seen{low, call.prefix + to - low + 1};
}

// A block's part of them, in whole tiles of keys; the last parts may have none.
struct Part {
    int first, end;
};
// Returns the range of keys of part `part` of `parts`.
__device__ __forceinline__ Part part_of(const Seen& all, int part, int parts, int tile) {
    const int keys = ((all.count + tile - 1) / tile + parts - 1) / parts * tile, first = part * keys;
    return Part{first, first + keys < all.count ? first + keys : all.count};
}

// Key number `i` of those.
template <class K>
__device__ __forceinline__ void seen_key(
    K& rows, const AttentionCall& call, const Job& job, const Seen& seen, int slot, int i) {
    if (i >= seen.count) no_key(rows, slot);
    else if (i < call.prefix) prefix_key(rows, call, job, slot, i);
    else window_key(rows, call, job, slot, seen.low + i - call.prefix);
}
