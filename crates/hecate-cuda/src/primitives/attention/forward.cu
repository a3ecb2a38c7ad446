// Softmax attention with 16-bit arguments, forward, by warps: as in FlashAttention-2 (Dao, 2023), 64 queries a block, 16 a
// warp, and tiles of keys one after the other. The values of a tile are copied while its scores are made, and the keys of
// the next one while values are summed. Where queries are few and keys many, as after a long cache, blocks share the keys of a
// tile of queries, and `attention_join` puts their parts together.
#include "attention/tiles.cuh"

// Shared memory of a block: up to 99 KiB, what GPUs of capability 8.6 have.
template <int WIDTH> struct ForwardTiles {
    static constexpr int KEYS = WIDTH > 128 ? 32 : 64;
    __align__(1024) u16 q[TILE * WIDTH];
    u16 k[KEYS * WIDTH], v[KEYS * WIDTH];
    // Of the tile at hand and of the next one
    KeyRows<KEYS> keys[2];
    u64 units[TILE];
};

// One block's work on 16-bit elements of TYPE.
template <int WIDTH, u32 TYPE> struct ForwardBlock {
    using Tiles = ForwardTiles<WIDTH>;
    static constexpr int KEYS = Tiles::KEYS, STEPS = KEYS / 16;

    const Forward& args;
    const AttentionCall& call;
    const Job job;
    Tiles& tiles;
    const int group, units;
    const Seen all;
    // Tokens of the thread's two rows; those of the first and last unit of the tile; the block's part of the keys
    int token[2], from, to, first, end;

    // Finds the block's job, its part of the keys, and the tokens of the thread's two rows.
    __device__ __forceinline__ ForwardBlock(const Forward& args, Tiles& tiles)
        : args(args), call(args.call), job(job_of_block(args.call, args.slabs, args.parts)), tiles(tiles),
          group(args.call.query_heads / args.call.heads), units((int)job.length * group), all(seen(args.call, job)) {
        from = job.first / group, to = (job.first + TILE - 1) / group;
        const Part part = part_of(all, job.part, args.parts, KEYS);
        first = part.first, end = part.end;
#pragma unroll
        for (int h = 0; h < 2; h++) token[h] = row_unit(h) / group;
    }
    // Unit of the thread's row `h`.
    __device__ __forceinline__ int row_unit(int h) const {
        return job.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
    }

    // Finds the keys of the tile from number `at` on; says whether this thread's key is seen by all units.
    __device__ __forceinline__ bool find(KeyRows<KEYS>& keys, int at) const {
        if (threadIdx.x >= KEYS) return true;
        seen_key(keys, call, job, all, threadIdx.x, at + threadIdx.x);
        return keys.first[threadIdx.x] <= from && keys.last[threadIdx.x] >= to;
    }

    // Scores of keys that are not seen become −∞.
    __device__ __forceinline__ void mask(float (&s)[KEYS / 8][4], const KeyRows<KEYS>& keys) const {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = 8 * n + threadIdx.x % 4 * 2 + i % 2;
                const bool sees = token[i / 2] >= keys.first[key] && token[i / 2] <= keys.last[key];
                s[n][i] = sees ? s[n][i] : -INFINITE;
            }
    }

    // Addresses of the queries, then copies of them and of the first keys.
    __device__ __forceinline__ bool begin() const {
        const int mine = threadIdx.x, unit = job.first + mine;
        if (mine < TILE) tiles.units[mine] = unit < units ? address(call.q, unit_row(call, job, unit), call.key) : 0;
        const bool open = __syncthreads_and(find(tiles.keys[0], first));
        fetch_tile<TILE, WIDTH, 128>(tiles.q, tiles.units, call.key, call.q.data, mine);
        fetch_tile<KEYS, WIDTH, 128>(tiles.k, tiles.keys[0].k, call.key, call.q.data, mine);
        copies_commit();
        return open;
    }

    // out [TILE,V] = softmax(scale * q @ K.T) @ V of the block's queries, with an online softmax over tiles of keys.
    __device__ __forceinline__ void run() {
        float out[WIDTH / 8][4] = {}, factor[2];
        Softmax softmax;
        const u32 row = threadIdx.x / 32 * 16;
        bool open = begin();
        for (int at = first, turn = 0; at < end; at += KEYS, turn ^= 1) {
            const KeyRows<KEYS>& keys = tiles.keys[turn];
            fetch_tile<KEYS, WIDTH, 128>(tiles.v, keys.v, call.value, call.q.data, threadIdx.x);
            copies_commit();
            copies_wait<1>();
            __syncthreads();
            float s[KEYS / 8][4] = {};
            multiply_rows<TYPE, WIDTH, TILE, KEYS>(s, tiles.q, row, tiles.k);
            // All have read the keys, and the next ones are known.
            const bool next = __syncthreads_and(find(tiles.keys[turn ^ 1], at + KEYS));
            if (at + KEYS < end)
                fetch_tile<KEYS, WIDTH, 128>(tiles.k, tiles.keys[turn ^ 1].k, call.key, call.q.data, threadIdx.x);
            copies_commit();
            if (!open) mask(s, keys);
            open = next;
            softmax.weigh(s, factor, call.scale * LOG2_E);
            scale_rows(out, factor);
            u32 w[STEPS][4];
            as_weights<TYPE>(w, s);
            copies_wait<1>();
            __syncthreads();
            multiply_weights<TYPE, KEYS>(out, w, tiles.v, 0);
            __syncthreads();
        }
        copies_wait<0>();
        finish(out, softmax);
    }

    // Divides by the sums, and writes y and lse. Of a part in which a query sees no key y is zero, and lse −∞.
    __device__ __forceinline__ void finish(const float (&out)[WIDTH / 8][4], const Softmax& softmax) const {
        long long rows[2];
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float total = quad_sum(softmax.total[h]);
            const int unit = row_unit(h);
            rows[h] = unit < units ? (long long)(unit_row(call, job, unit) + job.part * args.apart) : -1;
            by[h] = args.parts > 1 && total == 0.0f ? 0.0f : 1.0f / total;
            if (rows[h] >= 0 && threadIdx.x % 4 == 0)
                args.lse[rows[h]] = call.scale * softmax.top[h] + logf(total);
        }
        store_rows(args.y, out, rows, by, 0, call.value);
    }
};

// For rows of at most WIDTH elements.
template <int WIDTH> __device__ __forceinline__ void forward(const Forward& args, u8* shared) {
    auto& tiles = *(ForwardTiles<WIDTH>*)shared;
    if (args.call.q.type == 1) ForwardBlock<WIDTH, 1>(args, tiles).run();
    else ForwardBlock<WIDTH, 2>(args, tiles).run();
}

// Kernels for rows of at most 64, 128 and 256 elements.
KERNEL(attention_tiles_forward_64, Forward, 128, 3) {
    DYNAMIC_SHARED(u8, shared);
    forward<64>(args, shared);
}
KERNEL(attention_tiles_forward_128, Forward, 128, 2) {
    DYNAMIC_SHARED(u8, shared);
    forward<128>(args, shared);
}
KERNEL(attention_tiles_forward_256, Forward, 128, 1) {
    DYNAMIC_SHARED(u8, shared);
    forward<256>(args, shared);
}
