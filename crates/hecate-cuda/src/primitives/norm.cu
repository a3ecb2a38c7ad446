// Normalising rows `x [rows, width]`. A row belongs to `lanes` threads: of short ones a power of two up to a warp, else a
// warp or the whole block. A group of a row is a row here.
#include "follow.cuh"
#include "norm.cuh"

// y = x r w, r a number a row; `norm::NormCall` is its twin.
struct Normalise {
    // [rows, width] each, of one type
    Array x, y;
    // [rows, width], of kernels that add first: x + residual, which goes to `sum`, is normalised instead of x
    Array residual, sum;
    Scale scale;
    // A function of it is one more factor, of results or, in kernels that say so, of x
    Gate gate;
    // [rows]
    float* inverse;
    u64 rows, width;
    float epsilon;
    u32 lanes;
    // r = 1/√(|x|² + ε²) and y = x r, instead of r = 1/√(mean x² + ε) and y = x r w
    u32 l2;
};

// r of a row with this |x|²; the square of ε may be no 32-bit number.
__device__ __forceinline__ float inverse_of(const Normalise& args, float square) {
    return args.l2 ? 1.0f / hypotf(sqrtf(square), args.epsilon) : 1.0f / sqrtf(square / (float)args.width + args.epsilon);
}

// Long rows, N neighbours at a time: once for the sum, once for the result.
template <u32 N> __device__ __forceinline__ void normalise_rows(const Normalise& args) {
    // A sum a warp, for rows that have a whole block.
    __shared__ float shared[32];
    RowThread thread = row_thread(args.lanes);
    // Threads of a row have the same rows, so all of them reach the barriers of the sum.
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        u64 start = row * args.width;
        float square = 0.0f;
        // Lanes read side by side: whole lines of 128 bytes.
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Run<N> x = load_run<N>(args.x, start + i);
            square += dot(x, x);
        }
        float r = inverse_of(args, lanes_sum(square, args.lanes, shared));
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes) {
            Run<N> y = scaled(load_run<N>(args.x, start + i), r, args, row, i);
            store_run<N>(args.y, start + i, let_through(y, args.gate, start + i));
        }
        if (thread.index == 0) args.inverse[row] = r;
    }
}

// The sum over the threads of a kept row: some lanes of a warp, or a whole BLOCK.
template <bool BLOCK> __device__ __forceinline__ float kept_sum(float x, u32 lanes) {
    __shared__ float shared[BLOCK ? 32 : 1];
    if constexpr (BLOCK) return block_sum(x, shared);
    else return neighbours_sum(x, lanes);
}

// What becomes of rows before their norm: nothing, a residual is added, or they are times a function of the gate.
// It is known while compiling, since it takes registers that others can do without.
const u32 NOTHING = 0, ADDED = 1, GATED = 2;

// Rows that threads keep in registers: RUNS runs of ROWS rows each.
template <u32 N, u32 RUNS, u32 ROWS, bool BLOCK, u32 BEFORE> __device__ __forceinline__ void normalise_kept(const Normalise& args) {
    follow();
    // All reads are under way before the first sum.
    Run<N> x[ROWS][RUNS];
    keep(x, args, args.x);
    if constexpr (BEFORE == ADDED) add_residual(x, args);
    // A gate behind the norm is asked for now and read when the sums are there.
    if constexpr (BEFORE == GATED) open_rows(x, args);
    else ask_for_gate<N, RUNS, ROWS>(args);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        float square = 0.0f;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) square += dot(x[r][run], x[r][run]);
        // Outside there are zeros, which add nothing, so that all lanes take part in the shuffle.
        float inverse = inverse_of(args, kept_sum<BLOCK>(square, args.lanes));
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            if (!at.inside) continue;
            Run<N> y = scaled(x[r][run], inverse, args, at.row, at.column);
            u64 i = at.row * args.width + at.column;
            // Else the gate stands behind the norm.
            if constexpr (BEFORE != GATED) y = let_through(y, args.gate, i);
            store_run<N>(args.y, i, y);
            // Kept for the backward, by the thread that has the row's first run.
            if (at.column == 0) args.inverse[at.row] = inverse;
        }
    }
}

// With the type of all arrays known.
template <u32 TYPE> __device__ __forceinline__ Normalise of_type(Normalise args) {
    args.residual.type = args.sum.type = TYPE;
    args.x.type = args.y.type = args.scale.weight.type = args.gate.g.type = TYPE;
    return args;
}

// Rows of up to 32 runs of 16 bytes.
KERNEL(normalise_short, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 1, 2, false, NOTHING>(of_type<TYPE>(args)))
}

// Rows of up to 128 of them.
KERNEL(normalise_medium, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, false, NOTHING>(of_type<TYPE>(args)))
}

// Rows of up to four runs a thread of a block, which may have fewer threads than 256.
KERNEL(normalise_large, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, true, NOTHING>(of_type<TYPE>(args)))
}

// The same three of sums.
KERNEL(add_normalise_short, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 1, 2, false, ADDED>(of_type<TYPE>(args)))
}
KERNEL(add_normalise_medium, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, false, ADDED>(of_type<TYPE>(args)))
}
KERNEL(add_normalise_large, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, true, ADDED>(of_type<TYPE>(args)))
}

// The same three of what a gate lets through.
KERNEL(gated_normalise_short, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 1, 2, false, GATED>(of_type<TYPE>(args)))
}
KERNEL(gated_normalise_medium, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, false, GATED>(of_type<TYPE>(args)))
}
KERNEL(gated_normalise_large, Normalise, 256) {
    BY_TYPE(args.x.type, normalise_kept<RUN_LENGTH<TYPE>, 4, 1, true, GATED>(of_type<TYPE>(args)))
}

// Rows begin at multiples of four where their length is one.
KERNEL(normalise, Normalise, 256) {
    if (args.width % 4 == 0) normalise_rows<4>(args);
    else normalise_rows<1>(args);
}

// dx alone; `norm::NormBackwardCall` is its twin.
struct NormaliseBackward {
    Array x, dy, dx;
    Scale scale;
    // [rows]
    const float* inverse;
    u64 rows, width;
    // 1/width, or 1 for l2
    float share;
    u32 lanes;
    u32 l2;
};

// g = r w dy
template <u32 N> __device__ __forceinline__ Run<N> slope(const NormaliseBackward& args, float r, u64 row, u64 i) {
    return scaled(load_run<N>(args.dy, row * args.width + i), r, args, row, i);
}

// dx = g − x r² (x·g) share
template <u32 N> __device__ __forceinline__ Run<N> across(Run<N> g, const Run<N>& x, float along) {
#pragma unroll
    for (u32 n = 0; n < N; n++) g.x[n] -= along * x.x[n];
    return g;
}

// Long rows: x and dy are read twice, g is made twice.
template <u32 N> __device__ __forceinline__ void normalise_rows_backward(const NormaliseBackward& args) {
    __shared__ float shared[32];
    RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        u64 start = row * args.width;
        // x·g over the whole row.
        float r = args.inverse[row], sum = 0.0f;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes)
            sum += dot(load_run<N>(args.x, start + i), slope<N>(args, r, row, i));
        sum = lanes_sum(sum, args.lanes, shared);
        // r² (x·g) share: how much of x is taken off.
        float along = (r * sum) * r * args.share;
        for (u64 i = N * thread.index; i < args.width; i += N * args.lanes)
            store_run<N>(args.dx, start + i, across(slope<N>(args, r, row, i), load_run<N>(args.x, start + i), along));
    }
}

// Rows that threads keep: x and g stay in registers between sum and result.
template <u32 N, u32 RUNS, u32 ROWS>
__device__ __forceinline__ void normalise_kept_backward(const NormaliseBackward& args) {
    Run<N> x[ROWS][RUNS], g[ROWS][RUNS];
    float inverses[ROWS];
    keep(x, args, args.x);
    // Both rows are asked for before either is needed.
    keep(g, args, args.dy);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        u64 row = piece<N, ROWS>(args, r, 0).row;
        inverses[r] = row < args.rows ? args.inverse[row] : 0.0f;
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        float inverse = inverses[r], sum = 0.0f;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            if (!at.inside) continue;
            g[r][run] = scaled(g[r][run], inverse, args, at.row, at.column);
            sum += dot(x[r][run], g[r][run]);
        }
        sum = neighbours_sum(sum, args.lanes);
        float along = (inverse * sum) * inverse * args.share;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            Piece at = piece<N, ROWS>(args, r, run);
            // (x·g) has been taken off along x: dx lies across the row, but for ε.
            if (at.inside) store_run<N>(args.dx, at.row * args.width + at.column, across(g[r][run], x[r][run], along));
        }
    }
}

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ NormaliseBackward of_type(NormaliseBackward args) {
    args.x.type = args.dy.type = args.dx.type = args.scale.weight.type = TYPE;
    return args;
}

// The same as forward, by the length of rows, but for a block a row.
KERNEL(normalise_short_backward, NormaliseBackward, 256) {
    BY_TYPE(args.x.type, normalise_kept_backward<RUN_LENGTH<TYPE>, 1, 2>(of_type<TYPE>(args)))
}

// Rows of up to 128 runs.
KERNEL(normalise_medium_backward, NormaliseBackward, 256) {
    BY_TYPE(args.x.type, normalise_kept_backward<RUN_LENGTH<TYPE>, 4, 1>(of_type<TYPE>(args)))
}

// All other rows.
KERNEL(normalise_backward, NormaliseBackward, 256) {
    if (args.width % 4 == 0) normalise_rows_backward<4>(args);
    else normalise_rows_backward<1>(args);
}

// What a gate of rows that are long lets through, act(g) dy, and its own gradient, act'(g) x r w dy.
struct OpenGate {
    // [rows, width]
    Array x, dy, dg, through;
    Scale scale;
    Gate gate;
    const float* inverse;
    u64 rows, width;
};

// A thread has elements `grid_threads()` apart.
KERNEL(open_gate, OpenGate, 256) {
    u64 count = args.rows * args.width;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        Place at = place(i, args.width);
        float g = load(args.gate.g, i), dy = load(args.dy, i), w = weights<1>(args, at.row, at.column).x[0];
        store(args.through, i, dy * args.gate.value(g));
        store(args.dg, i, dy * args.gate.slope(g) * load(args.x, i) * args.inverse[at.row] * w);
    }
}

// All gradients at once of rows that threads keep: arrays are read once. A block goes through rows of one group, as many at once
// as it has threads for, and adds up its part of dweight.
struct NormaliseGradients {
    Array x, dy, dx;
    Scale scale;
    Gate gate;
    // [rows, width], or null: the gate's gradient; and what is added to dx
    Array dg, dsum;
    // [rows]
    const float* inverse;
    // Of dweight: [blocks, width] in 64 bits, or in 32 where a block has one row at a time. Groups take blocks in turn
    void* parts;
    u64 rows, width;
    u32 lanes;
};

// Where the gate stands, known while compiling: there is none, it is a factor of results, or a factor of x.
const u32 NOWHERE = 0, BEHIND = 1, IN_FRONT = 2;

// What a run gives to its gradients. With u, which is normalised, and d, the gradient of u r w: s = r w d and the terms of
// dweight, u r d.
template <u32 N> struct Slopes {
    Run<N> s, terms;
    // Of a gate behind its gradient; of one in front act'(g), and act(g).
    Run<N> gate, act;
};

// u of a run: x, or what a gate in front lets through of it.
template <u32 GATE, u32 N> __device__ __forceinline__ Run<N> normed(Run<N> x, const Slopes<N>& of) {
    if constexpr (GATE == IN_FRONT) {
#pragma unroll
        for (u32 n = 0; n < N; n++) x.x[n] *= of.act.x[n];
    }
    return x;
}

// Of x, dy and g as 32-bit floats. Parts that a pass does not look at are not made: all is inlined.
template <u32 GATE, u32 N>
__device__ __forceinline__ Slopes<N> slopes(
    const NormaliseGradients& args, const Run<N>& x, const Run<N>& dy, const Run<N>& g, float r, u64 row, u32 column
) {
    // Those of the row's group, out of the cache.
    const Run<N> w = weights<N>(args, row, column);
    Slopes<N> of;
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        float u = x.x[n], d = dy.x[n];
        // y = u r w act(g): the gate's gradient wants dy itself, all others what it lets through.
        if constexpr (GATE == BEHIND) {
            of.gate.x[n] = d * args.gate.slope(g.x[n]) * (u * r * w.x[n]);
            d *= args.gate.value(g.x[n]);
        }
        // u is made as the forward made it, and not rounded in between.
        if constexpr (GATE == IN_FRONT) {
            of.gate.x[n] = args.gate.slope(g.x[n]), of.act.x[n] = args.gate.value(g.x[n]);
            u *= of.act.x[n];
        }
        of.terms.x[n] = u * r * d;
        of.s.x[n] = d * (r * w.x[n]);
    }
    return of;
}

// dx of a run, s − u r² (u·s) share, and what it gives to dg. Where the gate stands in front that is du, and nothing is added.
template <u32 GATE, u32 N>
__device__ __forceinline__ void put(const NormaliseGradients& args, const Run<N>& x, const Slopes<N>& of, float along, u64 at) {
    Run<N> dx = across(of.s, normed<GATE>(x, of), along), dg = of.gate;
    // It does not wait for the sum; written here, it leaves registers to the first pass.
    if constexpr (GATE == BEHIND) store_run<N>(args.dg, at, dg);
    // Both factors of u get their part of du.
    if constexpr (GATE == IN_FRONT) {
#pragma unroll
        for (u32 n = 0; n < N; n++) dg.x[n] *= dx.x[n] * x.x[n], dx.x[n] *= of.act.x[n];
    } else if (args.dsum.data) {
        const Run<N> dsum = load_run<N>(args.dsum, at);
#pragma unroll
        for (u32 n = 0; n < N; n++) dx.x[n] += dsum.x[n];
    }
    if constexpr (GATE == IN_FRONT) store_run<N>(args.dg, at, dg);
    store_run<N>(args.dx, at, dx);
}

// A thread's part of dweight. ASIDE it is in shared memory, which has room for 256 threads: registers do not hold it beside all
// that a gate takes.
template <u32 N, u32 RUNS, bool ASIDE> struct Part {
    Run<N> own[RUNS];
    float* shared;

    // Four neighbours, beside those of the next thread: a warp reads whole lines, without conflicts of banks.
    __device__ __forceinline__ float4& four(u32 n) { return ((float4*)shared)[n / 4 * 256 + threadIdx.x]; }

    // A thread looks at its own part alone, so there is no barrier.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) own[run] = {};
        if constexpr (ASIDE) {
#pragma unroll
            for (u32 n = 0; n < N * RUNS; n += 4) four(n) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }

    // Rows one after another, in 32 bits.
    __device__ __forceinline__ void add(u32 run, const Run<N>& terms) {
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            float* at = ASIDE ? &four(run * N + n).x : &own[run].x[n];
#pragma unroll
            for (u32 i = 0; i < 4; i++) at[i] += terms.x[n + i];
        }
    }

    // Brings it back to registers, which are free by then: sums over the block go through all of `shared`.
    __device__ __forceinline__ void fetch() {
        if constexpr (ASIDE) {
#pragma unroll
            for (u32 n = 0; n < N * RUNS; n += 4) {
                const float4 sum = four(n);
                float* at = &own[n / N].x[n % N];
                at[0] = sum.x, at[1] = sum.y, at[2] = sum.z, at[3] = sum.w;
            }
        }
    }
};

// A block has `together` rows at a time, of one group, and keeps its part of dweight, RUNS runs a thread, until it went through
// all of them. A BLOCK that has one row has its columns apart. Else `shared` takes them, an element a thread and place.
template <u32 TYPE, u32 RUNS, bool BLOCK, u32 GATE>
__device__ __forceinline__ void gradients(const NormaliseGradients& args, float* shared) {
    constexpr u32 N = RUN_LENGTH<TYPE>;
    // Registers hold what two runs give from the sum to the result; of more it is made again.
    constexpr bool KEPT = RUNS <= 2;
    // Rows that take four runs have a warp or 256 threads: from run to run addresses differ by what is known while compiling.
    const u32 lanes = RUNS < 4 ? args.lanes : BLOCK ? 256 : 32;
    const u32 together = blockDim.x / lanes, lane = threadIdx.x % lanes;
    // Of the mean square.
    const float share = 1.0f / (float)args.width;
    // Blocks beside each other have groups beside each other, and so read whole lines of narrow ones together.
    const u32 groups = args.scale.groups, group = blockIdx.x % groups;
    Part<N, RUNS, (GATE != NOWHERE && N * RUNS > 16)> dw;
    dw.shared = shared, dw.clear();
    // All threads of a warp go through as many rows, so that shuffles have all lanes.
    for (u64 first = (u64)(blockIdx.x - group) * together + group; first < args.rows; first += (u64)gridDim.x * together) {
        // A thread's row of this step, and where it begins.
        const u64 row = first + (u64)(threadIdx.x / lanes) * groups, start = row * args.width;
        const auto inside = [&](u32 column) { return row < args.rows && column < args.width; };
        // As they lie in memory, which takes half the registers.
        uint4 x[RUNS], dy[RUNS], g[RUNS] = {};
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * lanes + lane);
            const u64 at = inside(column) ? (start + column) / N : 0;
            x[run] = ((const uint4*)args.x.data)[at], dy[run] = ((const uint4*)args.dy.data)[at];
            if constexpr (GATE != NOWHERE) g[run] = ((const uint4*)args.gate.g.data)[at];
            // The same columns of the block's next row.
            if (BLOCK) ask_for_next<GATE != NOWHERE>(args, row + gridDim.x, column);
        }
        const float r = row < args.rows ? args.inverse[row] : 0.0f;
        // What a run gives, of its bits.
        const auto made = [&](u32 run, u32 column) {
            const Run<N> own = run_of<N, TYPE>(x[run]), slope = run_of<N, TYPE>(dy[run]);
            return slopes<GATE>(args, own, slope, run_of<N, TYPE>(g[run]), r, row, column);
        };
        // u·s over the row, and terms of dweight.
        float sum = 0.0f;
        Slopes<N> kept[RUNS];
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * lanes + lane);
            if (!inside(column)) continue;
            kept[run] = made(run, column);
            dw.add(run, kept[run].terms);
            sum += dot(normed<GATE>(run_of<N, TYPE>(x[run]), kept[run]), kept[run].s);
        }
        sum = kept_sum<BLOCK>(sum, lanes);
        const float along = (r * sum) * r * share;
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            const u32 column = N * (run * lanes + lane);
            if (!inside(column)) continue;
            if constexpr (!KEPT) kept[run] = made(run, column);
            // Results are rounded once, here.
            put<GATE>(args, run_of<N, TYPE>(x[run]), kept[run], along, start + column);
        }
    }
    dw.fetch();
    // Block b has group b % groups: parts [blocks, width] are [blocks / groups, groups width] as well.
    const u64 part = blockIdx.x * args.width;
    if constexpr (BLOCK) put_rows(dw.own, lanes, args.width, (float*)args.parts + part);
    else add_up_rows(dw.own, lanes, args.width, shared, (double*)args.parts + part);
}

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ NormaliseGradients of_type(NormaliseGradients args) {
    args.x.type = args.dy.type = args.dx.type = args.scale.weight.type = args.gate.g.type = args.dg.type = args.dsum.type = TYPE;
    return args;
}

// Of rows of up to 32 runs; dweight takes 8 KiB of shared memory.
template <u32 GATE> __device__ __forceinline__ void short_gradients(const NormaliseGradients& args) {
    __shared__ float shared[8 * 256];
    BY_TYPE(args.x.type, gradients<TYPE, 1, false, GATE>(of_type<TYPE>(args), shared))
}

// Of rows of up to 128 runs; dweight takes 32 KiB.
template <u32 GATE> __device__ __forceinline__ void medium_gradients(const NormaliseGradients& args) {
    __shared__ __align__(16) float shared[4 * 8 * 256];
    BY_TYPE(args.x.type, gradients<TYPE, 4, false, GATE>(of_type<TYPE>(args), shared))
}

// A block a row, of up to RUNS runs a thread.
template <u32 RUNS, u32 GATE> __device__ __forceinline__ void large_gradients(const NormaliseGradients& args) {
    // What a gate has no registers for.
    __shared__ __align__(16) float shared[GATE != NOWHERE && RUNS > 2 ? RUNS * 8 * 256 : 4];
    BY_TYPE(args.x.type, gradients<TYPE, RUNS, true, GATE>(of_type<TYPE>(args), shared))
}

// Without a gate; the longest rows that are kept have four runs a thread.
KERNEL(normalise_short_gradients, NormaliseGradients, 256, 2) { short_gradients<NOWHERE>(args); }
KERNEL(normalise_medium_gradients, NormaliseGradients, 256, 2) { medium_gradients<NOWHERE>(args); }
KERNEL(normalise_large_gradients, NormaliseGradients, 256, 2) { large_gradients<2, NOWHERE>(args); }
KERNEL(normalise_larger_gradients, NormaliseGradients, 256, 2) { large_gradients<4, NOWHERE>(args); }

// With one behind the norm.
KERNEL(normalise_gated_short_gradients, NormaliseGradients, 256, 2) { short_gradients<BEHIND>(args); }
KERNEL(normalise_gated_medium_gradients, NormaliseGradients, 256, 2) { medium_gradients<BEHIND>(args); }
KERNEL(normalise_gated_large_gradients, NormaliseGradients, 256, 2) { large_gradients<2, BEHIND>(args); }
KERNEL(normalise_gated_larger_gradients, NormaliseGradients, 256, 2) { large_gradients<4, BEHIND>(args); }

// With one in front of it.
KERNEL(gated_normalise_short_gradients, NormaliseGradients, 256, 2) { short_gradients<IN_FRONT>(args); }
KERNEL(gated_normalise_medium_gradients, NormaliseGradients, 256, 2) { medium_gradients<IN_FRONT>(args); }
KERNEL(gated_normalise_large_gradients, NormaliseGradients, 256, 2) { large_gradients<2, IN_FRONT>(args); }
KERNEL(gated_normalise_larger_gradients, NormaliseGradients, 256, 2) { large_gradients<4, IN_FRONT>(args); }
