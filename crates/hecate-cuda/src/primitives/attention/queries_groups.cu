// Softmax attention with 16-bit arguments, backward by groups of four warps (capability 9.0), dq: for calls without cache.
// One group copies tiles of keys and values ahead, two have 64 queries each.
#include "attention/groups.cuh"

// Queries of a block, keys of a tile, and tiles of keys and of values that are there at a time.
static constexpr int UNITS = 128, KEYS = 64, STAGES = 3;

template <int WIDTH> struct Shared {
    __align__(1024) u16 q[UNITS * WIDTH];
    u16 dy[UNITS * WIDTH], k[STAGES][KEYS * WIDTH], v[STAGES][KEYS * WIDTH], out[2][64 * WIDTH];
    // Of queries and of tiles: that they are there, and that they are read
    u64 q_full, q_empty, full[STAGES], empty[STAGES];
    Tickets tickets;
};

// The group that copies.
template <int WIDTH> __device__ __forceinline__ void produce(const QueryGrads& args, const Maps& maps, Shared<WIDTH>& shared) {
    const AttentionCall& call = args.call;
    const BulkMap *q = boxes(maps, maps.q), *dy = boxes(maps, maps.dy);
    Ring<STAGES> ring;
    u32 turn = 0;
    shared.tickets.each(call, [&](const Job& job) {
        const KeyTiles<KEYS> keys(call, job, UNITS);
        const int units = (int)job.length * (call.query_heads / call.heads);
        // A place is free once what was there is read; the first time it is at once.
        gate_wait(&shared.q_empty, turn++ % 2 ^ 1);
        // Queries and the gradients of what they saw come together: neither is of use alone.
        u64* q_full = &shared.q_full;
        fetch_rows<UNITS, WIDTH>(shared.q, TileRows::units(call, job, call.q.data, call.key, job.first, units, q), q_full);
        fetch_rows<UNITS, WIDTH>(shared.dy, TileRows::units(call, job, args.dy.data, call.value, job.first, units, dy), q_full);
        gate_arrive_after_copies(q_full);
        for (int tile = 0; tile < keys.count; tile++, ring.next()) {
            // Keys and values too.
            gate_wait(&shared.empty[ring.stage], ring.parity ^ 1);
            u64* full = &shared.full[ring.stage];
            fetch_rows<KEYS, WIDTH>(
                shared.k[ring.stage], keys.rows(call, job, call.k, call.prefix_k, call.key, tile, maps.k), full);
            fetch_rows<KEYS, WIDTH>(
                shared.v[ring.stage], keys.rows(call, job, call.v, call.prefix_v, call.value, tile, maps.v), full);
            gate_arrive_after_copies(full);
        }
    });
    copies_wait<0>();
}

// A group that multiplies elements of TYPE.
template <int WIDTH, u32 TYPE> struct Consumer {
    // Whether queries are held in registers. NVRTC 13.0 takes these for weights where both are as many.
    static constexpr bool HELD = WIDTH != KEYS;

    const QueryGrads& args;
    const AttentionCall& call;
    Shared<WIDTH>& shared;
    const u32 group;
    const int share;
    Ring<STAGES> ring;
    float s[KEYS / 8][4], g[KEYS / 8][4], out[WIDTH / 8][4];
    // Of the thread's two rows, lse LOG2_E and D
    float lse[2], along[2];

    // Remembers the call; `share` query heads have one key head.
    __device__ __forceinline__ Consumer(const QueryGrads& args, Shared<WIDTH>& shared, u32 group)
        : args(args), call(args.call), shared(shared), group(group), share(args.call.query_heads / args.call.heads) {}

    // Scores become weights p = 2^(s scale − lse).
    __device__ __forceinline__ void weigh() {
        const float scale = call.scale * LOG2_E;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = short_exp2(s[n][i] * scale - lse[i / 2]);
    }

    // lse and D of the thread's rows; of those that are not there anything finite does.
    __device__ __forceinline__ void read(const Job& job, const GroupRows& rows) {
        const int units = (int)job.length * share;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u64 row = unit_row(call, job, rows.unit[h] < units ? rows.unit[h] : job.first);
            lse[h] = LOG2_E * args.lse[row], along[h] = args.along[row];
        }
    }

    // What the keys of a tile add to the gradients, begun; or what these are, where it is the first.
    __device__ __forceinline__ void add(const u32 (&q)[WIDTH / 16][4], const GroupRows& rows, const KeyTiles<KEYS>& keys,
        int tile, bool more, u64* unread) {
        const u32 stage = ring.stage;
        u32 w[KEYS / 16][4];
        group_begin();
        if constexpr (HELD) group_scores<TYPE, KEYS>(s, q, described(shared.k[stage]));
        else group_scores<TYPE, WIDTH, UNITS, KEYS>(s, described(shared.q), group * 64, described(shared.k[stage]));
        group_commit();
        group_scores<TYPE, WIDTH, UNITS, KEYS>(g, described(shared.dy), group * 64, described(shared.v[stage]));
        group_commit();
        group_wait<1>();
        hold(s);
        if (unread) release(unread);
        weigh();
        keys.mask(s, call, rows, tile, 0.0f);
        made_before(s, &shared.full[stage], ring.parity);
        group_wait();
        hold(g);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= g[n][i] - along[i / 2];
        as_weights<TYPE>(w, s);
        group_begin();
        group_sum<TYPE>(out, w, described_across<KEYS>(shared.k[stage]), more);
        group_commit();
    }

    // Computes dq of the warpgroup's 64 rows of a job, one tile of keys after another.
    __device__ __forceinline__ void work(const Job& job, u32 turn) {
        const GroupRows rows(job, group, share);
        const KeyTiles<KEYS> keys(call, job, UNITS);
        u32 q[WIDTH / 16][4];
        read(job, rows);
        gate_wait_to_multiply(&shared.q_full, turn % 2);
        if constexpr (HELD) load_factors<UNITS>(q, shared.q, group * 64);
        // A tile is read once the gradients by it are there: when those of the next one have begun.
        u64* unread = nullptr;
        bool more = false;
        for (int tile = 0; tile < keys.count; tile++, ring.next()) {
            gate_wait_to_multiply(&shared.full[ring.stage], ring.parity);
            if (keys.seen_by(rows, call.kept, tile)) {
                add(q, rows, keys, tile, more, unread);
                more = true;
            } else {
                group_wait();
                if (unread) release(unread);
            }
            unread = &shared.empty[ring.stage];
        }
        group_wait();
        hold(out);
        release(unread), release(&shared.q_empty);
        const float by[2] = {call.scale, call.scale};
        const int first = job.first + (int)group * 64;
        store_group<TYPE>(out, by, shared.out[group], group,
            TileRows::units(call, job, args.dq.data, call.key, first, (int)job.length * share));
    }
};

// A block's groups.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void run(const GroupCall<QueryGrads>& call, Shared<WIDTH>& shared) {
    if (threadIdx.x == 0) {
        call.maps.ask();
        // All copying threads; a warp of each group, after its products.
        gate_open(&shared.q_full, 128), gate_open(&shared.q_empty, 8);
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) gate_open(&shared.full[stage], 128), gate_open(&shared.empty[stage], 8);
        shared.tickets.open();
        show_to_groups();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        take_registers<40>();
        produce(call.args, call.maps, shared);
    } else {
        take_registers<232>();
        Consumer<WIDTH, TYPE> consumer(call.args, shared, threadIdx.x / 128 - 1);
        u32 turn = 0;
        shared.tickets.each(call.args.call, [&](const Job& job) { consumer.work(job, turn++); });
    }
}

// For rows of at most WIDTH elements of TYPE.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void query_grads(const GroupCall<QueryGrads>& args, u8* shared) {
    if constexpr (GROUPS_MULTIPLY) run<WIDTH, TYPE>(args, *(Shared<WIDTH>*)shared);
}

// Kernels for rows of at most 64 and 128 elements, by type.
KERNEL(attention_groups_dq_64_bf16, GroupCall<QueryGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<64, 1>(args, shared);
}
KERNEL(attention_groups_dq_64_f16, GroupCall<QueryGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<64, 2>(args, shared);
}
KERNEL(attention_groups_dq_128_bf16, GroupCall<QueryGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<128, 1>(args, shared);
}
KERNEL(attention_groups_dq_128_f16, GroupCall<QueryGrads>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    query_grads<128, 2>(args, shared);
}
