// Softmax attention over a sliding window, forward. Keys pass in tiles, and with them the maximum of the scores, the sum
// of their exponentials and the outputs, all relative to the maximum so far.
#include "attention.cuh"

// Shared memory of a block: about 29 KiB, so that two blocks fit a multiprocessor.
struct Tiles {
    Rows rows;
    __align__(16) float stage[2 * DEEP * PITCH];
    __align__(16) float weights[1][TILE * PITCH];
};

// A block has 64 queries under one key-value head, and HALVES times 64 columns of y.
template <int HALVES>
__device__ __forceinline__ void forward(const Forward& args, const Job& job, Tiles& tiles) {
    const AttentionCall& call = args.call;
    Rows& rows = tiles.rows;
    // Queries of the sequence under this key-value head.
    int units = (int)job.length * (call.query_heads / call.heads), mine = threadIdx.x;
    Seen all = seen(call, job);
    if (mine < TILE) {
        int unit = job.first + mine;
        bool real = unit < units;
        rows.token[mine] = real ? unit / (call.query_heads / call.heads) : -1;
        rows.q[mine] = real ? address(call.q, unit_row(call, job, unit), call.key) : 0;
    }
    // Of a thread's four queries: outputs so far, the largest score, and its own part of the sum of exponentials.
    float out[1][4][4 * HALVES] = {}, top[4], total[4];
    for (int i = 0; i < 4; i++) {
        top[i] = -INFINITE;
        total[i] = 0.0f;
    }
    for (int at = 0; at < all.count; at += TILE) {
        __syncthreads();
        // The first 64 threads find a key each.
        if (mine < TILE) seen_key(rows, call, job, all, mine, at + mine);
        __syncthreads();
        // Scores of the thread's 4 x 4 part of the tile.
        float p[4][4] = {};
        scores(p, rows.q, rows.k, call.q.type, call.key, tiles.stage);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int unit = 4 * thread_row() + i;
            float most = -INFINITE;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                p[i][j] = sees(rows, unit, 4 * thread_column() + j) ? call.scale * p[i][j] : -INFINITE;
                most = p[i][j] > most ? p[i][j] : most;
            }
            // Over the 16 threads of a row.
            most = row_max(most);
            most = most > top[i] ? most : top[i];
            // Where nothing was seen yet, any number will do.
            float base = most == -INFINITE ? 0.0f : most, factor = expf(top[i] - base);
            top[i] = most;
            total[i] *= factor;
#pragma unroll
            for (int j = 0; j < 4; j++) total[i] += p[i][j] = expf(p[i][j] - base);
#pragma unroll
            for (int j = 0; j < 4 * HALVES; j++) out[0][i][j] *= factor;
        }
        // Through shared memory, since `weigh` needs whole rows of weights.
        keep(tiles.weights[0], p);
        int count = all.count - at < TILE ? all.count - at : TILE;
        weigh<HALVES, 1>(out, tiles.weights, count, rows.v, call.q.type, job.slab * SLAB, call.value, tiles.stage);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // Parts of the sum are put together once, at the end.
        float sum = row_sum(total[i]);
        int unit = job.first + 4 * thread_row() + i;
        if (unit >= units) continue;
        u64 row = unit_row(call, job, unit);
        if (job.slab == 0 && thread_column() == 0) args.lse[row] = top[i] + logf(sum);
#pragma unroll
        for (int j = 0; j < 4 * HALVES; j++) {
            int column = result_column(job, j);
            if (column < call.value) store(args.y, row * call.value + column, out[0][i][j] / sum);
        }
    }
}

// Values of at most 64 elements, and wider ones.
KERNEL(attention_forward, Forward, BLOCKS(2)) {
    __shared__ Tiles tiles;
    forward<1>(args, job_of_block(args.call, args.slabs), tiles);
}

// The same with 128 columns of y a block.
KERNEL(attention_forward_wide, Forward, BLOCKS(2)) {
    __shared__ Tiles tiles;
    forward<2>(args, job_of_block(args.call, args.slabs), tiles);
}
