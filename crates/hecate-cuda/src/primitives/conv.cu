// Short causal convolution, each channel by itself. In every sequence, rows 0..W-1 are the state's, then come the
// tokens: u[t, d] = sum over j of weight[d, j] row[t + j, d], s is u, or SiLU of it, and y is s, or heads of it divided by
// their length.
#include "hecate.cuh"
#include "maps.cuh"

struct Call {
    Array x, weight, state;  // [rows, D], [D, W], [N, W-1, D]
    const u32* starts;       // [N + 1]
    u64 rows, channels;
    u32 sequences, width;
    u32 silu, unit;  // channels of a head that is brought to length 1, a power of two of runs
    float epsilon;
    u32 unused;
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

// u of a row.
template <u32 N> __device__ __forceinline__ Run<N> sum_of(const Call& call, const Range& range, u64 row, u64 channel) {
    Run<N> u = {};
    for (u32 j = 0; j < call.width; j++)
        add_product(u, tap<N>(call, channel, j), input<N>(call, range, row - range.start + j, channel));
    return u;
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

template <u32 N> __device__ __forceinline__ Run<N> activated(const Call& call, Run<N> u) {
#pragma unroll
    for (u32 n = 0; n < N; n++) u.x[n] = call.silu ? silu(u.x[n]) : u.x[n];
    return u;
}

// Σ x y over a head, in each of its threads, which are neighbours; those of other heads may be elsewhere.
template <u32 N> __device__ __forceinline__ float over_head(const Call& call, const Run<N>& x, const Run<N>& y) {
    const u32 lanes = call.unit / N, first = threadIdx.x % 32 / lanes * lanes;
    const u32 members = lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1) << first;
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += x.x[n] * y.x[n];
    for (u32 mask = 1; mask < lanes; mask *= 2) sum += __shfl_xor_sync(members, sum, mask);
    return sum;
}
template <u32 N> __device__ __forceinline__ float reciprocal_length(const Call& call, const Run<N>& s) {
    return 1.0f / hypotf(sqrtf(over_head(call, s, s)), call.epsilon);
}

// y of u. UNIT: heads are brought to length 1.
template <bool UNIT, u32 N> __device__ __forceinline__ Run<N> behind(const Call& call, const Run<N>& u) {
    Run<N> s = activated(call, u);
    if constexpr (UNIT) {
        const float r = reciprocal_length(call, s);
#pragma unroll
        for (u32 n = 0; n < N; n++) s.x[n] *= r;
    }
    return s;
}
// dy becomes the gradient of u.
template <bool UNIT, u32 N> __device__ __forceinline__ void through(const Call& call, Run<N>& dy, const Run<N>& u) {
    if constexpr (UNIT) {
        const Run<N> s = activated(call, u);
        const float r = reciprocal_length(call, s), along = r * over_head(call, s, dy) * r;
#pragma unroll
        for (u32 n = 0; n < N; n++) dy.x[n] = r * (dy.x[n] - along * s.x[n]);
    }
    if (call.silu) {
#pragma unroll
        for (u32 n = 0; n < N; n++) dy.x[n] *= silu_slope(u.x[n]);
    }
}

struct Forward {
    Call call;
    Array y;

    // ROWS at a time, for which there are registers.
    template <u32 N, bool UNIT, u32 ROWS> __device__ __forceinline__ void stretch(const Range& range, u64 row, u64 channel) const {
        Run<N> taps[TAPS], seen[ROWS + TAPS - 1];
        load_taps(taps, call, channel);
        const u64 end = row + STRETCH;
#pragma unroll 1
        for (; row < end; row += ROWS) {
#pragma unroll
            for (u32 r = 0; r < ROWS + TAPS - 1; r++) seen[r] = input<N>(call, range, row - range.start + r, channel);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                Run<N> sum = {};
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) add_product(sum, taps[j], seen[r + j]);
                store_run<N>(y, (row + r) * call.channels + channel, behind<UNIT>(call, sum));
            }
        }
    }
};

// Neighbouring channels of a stretch of rows.
template <u32 N, bool UNIT = false> __device__ __forceinline__ void forward(const Forward& args) {
    const Call& call = args.call;
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        if (whole(call, range, row)) {
            args.template stretch<N, UNIT, UNIT ? STRETCH / 2 : STRETCH>(range, row, channel);
            continue;
        }
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            store_run<N>(args.y, row * call.channels + channel, behind<UNIT>(call, sum_of<N>(call, range, row, channel)));
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

// The same for channels that runs of 16 bytes divide, and for heads of them.
KERNEL(conv_forward_wide, Forward, 256, 2) {
    BY_TYPE(args.y.type, forward<RUN_LENGTH<TYPE>>(Forward{of_type<TYPE>(args.call), Array{args.y.data, TYPE}}))
}

KERNEL(conv_forward_unit, Forward, 256, 2) {
    BY_TYPE(args.y.type, forward<RUN_LENGTH<TYPE>, true>(Forward{of_type<TYPE>(args.call), Array{args.y.data, TYPE}}))
}

// Any number of taps: first the gradient of u, in 32 bits, where SiLU stands behind it. Heads keep their length here.
struct Through {
    Call call;
    Array dy, du;  // [rows, D]
};

template <u32 N> __device__ __forceinline__ void all_through(const Through& args) {
    const Call& call = args.call;
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
        for (; row < end; row++) {
            if (row == range.start + range.length) range = sequence(call, range.n + 1);
            u64 at = row * call.channels + channel;
            Run<N> du = load_run<N>(args.dy, at);
            through<false>(call, du, sum_of<N>(call, range, row, channel));
            store_run<N>(args.du, at, du);
        }
    }
}

KERNEL(conv_through, Through, 256) {
    if (args.call.channels % 4 == 0) all_through<4>(args);
    else all_through<1>(args);
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
    u64 across = call.channels / N, count = (call.rows + STRETCH - 1) / STRETCH * across;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, across);
        u64 channel = at.column * N, row = at.row * STRETCH;
        u64 end = row + STRETCH < call.rows ? row + STRETCH : call.rows;
        Range range = owner(call, row);
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

// TAPS taps, and channels that runs of four divide: all gradients at once, so that rows and dy are read once and the gradient
// of u is nowhere. Block x has ACROSS runs of channels, block y is a part of the rows, and a thread goes through SEGMENT of
// these, BATCH at a time, with as many more of du as its last rows need.
const u32 ACROSS = 32, DOWN = 8, SEGMENT = 25;

struct Gradients {
    Call call;
    Array dy, dfinal, dx, dstate;  // dfinal may be null
    float* parts;                  // of dweight: [number, D, TAPS]
    u64 length;                    // rows of a part
};

// A thread's rows of one sequence, `row` to `stop`; the sequence begins at `start` and ends at `end`.
template <u32 N, bool BEHIND, bool UNIT> struct Rows {
    static constexpr u32 BATCH = UNIT ? 2 : 4;
    static_assert((SEGMENT + TAPS - 1) % BATCH == 0, "no rows of a batch are for nothing");
    const Gradients& args;
    u32 n, start, end, row, stop;
    u64 channel;
    // Inputs and gradients of u, the last of those before and those of a batch.
    Run<N> x[TAPS - 1 + BATCH], du[TAPS - 1 + BATCH];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (u32 r = 0; r < TAPS - 1; r++) {
            x[r] = input<N>(args.call, Range{n, start, end - start}, row - start + r, channel);
            du[r] = Run<N>{};
        }
    }
    __device__ __forceinline__ void read(u32 first) {
        u64 at = first * args.call.channels + channel;
#pragma unroll
        for (u32 b = 0; b < BATCH; b++, at += args.call.channels) {
            bool inside = first + b < end;
            x[TAPS - 1 + b] = load_run_if<N>(inside, args.call.x, at);
            du[TAPS - 1 + b] = load_run_if<N>(inside, args.dy, at);
        }
    }
    // The gradient by the input W - 1 rows before `at`, or by the state's row there.
    __device__ __forceinline__ void write(Run<N> grad, u32 at) const {
        const u64 channels = args.call.channels, kept = (u64)n * (TAPS - 1);
        bool token = at >= row + TAPS - 1;
        // Nothing that is before these rows is theirs, but what is before all rows.
        if (at >= stop + TAPS - 1 || !token && row > start) return;
        if (args.dfinal.data && at >= end) {
            Run<N> more = load_run<N>(args.dfinal, (kept + at - end) * channels + channel);
#pragma unroll
            for (u32 i = 0; i < N; i++) grad.x[i] += more.x[i];
        }
        if (token) store_run<N>(args.dx, (at - (TAPS - 1)) * channels + channel, grad);
        else store_run<N>(args.dstate, (kept + at - start) * channels + channel, grad);
    }
    __device__ __forceinline__ void batch(const Run<N> (&taps)[TAPS], Run<N> (&terms)[TAPS], u32 first) {
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            if constexpr (BEHIND) {
                Run<N> u = {};
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) add_product(u, taps[j], x[b + j]);
                through<UNIT>(args.call, du[TAPS - 1 + b], u);
                // There is none behind the sequence, whatever the length of zeros.
                if (first + b >= end) du[TAPS - 1 + b] = Run<N>{};
            }
            Run<N> grad = {};
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) {
                if (first + b < stop) add_product(terms[j], du[TAPS - 1 + b], x[b + j]);
                add_product(grad, taps[j], du[TAPS - 1 + b - j]);
            }
            write(grad, first + b);
        }
#pragma unroll
        for (u32 r = 0; r < TAPS - 1; r++) x[r] = x[BATCH + r], du[r] = du[BATCH + r];
    }
    __device__ __forceinline__ void add(const Run<N> (&taps)[TAPS], Run<N> (&terms)[TAPS]) {
        begin();
#pragma unroll 1
        for (u32 first = row; first < stop + TAPS - 1; first += BATCH) {
            read(first);
            batch(taps, terms, first);
        }
    }
};

// Warp `n` adds up dweight of channel `n` of the runs over the block's threads.
template <u32 N, bool BEHIND, bool UNIT>
__device__ __forceinline__ void gradients(const Gradients& args, float (&shared)[DOWN][TAPS][N][ACROSS]) {
    const Call& call = args.call;
    u32 lane = threadIdx.x % ACROSS, warp = threadIdx.x / ACROSS;
    u64 channel = ((u64)blockIdx.x * ACROSS + lane) * N, first = blockIdx.y * args.length;
    u64 last = first + args.length < call.rows ? first + args.length : call.rows;
    bool inside = channel < call.channels;
    Run<N> taps[TAPS] = {};
    if (inside) load_taps(taps, call, channel);
    double sums[TAPS] = {};
    for (; first < last; first += DOWN * SEGMENT) {
        Run<N> terms[TAPS] = {};
        u32 row = first + warp * SEGMENT, end = row + SEGMENT < last ? row + SEGMENT : last;
        while (inside && row < end) {
            Range range = owner(call, row);
            u32 start = range.start, behind = start + range.length, stop = behind < end ? behind : end;
            Rows<N, BEHIND, UNIT>{args, (u32)range.n, start, behind, row, stop, channel}.add(taps, terms);
            row = stop;
        }
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
    float* parts = args.parts + (blockIdx.y * call.channels + channel + warp) * TAPS;
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) parts[j] = (float)sums[j];
}

template <u32 TYPE> __device__ __forceinline__ Gradients of_type(Gradients args) {
    args.call = of_type<TYPE>(args.call);
    args.dy.type = args.dfinal.type = args.dx.type = args.dstate.type = TYPE;
    return args;
}

KERNEL(conv_gradients, Gradients, 256, 2) {
    __shared__ float shared[DOWN][TAPS][4][ACROSS];
    BY_TYPE(args.dy.type,
            if (args.call.silu) gradients<4, true, false>(of_type<TYPE>(args), shared);
            else gradients<4, false, false>(of_type<TYPE>(args), shared);)
}

KERNEL(conv_gradients_unit, Gradients, 256, 2) {
    __shared__ float shared[DOWN][TAPS][4][ACROSS];
    BY_TYPE(args.dy.type, gradients<4, true, true>(of_type<TYPE>(args), shared))
}
