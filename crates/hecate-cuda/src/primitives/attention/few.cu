// Softmax attention in 32 bits where a sequence has few queries under a key-value head, as a token after a cache has: a
// tile of 64 would be empty but for these. A warp passes keys four at a time, a lane has columns lane, lane + 32, ..
#include "attention.cuh"

// Keys whose rows are on their way together.
const int AHEAD = 4;
// Warps of a block, which take turns in fours of its keys.
const int WARPS = THREADS / 32;

// A key as `seen_key` finds it.
struct FoundKey {
    u64 k[1], v[1];
    int first[1], last[1];
};

// What the warps of a block made of their keys.
template <int UNITS, int COLUMNS> struct WarpParts {
    float top[WARPS][UNITS], total[WARPS][UNITS], out[WARPS][UNITS][32 * COLUMNS];
};

// A block has all queries of a sequence under one head, at most UNITS, and a part of the keys.
template <int UNITS, int COLUMNS> struct FewBlock {
    const Forward& args;
    const AttentionCall& call;
    const Job job;
    const int group, units, lane, warp;
    const Seen all;
    // Of a query: its elements, outputs so far, the largest score, the sum of exponentials, its token (−1: none)
    float q[UNITS][COLUMNS], out[UNITS][COLUMNS], top[UNITS], total[UNITS];
    int token[UNITS];

    // Finds the block's job and loads its queries.
    __device__ __forceinline__ FewBlock(const Forward& args)
        : args(args), call(args.call), job(job_of_block(args.call, 1, args.parts)),
          group(args.call.query_heads / args.call.heads), units((int)job.length * group), lane(threadIdx.x % 32),
          warp(threadIdx.x / 32), all(seen(args.call, job)) {
        // Units that are not there have rows of zeros, see no key, and are not written.
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const u64 row = u < units ? address(call.q, unit_row(call, job, u), call.key) : 0;
            read(q[u], row, call.key);
            token[u] = u < units ? u / group : -1;
            top[u] = -INFINITE, total[u] = 0.0f;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) out[u][c] = 0.0f;
        }
    }

    // The lane's columns of a row, zeros after its end.
    __device__ __forceinline__ void read(float (&x)[COLUMNS], u64 row, int width) const {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) x[c] = element(row, call.q.type, lane + 32 * c, width);
    }

    // Passes the warp's keys between `first` and `end`.
    __device__ __forceinline__ void pass(int first, int end) {
        for (int at = first + AHEAD * warp; at < end; at += AHEAD * WARPS) {
            // All lanes find the same keys: that is cheaper than passing addresses on.
            FoundKey keys[AHEAD];
            float k[AHEAD][COLUMNS], v[AHEAD][COLUMNS];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (at + j < end) seen_key(keys[j], call, job, all, 0, at + j);
                else no_key(keys[j], 0);
                read(k[j], keys[j].k[0], call.key);
                read(v[j], keys[j].v[0], call.value);
            }
            // Rows that were read once serve all queries.
#pragma unroll
            for (int u = 0; u < UNITS; u++) weigh_keys(u, keys, k, v);
        }
    }

    // Adds values of four keys to what query `u` has seen. Keys that it does not see are not looked at.
    __device__ __forceinline__ void weigh_keys(int u, const FoundKey (&keys)[AHEAD], const float (&k)[AHEAD][COLUMNS],
        const float (&v)[AHEAD][COLUMNS]) {
        float p[AHEAD], most = top[u];
        bool sees[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            sees[j] = token[u] >= keys[j].first[0] && token[u] <= keys[j].last[0];
            // The lane's columns of q·k, then all lanes'
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum += q[u][c] * k[j][c];
            p[j] = call.scale * warp_sum(sum);
            most = sees[j] && p[j] > most ? p[j] : most;
        }
        // Where nothing was seen yet, any number will do.
        const float base = most == -INFINITE ? 0.0f : most, factor = expf(top[u] - base);
        top[u] = most;
        total[u] *= factor;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) out[u][c] *= factor;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            // The same for all lanes. A NaN that is not seen stays out.
            if (!sees[j]) continue;
            const float weight = expf(p[j] - base);
            total[u] += weight;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) out[u][c] += weight * v[j][c];
        }
    }

    // Puts the warps' parts together, and writes y and lse. Of a part in which a query sees no key y is zero, and lse −∞.
    __device__ __forceinline__ void finish(WarpParts<UNITS, COLUMNS>& parts) const {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (lane == 0) parts.top[warp][u] = top[u], parts.total[warp][u] = total[u];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) parts.out[warp][u][lane + 32 * c] = out[u][c];
        }
        __syncthreads();
        // A thread has an output, and adds the warps up in their order.
        for (int i = threadIdx.x; i < UNITS * 32 * COLUMNS; i += THREADS) {
            const int u = i / (32 * COLUMNS), column = i % (32 * COLUMNS);
            if (u >= units || column >= call.value) continue;
            float most = -INFINITE, sum = 0.0f, y = 0.0f;
            for (int w = 0; w < WARPS; w++) most = parts.top[w][u] > most ? parts.top[w][u] : most;
            // Warps without a key weigh nothing.
            const float base = most == -INFINITE ? 0.0f : most;
            for (int w = 0; w < WARPS; w++) {
                const float weight = expf(parts.top[w][u] - base);
                sum += weight * parts.total[w][u], y += weight * parts.out[w][u][column];
            }
            const u64 row = unit_row(call, job, u) + job.part * args.apart;
            if (column == 0) args.lse[row] = most + logf(sum);
            store(args.y, row * call.value + column, args.parts > 1 && sum == 0.0f ? 0.0f : y / sum);
        }
    }
};

// out = softmax(scale * q @ K.T) @ V for a job of at most UNITS rows; each lane has COLUMNS of their elements.
template <int UNITS, int COLUMNS> __device__ __forceinline__ void few(const Forward& args) {
    __shared__ WarpParts<UNITS, COLUMNS> parts;
    FewBlock<UNITS, COLUMNS> block(args);
    const Part part = part_of(block.all, block.job.part, args.parts, AHEAD * WARPS);
    // Each part in whole rounds of the warps
    block.pass(part.first, part.end);
    block.finish(parts);
}

// For one query and for up to four, of at most 64, 128 and 256 elements.
KERNEL(attention_few_1_64, Forward, BLOCKS(2)) { few<1, 2>(args); }
KERNEL(attention_few_1_128, Forward, BLOCKS(2)) { few<1, 4>(args); }
KERNEL(attention_few_1_256, Forward, BLOCKS(2)) { few<1, 8>(args); }
KERNEL(attention_few_4_64, Forward, BLOCKS(2)) { few<4, 2>(args); }
KERNEL(attention_few_4_128, Forward, BLOCKS(2)) { few<4, 4>(args); }
KERNEL(attention_few_4_256, Forward, BLOCKS(1)) { few<4, 8>(args); }
