// Softmax attention with 16-bit arguments, backward by warps: dk and dv. A block has 64 keys, 16 a warp, and passes the
// queries that see them. Tiles are transposed beside the forward: keys are rows of sums, queries their columns.
#include "attention/tiles.cuh"

// Shared memory of a block: up to 99 KiB.
template <int WIDTH> struct Tiles {
    // Units of a tile; how many tiles of them there are
    static constexpr int UNITS = WIDTH > 64 ? 32 : 64, STAGES = WIDTH > 128 ? 1 : 2;
    // Rows of keys and values; by stage, rows of queries and of dy
    __align__(1024) u16 k[TILE * WIDTH];
    u16 v[TILE * WIDTH], q[STAGES][UNITS * WIDTH], dy[STAGES][UNITS * WIDTH];
    KeyRows<TILE> keys;
    UnitRows<UNITS> units[STAGES];
};

// One block's work on 16-bit elements of TYPE: 128 columns of dk and dv at most.
template <int WIDTH, u32 TYPE> struct KeyBlock {
    using Tiles = ::Tiles<WIDTH>;
    static constexpr int UNITS = Tiles::UNITS, STAGES = Tiles::STAGES, COLUMNS = WIDTH < SLAB ? WIDTH : SLAB;
    static constexpr int STEPS = UNITS / 16;

    const KeyGrads& args;
    const AttentionCall& call;
    const Job job;
    Tiles& tiles;
    const int group;
    // First column of dk and dv; first row of the warp
    const int start;
    const u32 row;
    // Sums of the warp's 16 keys, as products spread them over lanes
    float dk[COLUMNS / 8][4], dv[COLUMNS / 8][4];

    // Finds the block's job, its slab of columns and the warp's first row.
    __device__ __forceinline__ KeyBlock(const KeyGrads& args, Tiles& tiles)
        : args(args), call(args.call), job(job_of_block(args.call, args.slabs)), tiles(tiles),
          group(args.call.query_heads / args.call.heads), start(job.slab * SLAB), row(threadIdx.x / 32 * 16) {}

    // Key of the thread's row `h` among the block's.
    __device__ __forceinline__ int slot(int h) const { return row + threadIdx.x % 32 / 4 + 8 * h; }

    // Finds units from `at` on of those before `end`.
    __device__ __forceinline__ void find(UnitRows<UNITS>& units, int at, int end) const {
        const int slot = threadIdx.x, unit = at + slot;
        if (slot >= UNITS) return;
        // Heads of queries that share these keys follow each other, token by token.
        const bool real = unit < end;
        const u64 row = real ? unit_row(call, job, unit) : 0;
        units.token[slot] = real ? unit / group : -1;
        units.q[slot] = real ? address(call.q, row, call.key) : 0;
        units.dy[slot] = real ? address(args.dy, row, call.value) : 0;
        units.lse[slot] = real ? LOG2_E * args.lse[row] : 0.0f;
        units.along[slot] = real ? args.along[row] : 0.0f;
    }
    // Starts copies of a tile of units.
    __device__ __forceinline__ void fetch(const UnitRows<UNITS>& units, int stage) const {
        fetch_tile<UNITS, WIDTH, 128>(tiles.q[stage], units.q, call.key, call.q.data, threadIdx.x);
        fetch_tile<UNITS, WIDTH, 128>(tiles.dy[stage], units.dy, call.value, call.q.data, threadIdx.x);
        copies_commit();
    }
    // The tile from unit `at` on, by all threads.
    __device__ __forceinline__ void follow(int stage, int at, int end) const {
        find(tiles.units[stage], at, end);
        __syncthreads();
        fetch(tiles.units[stage], stage);
    }

    // s, the scores, become p = 2^(s scale − lse), and g = dy·v becomes p (g − D).
    __device__ __forceinline__ void weigh(
        float (&s)[UNITS / 8][4], float (&g)[UNITS / 8][4], const UnitRows<UNITS>& units) const {
        const float scale = call.scale * LOG2_E;
        // The tokens that see each of the thread's two keys.
        int first[2], last[2];
#pragma unroll
        for (int h = 0; h < 2; h++) first[h] = tiles.keys.first[slot(h)], last[h] = tiles.keys.last[slot(h)];
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int unit = 8 * n + threadIdx.x % 4 * 2 + i % 2, token = units.token[unit];
                const bool sees = token >= first[i / 2] && token <= last[i / 2];
                s[n][i] = sees ? short_exp2(s[n][i] * scale - units.lse[unit]) : 0.0f;
                g[n][i] = sees ? s[n][i] * (g[n][i] - units.along[unit]) : 0.0f;
            }
    }

    // What the units of a tile tell the keys: dv += pᵀ dy, dk += dsᵀ q.
    __device__ __forceinline__ void add(const UnitRows<UNITS>& units, const u16* q, const u16* dy) {
        float s[UNITS / 8][4] = {}, g[UNITS / 8][4] = {};
        multiply_rows<TYPE, WIDTH, TILE, UNITS>(s, tiles.k, row, q);
        multiply_rows<TYPE, WIDTH, TILE, UNITS>(g, tiles.v, row, dy);
        weigh(s, g, units);
        u32 w[STEPS][4];
        as_weights<TYPE>(w, s);
        multiply_weights<TYPE, UNITS>(dv, w, dy, start);
        as_weights<TYPE>(w, g);
        multiply_weights<TYPE, UNITS>(dk, w, q, start);
    }

    // dk and dv of the block's keys, which are found, by units begin .. end.
    __device__ __forceinline__ void pass(int begin, int end) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = 0.0f;
        find(tiles.units[0], begin, end);
        __syncthreads();
        fetch_tile<TILE, WIDTH, 128>(tiles.k, tiles.keys.k, call.key, call.q.data, threadIdx.x);
        fetch_tile<TILE, WIDTH, 128>(tiles.v, tiles.keys.v, call.value, call.q.data, threadIdx.x);
        fetch(tiles.units[0], 0);
        for (int at = begin, turn = 0; at < end; at += UNITS, turn ^= 1) {
            const int stage = STAGES == 2 ? turn : 0;
            const bool more = at + UNITS < end;
            // With two stages the next tile is copied meanwhile.
            if (STAGES == 2) follow(stage ^ 1, at + UNITS, end);
            copies_wait<STAGES - 1>();
            __syncthreads();
            add(tiles.units[stage], tiles.q[stage], tiles.dy[stage]);
            __syncthreads();
            if (STAGES == 1 && more) follow(0, at + UNITS, end);
        }
        // Before other keys come.
        copies_wait<0>();
        __syncthreads();
    }

    // Adds what the cache's gradient says of the thread's key `h`, row `more` there, and writes row `at` of `out`.
    __device__ __forceinline__ void put(
        Array out, float (&x)[COLUMNS / 8][4], int h, long long at, float by, Array last, long long more, int width) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            const int column = start + 8 * n + threadIdx.x % 4 * 2;
            if (column >= width) continue;
            float low = by * x[n][2 * h], high = by * x[n][2 * h + 1];
            if (last.data && more >= 0) {
                low += load(last, more * width + column);
                high += load(last, more * width + column + 1);
            }
            store_pair(out, at * width + column, low, high);
        }
    }

    // Keys first .. first + 63 of a sequence.
    __device__ __forceinline__ void window() {
        const int length = (int)job.length, mine = threadIdx.x;
        if (mine < TILE) {
            if (job.first + mine < length) window_key(tiles.keys, call, job, mine, job.first + mine);
            else no_key(tiles.keys, mine);
        }
        // The tokens that see the first key or a later one, and those that see the last or an earlier one.
        const int from = job.first > 0 ? job.first : 0;
        int to = job.first + TILE - 1;
        to = (to < length ? to : length - 1) + call.kept;
        to = to < length ? to : length - 1;
        pass(from * group, (to + 1) * group);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = job.first + slot(h);
            if (at >= length) continue;
            // Its place in the cache after the call, where it has one.
            const int place = at + call.kept - length;
            const long long more = place >= 0 ? (long long)cache_row(call, job, place) : -1;
            const u64 to = at < 0 ? cache_row(call, job, call.kept + at) : token_row(call, job, at);
            put(at < 0 ? args.dcache_k : args.dk, dk, h, to, call.scale, args.last_k, more, call.key);
            put(at < 0 ? args.dcache_v : args.dv, dv, h, to, 1.0f, args.last_v, more, call.value);
        }
    }

    // All keys of the prefix, for a segment of the units of all rows, which count as one sequence.
    __device__ __forceinline__ void prefix() {
        const int units = (int)job.length * group, mine = threadIdx.x;
        const int end = job.first + args.segment < units ? job.first + args.segment : units;
        for (int first = 0; first < call.prefix; first += TILE) {
            if (mine < TILE) {
                if (first + mine < call.prefix) prefix_key(tiles.keys, call, job, mine, first + mine);
                else no_key(tiles.keys, mine);
            }
            pass(job.first, end);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int place = first + slot(h);
                if (place >= call.prefix) continue;
                // The segment's own part of the sums.
                const u64 to = ((u64)(job.first / args.segment) * call.prefix + place) * call.heads + job.head;
                put(args.dk, dk, h, to, call.scale, args.last_k, -1, call.key);
                put(args.dv, dv, h, to, 1.0f, args.last_v, -1, call.value);
            }
        }
    }
};

// For rows of at most WIDTH elements: keys of the window, or of the prefix.
template <int WIDTH, bool PREFIX> __device__ __forceinline__ void key_grads(const KeyGrads& args, u8* shared) {
    auto& tiles = *(Tiles<WIDTH>*)shared;
    if (args.call.q.type == 1) {
        KeyBlock<WIDTH, 1> block(args, tiles);
        PREFIX ? block.prefix() : block.window();
    } else {
        KeyBlock<WIDTH, 2> block(args, tiles);
        PREFIX ? block.prefix() : block.window();
    }
}

// Keys of the window, of a sequence's 64 a block.
KERNEL(attention_tiles_dkv_64, KeyGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<64, false>(args, shared);
}
KERNEL(attention_tiles_dkv_128, KeyGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<128, false>(args, shared);
}
KERNEL(attention_tiles_dkv_256, KeyGrads, 128, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<256, false>(args, shared);
}

// A block has a segment of queries, and writes its part of the sums.
KERNEL(attention_tiles_dprefix_64, KeyGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<64, true>(args, shared);
}
KERNEL(attention_tiles_dprefix_128, KeyGrads, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<128, true>(args, shared);
}
KERNEL(attention_tiles_dprefix_256, KeyGrads, 128, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<256, true>(args, shared);
}
