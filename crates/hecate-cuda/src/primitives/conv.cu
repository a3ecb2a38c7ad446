// Short causal convolution with any number of taps; heads keep their length here.
#include "conv.cuh"

// Tap `j` of neighbouring channels.
template <u32 N> __device__ __forceinline__ Run<N> tap(const Call& call, u64 channel, u32 j) {
    Run<N> weight;
    for (u32 n = 0; n < N; n++) weight.x[n] = load(call.weight, (channel + n) * call.width + j);
    return weight;
}

// u of a row.
template <u32 N> __device__ __forceinline__ Run<N> sum_of(const Call& call, const Range& range, u64 row, u64 channel) {
    Run<N> u = {};
    for (u32 j = 0; j < call.width; j++)
        add_product(u, tap<N>(call, channel, j), input<N>(call, range, row - range.start + j, channel));
    return u;
}

// What `work` does with neighbouring channels of every row, N of them: a thread goes through STRETCH rows. It is given the
// row's sequence, the row and the first channel.
template <u32 N, class Work> __device__ __forceinline__ void each_row(const Call& call, const Work& work) {
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            work(range, row, channel);
        }
    }
}

struct Forward {
    Call call;
    Array y;
};

template <u32 N> __device__ __forceinline__ void forward(const Forward& args) {
    const Call& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        Run<N> u = sum_of<N>(call, range, row, channel);
#pragma unroll
        for (u32 n = 0; n < N; n++) u.x[n] = call.silu ? silu(u.x[n]) : u.x[n];
        store_run<N>(args.y, row * call.channels + channel, u);
    });
}

KERNEL(conv_forward, Forward, 256) {
    if (args.call.channels % 4 == 0) forward<4>(args);
    else forward<1>(args);
}

// The gradient of u, in 32 bits, where SiLU stands behind it.
struct Through {
    Call call;
    Array dy, du;  // [rows, D]
};

template <u32 N> __device__ __forceinline__ void through(const Through& args) {
    const Call& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        u64 at = row * call.channels + channel;
        Run<N> du = load_run<N>(args.dy, at), u = sum_of<N>(call, range, row, channel);
#pragma unroll
        for (u32 n = 0; n < N; n++) du.x[n] *= silu_slope(u.x[n]);
        store_run<N>(args.du, at, du);
    });
}

KERNEL(conv_through, Through, 256) {
    if (args.call.channels % 4 == 0) through<4>(args);
    else through<1>(args);
}

struct Backward {
    Call call;
    Array du, dfinal, dx, dstate;  // dfinal may be null
};

// Gradient by row `i` of a sequence: sum over j of weight[d, j] du[i - j], and what came through the final state.
template <u32 N>
__device__ __forceinline__ Run<N> input_grad(const Backward& args, const Range& range, u64 i, u64 channel) {
    const Call& call = args.call;
    u64 kept = call.width - 1;
    Run<N> grad = {};
    u32 first = i < range.length ? 0 : (u32)(i + 1 - range.length), end = i < kept ? (u32)i + 1 : call.width;
    u64 du = (range.start + i - first) * call.channels + channel;
    for (u32 j = first; j < end; j++, du -= call.channels) add_product(grad, tap<N>(call, channel, j), load_run<N>(args.du, du));
    if (args.dfinal.data && i >= range.length) {
        Run<N> more = load_run<N>(args.dfinal, (range.n * kept + i - range.length) * call.channels + channel);
        for (u32 n = 0; n < N; n++) grad.x[n] += more.x[n];
    }
    return grad;
}

template <u32 N> __device__ __forceinline__ void backward(const Backward& args) {
    const Call& call = args.call;
    each_row<N>(call, [&](const Range& range, u64 row, u64 channel) {
        Run<N> dx = input_grad<N>(args, range, call.width - 1 + row - range.start, channel);
        store_run<N>(args.dx, row * call.channels + channel, dx);
    });
}

KERNEL(conv_dx, Backward, 256) {
    if (args.call.channels % 4 == 0) backward<4>(args);
    else backward<1>(args);
}

KERNEL(conv_dstate, Backward, 256) {
    const Call& call = args.call;
    u64 kept = call.width - 1, count = call.sequences * kept * call.channels;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 row = i / call.channels;
        Range range = sequence(call, row / kept);
        store(args.dstate, i, input_grad<1>(args, range, row % kept, i % call.channels).x[0]);
    }
}

// Rows that are added up in 32 bits before the sum goes on in 64.
const u64 SHORT = 32;

// Each part sums over `length` rows; the parts are added up behind it.
struct Weights {
    Call call;
    Array du;
    float* parts;  // [number, D, W]
    u64 length;
    u32 number;
};

KERNEL(conv_dweight, Weights, 256) {
    const Call& call = args.call;
    u64 taps = call.channels * call.width, count = args.number * taps;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 channel = i % call.channels, j = i / call.channels % call.width, part = i / taps;
        u64 row = part * args.length;
        u64 end = row + args.length < call.rows ? row + args.length : call.rows;
        Range range = owner(call, row);
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
