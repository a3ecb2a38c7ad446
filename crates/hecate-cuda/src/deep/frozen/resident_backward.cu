// Frozen groups backward, from the last, with all factors in shared memory.
#include "resident_reverse.cuh"

// The launch hands this over: sequences and arrays, then the rule's options.
struct FrozenArgs {
    RecurrentCall call;
    Options cell;
};

// All sequences and heads.
__device__ __forceinline__ void run(const RecurrentCall& given, const Options& o, float* near) {
    __shared__ ResidentReverse f;
    __shared__ RecurrentCall call;
    if (threadIdx.x == 0) {
        // Functions that are called read it there sooner than where arguments lie.
        call = given;
        Arena arena = arena_of(call, near);
        f.place(call, o, arena);
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        State last = f.slots(call.dlast, call, index), first = f.slots(call.dinitial, call, index);
        // Places of this sequence and head.
        if (threadIdx.x == 0) f.open(call, sequence.head, index);
        __syncthreads();
        f.each_grad(last, [&](Own to, Panel from, u32 height, u32 wide) { f.copy(to, from, height, wide); });
        for (u32 l = 0; l < 2 && f.anchored; l++) {
            // Anchors get theirs group by group.
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            Panel to = f.danchor[l];
            fours<2>(f.height(l), f.wide(l), [&](u32, u32) { return zero; }, [&](u32 i, u32 j, float4 x) { to.four(i, j) = x; });
        }
        __syncthreads();
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            u32 start = intervals.start(interval), end = intervals.end(interval);
            // Short groups share an interval; its kept state is before the first.
            u32 groups = (end - start + call.frozen - 1) / call.frozen;
            State kept = f.whole(sequence.kept + (u64)interval * call.state);
            for (u32 step = 1; step < 2 * groups; step++) {
                // First the states before groups after the first, then groups from the last.
                bool back = step >= groups;
                u32 g = back ? 2 * groups - 1 - step : step - 1, from = start + g * call.frozen;
                if (threadIdx.x == 0) f.now = g ? f.before(g) : kept;
                __syncthreads();
                if (back) {
                    f.group(call, sequence, from, min(call.frozen, end - from));
                    continue;
                }
                // Only the last group of a sequence is shorter, and it has none after it.
                f.begin_group(call, sequence, from, call.frozen);
                f.inner_grads(call, sequence, from);
                State to = f.before(g + 1);
                f.write<false>(f.now, to);
            }
        }
        // What is left is of the first state.
        f.each_grad(first, [&](Own from, Panel to, u32 height, u32 wide) { f.copy(to, from, height, wide); });
        __syncthreads();
    }
}

// A kernel a number of blocks in a cluster.
#define BACKWARD(declared)        \
    declared {                    \
        DYNAMIC_SHARED(float, near); \
        run(args.call, args.cell, near); \
    }
BACKWARD(KERNEL(resident_backward_1, FrozenArgs, RESIDENT_THREADS))
BACKWARD(CLUSTER_KERNEL(resident_backward_2, FrozenArgs, RESIDENT_THREADS, 2))
BACKWARD(CLUSTER_KERNEL(resident_backward_4, FrozenArgs, RESIDENT_THREADS, 4))
BACKWARD(CLUSTER_KERNEL(resident_backward_8, FrozenArgs, RESIDENT_THREADS, 8))
