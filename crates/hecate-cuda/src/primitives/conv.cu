// Short causal convolution, each channel by itself. In every sequence, rows 0..W-1 are the state's, then come the
// tokens: y[t, d] = sum over j of weight[d, j] row[t + j, d].
#include "hecate.cuh"

struct Call {
    Array x, weight, state;  // [rows, D], [D, W], [N, W-1, D]
    const u32* starts;       // [N + 1]
    u64 rows, channels;
    u32 sequences, width;
};

// A sequence: its number, its first row and its tokens.
struct Range {
    u64 n, start, length;
};

__device__ __forceinline__ Range sequence(const Call& call, u64 n) {
    u64 start = call.starts[n];
    return Range{n, start, call.starts[n + 1] - start};
}

// The sequence that owns a row.
__device__ __forceinline__ Range owner(const Call& call, u64 row) {
    u64 low = 0, high = call.sequences;
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (call.starts[middle] <= row) low = middle;
        else high = middle;
    }
    return sequence(call, low);
}

// Row `i` of a sequence with the state in front.
template <u32 N> __device__ __forceinline__ Run<N> input(const Call& call, const Range& range, u64 i, u64 channel) {
    u64 kept = call.width - 1;
    if (i < kept) return load_run<N>(call.state, (range.n * kept + i) * call.channels + channel);
    return load_run<N>(call.x, (range.start + i - kept) * call.channels + channel);
}

template <u32 N> __device__ __forceinline__ void add_product(Run<N>& sum, const Run<N>& a, const Run<N>& b) {
    for (u32 n = 0; n < N; n++) sum.x[n] += a.x[n] * b.x[n];
}

// Tap `j` of neighbouring channels.
template <u32 N> __device__ __forceinline__ Run<N> tap(const Call& call, u64 channel, u32 j) {
    Run<N> weight;
    for (u32 n = 0; n < N; n++) weight.x[n] = load(call.weight, (channel + n) * call.width + j);
    return weight;
}

// Consecutive rows that a thread takes.
const u32 STRETCH = 8;
// The usual number of taps, for which a thread keeps them and reads every row once.
const u32 TAPS = 4;

// `sum over j of tap j times row t + j` of the rows from `first` on, for STRETCH rows t; backward the taps turn around.
template <u32 N, bool BACK> __device__ __forceinline__ void stretch(const Call& call, Array rows, u64 first, u64 channel, Array out,
                                                                   u64 row) {
    Run<N> taps[TAPS], seen[STRETCH + TAPS - 1];
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) taps[j] = tap<N>(call, channel, j);
#pragma unroll
    for (u32 r = 0; r < STRETCH + TAPS - 1; r++) seen[r] = load_run<N>(rows, (first + r) * call.channels + channel);
#pragma unroll
    for (u32 r = 0; r < STRETCH; r++) {
        Run<N> sum = {};
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) add_product(sum, taps[j], seen[BACK ? r + TAPS - 1 - j : r + j]);
        store_run<N>(out, (row + r) * call.channels + channel, sum);
    }
}

struct Forward {
    Call call;
    Array y;
};

// Neighbouring channels of a stretch of rows.
template <u32 N> __device__ __forceinline__ void forward(const Forward& args) {
    const Call& call = args.call;
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        if (call.width == TAPS && row >= range.start + TAPS - 1 && row + STRETCH <= range.start + range.length) {
            stretch<N, false>(call, call.x, row - (TAPS - 1), channel, args.y, row);
            continue;
        }
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            Run<N> y = {};
            for (u32 j = 0; j < call.width; j++)
                add_product(y, tap<N>(call, channel, j), input<N>(call, range, row - range.start + j, channel));
            store_run<N>(args.y, row * call.channels + channel, y);
        }
    }
}

KERNEL(conv_forward, Forward, 256) {
    if (args.call.channels % 4 == 0) forward<4>(args);
    else forward<1>(args);
}

struct Backward {
    Call call;
    Array dy, dfinal, dx, dstate;  // dfinal may be null
};

// Gradient by row `i` of a sequence: sum over j of weight[d, j] dy[i - j], and what came through the final state.
template <u32 N>
__device__ __forceinline__ Run<N> input_grad(const Backward& args, const Range& range, u64 i, u64 channel) {
    const Call& call = args.call;
    u64 kept = call.width - 1;
    Run<N> grad = {};
    u32 first = i < range.length ? 0 : (u32)(i + 1 - range.length), end = i < kept ? (u32)i + 1 : call.width;
    u64 dy = (range.start + i - first) * call.channels + channel;
    for (u32 j = first; j < end; j++, dy -= call.channels) add_product(grad, tap<N>(call, channel, j), load_run<N>(args.dy, dy));
    if (args.dfinal.data && i >= range.length) {
        Run<N> more = load_run<N>(args.dfinal, (range.n * kept + i - range.length) * call.channels + channel);
        for (u32 n = 0; n < N; n++) grad.x[n] += more.x[n];
    }
    return grad;
}

template <u32 N> __device__ __forceinline__ void backward(const Backward& args) {
    const Call& call = args.call;
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        if (call.width == TAPS && row + STRETCH + TAPS - 1 <= range.start + range.length) {
            stretch<N, true>(call, args.dy, row, channel, args.dx, row);
            continue;
        }
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            Run<N> dx = input_grad<N>(args, range, call.width - 1 + row - range.start, channel);
            store_run<N>(args.dx, row * call.channels + channel, dx);
        }
    }
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
    Array dy;
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
                float dy = load(args.dy, row * call.channels + channel);
                terms += dy * input<1>(call, range, row - range.start + j, channel).x[0];
            }
            sum += terms;
        }
        args.parts[part * taps + channel * call.width + j] = (float)sum;
    }
}

// As above for TAPS taps and channels in fours: a thread sums for all taps of four channels, and reads every row once.
KERNEL(conv_dweight_4, Weights, 256) {
    const u32 N = 4;
    const Call& call = args.call;
    u64 across = call.channels / N, count = args.number * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * args.length;
        u64 end = row + args.length < call.rows ? row + args.length : call.rows;
        Range range = owner(call, row);
        double sums[TAPS][N] = {};
        Run<N> seen[TAPS];
        bool known = false;
        while (row < end) {
            u64 stop = row + SHORT < end ? row + SHORT : end;
            Run<N> terms[TAPS] = {};
            for (; row < stop; row++) {
                if (row == range.start + range.length) {
                    range = sequence(call, range.n + 1);
                    known = false;
                }
                u64 i = row - range.start;
#pragma unroll
                for (u32 j = 0; j + 1 < TAPS; j++) seen[j] = known ? seen[j + 1] : input<N>(call, range, i + j, channel);
                seen[TAPS - 1] = input<N>(call, range, i + TAPS - 1, channel);
                known = true;
                Run<N> dy = load_run<N>(args.dy, row * call.channels + channel);
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) add_product(terms[j], dy, seen[j]);
            }
#pragma unroll
            for (u32 j = 0; j < TAPS; j++)
                for (u32 n = 0; n < N; n++) sums[j][n] += terms[j].x[n];
        }
        for (u32 n = 0; n < N; n++)
            for (u32 j = 0; j < TAPS; j++)
                args.parts[((at.row * call.channels) + channel + n) * TAPS + j] = (float)sums[j][n];
    }
}
