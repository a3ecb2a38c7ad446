// Softmax attention with 16-bit arguments, backward by groups of four warps (capability 9.0), dk and dv: for calls without
// cache. One group copies tiles of queries ahead, two have 64 keys each. Sums are transposed beside the forward,
// so that weights pass from registers to products.
#include "attention/groups.cuh"

// Keys of a block, queries of a tile, and tiles of queries that are there at a time.
static constexpr int KEYS = 128, UNITS = 64, STAGES = 3;

// A group's results leave through 64 rows of `out`.
template <int WIDTH> struct Shared {
    __align__(1024) u16 k[KEYS * WIDTH];
    u16 v[KEYS * WIDTH], q[STAGES][UNITS * WIDTH], dy[STAGES][UNITS * WIDTH], out[2][64 * WIDTH];
    // lse and D of a tile's queries
    float lse[STAGES][UNITS], along[STAGES][UNITS];
    // Of keys and of tiles: that they are there, and that they are read
    u64 k_full, k_empty, full[STAGES], empty[STAGES];
    Tickets tickets;
};

// Units that see a key of the block: from `begin`, up to `end`.
struct Range {
    int begin, end;
    // Finds the units that see at least one key of the job's block.
    __device__ __forceinline__ Range(const AttentionCall& call, const Job& job) {
        const int share = call.query_heads / call.heads, length = (int)job.length;
        int to = job.first + KEYS - 1;
        to = (to < length ? to : length - 1) + call.kept;
        begin = job.first * share, end = ((to < length ? to : length - 1) + 1) * share;
    }
};

// The group that copies.
template <int WIDTH> __device__ __forceinline__ void produce(const KeyGrads& args, const Maps& maps, Shared<WIDTH>& shared) {
    const AttentionCall& call = args.call;
    const BulkMap *q = boxes(maps, maps.q), *dy = boxes(maps, maps.dy);
    Ring<STAGES> ring;
    u32 turn = 0;
    // Half of the threads copy lse of a tile, half D.
    const int mine = threadIdx.x % 64;
    const float* from = threadIdx.x < 64 ? args.lse : args.along;
    float* to = (threadIdx.x < 64 ? shared.lse : shared.along)[0] + mine;
    shared.tickets.each(call, [&](const Job& job) {
        const Range range(call, job);
        // A place is free once what was there is read; the first time it is at once.
        gate_wait(&shared.k_empty, turn++ % 2 ^ 1);
        u64* k_full = &shared.k_full;
        fetch_rows<KEYS, WIDTH>(
            shared.k, TileRows::tokens(call, job, call.k, call.key, job.first, job.length, &maps.k), k_full);
        fetch_rows<KEYS, WIDTH>(
            shared.v, TileRows::tokens(call, job, call.v, call.value, job.first, job.length, &maps.v), k_full);
        gate_arrive_after_copies(k_full);
        for (int at = range.begin; at < range.end; at += UNITS, ring.next()) {
            gate_wait(&shared.empty[ring.stage], ring.parity ^ 1);
            u64* full = &shared.full[ring.stage];
            fetch_rows<UNITS, WIDTH>(
                shared.q[ring.stage], TileRows::units(call, job, call.q.data, call.key, at, range.end, q), full);
            fetch_rows<UNITS, WIDTH>(
                shared.dy[ring.stage], TileRows::units(call, job, args.dy.data, call.value, at, range.end, dy), full);
            const bool real = at + mine < range.end;
            copy_4(to + ring.stage * UNITS, from + unit_row(call, job, real ? at + mine : at), real);
            gate_arrive_after_copies(full);
        }
    });
    copies_wait<0>();
}

// A group that multiplies elements of TYPE.
template <int WIDTH, u32 TYPE> struct Consumer {
    const KeyGrads& args;
    const AttentionCall& call;
    Shared<WIDTH>& shared;
    const u32 group;
    const int share;
    Ring<STAGES> ring;
    // Sums of the group's 64 keys, and their scores and dy·v by the units of a tile
    float dk[WIDTH / 8][4], dv[WIDTH / 8][4], s[UNITS / 8][4], g[UNITS / 8][4];

    // Remembers the call; `share` query heads have one key head.
    __device__ __forceinline__ Consumer(const KeyGrads& args, Shared<WIDTH>& shared, u32 group)
        : args(args), call(args.call), shared(shared), group(group), share(args.call.query_heads / args.call.heads) {}

    // Scores of units from `at` on become weights p = 2^(s scale − lse), zero where a unit does not see keys first ...
    __device__ __forceinline__ void weigh(int at, int first) {
        const float scale = call.scale * LOG2_E, *lse = shared.lse[ring.stage];
        const int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
            const float2 base = *(const float2*)(lse + 8 * n + column);
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = short_exp2(s[n][i] * scale - LOG2_E * (i % 2 ? base.y : base.x));
        }
        // Most tiles are seen by all keys of the group.
        if (at / share >= first + 63 && (at + UNITS - 1) / share <= first + call.kept) return;
        const int key = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int token = (at + 8 * n + column + i) / share;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const bool sees = token >= key + 8 * h && token <= key + 8 * h + call.kept;
                    s[n][2 * h + i] = sees ? s[n][2 * h + i] : 0.0f;
                }
            }
    }
    // g = dy·v becomes p (g − D).
    __device__ __forceinline__ void differ() {
        const float* along = shared.along[ring.stage] + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
            const float2 d = *(const float2*)(along + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; i++) g[n][i] = s[n][i] * (g[n][i] - (i % 2 ? d.y : d.x));
        }
    }

    // What the tile at hand tells: dv += pᵀ dy, dk += dsᵀ q; or =, where it is the first.
    __device__ __forceinline__ void add(int at, int first, bool more) {
        const u32 stage = ring.stage;
        u32 w[UNITS / 16][4], x[UNITS / 16][4];
        group_begin();
        group_scores<TYPE, WIDTH, KEYS, UNITS>(s, described(shared.k), group * 64, described(shared.q[stage]));
        group_commit();
        group_scores<TYPE, WIDTH, KEYS, UNITS>(g, described(shared.v), group * 64, described(shared.dy[stage]));
        group_commit();
        group_wait<1>();
        hold(s);
        weigh(at, first);
        as_weights<TYPE>(w, s);
        group_begin();
        group_sum<TYPE>(dv, w, described_across<UNITS>(shared.dy[stage]), more);
        group_commit();
        group_wait<1>();
        hold(g);
        differ();
        as_weights<TYPE>(x, g);
        group_begin();
        group_sum<TYPE>(dk, x, described_across<UNITS>(shared.q[stage]), more);
        // All at once: registers are too few for scores of the next tile beside these weights.
        group_end();
        hold(dv), hold(dk);
    }

    // All tiles that keys of a job are seen by. One that no key of the group is seen by is passed over.
    __device__ __forceinline__ void work(const Job& job, u32 turn) {
        const int first = job.first + (int)group * 64, length = (int)job.length;
        const Range range(call, job);
        gate_wait_to_multiply(&shared.k_full, turn % 2);
        bool more = false;
        for (int at = range.begin; at < range.end; at += UNITS, ring.next()) {
            gate_wait_to_multiply(&shared.full[ring.stage], ring.parity);
            // Whether a unit of the tile sees a key of the group.
            const bool sees = (at + UNITS - 1) / share >= first && at / share <= first + 63 + call.kept;
            if (sees) add(at, first, more);
            more |= sees;
            release(&shared.empty[ring.stage]);
        }
        release(&shared.k_empty);
        const float by[2] = {call.scale, call.scale}, one[2] = {1.0f, 1.0f};
        store_group<TYPE>(dk, by, shared.out[group], group, TileRows::tokens(call, job, args.dk, call.key, first, length));
        store_group<TYPE>(dv, one, shared.out[group], group, TileRows::tokens(call, job, args.dv, call.value, first, length));
    }
};

// A block's groups.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void run(const GroupCall<KeyGrads>& call, Shared<WIDTH>& shared) {
    if (threadIdx.x == 0) {
        call.maps.ask();
        // All copying threads; a warp of each group, after its products.
        gate_open(&shared.k_full, 128), gate_open(&shared.k_empty, 8);
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) gate_open(&shared.full[stage], 128), gate_open(&shared.empty[stage], 8);
        shared.tickets.open();
        show_to_groups();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        take_registers<24>();
        produce(call.args, call.maps, shared);
    } else {
        take_registers<240>();
        Consumer<WIDTH, TYPE> consumer(call.args, shared, threadIdx.x / 128 - 1);
        u32 turn = 0;
        shared.tickets.each(call.args.call, [&](const Job& job) { consumer.work(job, turn++); });
    }
}

// For rows of at most WIDTH elements of TYPE.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void key_grads(const GroupCall<KeyGrads>& args, u8* shared) {
    if constexpr (GROUPS_MULTIPLY) run<WIDTH, TYPE>(args, *(Shared<WIDTH>*)shared);
}

// Three groups, the only block of a multiprocessor.
KERNEL(attention_groups_dkv_64_bf16, GroupCall<KeyGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<64, 1>(args, shared);
}
KERNEL(attention_groups_dkv_64_f16, GroupCall<KeyGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<64, 2>(args, shared);
}
KERNEL(attention_groups_dkv_128_bf16, GroupCall<KeyGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<128, 1>(args, shared);
}
KERNEL(attention_groups_dkv_128_f16, GroupCall<KeyGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    key_grads<128, 2>(args, shared);
}
