// Softmax attention over a sliding window, backward. Weights are made again from `lse`: p = exp(s - lse). One kernel has
// queries in its blocks and passes keys, the others have keys and pass queries, so that no two blocks add to one number.
// Each is there for rows of at most 64 elements, and for wider ones.
#include "attention.cuh"

// Shared memory of a block; two tiles of weights, p ∘ dp and p.
// Rows are addresses and masks of 64 queries and 64 keys; `stage` takes slices of them, so any width fits.
struct Tiles {
    Rows rows;
    __align__(16) float stage[2 * DEEP * PITCH];
    __align__(16) float weights[2][TILE * PITCH];
};

// Unit `unit` of those before `end`, with what the forward knew of it.
__device__ __forceinline__ void unit_slot(Rows& rows, const AttentionCall& call, const Job& job, Array dy, const float* lse,
    const float* along, int slot, int unit, int end) {
    // Places after the last query have no rows and see no key.
    bool real = unit < end;
    u64 row = real ? unit_row(call, job, unit) : 0;
    rows.token[slot] = real ? unit / (call.query_heads / call.heads) : -1;
    rows.q[slot] = real ? address(call.q, row, call.key) : 0;
    rows.dy[slot] = real ? address(dy, row, call.value) : 0;
    rows.lse[slot] = real ? lse[row] : 0.0f;
    rows.along[slot] = real && along ? along[row] : 0.0f;
}

// D = sum of p (dy.v), which is dy.y but for the rounding of a y kept in 16 bits. It is known only after the last key,
// so dq = scale (sum of p (dy.v) k - D sum of p k).
template <int HALVES>
__device__ __forceinline__ void query_grads(const QueryGrads& args, const Job& job, Tiles& tiles) {
    const AttentionCall& call = args.call;
    Rows& rows = tiles.rows;
    int units = (int)job.length * (call.query_heads / call.heads), mine = threadIdx.x;
    // Keys that the tile's queries see, prefix first.
    Seen all = seen(call, job);
    if (mine < TILE) unit_slot(rows, call, job, args.dy, args.lse, nullptr, mine, job.first + mine, units);
    // Σ p (dy·v) k and Σ p k of a thread's four queries, and its part of D.
    float out[2][4][4 * HALVES] = {}, along[4] = {};
    // Barriers: nobody reads the rows of the last tile any more; then those of this one are there.
    for (int at = 0; at < all.count; at += TILE) {
        __syncthreads();
        if (mine < TILE) seen_key(rows, call, job, all, mine, at + mine);
        __syncthreads();
        float p[4][4] = {}, g[4][4] = {};
        scores(p, rows.q, rows.k, call.q.type, call.key, tiles.stage);
        scores(g, rows.dy, rows.v, call.q.type, call.value, tiles.stage);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int unit = 4 * thread_row() + i;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                // p again, from the forward's `lse`; then p (dy·v).
                bool seen = sees(rows, unit, 4 * thread_column() + j);
                p[i][j] = seen ? expf(call.scale * p[i][j] - rows.lse[unit]) : 0.0f;
                g[i][j] = seen ? p[i][j] * g[i][j] : 0.0f;
                along[i] += g[i][j];
            }
        }
        keep(tiles.weights[0], g);
        keep(tiles.weights[1], p);
        int count = all.count - at < TILE ? all.count - at : TILE;
        weigh<HALVES, 2>(out, tiles.weights, count, rows.k, call.q.type, job.slab * SLAB, call.key, tiles.stage);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // D of the row; the 16 threads of a row have a part each.
        float sum = row_sum(along[i]);
        int unit = job.first + 4 * thread_row() + i;
        if (unit >= units) continue;
        u64 row = unit_row(call, job, unit);
        // Every slab finds the same D; one writes it.
        if (job.slab == 0 && thread_column() == 0) args.along[row] = sum;
#pragma unroll
        for (int j = 0; j < 4 * HALVES; j++) {
            int column = result_column(job, j);
            // What D takes off is known now.
            float dq = call.scale * (out[0][i][j] - sum * out[1][i][j]);
            if (column < call.key) store(args.dq, row * call.key + column, dq);
        }
    }
}

// A block has 64 queries and up to 64 columns of dq.
KERNEL(attention_dq, QueryGrads, BLOCKS(2)) {
    __shared__ Tiles tiles;
    query_grads<1>(args, job_of_block(args.call, args.slabs), tiles);
}

// With 128 columns registers allow one block a multiprocessor.
KERNEL(attention_dq_wide, QueryGrads, BLOCKS(1)) {
    __shared__ Tiles tiles;
    query_grads<2>(args, job_of_block(args.call, args.slabs), tiles);
}

// Adds what units `begin .. end` tell the 64 keys of the tile: dk = scale sum of ds q, dv = sum of p dy.
template <int HALVES>
__device__ __forceinline__ void key_grads(float (&dk)[1][4][4 * HALVES], float (&dv)[1][4][4 * HALVES],
    const KeyGrads& args, const Job& job, int begin, int end, Tiles& tiles) {
    const AttentionCall& call = args.call;
    Rows& rows = tiles.rows;
    // Columns of dk and dv that the block makes.
    int start = job.slab * SLAB;
    // A tile of queries after another.
    for (int at = begin; at < end; at += TILE) {
        __syncthreads();
        if (threadIdx.x < TILE) {
            int slot = threadIdx.x;
            unit_slot(rows, call, job, args.dy, args.lse, args.along, slot, at + slot, end);
        }
        __syncthreads();
        float p[4][4] = {}, g[4][4] = {};
        // Transposed beside the forward: keys are rows of the tile, queries its columns.
        scores(p, rows.k, rows.q, call.q.type, call.key, tiles.stage);
        scores(g, rows.v, rows.dy, call.q.type, call.value, tiles.stage);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int unit = 4 * thread_column() + j;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool seen = sees(rows, unit, 4 * thread_row() + i);
                p[i][j] = seen ? expf(call.scale * p[i][j] - rows.lse[unit]) : 0.0f;
                g[i][j] = seen ? p[i][j] * (g[i][j] - rows.along[unit]) : 0.0f;
            }
        }
        keep(tiles.weights[0], g);
        keep(tiles.weights[1], p);
        int count = end - at < TILE ? end - at : TILE;
        if (start < call.key)
            weigh<HALVES, 1>(dk, tiles.weights, count, rows.q, call.q.type, start, call.key, tiles.stage);
        if (start < call.value)
            weigh<HALVES, 1>(dv, tiles.weights + 1, count, rows.dy, call.q.type, start, call.value, tiles.stage);
    }
}

// Writes elements of row `row` in `out`, with those of row `more` in `last` on top where there is one.
template <int HALVES>
__device__ __forceinline__ void put(
    const Job& job, Array out, u64 row, const float (&x)[4 * HALVES], float factor, Array last, long long more, int width) {
#pragma unroll
    for (int j = 0; j < 4 * HALVES; j++) {
        int column = result_column(job, j);
        if (column >= width) continue;
        float value = factor * x[j];
        if (last.data && more >= 0) value += load(last, (u64)more * width + column);
        store(out, row * width + column, value);
    }
}

// Keys first .. first + 63 of a sequence.
template <int HALVES>
__device__ __forceinline__ void window_grads(const KeyGrads& args, const Job& job, Tiles& tiles) {
    const AttentionCall& call = args.call;
    int length = (int)job.length, group = call.query_heads / call.heads;
    if (threadIdx.x < TILE) {
        int at = job.first + (int)threadIdx.x;
        if (at < length) window_key(tiles.rows, call, job, threadIdx.x, at);
        else no_key(tiles.rows, threadIdx.x);
    }
    // The tokens that see the first key or a later one, and those that see the last or an earlier one.
    int from = job.first > 0 ? job.first : 0, to = job.first + TILE - 1;
    to = (to < length ? to : length - 1) + call.kept;
    to = to < length ? to : length - 1;
    // Of a thread's four keys.
    float dk[1][4][4 * HALVES] = {}, dv[1][4][4 * HALVES] = {};
    key_grads<HALVES>(dk, dv, args, job, from * group, (to + 1) * group, tiles);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = job.first + 4 * thread_row() + i;
        if (at >= length) continue;
        // Its place in the cache after the call, where it has one.
        int place = at + call.kept - length;
        // The cache after the call holds the last W − 1 places, of this call's tokens or of the cache before.
        long long more = place >= 0 ? (long long)cache_row(call, job, place) : -1;
        // A key of the cache or of a token.
        u64 row = at < 0 ? cache_row(call, job, call.kept + at) : token_row(call, job, at);
        put<HALVES>(job, at < 0 ? args.dcache_k : args.dk, row, dk[0][i], call.scale, args.last_k, more, call.key);
        put<HALVES>(job, at < 0 ? args.dcache_v : args.dv, row, dv[0][i], 1.0f, args.last_v, more, call.value);
    }
}

// A block has 64 keys and up to 64 columns of dk and dv.
KERNEL(attention_dkv, KeyGrads, BLOCKS(2)) {
    __shared__ Tiles tiles;
    window_grads<1>(args, job_of_block(args.call, args.slabs), tiles);
}

// The same with 128 columns.
KERNEL(attention_dkv_wide, KeyGrads, BLOCKS(1)) {
    __shared__ Tiles tiles;
    window_grads<2>(args, job_of_block(args.call, args.slabs), tiles);
}

// All keys of the prefix, for a segment of the units of all rows, which count as one sequence: everyone sees the prefix.
template <int HALVES>
__device__ __forceinline__ void prefix_grads(const KeyGrads& args, const Job& job, Tiles& tiles) {
    const AttentionCall& call = args.call;
    int units = (int)job.length * (call.query_heads / call.heads), end = job.first + args.segment;
    end = end < units ? end : units;
    for (int first = 0; first < call.prefix; first += TILE) {
        __syncthreads();
        if (threadIdx.x < TILE) {
            int place = first + (int)threadIdx.x;
            if (place < call.prefix) prefix_key(tiles.rows, call, job, threadIdx.x, place);
            else no_key(tiles.rows, threadIdx.x);
        }
        float dk[1][4][4 * HALVES] = {}, dv[1][4][4 * HALVES] = {};
        key_grads<HALVES>(dk, dv, args, job, job.first, end, tiles);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // The thread's four keys of the prefix.
            int place = first + 4 * thread_row() + i;
            if (place >= call.prefix) continue;
            // The segment's own part of the sums.
            u64 row = ((u64)(job.first / args.segment) * call.prefix + place) * call.heads + job.head;
            put<HALVES>(job, args.dk, row, dk[0][i], call.scale, args.last_k, -1, call.key);
            put<HALVES>(job, args.dv, row, dv[0][i], 1.0f, args.last_v, -1, call.value);
        }
    }
}

// A block has a segment of queries, and writes its part of the sums.
KERNEL(attention_dprefix, KeyGrads, BLOCKS(2)) {
    __shared__ Tiles tiles;
    prefix_grads<1>(args, job_of_block(args.call, args.slabs), tiles);
}

// The same with 128 columns.
KERNEL(attention_dprefix_wide, KeyGrads, BLOCKS(1)) {
    __shared__ Tiles tiles;
    prefix_grads<2>(args, job_of_block(args.call, args.slabs), tiles);
}
