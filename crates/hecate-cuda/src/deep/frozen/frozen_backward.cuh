// Frozen groups backward, from the last: states at groups' starts are computed again, and each group goes back as products.
#pragma once
#include "frozen_reverse.cuh"

// States before an interval's groups after the first; a function of its own, so that what outlives it is not spilled.
TOGETHER_OF void groups_again(Reverse& f, const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 groups) {
    for (u32 g = 1; g < groups; g++) {
        f.begin(call, sequence, start + (g - 1) * call.frozen, call.frozen);
        f.inner_grads(f.pre, f.back);
        f.write();
        if (g + 1 < groups) f.save(g);
    }
}

// All sequences and heads.
__device__ __forceinline__ void run_backward(const RecurrentCall& call, const Options& o, float* near) {
    __shared__ Reverse f;
    if (threadIdx.x == 0) {
        // As in the forward, with more places.
        Arena arena = arena_of(call, near);
        f.place(call, o, arena);
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        f.open(call, sequence, index);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            u32 start = intervals.start(interval), end = intervals.end(interval);
            // Short groups share an interval; its kept state is before the first.
            u32 groups = (end - start + call.frozen - 1) / call.frozen;
            f.load(sequence.kept + (u64)interval * call.state);
            groups_again(f, call, sequence, start, groups);
            for (u32 g = groups; g-- > 0;) {
                // The state before the last group is at hand.
                if (g + 1 < groups && g > 0) f.recall(g);
                if (g + 1 < groups && g == 0) f.load(sequence.kept + (u64)interval * call.state);
                u32 from = start + g * call.frozen;
                f.group(call, sequence, from, min(call.frozen, end - from));
            }
        }
        f.close(call, index);
    }
}
