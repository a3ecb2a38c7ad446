// Rows whose gate stands before their norm: u = x act(g), y = u r w. A row belongs to a warp or a block, which makes u twice: the
// second time x and g come from the caches. A group of a row is a row here. Rows that threads can keep are in `norm.cu`.
#include "norm.cuh"

// `gated_norm::GatedNorm` is its twin.
struct GatedNorm {
    // [rows, width] each, of one type
    Array x, y;
    Scale scale;
    Gate gate;
    // [rows]
    float* inverse;
    u64 rows, width;
    float epsilon;
    // Threads of a row: 32 or a block
    u32 lanes;
};

// This thread's runs of a row: `work` gets the column of each.
template <u32 N, class F> __device__ __forceinline__ void each_run(const RowThread& thread, u64 width, u32 lanes, const F& work) {
    for (u64 i = N * thread.index; i < width; i += N * lanes) work(i);
}

// y = u / sqrt(mean(u²) + epsilon) * w with u = gate(x, g), of rows [rows,width]; `inverse` keeps one over the root.
template <u32 N> __device__ __forceinline__ void forward(const GatedNorm& args, float* shared) {
    const RowThread thread = row_thread(args.lanes);
    // Threads of a row have the same rows, so all of them reach the barriers of the sum.
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        const auto open = [&](u64 i) { return let_through(load_run<N>(args.x, start + i), args.gate, start + i); };
        // |u|² over the row.
        float square = 0.0f;
        each_run<N>(thread, args.width, args.lanes, [&](u64 i) {
            const Run<N> u = open(i);
            square += dot(u, u);
        });
        const float r = 1.0f / sqrtf(lanes_sum(square, args.lanes, shared) / (float)args.width + args.epsilon);
        each_run<N>(thread, args.width, args.lanes, [&](u64 i) {
            Run<N> y = open(i);
            const Run<N> w = weights<N>(args, row, i);
#pragma unroll
            for (u32 n = 0; n < N; n++) y.x[n] = y.x[n] * r * w.x[n];
            store_run<N>(args.y, start + i, y);
        });
        // Kept for the backward.
        if (thread.index == 0) args.inverse[row] = r;
    }
}

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ GatedNorm of_type(GatedNorm args) {
    args.x.type = args.y.type = args.scale.weight.type = args.gate.g.type = TYPE;
    return args;
}

// Runs of 16 bytes where these divide rows, else element by element.
KERNEL(gated_norm, GatedNorm, 256) {
    // A sum a warp, for rows that have a whole block.
    __shared__ float shared[32];
    if (args.width % (args.x.type ? 8 : 4) == 0) BY_TYPE(args.x.type, forward<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
    else forward<1>(args, shared);
}

// `gated_norm::GatedNormBackward` is its twin.
struct GatedNormBackward {
    // [rows, width] each, of one type
    Array x, dy, dx, dg;
    Scale scale;
    Gate gate;
    // [rows]
    const float* inverse;
    // [rows, width] in 32 bits: what dweight is the sum of
    float* terms;
    u64 rows, width;
    u32 lanes;
};

// With s = r w dy: du = s − u r² (u·s)/width, dx = du act(g), dg = du x act'(g), and terms u r dy.
template <u32 N> __device__ __forceinline__ void backward(const GatedNormBackward& args, float* shared) {
    const RowThread thread = row_thread(args.lanes);
    for (u64 row = thread.row; row < args.rows; row += thread.rows) {
        const u64 start = row * args.width;
        const float r = args.inverse[row];
        // s of a run.
        const auto slope = [&](u64 i) {
            Run<N> s = load_run<N>(args.dy, start + i);
            const Run<N> w = weights<N>(args, row, i);
#pragma unroll
            for (u32 n = 0; n < N; n++) s.x[n] *= r * w.x[n];
            return s;
        };
        // u·s over the row; both are made again below.
        float sum = 0.0f;
        each_run<N>(thread, args.width, args.lanes, [&](u64 i) {
            sum += dot(let_through(load_run<N>(args.x, start + i), args.gate, start + i), slope(i));
        });
        sum = lanes_sum(sum, args.lanes, shared);
        const float along = (r * sum) * r / (float)args.width;
        each_run<N>(thread, args.width, args.lanes, [&](u64 i) {
            Run<N> x = load_run<N>(args.x, start + i), g = load_run<N>(args.gate.g, start + i), s = slope(i);
            Run<N> terms = load_run<N>(args.dy, start + i);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const float act = args.gate.value(g.x[n]), u = x.x[n] * act, du = s.x[n] - along * u;
                terms.x[n] *= u * r;
                g.x[n] = du * x.x[n] * args.gate.slope(g.x[n]);
                x.x[n] = du * act;
            }
            store_run<N>(args.dx, start + i, x);
            store_run<N>(args.dg, start + i, g);
            // Sixteen bytes of 32 bits are four.
            constexpr u32 FOUR = N < 4 ? 1 : 4;
#pragma unroll
            for (u32 n = 0; n < N; n += FOUR) {
                Run<FOUR> part;
#pragma unroll
                for (u32 j = 0; j < FOUR; j++) part.x[j] = terms.x[n + j];
                store_run<FOUR>(Array{args.terms, 0}, start + i + n, part);
            }
        });
    }
}

// Returns the same arguments with TYPE as a constant.
template <u32 TYPE> __device__ __forceinline__ GatedNormBackward of_type(GatedNormBackward args) {
    args.x.type = args.dy.type = args.dx.type = args.dg.type = args.scale.weight.type = args.gate.g.type = TYPE;
    return args;
}

// As forward, by whole runs where rows have them.
KERNEL(gated_norm_backward, GatedNormBackward, 256) {
    __shared__ float shared[32];
    if (args.width % (args.x.type ? 8 : 4) == 0) BY_TYPE(args.x.type, backward<RUN_LENGTH<TYPE>>(of_type<TYPE>(args), shared))
    else backward<1>(args, shared);
}
