// Short causal convolution with any number of taps; heads keep their length here.
#include "conv.cuh"

// Tap `j` of neighbouring channels.
template <u32 N> __device__ __forceinline__ Run<N> tap(const ConvCall& call, u64 channel, u32 j) {
    Run<N> weight;
    for (u32 n = 0; n < N; n++) weight.x[n] = load(call.weight, (channel + n) * call.width + j);
    return weight;
}

// u of a row.
template <u32 N> __device__ __forceinline__ Run<N> sum_of(const ConvCall& call, const Range& range, u64 row, u64 channel) {
    Run<N> u = {};
    for (u32 j = 0; j < call.width; j++)
        add_product(u, tap<N>(call, channel, j), input<N>(call, range, row - range.start + j, channel));
    return u;
}

// What `work` does with neighbouring channels of every row, N of them: a thread goes through ROWS_PER_THREAD rows. It is given the
// row's sequence, the row and the first channel.
template <u32 N, class Work> __device__ __forceinline__ void each_row(const ConvCall& call, const Work& work) {
    // Work items: runs of channels times runs of rows.
    u64 across = call.channels / N, count = (call.rows + ROWS_PER_THREAD - 1) / ROWS_PER_THREAD * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * ROWS_PER_THREAD;
        u64 end = row + ROWS_PER_THREAD < call.rows ? row + ROWS_PER_THREAD : call.rows;
        Range range = owner(call, row);
        for (; row < end; row++) {
            // The next sequence begins.
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            work(range, row, channel);
        }
    }
}

// y [rows, D]; a thread has N neighbouring channels of ROWS_PER_THREAD rows.
struct Forward {
    ConvCall call;
    Array y;
};

// y of N channels of each row.
template <u32 N> __device__ __forceinline__ void forward(const Forward& args) {
    const ConvCall& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        Run<N> u = sum_of<N>(call, range, row, channel);
#pragma unroll
        for (u32 n = 0; n < N; n++) u.x[n] = call.silu ? silu(u.x[n]) : u.x[n];
        store_run<N>(args.y, row * call.channels + channel, u);
    });
}

// Four channels a thread where they come in fours.
KERNEL(conv_forward, Forward, 256) {
    if (args.call.channels % 4 == 0) forward<4>(args);
    else forward<1>(args);
}

// The gradient of u, in 32 bits, where SiLU stands after it.
struct Through {
    ConvCall call;
    // [rows, D]
    Array dy, du;
};

// du = silu′(u) dy of N channels of each row.
template <u32 N> __device__ __forceinline__ void through(const Through& args) {
    const ConvCall& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        u64 at = row * call.channels + channel;
        // u is made again: keeping it would cost more reads than taps do.
        Run<N> du = load_run<N>(args.dy, at), u = sum_of<N>(call, range, row, channel);
#pragma unroll
        for (u32 n = 0; n < N; n++) du.x[n] *= silu_slope(u.x[n]);
        store_run<N>(args.du, at, du);
    });
}

// As the forward.
// One launch more than the gradients, and du once in memory.
KERNEL(conv_through, Through, 256) {
    if (args.call.channels % 4 == 0) through<4>(args);
    else through<1>(args);
}

// Gradients by x and by the state, from du [rows, D]; dstate [N, W-1, D], dfinal the same or null.
struct Backward {
    ConvCall call;
    // `dfinal` may be null
    Array du, dfinal, dx, dstate;
};

// Gradient by row `i` of a sequence: sum over j of weight[d, j] du[i - j], and what came through the final state.
template <u32 N>
__device__ __forceinline__ Run<N> input_grad(const Backward& args, const Range& range, u64 i, u64 channel) {
    const ConvCall& call = args.call;
    u64 kept = call.width - 1;
    Run<N> grad = {};
    // Taps that reach a token of the sequence.
    u32 first = i < range.length ? 0 : (u32)(i + 1 - range.length), end = i < kept ? (u32)i + 1 : call.width;
    // From the latest token that saw the row to the earliest.
    u64 du = (range.start + i - first) * call.channels + channel;
    for (u32 j = first; j < end; j++, du -= call.channels) add_product(grad, tap<N>(call, channel, j), load_run<N>(args.du, du));
    if (args.dfinal.data && i >= range.length) {
        Run<N> more = load_run<N>(args.dfinal, (range.n * kept + i - range.length) * call.channels + channel);
        for (u32 n = 0; n < N; n++) grad.x[n] += more.x[n];
    }
    return grad;
}

// dx of N channels of each row.
template <u32 N> __device__ __forceinline__ void backward(const Backward& args) {
    const ConvCall& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        Run<N> dx = input_grad<N>(args, range, call.width - 1 + row - range.start, channel);
        store_run<N>(args.dx, row * call.channels + channel, dx);
    });
}

// Each thread writes what belongs to its own rows of x: nobody adds to anybody else's.
KERNEL(conv_dx, Backward, 256) {
    if (args.call.channels % 4 == 0) backward<4>(args);
    else backward<1>(args);
}

// A thread has one element of the state.
KERNEL(conv_dstate, Backward, 256) {
    const ConvCall& call = args.call;
    u64 kept = call.width - 1, count = call.sequences * kept * call.channels;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 row = i / call.channels;
        Range range = sequence(call, row / kept);
        store(args.dstate, i, input_grad<1>(args, range, row % kept, i % call.channels).x[0]);
    }
}

// Rows that are added up in 32 bits before the sum goes on in 64.
const u64 SHORT = 32;

// Each part sums over `length` rows; the parts are added up after it.
struct Weights {
    ConvCall call;
    Array du;
    // [number, D, W]
    float* parts;
    u64 length;
    u32 number;
};

// A thread has one tap of one channel, and one part of the rows. Neighbouring threads have neighbouring channels.
KERNEL(conv_dweight, Weights, 256) {
    const ConvCall& call = args.call;
    u64 taps = call.channels * call.width, count = args.number * taps;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        // Channel, tap and part.
        u64 channel = i % call.channels, j = i / call.channels % call.width, part = i / taps;
        u64 row = part * args.length;
        u64 end = row + args.length < call.rows ? row + args.length : call.rows;
        Range range = owner(call, row);
        // Short runs in 32 bits, their sum in 64.
        double sum = 0.0;
        while (row < end) {
            u64 stop = row + SHORT < end ? row + SHORT : end;
            float terms = 0.0f;
            for (; row < stop; row++) {
                if (row == range.start + range.length) range = sequence(call, range.n + 1);
                float du = load(args.du, row * call.channels + channel);
                terms += du * input<1>(call, range, row - range.start + j, channel).x[0];
            }
            sum += terms;
        }
        args.parts[part * taps + channel * call.width + j] = (float)sum;
    }
}
