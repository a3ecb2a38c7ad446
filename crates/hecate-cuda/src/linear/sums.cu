// Partial sums over blocks of columns put together, always in the same order.
#include "linear.cuh"

// One gradient of a layer's keys or queries out of a part from every block of columns.
struct JoinKeys {
    // [blocks,count]
    const float* parts;
    // [count]
    Array sum;
    u64 count;
    u32 blocks, unused;
};

// A thread takes elements `grid_threads()` apart and adds up its parts in order, so that results do not depend on timing.
KERNEL(join_keys, JoinKeys, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float sum = 0.0f;
        for (u32 block = 0; block < args.blocks; block++) sum += args.parts[block * args.count + i];
        store(args.sum, i, sum);
    }
}

// Gradients of the gates out of those of w, r, a and η.
struct LowerGatesBackward {
    Linear p;
    // [blocks,count,4]: gradients of w, r, a, η
    const float* parts;
    // [count]; null where the rule has none
    float *log_a, *log_eta, *theta, *beta;
    // Rows times H
    u64 count;
};

// A thread has a token and head: it adds up their parts over blocks of columns in order, then goes through (14).
KERNEL(lower_gates_backward, LowerGatesBackward, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float dw = 0.0f, dr = 0.0f, da = 0.0f, deta = 0.0f;
        for (u32 block = 0; block < args.p.blocks; block++) {
            Four x = ((const Four*)args.parts)[block * args.count + i];
            dw += x.x, dr += x.y, da += x.z, deta += x.w;
        }
        GateGrads grads = lower_backward(args.p, lower(args.p, gates_of(args.p, i)), dw, dr, da, deta);
        args.log_a[i] = grads.log_a;
        args.theta[i] = grads.theta;
        if (args.log_eta) args.log_eta[i] = grads.log_eta;
        if (args.beta) args.beta[i] = grads.beta;
    }
}
