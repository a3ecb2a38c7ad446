// Kernels over all sequences and heads, of memories whose weights are an image of the state. A file says which images.
#pragma once
#include "mapped/mapped_reverse.cuh"

// Rows of outputs, each by one block.
__device__ __forceinline__ void store_outputs(const Mapped& f, const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
    u32 count = f.cluster.count, rank = f.cluster.rank, mine = (f.tokens + count - 1 - rank) / count;
    // All blocks have all outputs; each stores its rows.
    Panel out = f.layer[1].y;
    if (f.o.norm) {
        ROWS(i, mine) normalise_row(out.row(i * count + rank), f.o.value);
        __syncthreads();
    }
    fours<2>(mine, f.o.value, [&](u32 i, u32 j) { return out.four(i * count + rank, j); }, [&](u32 i, u32 j, float4 y) {
        u32 t = i * count + rank;
        if (f.o.residual) y = map([](float x, float y) { return x + y; }, y, f.q.four(t, j));
        store_run<4>(call.out, sequence.row(call, start + t) * f.o.value + j, Run<4>{y.x, y.y, y.z, y.w});
    });
    __syncthreads();
}

// Kept states are written where `call.kept` has a place for them.
template <int MAP> __device__ __forceinline__ void run_forward(const RecurrentCall& call, const Options& o, float* near) {
    __shared__ Mapped f;
    if (threadIdx.x == 0) {
        // One thread hands out places; all read them in shared memory.
        Arena arena = arena_of(call, near);
        f.place(call, o, arena, false);
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    // A cluster has one sequence and head at a time.
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        auto first = [&](u32 i) { return call.initial[i] + index * call.sizes[i]; };
        f.load_states(first(0), first(f.second()));
        f.begin_anchors(call, sequence.head);
        // States are kept as the kernels by tokens keep them.
        u32 interval = 0;
        for (u32 start = 0; start < sequence.tokens; start += call.frozen) {
            if (call.kept && start == intervals.start(interval)) f.save_state(sequence.kept + (u64)interval++ * call.state);
            f.forward<MAP>(call, sequence, start, min(call.frozen, sequence.tokens - start), false);
            store_outputs(f, call, sequence, start);
        }
        auto last = [&](u32 i) { return call.last[i] + index * call.sizes[i]; };
        f.save_states(last(0), last(f.second()));
    }
}

// From the last group: states at groups' starts are computed again.
template <int MAP> __device__ __forceinline__ void run_backward(const RecurrentCall& call, const Options& o, float* near) {
    __shared__ MappedReverse f;
    if (threadIdx.x == 0) {
        // As in the forward, with more places.
        Arena arena = arena_of(call, near);
        f.place(call, o, arena, true);
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        // Gradients of the last state come first.
        f.open(call, sequence, index);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            u32 start = intervals.start(interval), end = intervals.end(interval);
            // Short groups share an interval; its kept state is before the first.
            u32 groups = (end - start + call.frozen - 1) / call.frozen;
            const float* kept = sequence.kept + (u64)interval * call.state;
            f.load_state(kept);
            // States before groups after the first; then groups from the last, whose state is at hand.
            for (u32 step = 1; step < 2 * groups; step++) {
                bool ahead = step < groups;
                u32 g = ahead ? step - 1 : 2 * groups - 1 - step, from = start + g * call.frozen;
                if (step > groups && g > 0) f.take_back(g);
                if (step > groups && g == 0) f.load_state(kept);
                if (MAP == SOFTMAX && !ahead) f.column_sums_of_gradients();
                f.forward<MAP>(call, sequence, from, min(call.frozen, end - from), !ahead);
                if (!ahead) f.group<MAP>(call, sequence, from, min(call.frozen, end - from));
                else if (step + 1 < groups) f.put_by(step);
            }
        }
        f.close(call, index);
    }
}

// By the blocks of a cluster.
#define MAPPED_KERNEL(declared, run)     \
    declared {                           \
        DYNAMIC_SHARED(float, near);     \
        run(args.call, args.cell, near); \
    }
// Of a file, forward and backward.
#define MAPPED_KERNELS(name, map)                                                                      \
    MAPPED_KERNEL(KERNEL(name##_1, FrozenArgs, FROZEN_THREADS), run_forward<map>)                      \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_2, FrozenArgs, FROZEN_THREADS, 2), run_forward<map>)           \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_4, FrozenArgs, FROZEN_THREADS, 4), run_forward<map>)           \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_8, FrozenArgs, FROZEN_THREADS, 8), run_forward<map>)           \
    MAPPED_KERNEL(KERNEL(name##_backward_1, FrozenArgs, FROZEN_THREADS), run_backward<map>)            \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_backward_2, FrozenArgs, FROZEN_THREADS, 2), run_backward<map>) \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_backward_4, FrozenArgs, FROZEN_THREADS, 4), run_backward<map>) \
    MAPPED_KERNEL(CLUSTER_KERNEL(name##_backward_8, FrozenArgs, FROZEN_THREADS, 8), run_backward<map>)
