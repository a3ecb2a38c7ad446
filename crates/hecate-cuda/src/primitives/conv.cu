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
__device__ __forceinline__ float input(const Call& call, const Range& range, u64 i, u64 channel) {
    u64 kept = call.width - 1;
    if (i < kept) return load(call.state, (range.n * kept + i) * call.channels + channel);
    return load(call.x, (range.start + i - kept) * call.channels + channel);
}

// Consecutive rows that a thread takes.
const u64 STRETCH = 8;

struct Forward {
    Call call;
    Array y;
};

KERNEL(conv_forward, Forward, 256) {
    const Call& call = args.call;
    u64 count = (call.rows + STRETCH - 1) / STRETCH * call.channels;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 channel = i % call.channels, row = i / call.channels * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            float y = 0.0f;
            for (u32 j = 0; j < call.width; j++)
                y += load(call.weight, channel * call.width + j) * input(call, range, row - range.start + j, channel);
            store(args.y, row * call.channels + channel, y);
        }
    }
}

struct Backward {
    Call call;
    Array dy, dfinal, dx, dstate;  // dfinal may be null
};

// Gradient by row `i` of a sequence: sum over j of weight[d, j] dy[i - j], and what came through the final state.
__device__ __forceinline__ float input_grad(const Backward& args, const Range& range, u64 i, u64 channel) {
    const Call& call = args.call;
    u64 kept = call.width - 1;
    float grad = 0.0f;
    u32 first = i < range.length ? 0 : (u32)(i + 1 - range.length), end = i < kept ? (u32)i + 1 : call.width;
    u64 weight = channel * call.width + first, dy = (range.start + i - first) * call.channels + channel;
    for (u32 j = first; j < end; j++, weight++, dy -= call.channels) grad += load(call.weight, weight) * load(args.dy, dy);
    if (args.dfinal.data && i >= range.length)
        grad += load(args.dfinal, (range.n * kept + i - range.length) * call.channels + channel);
    return grad;
}

KERNEL(conv_dx, Backward, 256) {
    const Call& call = args.call;
    u64 count = (call.rows + STRETCH - 1) / STRETCH * call.channels;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 channel = i % call.channels, row = i / call.channels * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            float dx = input_grad(args, range, call.width - 1 + row - range.start, channel);
            store(args.dx, row * call.channels + channel, dx);
        }
    }
}

KERNEL(conv_dstate, Backward, 256) {
    const Call& call = args.call;
    u64 kept = call.width - 1, count = call.sequences * kept * call.channels;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        u64 row = i / call.channels;
        Range range = sequence(call, row / kept);
        store(args.dstate, i, input_grad(args, range, row % kept, i % call.channels));
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
                terms += dy * input(call, range, row - range.start + j, channel);
            }
            sum += terms;
        }
        args.parts[part * taps + channel * call.width + j] = (float)sum;
    }
}
