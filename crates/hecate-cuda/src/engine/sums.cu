// Partial sums over blocks of columns put together, always in the same order.
#include "linear.cuh"

struct JoinKeys {
    const float* parts;        // [blocks,count]
    Array sum;                 // [count]
    u64 count;
    u32 blocks, unused;
};

KERNEL(join_keys, JoinKeys, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float sum = 0.0f;
        for (u32 block = 0; block < args.blocks; block++) sum += args.parts[block * args.count + i];
        store(args.sum, i, sum);
    }
}

struct Raise {
    Linear p;
    const float* parts;        // [blocks,count,4]: gradients of w, r, a, η
    float *log_a, *log_eta, *theta, *beta;  // [count]; null where the rule has none
    u64 count;                 // rows times H
};

// Gradients of the gates.
KERNEL(raise_gates, Raise, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float dw = 0.0f, dr = 0.0f, da = 0.0f, deta = 0.0f;
        for (u32 block = 0; block < args.p.blocks; block++) {
            Four x = ((const Four*)args.parts)[block * args.count + i];
            dw += x.x, dr += x.y, da += x.z, deta += x.w;
        }
        GateGrads grads = raise(args.p, lower(args.p, gates_of(args.p, i)), dw, dr, da, deta);
        args.log_a[i] = grads.log_a;
        args.theta[i] = grads.theta;
        if (args.log_eta) args.log_eta[i] = grads.log_eta;
        if (args.beta) args.beta[i] = grads.beta;
    }
}
