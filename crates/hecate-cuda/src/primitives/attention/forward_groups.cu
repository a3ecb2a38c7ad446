// Softmax attention with 16-bit arguments, forward, by groups of four warps (capability 9.0), for calls without cache. As in FlashAttention-3 (Shah et al., 2024): one group copies tiles of keys and values ahead, two have 64 queries
// each. While one makes weights of scores, the other multiplies; and a group's sums of values wait for no softmax.
#include "attention/groups.cuh"

// Queries of a block, and keys of a tile.
static constexpr int UNITS = 128, KEYS = 128;

template <int WIDTH> struct Shared {
    // Tiles of keys and of values that are there at a time: as many as fit
    static constexpr int STAGES = WIDTH == 64 ? 4 : 2;
    __align__(1024) u16 q[UNITS * WIDTH];
    u16 k[STAGES][KEYS * WIDTH], v[STAGES][KEYS * WIDTH], out[2][64 * WIDTH];
    // Of queries and of tiles: that they are there, and that they are read
    u64 q_full, q_empty, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
    Tickets tickets;
};

// The group that copies.
template <int WIDTH> __device__ __forceinline__ void produce(const AttentionCall& call, const Maps& maps, Shared<WIDTH>& shared) {
    Ring<Shared<WIDTH>::STAGES> ring;
    u32 turn = 0;
    shared.tickets.each(call, [&](const Job& job) {
        const KeyTiles<KEYS> keys(call, job, UNITS);
        const int units = (int)job.length * (call.query_heads / call.heads);
        // A place is free once what was there is read; the first time it is at once.
        gate_wait(&shared.q_empty, turn++ % 2 ^ 1);
        const BulkMap* queries = boxes(maps, maps.q);
        fetch_rows<UNITS, WIDTH>(
            shared.q, TileRows::units(call, job, call.q.data, call.key, job.first, units, queries), &shared.q_full);
        gate_arrive_after_copies(&shared.q_full);
        for (int tile = 0; tile < keys.count; tile++, ring.next()) {
            gate_wait(&shared.k_empty[ring.stage], ring.parity ^ 1);
            u64* k_full = &shared.k_full[ring.stage];
            fetch_rows<KEYS, WIDTH>(
                shared.k[ring.stage], keys.rows(call, job, call.k, call.prefix_k, call.key, tile, maps.k), k_full);
            gate_arrive_after_copies(k_full);
            gate_wait(&shared.v_empty[ring.stage], ring.parity ^ 1);
            u64* v_full = &shared.v_full[ring.stage];
            fetch_rows<KEYS, WIDTH>(
                shared.v[ring.stage], keys.rows(call, job, call.v, call.prefix_v, call.value, tile, maps.v), v_full);
            gate_arrive_after_copies(v_full);
        }
    });
    copies_wait<0>();
}

// A group that multiplies elements of TYPE.
template <int WIDTH, u32 TYPE> struct Consumer {
    static constexpr int STAGES = Shared<WIDTH>::STAGES;
    const Forward& args;
    const AttentionCall& call;
    Shared<WIDTH>& shared;
    const u32 group;
    const int share;
    Ring<STAGES> ring;
    // Scores and sums of values of a thread's two rows, and what its sums so far are times.
    float s[KEYS / 8][4], out[WIDTH / 8][4], factor[2];

    // Remembers the call; `share` query heads have one key head.
    __device__ __forceinline__ Consumer(const Forward& args, Shared<WIDTH>& shared, u32 group)
        : args(args), call(args.call), shared(shared), group(group), share(args.call.query_heads / args.call.heads) {}

    // Scores of the tile at hand, begun.
    __device__ __forceinline__ void begin_scores(const u32 (&q)[WIDTH / 16][4]) {
        group_begin();
        group_scores<TYPE, KEYS>(s, q, described(shared.k[ring.stage]));
        group_commit();
    }
    // Sums of the values of a tile, begun.
    __device__ __forceinline__ void begin_sums(const u32 (&w)[KEYS / 16][4], u32 stage, bool add) {
        group_begin();
        group_sum<TYPE>(out, w, described_across<KEYS>(shared.v[stage]), add);
        group_commit();
    }

    // out = softmax(scale * q @ K.T) @ V of the warpgroup's 64 rows of a job, with an online softmax over tiles of keys.
    __device__ __forceinline__ void work(const Job& job, u32 turn) {
        const GroupRows rows(job, group, share);
        const KeyTiles<KEYS> keys(call, job, UNITS);
        const float scale = call.scale * LOG2_E;
        // Queries stay in registers: their place is free for the next job at once.
        u32 q[WIDTH / 16][4], w[KEYS / 16][4];
        Softmax softmax;
        gate_wait(&shared.q_full, turn % 2);
        load_factors<UNITS>(q, shared.q, group * 64);
        release(&shared.q_empty);
        gate_wait_to_multiply(&shared.k_full[ring.stage], ring.parity);
        begin_scores(q);
        group_wait();
        hold(s);
        release(&shared.k_empty[ring.stage]);
        keys.mask(s, call, rows, 0, -INFINITE);
        softmax.weigh(s, factor, scale);
        for (int tile = 1; tile < keys.count; tile++) {
            const Ring<STAGES> before = ring;
            ring.next();
            // Weights of the tile before, whose values are summed beside the scores of this one.
            as_weights<TYPE>(w, s);
            gate_wait(&shared.v_full[before.stage], before.parity);
            gate_wait_to_multiply(&shared.k_full[ring.stage], ring.parity);
            // The other group makes weights meanwhile.
            await_turn(group);
            begin_scores(q);
            begin_sums(w, before.stage, tile > 1);
            give_turn(group);
            group_wait<1>();
            hold(s);
            release(&shared.k_empty[ring.stage]);
            keys.mask(s, call, rows, tile, -INFINITE);
            softmax.weigh(s, factor, scale);
            // Weights are made while values are summed, not after.
            made_before(s, &shared.v_full[before.stage], before.parity);
            group_wait();
            hold(out);
            release(&shared.v_empty[before.stage]);
            scale_rows(out, factor);
        }
        // The last tile has none after it.
        as_weights<TYPE>(w, s);
        gate_wait_to_multiply(&shared.v_full[ring.stage], ring.parity);
        begin_sums(w, ring.stage, keys.count > 1);
        group_wait();
        hold(out);
        release(&shared.v_empty[ring.stage]);
        ring.next();
        finish(job, softmax, rows);
    }

    // Divides by the sums, and writes y and lse.
    __device__ __forceinline__ void finish(const Job& job, const Softmax& softmax, const GroupRows& rows) const {
        const int units = (int)job.length * share;
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float total = quad_sum(softmax.total[h]);
            by[h] = 1.0f / total;
            if (rows.unit[h] < units && threadIdx.x % 4 == 0)
                args.lse[unit_row(call, job, rows.unit[h])] = call.scale * softmax.top[h] + logf(total);
        }
        const int first = job.first + (int)group * 64;
        store_group<TYPE>(out, by, shared.out[group], group, TileRows::units(call, job, args.y.data, call.value, first, units));
    }
};

// A block's groups.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void run(const GroupCall<Forward>& call, Shared<WIDTH>& shared) {
    if (threadIdx.x == 0) {
        call.maps.ask();
        gate_open(&shared.q_full, 128), gate_open(&shared.q_empty, 8);
#pragma unroll
        for (int stage = 0; stage < Shared<WIDTH>::STAGES; stage++) {
            gate_open(&shared.k_full[stage], 128), gate_open(&shared.v_full[stage], 128);
            // A warp of each group, after its products.
            gate_open(&shared.k_empty[stage], 8), gate_open(&shared.v_empty[stage], 8);
        }
        shared.tickets.open();
        show_to_groups();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        take_registers<40>();
        produce(call.args.call, call.maps, shared);
    } else {
        take_registers<232>();
        const u32 group = threadIdx.x / 128 - 1;
        Consumer<WIDTH, TYPE> consumer(call.args, shared, group);
        u32 turn = 0;
        // The first group begins; from then on they take turns, from job to job.
        if (group == 1) give_turn(1);
        shared.tickets.each(call.args.call, [&](const Job& job) { consumer.work(job, turn++); });
        if (group == 0) await_turn(0);
    }
}

// For rows of at most WIDTH elements of TYPE.
template <int WIDTH, u32 TYPE> __device__ __forceinline__ void forward(const GroupCall<Forward>& args, u8* shared) {
    if constexpr (GROUPS_MULTIPLY) run<WIDTH, TYPE>(args, *(Shared<WIDTH>*)shared);
}

// Kernels for rows of at most 64 and 128 elements, by type.
KERNEL(attention_groups_forward_64_bf16, GroupCall<Forward>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    forward<64, 1>(args, shared);
}
KERNEL(attention_groups_forward_64_f16, GroupCall<Forward>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    forward<64, 2>(args, shared);
}
KERNEL(attention_groups_forward_128_bf16, GroupCall<Forward>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    forward<128, 1>(args, shared);
}
KERNEL(attention_groups_forward_128_f16, GroupCall<Forward>, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    forward<128, 2>(args, shared);
}
