// Frozen groups backward, from the last, with all factors in shared memory.
#include "resident_reverse.cuh"

// Takes gradients back through all sequences and heads, group by group from the last.
__device__ __forceinline__ void run(const RecurrentCall& given, const Options& o, float* near) {
    __shared__ ResidentReverse f;
    __shared__ RecurrentCall call;
    // Functions that are called read it there, and no thread's own memory. Nothing is constructed in shared memory.
    __shared__ __align__(16) u8 place_of_sequence[sizeof(SequenceHead)];
    SequenceHead& sequence = *(SequenceHead*)place_of_sequence;
    if (threadIdx.x == 0) {
        // Functions that are called read it there sooner than where arguments lie.
        call = given;
        open_gates();
        Arena arena = arena_of(call, near);
        f.place(call, o, arena);
        // The first phase has parity 0.
        f.parity[0] = f.parity[1] = 1;
    }
    __syncthreads();
    u32 blocks = f.cluster.count;
    for (u64 index = blockIdx.x / blocks; index < (u64)call.sequences * call.heads; index += gridDim.x / blocks) {
        __syncthreads();
        if (threadIdx.x == 0) sequence = SequenceHead(call, index);
        __syncthreads();
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
        if (f.halves && sequence.intervals > 0) {
            // Later groups ask in the one before.
            float* at = f.kept_planes(sequence.kept + (u64)(sequence.intervals - 1) * call.state);
            f.ask_for(at, 0, !f.tight || f.ahead());
            if (!f.tight) f.ask_for(at, 1, true);
        }
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            u32 start = intervals.start(interval), end = intervals.end(interval);
            // Short groups share an interval; its kept state is before the first.
            u32 groups = (end - start + call.frozen - 1) / call.frozen;
            float* at = sequence.kept + (u64)interval * call.state;
            State kept = f.whole(at);
            for (u32 step = 1; step < 2 * groups; step++) {
                // The first steps compute the states before groups 1, 2, ...; the others take gradients back from the last group.
                bool back = step >= groups;
                u32 g = back ? 2 * groups - 1 - step : step - 1, from = start + g * call.frozen;
                if (threadIdx.x == 0) {
                    f.now = g ? f.before(g) : kept;
                    f.now_planes = f.kept_planes(at), f.next_planes = interval ? f.kept_planes(at - call.state) : nullptr;
                }
                __syncthreads();
                if (back) {
                    f.group(call, sequence, from, min(call.frozen, end - from));
                    continue;
                }
                // Only a sequence's last group may be shorter, and no group follows it.
                f.inner_grads(call, sequence, from, call.frozen, f.ahead());
                State to = f.before(g + 1);
                f.write<false>(f.now, to);
            }
        }
        // What is left after the first group is the gradient of the initial state.
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
