// Frozen groups forward: a cluster of blocks takes a sequence and head, group by group.
#pragma once
#include "frozen.cuh"

// Rows of outputs out of all blocks' parts, each row by one block.
__device__ __forceinline__ void store_outputs(const Frozen& f, const RecurrentCall& call, const SequenceHead& sequence,
                                              u32 start, Panel out) {
    // Row i of the block is token `i count + rank`.
    u32 count = f.cluster.count, rank = f.cluster.rank, mine = (f.tokens + count - 1 - rank) / count;
    bool norm = f.o.norm;
    if (norm) f.normed_outputs(out, f.spare, rank, count, mine);
    fours<2>(mine, f.o.value, [&](u32 i, u32 j) { return norm ? f.spare.four(i, j) : f.total(out.row(i * count + rank) + j); }, [&](u32 i, u32 j, float4 y) {
        u32 t = i * count + rank;
        if (f.o.residual) y = map([](float x, float y) { return x + y; }, y, f.q.four(t, j));
        store_run<4>(call.out, sequence.row(call, start + t) * f.o.value + j, Run<4>{y.x, y.y, y.z, y.w});
    });
    __syncthreads();
}

// All sequences and heads; kept states are written where `call.kept` has a place for them.
__device__ __forceinline__ void run_forward(const RecurrentCall& call, const Options& o, float* near) {
    __shared__ Frozen f;
    if (threadIdx.x == 0) {
        // One thread hands out places; all read them in shared memory.
        Arena arena = arena_of(call, near);
        f.place(call, o, arena);
    }
    __syncthreads();
    // Sums of outputs come after both buffers of sums of predictions.
    Panel out = {f.sums + (u64)2 * f.rows * o.value, o.value};
    u32 blocks = f.cluster.count;
    // A cluster has one sequence and head at a time.
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        if (threadIdx.x == 0) f.find_anchors(call, sequence.head);
        auto first = [&](u32 i) { return call.initial[i] + index * call.sizes[i]; };
        f.load(first(0), first(f.second()), first(2), first(3));
        u32 interval = 0;
        for (u32 start = 0; start < sequence.tokens; start += call.frozen) {
            if (call.kept && start == intervals.start(interval)) f.save(sequence.kept + (u64)interval++ * call.state);
            f.begin(call, sequence, start, min(call.frozen, sequence.tokens - start));
            // Pre-activations in hq's place, and what comes back to the hidden layer in z0's.
            f.inner_grads(f.hq, f.z0);
            if (f.deep()) f.read(f.hq, f.q, f.x0, f.anchor0, f.s0, f.k, f.z0, o.key, f.width), f.activate(f.hq, f.hq);
            f.read(out, f.hq, f.x1, f.anchor1, f.s1, f.h, f.z1, f.width, o.value);
            f.write();
            // Parts of outputs are there; the state is written meanwhile.
            f.cluster.meet();
            store_outputs(f, call, sequence, start, out);
        }
        auto last = [&](u32 i) { return call.last[i] + index * call.sizes[i]; };
        f.save(last(0), last(f.second()), last(2), last(3));
    }
}
