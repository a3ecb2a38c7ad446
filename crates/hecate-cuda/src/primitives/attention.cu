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
    const Part part = part_of(all, job.part, args.parts, TILE);
    for (int at = part.first; at < part.end; at += TILE) {
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
        int count = part.end - at < TILE ? part.end - at : TILE;
        weigh<HALVES, 1>(out, tiles.weights, count, rows.v, call.q.type, job.slab * SLAB, call.value, tiles.stage);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // Parts of the sum are put together once, at the end.
        float sum = row_sum(total[i]);
        int unit = job.first + 4 * thread_row() + i;
        if (unit >= units) continue;
        u64 row = unit_row(call, job, unit) + job.part * args.apart;
        if (job.slab == 0 && thread_column() == 0) args.lse[row] = top[i] + logf(sum);
        // Of a part in which a query sees no key y is zero, and lse −∞.
        if (args.parts > 1 && sum == 0.0f) sum = 1.0f;
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
    forward<1>(args, job_of_block(args.call, args.slabs, args.parts), tiles);
}

// The same with 128 columns of y a block.
KERNEL(attention_forward_wide, Forward, BLOCKS(2)) {
    __shared__ Tiles tiles;
    forward<2>(args, job_of_block(args.call, args.slabs, args.parts), tiles);
}

// y and lse out of their parts; `attention::Join` is its twin.
struct Join {
    // [rows, Hq, dv]
    Array y;
    // [rows, Hq]
    float* lse;
    // [parts, rows, Hq, dv], [parts, rows, Hq]
    const float *part_y, *part_lse;
    u64 rows;
    int value, parts;
};

// A warp a row: lse = log Σ e^lse of its parts, and y their sum by e^(lse of the part − lse).
KERNEL(attention_join, Join, 256) {
    const u64 row = grid_thread() / 32;
    const int lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    float most = -INFINITE, sum = 0.0f;
    // A NaN is passed over at first; its exponential is one.
    for (int part = lane; part < args.parts; part += 32) most = fmaxf(most, args.part_lse[part * args.rows + row]);
    for (u32 mask = 16; mask > 0; mask /= 2) most = fmaxf(most, shuffle_xor(most, mask));
    for (int part = lane; part < args.parts; part += 32) sum += expf(args.part_lse[part * args.rows + row] - most);
    for (u32 mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    const float lse = most + logf(sum);
    if (lane == 0) args.lse[row] = lse;
    for (int column = 2 * lane; column < args.value; column += 64) {
        float low = 0.0f, high = 0.0f;
#pragma unroll 4
        for (int part = 0; part < args.parts; part++) {
            const u64 at = part * args.rows + row;
            const float weight = expf(args.part_lse[at] - lse);
            const float2 y = *(const float2*)(args.part_y + at * args.value + column);
            low += weight * y.x, high += weight * y.y;
        }
        store_pair(args.y, row * args.value + column, low, high);
    }
}
