// Softmax attention with 16-bit arguments, backward by warps: D of each query, and dq. Weights are made again from `lse`.
#include "attention/tiles.cuh"

// D = dy·y of each query; `sixteen::Along` is its twin.
struct Along {
    // [rows, Hq, dv]
    Array y, dy;
    // [rows, Hq]
    float* along;
    u64 rows;
    int value;
};

// Eight threads a row, each 16 bytes at a time.
KERNEL(attention_along, Along, 256) {
    const u64 row = grid_thread() / 8;
    float sum = 0.0f;
    if (row < args.rows)
        for (int column = threadIdx.x % 8 * 8; column < args.value; column += 64) {
            const u64 at = row * args.value + column;
            const Run<8> y = load_run<8>(args.y, at), dy = load_run<8>(args.dy, at);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += y.x[i] * dy.x[i];
        }
    sum = quad_sum(sum);
    sum += shuffle_xor(sum, 4);
    if (row < args.rows && threadIdx.x % 8 == 0) args.along[row] = sum;
}

// Shared memory of a block: up to 99 KiB.
template <int WIDTH> struct QueryTiles {
    static constexpr int KEYS = WIDTH > 64 ? 32 : 64;
    __align__(1024) u16 q[TILE * WIDTH];
    u16 dy[TILE * WIDTH], k[KEYS * WIDTH], v[KEYS * WIDTH];
    KeyRows<KEYS> keys[2];
    u64 q_rows[TILE], dy_rows[TILE];
};

// One block's work: 64 queries, 16 a warp, on 16-bit elements of TYPE.
template <int WIDTH, u32 TYPE> struct QueryBlock {
    using Tiles = QueryTiles<WIDTH>;
    static constexpr int KEYS = Tiles::KEYS;

    const QueryGrads& args;
    const AttentionCall& call;
    const Job job;
    Tiles& tiles;
    const int group, units;
    const Seen all;
    // Of the thread's two rows: row of arrays [rows, Hq, ..] or −1, token, lse LOG2_E and D
    long long rows[2];
    int token[2];
    float lse[2], along[2];

    // Finds the block's job, and token, lse and D of the thread's two rows.
    __device__ __forceinline__ QueryBlock(const QueryGrads& args, Tiles& tiles)
        : args(args), call(args.call), job(job_of_block(args.call, 1)), tiles(tiles),
          group(args.call.query_heads / args.call.heads), units((int)job.length * group), all(seen(args.call, job)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int unit = job.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
            rows[h] = unit < units ? (long long)unit_row(call, job, unit) : -1;
            token[h] = unit < units ? unit / group : -1;
            lse[h] = unit < units ? LOG2_E * args.lse[rows[h]] : 0.0f;
            along[h] = unit < units ? args.along[rows[h]] : 0.0f;
        }
    }

    // Addresses of queries and gradients, and copies of them.
    __device__ __forceinline__ void begin() const {
        const int mine = threadIdx.x, unit = job.first + mine;
        // A thread finds one row's address for all; 0 is none.
        if (mine < TILE) {
            const bool real = unit < units;
            const u64 row = real ? unit_row(call, job, unit) : 0;
            tiles.q_rows[mine] = real ? address(call.q, row, call.key) : 0;
            tiles.dy_rows[mine] = real ? address(args.dy, row, call.value) : 0;
        }
        if (mine < KEYS) seen_key(tiles.keys[0], call, job, all, mine, mine);
        __syncthreads();
        fetch_tile<TILE, WIDTH, 128>(tiles.q, tiles.q_rows, call.key, call.q.data, mine);
        fetch_tile<TILE, WIDTH, 128>(tiles.dy, tiles.dy_rows, call.value, call.q.data, mine);
        fetch(tiles.k, tiles.keys[0].k, call.key);
        fetch(tiles.v, tiles.keys[0].v, call.value);
    }
    // Starts a copy of KEYS rows to a tile [KEYS,WIDTH].
    __device__ __forceinline__ void fetch(u16* tile, const u64* from, int width) const {
        fetch_tile<KEYS, WIDTH, 128>(tile, from, width, call.q.data, threadIdx.x);
        copies_commit();
    }

    // s, the scores, and g = dy·v become p (g − D), where p = 2^(s scale − lse).
    __device__ __forceinline__ void weigh(
        float (&s)[KEYS / 8][4], const float (&g)[KEYS / 8][4], const KeyRows<KEYS>& keys) const {
        const float scale = call.scale * LOG2_E;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = 8 * n + threadIdx.x % 4 * 2 + i % 2, h = i / 2;
                // A key has an interval of tokens that see it.
                const bool sees = token[h] >= keys.first[key] && token[h] <= keys.last[key];
                s[n][i] = sees ? short_exp2(s[n][i] * scale - lse[h]) * (g[n][i] - along[h]) : 0.0f;
            }
    }

    // Computes dq [TILE,K] = scale * (p ∘ (dO @ V.T - D)) @ K of the block's queries, one tile of keys after another.
    __device__ __forceinline__ void run() const {
        float out[WIDTH / 8][4] = {};
        const u32 row = threadIdx.x / 32 * 16;
        begin();
        for (int at = 0, turn = 0; at < all.count; at += KEYS, turn ^= 1) {
            const KeyRows<KEYS>&keys = tiles.keys[turn], &next = tiles.keys[turn ^ 1];
            copies_wait<0>();
            __syncthreads();
            float s[KEYS / 8][4] = {}, g[KEYS / 8][4] = {};
            multiply_rows<TYPE, WIDTH, TILE, KEYS>(s, tiles.q, row, tiles.k);
            multiply_rows<TYPE, WIDTH, TILE, KEYS>(g, tiles.dy, row, tiles.v);
            if (threadIdx.x < KEYS) seen_key(tiles.keys[turn ^ 1], call, job, all, threadIdx.x, at + KEYS + threadIdx.x);
            // All have read the values, and the next keys are known.
            __syncthreads();
            const bool more = at + KEYS < all.count;
            if (more) fetch(tiles.v, next.v, call.value);
            weigh(s, g, keys);
            u32 w[KEYS / 16][4];
            as_weights<TYPE>(w, s);
            multiply_weights<TYPE, KEYS>(out, w, tiles.k, 0);
            __syncthreads();
            if (more) fetch(tiles.k, next.k, call.key);
        }
        const float by[2] = {call.scale, call.scale};
        store_rows(args.dq, out, rows, by, 0, call.key);
    }
};

// For rows of at most WIDTH elements.
template <int WIDTH> __device__ __forceinline__ void query_grads(const QueryGrads& args, u8* shared) {
    auto& tiles = *(QueryTiles<WIDTH>*)shared;
    if (args.call.q.type == 1) QueryBlock<WIDTH, 1>(args, tiles).run();
    else QueryBlock<WIDTH, 2>(args, tiles).run();
}

// Kernels for rows of at most 64, 128 and 256 elements.
KERNEL(attention_tiles_dq_64, QueryGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<64>(args, shared);
}
KERNEL(attention_tiles_dq_128, QueryGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<128>(args, shared);
}
KERNEL(attention_tiles_dq_256, QueryGrads, 128, 1) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<256>(args, shared);
}
