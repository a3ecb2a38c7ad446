// Frozen groups forward with all factors in shared memory: a cluster of blocks takes a sequence and head, group by group.
#include "resident.cuh"

// out[t] = the sum over blocks of their parts, through the norm and with the residual; each block stores some rows.
__device__ __forceinline__ void store_outputs(const Resident& f, const RecurrentCall& call, const SequenceHead& sequence,
                                              u32 start, Panel out) {
    // Row i of the block is token `i count + rank`.
    u32 count = f.cluster.count, rank = f.cluster.rank, mine = (f.tokens + count - 1 - rank) / count;
    // Errors are not read any more: their place takes the outputs after the norm.
    bool norm = f.o.norm;
    if (norm) f.normed_outputs(out, f.v, rank, count, mine);
    fours<2>(mine, f.o.value, [&](u32 i, u32 j) { return norm ? f.v.four(i, j) : f.total(out.row(i * count + rank) + j); }, [&](u32 i, u32 j, float4 y) {
        u32 t = i * count + rank;
        u64 at = sequence.row(call, start + t) * f.o.value + j;
        // Beside a residual queries are as wide.
        if (f.o.residual) y = map([](float x, float y) { return x + y; }, y, get_four(call.q, at));
        set_four(call.out, at, y);
    });
}

// Takes one group forward: out [count,V] of its tokens, and the state `from` before it becomes `to` after it.
__device__ __forceinline__ void group(Resident& f, const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count,
                                      const State& from, const State& to) {
    f.begin_group(call, sequence, start, count);
    f.hidden_of_keys();
    f.mask_of(0);
    __syncthreads();
    f.teach_group(call, sequence, start);
    f.values_of_first(OwnHalves{});
    u32 kind = f.o.activation;
    Plane q = f.queries[0], hq = f.queries[1], z0 = f.z0, z1 = f.z1;
    // Pre-activations at keys are not read any more.
    OwnHalves wait = f.pre;
    bool tight = f.tight;
    tiles<SIDE>(f.rows, f.width, [&](const Tile& tile) {
        float sum[SIDE][4] = {};
        f.read(sum, 0, q, z0, tile);
        activate<VALUE>(sum, kind);
        if (tight) set_tile(wait, tile, sum);
        else set_tile(hq, tile, sum);
    });
    __syncthreads();
    if (tight) {
        // Moves the hidden queries to where the queries were.
        tiles<SIDE>(f.rows, f.width, [&](const Tile& tile) {
            float sum[SIDE][4];
            get_tile(sum, wait, tile), set_tile(hq, tile, sum);
        });
        __syncthreads();
    }
    f.mask_of(1);
    __syncthreads();
    // Parts of outputs come after both buffers of parts of predictions.
    Panel out = {f.sums + (u64)2 * f.rows * f.o.value, f.o.value};
    tiles<SIDE>(f.rows, f.o.value, [&](const Tile& tile) {
        float sum[SIDE][4] = {};
        f.read(sum, 1, hq, z1, tile);
        set_tile(out, tile, sum);
    });
    f.cluster.meet();
    store_outputs(f, call, sequence, start, out);
    // The planes get the next state.
    if (threadIdx.x == 0) planes_read();
    __syncthreads();
    f.write<true>(from, to);
}

// Takes all sequences and heads forward, group by group; keeps states for a backward where `call.kept` has a place for them.
__device__ __forceinline__ void run(const RecurrentCall& given, const Options& o, float* near) {
    __shared__ Resident f;
    __shared__ RecurrentCall call;
    // Functions that are called read it there, and no thread's own memory. Nothing is constructed in shared memory.
    __shared__ __align__(16) u8 place_of_sequence[sizeof(SequenceHead)];
    SequenceHead& sequence = *(SequenceHead*)place_of_sequence;
    if (threadIdx.x == 0) {
        // Functions that are called read it there sooner than where arguments lie.
        call = given;
        // One thread hands out places; all read them in shared memory.
        Arena arena = arena_of(call, near);
        f.place(call, o, arena);
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    // A cluster has one sequence and head at a time.
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        __syncthreads();
        if (threadIdx.x == 0) sequence = SequenceHead(call, index);
        __syncthreads();
        CheckpointIntervals intervals(call, sequence.tokens);
        State last = f.slots(call.last, call, index);
        if (threadIdx.x == 0) f.find_anchor(call, sequence.head);
        __syncthreads();
        // The state lies where the next one is kept, or where the last one goes. With kept planes of fp16 it stays in the latter.
        auto place = [&](u32 interval) { return f.whole(sequence.kept + (u64)interval * call.state); };
        bool planes = call.kept && f.halves, keeps = call.kept && sequence.tokens > 0 && !planes;
        State now = keeps ? place(0) : last;
        f.load(f.slots(call.initial, call, index), now);
        u32 interval = 1;
        for (u32 start = 0; start < sequence.tokens; start += call.frozen) {
            // Every group begins an interval where those are kept.
            if (planes && threadIdx.x == 0) f.keep(f.kept_planes(sequence.kept + (u64)(start / call.frozen) * call.state));
            u32 next = start + call.frozen;
            bool kept = keeps && next < sequence.tokens && next == intervals.start(interval);
            State after = kept ? place(interval++) : last;
            group(f, call, sequence, start, min(call.frozen, sequence.tokens - start), now, after);
            now = after;
        }
    }
}

// A kernel a number of blocks in a cluster.
#define FORWARD(declared)            \
    declared {                       \
        DYNAMIC_SHARED(float, near); \
        run(args.call, args.cell, near); \
    }
FORWARD(KERNEL(resident_1, FrozenArgs, RESIDENT_THREADS))
FORWARD(CLUSTER_KERNEL(resident_2, FrozenArgs, RESIDENT_THREADS, 2))
FORWARD(CLUSTER_KERNEL(resident_4, FrozenArgs, RESIDENT_THREADS, 4))
FORWARD(CLUSTER_KERNEL(resident_8, FrozenArgs, RESIDENT_THREADS, 8))
