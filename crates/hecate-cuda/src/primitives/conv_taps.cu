// Short causal convolution with four taps, SiLU and the length of heads in one. A thread keeps what it needs of the rows
// before, so that every array is read once. Control flow is one in a whole warp but for its reads and writes: lanes that
// have nothing to do follow, since heads are summed over neighbouring lanes.
#include "conv.cuh"

// And rows that are kept, one more than the state has: row `i` of those that follow each other stands in place `i % TAPS`.
const u32 TAPS = 4;

// All taps of neighbouring channels; those of a channel are a run.
// `taps[j]` has tap j of N channels.
template <u32 N> __device__ __forceinline__ void load_taps(Run<N> (&taps)[TAPS], const ConvCall& call, u64 channel) {
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        Run<TAPS> run = load_run<TAPS>(call.weight, (channel + n) * TAPS);
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) taps[j].x[n] = run.x[j];
    }
}

// u of the row in place `newest`, which is known while compiling.
template <u32 N>
__device__ __forceinline__ Run<N> sum_of(const Run<N> (&taps)[TAPS], const Run<N> (&rows)[TAPS], u32 newest) {
    Run<N> u = {};
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) add_product(u, taps[j], rows[(newest + 1 + j) % TAPS]);
    return u;
}

// The three rows before row `i` of a sequence, which is to stand in place `newest`.
template <u32 N>
__device__ __forceinline__ void load_before(
    Run<N> (&rows)[TAPS], const ConvCall& call, const Range& range, u64 i, u64 channel, u32 newest
) {
#pragma unroll
    for (u32 j = 0; j < TAPS - 1; j++) rows[(newest + 1 + j) % TAPS] = input<N>(call, range, i + j, channel);
}

// σ(x), by which SiLU lets x through, and σ(−x).
template <u32 TYPE> __device__ __forceinline__ Sides let_through(float x) {
    if constexpr (TYPE == 0) return sides(x);
    // 16 bits are left of the result: four instructions are enough.
    const float up = short_sigmoid(x);
    return Sides{up, 1.0f - up};
}

// Σ x y over a head, in each of its lanes, which are neighbours; all lanes of a warp call it.
template <u32 N> __device__ __forceinline__ float over_head(const ConvCall& call, const Run<N>& x, const Run<N>& y) {
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += x.x[n] * y.x[n];
    // Without branches, after each of which a warp would have to gather.
#pragma unroll
    for (u32 mask = 1; mask < 32; mask *= 2) {
        const float other = shuffle_xor(sum, mask);
        sum += mask < call.l2_norm / N ? other : 0.0f;
    }
    return sum;
}

// y [rows, D]; a thread has a run of 16 bytes of channels in ROWS_PER_THREAD rows.
struct Forward {
    ConvCall call;
    Array y;
};

// Rows that are asked for before they are needed.
const u32 AHEAD = 4;

// Neighbouring channels of a run of ROWS_PER_THREAD rows. L2_NORM: heads are brought to length 1.
template <u32 TYPE, bool L2_NORM> __device__ __forceinline__ void forward(const Forward& args) {
    constexpr u32 N = RUN_LENGTH<TYPE>;
    const ConvCall& call = args.call;
    // Runs of a row, and work items of all rows.
    const u64 across = call.channels / N, count = (call.rows + ROWS_PER_THREAD - 1) / ROWS_PER_THREAD * across;
    const u32 lane = threadIdx.x % 32;
    for (u64 first = grid_thread() - lane; first < count; first += grid_threads()) {
        // Lanes past the end take the first item and write nothing.
        const Place at = place(first + lane < count ? first + lane : 0, across);
        const u64 row = at.row * ROWS_PER_THREAD, channel = at.column * N, start = row * across + at.column;
        const u64 left = call.rows - row;
        const u32 rows = first + lane >= count ? 0 : left < ROWS_PER_THREAD ? (u32)left : ROWS_PER_THREAD;
        // Inputs on their way: AHEAD rows are asked for before the first is needed.
        Bits<TYPE, N> next[AHEAD];
        const auto ask = [&](u32 r) {
            next[r % AHEAD] = ((const Bits<TYPE, N>*)call.x.data)[start + (r < rows ? r * across : 0)];
        };
#pragma unroll
        for (u32 r = 0; r < AHEAD; r++) ask(r);
        Run<N> taps[TAPS], x[TAPS];
        load_taps(taps, call, channel);
        // The three inputs before the first row: of the same sequence, or of its state.
        Range range = owner(call, row);
        load_before(x, call, range, row - range.start, channel, 0);
#pragma unroll
        for (u32 r = 0; r < ROWS_PER_THREAD; r++) {
            // A new sequence begins: its state is in front.
            if (r < rows && row + r == range.start + range.length) {
                range = sequence(call, range.n + 1);
                load_before(x, call, range, 0, channel, r);
            }
            x[r % TAPS] = run_of<N, TYPE>(next[r % AHEAD]);
            if (r + AHEAD < ROWS_PER_THREAD) ask(r + AHEAD);
            Run<N> y = sum_of(taps, x, r);
            if (call.silu) {
#pragma unroll
                for (u32 n = 0; n < N; n++) y.x[n] *= let_through<TYPE>(y.x[n]).up;
            }
            if constexpr (L2_NORM) {
                // Lanes of a head are neighbours; all lanes of the warp come here.
                const float inverse = rsqrtf(over_head(call, y, y) + call.square);
#pragma unroll
                for (u32 n = 0; n < N; n++) y.x[n] *= inverse;
            }
            if (r < rows) store_run<N>(Array{args.y.data, TYPE}, (start + r * across) * N, y);
        }
    }
}

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ ConvCall of_type(ConvCall call) {
    call.x.type = call.weight.type = call.state.type = TYPE;
    return call;
}

// Channels that runs of 16 bytes divide.
KERNEL(conv_forward_taps, Forward, 256, 2) {
    BY_TYPE(args.y.type, forward<TYPE, false>(Forward{of_type<TYPE>(args.call), args.y}))
}

// The same, heads brought to length 1.
KERNEL(conv_forward_l2_norm, Forward, 256, 2) {
    BY_TYPE(args.y.type, forward<TYPE, true>(Forward{of_type<TYPE>(args.call), args.y}))
}

// Most convolutions of one launch; `MOST_EACH` in `conv.rs`.
#define MOST_EACH 4

// Several over the same rows: block y is of one of them.
struct ForwardEach {
    Forward each[MOST_EACH];
};
// Computes several convolutions of the same rows at once, each with its own weights.
KERNEL(conv_forward_each, ForwardEach, 256, 2) {
    const Forward& of = args.each[blockIdx.y];
    BY_TYPE(of.y.type,
        if (of.call.l2_norm) forward<TYPE, true>(Forward{of_type<TYPE>(of.call), of.y});
        else forward<TYPE, false>(Forward{of_type<TYPE>(of.call), of.y}))
}

// All gradients at once, of channels that runs of four divide: rows and dy are read once, and the gradient of u is nowhere.
// Block x has ACROSS runs of channels, block y is a part of the rows. A warp goes through a segment of these, TAPS at a time,
// with as many more of du as its last rows need.
// Lanes of a warp, warps of a block, most rows of a warp at a time; parts of a short call have shorter segments.
const u32 ACROSS = 32, DOWN = 8, SEGMENT = 25;
static_assert((SEGMENT + TAPS - 1) % TAPS == 0, "no row is for nothing");

// Arrays as in the forward: dy and dx [rows, D], dfinal and dstate [N, 3, D].
struct Gradients {
    ConvCall call;
    // `dfinal` may be null
    Array dy, dfinal, dx, dstate;
    // Of dweight: [number, D, TAPS]
    float* parts;
    // Rows of a part
    u64 length;
};

// A warp's rows of one sequence, `row` to `stop`; the sequence begins at `start` and ends at `end`.
template <u32 TYPE, bool L2_NORM> struct Rows {
    static constexpr u32 N = 4, AHEAD = TYPE == 0 ? 2 : 4;
    const Gradients& args;
    u32 n, start, end, row, stop;
    // Runs of a row
    u32 across;
    // The lane has channels
    bool inside;
    u32 channel;
    // Rows that come, as they lie in memory; and inputs and gradients of u that are kept.
    Bits<TYPE, N> next_x[AHEAD], next_dy[AHEAD];
    Run<N> x[TAPS], du[TAPS];

    // The last row stands for those after it.
    __device__ __forceinline__ void ask(u32 b, u32 at) {
        const u64 i = (u64)(at < end ? at : end - 1) * across + channel / N;
        next_x[b % AHEAD] = ((const Bits<TYPE, N>*)args.call.x.data)[i];
        next_dy[b % AHEAD] = ((const Bits<TYPE, N>*)args.dy.data)[i];
    }
    // dy of the row in place `b` becomes the gradient of u.
    __device__ __forceinline__ void through(const Run<N> (&taps)[TAPS], u32 b) {
        const ConvCall& call = args.call;
        // du is dy itself.
        if (!L2_NORM && !call.silu) return;
        Run<N> s = sum_of(taps, x, b), slope;
        if (call.silu) {
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const Sides at = let_through<TYPE>(s.x[n]);
                slope.x[n] = at.up * (1.0f + s.x[n] * at.down);
                s.x[n] *= at.up;
            }
        }
        if constexpr (L2_NORM) {
            // Back through the length: du = r (dy − s r² ⟨s, dy⟩).
            const float r = rsqrtf(over_head(call, s, s) + call.square), along = r * over_head(call, s, du[b]) * r;
#pragma unroll
            for (u32 n = 0; n < N; n++) du[b].x[n] = r * (du[b].x[n] - along * s.x[n]);
        }
        if (call.silu) {
#pragma unroll
            for (u32 n = 0; n < N; n++) du[b].x[n] *= slope.x[n];
        }
    }
    // The gradient by the input TAPS - 1 rows before `at`, or by the state's row there. Nothing that is before these rows is
    // theirs, but what is before all rows.
    __device__ __forceinline__ void write(Run<N> grad, u32 at) const {
        const u32 kept = n * (TAPS - 1), token = at - (row + TAPS - 1);
        // Whether the gradient belongs to one of the warp's rows, or to the state in front of them.
        const bool own = token < stop - row, state = row == start && at < row + TAPS - 1;
        if (!inside || !own && !state) return;
        if (args.dfinal.data && at >= end) {
            const Run<N> more = load_run<N>(args.dfinal, (u64)(kept + at - end) * args.call.channels + channel);
#pragma unroll
            for (u32 i = 0; i < N; i++) grad.x[i] += more.x[i];
        }
        const Array& to = own ? args.dx : args.dstate;
        store_run<N>(to, ((u64)(own ? row + token : kept + at - start) * across + channel / N) * N, grad);
    }
    // Goes through the rows: du of each, then dx and dweight, of which the last four of du and x are enough.
    __device__ __forceinline__ void add(const Run<N> (&taps)[TAPS], Run<N> (&terms)[TAPS]) {
#pragma unroll
        for (u32 b = 0; b < AHEAD; b++) ask(b, row + b);
#pragma unroll
        for (u32 b = 0; b < TAPS; b++) du[b] = Run<N>{};
        load_before(x, args.call, Range{n, start, end - start}, row - start, channel, 0);
#pragma unroll 1
        for (u32 first = row; first < stop + TAPS - 1; first += TAPS) {
#pragma unroll
            for (u32 b = 0; b < TAPS; b++) {
                const u32 at = first + b;
                x[b] = run_of<N, TYPE>(next_x[b % AHEAD]), du[b] = run_of<N, TYPE>(next_dy[b % AHEAD]);
                ask(b, at + AHEAD);
                through(taps, b);
                // There is none after the sequence.
                if (at >= end) du[b] = Run<N>{};
                Run<N> grad = {};
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) add_product(grad, taps[j], du[(b + TAPS - j) % TAPS]);
                if (at < stop) {
#pragma unroll
                    for (u32 j = 0; j < TAPS; j++) add_product(terms[j], du[b], x[(b + 1 + j) % TAPS]);
                }
                write(grad, at);
            }
        }
    }
};

// Warp `n` adds up dweight of channel `n` of the runs over the block's threads.
template <u32 TYPE, bool L2_NORM>
__device__ __forceinline__ void gradients(const Gradients& args, float (&shared)[DOWN][TAPS][4][ACROSS]) {
    constexpr u32 N = 4;
    const ConvCall& call = args.call;
    u32 lane = threadIdx.x % ACROSS, warp = threadIdx.x / ACROSS;
    u32 across = call.channels / N, channel = (blockIdx.x * ACROSS + lane) * N;
    // Rows of the part.
    u64 first = blockIdx.y * args.length;
    u64 last = first + args.length < call.rows ? first + args.length : call.rows;
    const bool inside = channel < call.channels;
    if (!inside) channel = 0;
    Run<N> taps[TAPS];
    load_taps(taps, call, channel);
    // dweight of one channel; a warp's 25 rows run in 32 bits, all else in 64.
    double sums[TAPS] = {};
    const u32 segment = args.length < DOWN * SEGMENT ? (u32)args.length / DOWN : SEGMENT;
    for (; first < last; first += DOWN * segment) {
        Run<N> terms[TAPS] = {};
        // Warps take segments in turn, and a segment is cut where sequences end.
        u32 row = first + warp * segment, end = row + segment < last ? row + segment : last;
        while (row < end) {
            Range range = owner(call, row);
            u32 start = range.start, sequence_end = start + range.length, stop = sequence_end < end ? sequence_end : end;
            Rows<TYPE, L2_NORM>{args, (u32)range.n, start, sequence_end, row, stop, across, inside, channel}.add(taps, terms);
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

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ Gradients of_type(Gradients args) {
    args.call = of_type<TYPE>(args.call);
    args.dy.type = args.dfinal.type = args.dx.type = args.dstate.type = TYPE;
    return args;
}

// Shared memory has dweight of every warp and tap, by channel and lane.
KERNEL(conv_gradients, Gradients, 256, 2) {
    __shared__ float shared[DOWN][TAPS][4][ACROSS];
    BY_TYPE(args.dy.type, gradients<TYPE, false>(of_type<TYPE>(args), shared))
}

// The same, through the length of heads.
KERNEL(conv_gradients_l2_norm, Gradients, 256, 2) {
    __shared__ float shared[DOWN][TAPS][4][ACROSS];
    BY_TYPE(args.dy.type, gradients<TYPE, true>(of_type<TYPE>(args), shared))
}

// Several over the same rows: block z is of one of them.
struct GradientsEach {
    Gradients each[MOST_EACH];
};
// Two blocks a multiprocessor leave too few registers for both forms on GPUs before 9.0.
#if __CUDA_ARCH__ >= 900
#define EACH_BLOCKS 2
#else
#define EACH_BLOCKS 1
#endif
// Takes back several convolutions of the same rows at once; block z is of one of them.
KERNEL(conv_gradients_each, GradientsEach, 256, EACH_BLOCKS) {
    __shared__ float shared[DOWN][TAPS][4][ACROSS];
    const Gradients& of = args.each[blockIdx.z];
    // Others may have more channels.
    if (blockIdx.x * ACROSS * 4 >= of.call.channels) return;
    BY_TYPE(of.dy.type,
        if (of.call.l2_norm) gradients<TYPE, true>(of_type<TYPE>(of), shared);
        else gradients<TYPE, false>(of_type<TYPE>(of), shared))
}
