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

// Row `i` of a sequence with the state in front; both arrays are of one type.
template <u32 N> __device__ __forceinline__ Run<N> input(const Call& call, const Range& range, u64 i, u64 channel) {
    u64 kept = call.width - 1;
    bool state = i < kept;
    u64 row = state ? range.n * kept + i : range.start + i - kept;
    return load_run<N>(Array{state ? call.state.data : call.x.data, call.x.type}, row * call.channels + channel);
}

template <u32 N> __device__ __forceinline__ void add_product(Run<N>& sum, const Run<N>& a, const Run<N>& b) {
#pragma unroll
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

// All taps of neighbouring channels; those of a channel are a run.
template <u32 N> __device__ __forceinline__ void load_taps(Run<N> (&taps)[TAPS], const Call& call, u64 channel) {
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        Run<TAPS> run = load_run<TAPS>(call.weight, (channel + n) * TAPS);
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) taps[j].x[n] = run.x[j];
    }
}

// A sequence has all rows of a stretch.
__device__ __forceinline__ bool whole(const Call& call, const Range& range, u64 row) {
    return call.width == TAPS && row + STRETCH <= range.start + range.length;
}

struct Forward {
    Call call;
    Array y;

    template <u32 N> __device__ __forceinline__ void stretch(const Range& range, u64 row, u64 channel) const {
        Run<N> taps[TAPS], seen[STRETCH + TAPS - 1];
        load_taps(taps, call, channel);
#pragma unroll
        for (u32 r = 0; r < STRETCH + TAPS - 1; r++) seen[r] = input<N>(call, range, row - range.start + r, channel);
#pragma unroll
        for (u32 r = 0; r < STRETCH; r++) {
            Run<N> sum = {};
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) add_product(sum, taps[j], seen[r + j]);
            store_run<N>(y, (row + r) * call.channels + channel, sum);
        }
    }
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
        if (whole(call, range, row)) {
            args.template stretch<N>(range, row, channel);
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

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ Call of_type(Call call) {
    call.x.type = call.weight.type = call.state.type = TYPE;
    return call;
}

KERNEL(conv_forward, Forward, 256) {
    if (args.call.channels % 4 == 0) forward<4>(args);
    else forward<1>(args);
}

// The same for channels that runs of 16 bytes divide.
KERNEL(conv_forward_wide, Forward, 256, 2) {
    BY_TYPE(args.y.type, forward<RUN_LENGTH<TYPE>>(Forward{of_type<TYPE>(args.call), Array{args.y.data, TYPE}}))
}

struct Backward {
    Call call;
    Array dy, dfinal, dx, dstate;  // dfinal may be null

    template <u32 N> __device__ __forceinline__ void stretch(const Range& range, u64 row, u64 channel) const {
        Run<N> taps[TAPS], seen[STRETCH + TAPS - 1];
        load_taps(taps, call, channel);
#pragma unroll
        for (u32 r = 0; r < STRETCH + TAPS - 1; r++) {
            bool inside = row + r < range.start + range.length;
            seen[r] = load_run_if<N>(inside, dy, (row + r) * call.channels + channel);
        }
#pragma unroll
        for (u32 r = 0; r < STRETCH; r++) {
            Run<N> sum = {};
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) add_product(sum, taps[j], seen[r + TAPS - 1 - j]);
            store_run<N>(dx, (row + r) * call.channels + channel, sum);
        }
    }
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
        // The last rows also have what came through the final state.
        bool inner = !args.dfinal.data || row + STRETCH + TAPS - 1 <= range.start + range.length;
        if (inner && whole(call, range, row)) {
            args.template stretch<N>(range, row, channel);
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

template <u32 TYPE> __device__ __forceinline__ Backward of_type(Backward args) {
    args.call = of_type<TYPE>(args.call);
    args.dy.type = args.dfinal.type = args.dx.type = TYPE;
    return args;
}

KERNEL(conv_dx_wide, Backward, 256, 2) { BY_TYPE(args.dx.type, backward<RUN_LENGTH<TYPE>>(of_type<TYPE>(args))) }

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

// Channels, rows in front of one another, and rows each, of a block of `conv_dweight_taps`.
const u32 ACROSS = 32, DOWN = 8, SEGMENT = 16;
// Rows that are asked for at once.
const u32 BATCH = 4;

// terms[j] += sum over BATCH rows of dy[row] input[row + j]; rows from `end` on are none.
template <u32 N>
__device__ __forceinline__ void add_batch(Run<N> (&terms)[TAPS], const Weights& args, Range& range, u64 row, u64 end, u64 channel) {
    const Call& call = args.call;
    if (row + BATCH <= range.start + range.length && row + BATCH <= end) {
        Run<N> seen[BATCH + TAPS - 1], dy[BATCH];
#pragma unroll
        for (u32 r = 0; r < BATCH + TAPS - 1; r++) seen[r] = input<N>(call, range, row - range.start + r, channel);
#pragma unroll
        for (u32 r = 0; r < BATCH; r++) dy[r] = load_run<N>(args.dy, (row + r) * call.channels + channel);
#pragma unroll
        for (u32 r = 0; r < BATCH; r++)
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) add_product(terms[j], dy[r], seen[r + j]);
        return;
    }
    for (u64 stop = row + BATCH < end ? row + BATCH : end; row < stop; row++) {
        if (row == range.start + range.length) range = sequence(call, range.n + 1);
        Run<N> dy = load_run<N>(args.dy, row * call.channels + channel);
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) add_product(terms[j], dy, input<N>(call, range, row - range.start + j, channel));
    }
}

// The sums of SEGMENT rows from `row` on.
template <u32 N> __device__ __forceinline__ void add_segment(Run<N> (&terms)[TAPS], const Weights& args, u64 row, u64 last, u64 channel) {
    u64 end = row + SEGMENT < last ? row + SEGMENT : last;
    if (row >= end) return;
    Range range = owner(args.call, row);
    for (; row < end; row += BATCH) {
        if (row == range.start + range.length) range = sequence(args.call, range.n + 1);
        add_batch<N>(terms, args, range, row, end, channel);
    }
}

// As above for TAPS taps and channels that runs divide: block x has ACROSS runs of channels, block y is a part. A thread
// sums for all taps of a run over SEGMENT rows; warp `n` then adds up channel `n` of the runs over the block's threads.
template <u32 N> __device__ __forceinline__ void dweight_taps(const Weights& args, float (&shared)[DOWN][TAPS][8][ACROSS]) {
    u32 lane = threadIdx.x % ACROSS, warp = threadIdx.x / ACROSS;
    u64 channel = ((u64)blockIdx.x * ACROSS + lane) * N, first = blockIdx.y * args.length;
    u64 last = first + args.length < args.call.rows ? first + args.length : args.call.rows;
    bool inside = channel < args.call.channels;
    double sums[TAPS] = {};
    for (; first < last; first += DOWN * SEGMENT) {
        Run<N> terms[TAPS] = {};
        if (inside) add_segment<N>(terms, args, first + warp * SEGMENT, last, channel);
#pragma unroll
        for (u32 j = 0; j < TAPS; j++)
#pragma unroll
            for (u32 n = 0; n < N; n++) shared[warp][j][n][lane] = terms[j].x[n];
        __syncthreads();
        for (u32 other = 0; warp < N && other < DOWN; other++)
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) sums[j] += shared[other][j][warp][lane];
        __syncthreads();
    }
    if (!inside || warp >= N) return;
    float* parts = args.parts + (blockIdx.y * args.call.channels + channel + warp) * TAPS;
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) parts[j] = (float)sums[j];
}

template <u32 TYPE> __device__ __forceinline__ Weights of_type(Weights args) {
    args.call = of_type<TYPE>(args.call);
    args.dy.type = TYPE;
    return args;
}

KERNEL(conv_dweight_taps, Weights, 256, 2) {
    __shared__ float shared[DOWN][TAPS][8][ACROSS];
    BY_TYPE(args.dy.type, dweight_taps<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
}
