// One token of a layer's memory: from what the projections make of it to what goes to the one back. A block has a head of
// a sequence; a thread has a column of the memory and some of its rows.
#include "follow.cuh"
#include "linear.cuh"
#include "maps.cuh"

// A projection to `heads` rows of a width, and the convolution after it.
struct Map {
    // [N,H width], [H width,W], [N,W-1,H width]; weight null: no convolution
    const float *x, *weight, *last;
    // The last inputs after the token
    float* next;
    u64 taps;
};

// A number a head: x + bias.
struct GateLogit {
    // [N,H], [H]; null where there is none
    const float *x, *bias;
};

// Arrays and options of one token of a layer; `decode::DecodeArguments` is its twin.
struct Decode {
    // Keys and queries [N,H K], values [N,H V], as the projections leave them.
    Map q, k, v;
    // Logits of the forgetting gate, of the write strength, and of the third gate of a form that has one.
    GateLogit retention, write, other;
    // [H]
    const float* a_log;
    // [N,H,K,V]; s null without momentum
    const float *m, *s;
    // [N,H,K,V]: the state after the token.
    float *last_m, *last_s;
    // [V], [N,H V]; gate null: none
    const float *weight, *gate;
    // [N,H V]
    float* out;
    // H, K, V.
    u32 heads, key, value;
    // One of the forms below; one of `ERASE_…`; 1 where the token reads the memory before its write.
    u32 gate_form, erase, before;
    // What a write strength is times; ε of the norm of keys and queries, and of the norm of outputs.
    float factor, norm_epsilon, epsilon;
};

// How strengths follow from the logits, in the order of `GateForm`.
enum { WRITE, MOMENTUM, ERASE, ERASE_REST };

// Last inputs that a thread asks for at once: those of four taps.
#define TOGETHER 3

// Channel `c` of sequence `n`, convolved with its last inputs, then SiLU.
__device__ __forceinline__ float activated(const Map& map, u64 n, u64 c, u64 channels) {
    // Without a convolution SiLU alone.
    float x = map.x[n * channels + c], y = 0.0f;
    if (!map.weight) return silu(x);
    // The last inputs move one place on, and the token's own comes last.
    const u64 kept = map.taps - 1, at = n * kept * channels + c;
    const float* weight = map.weight + c * map.taps;
    // Of the token's own input.
    const float newest = weight[kept];
#pragma unroll 1
    for (u64 first = 0; first < kept; first += TOGETHER) {
        // Reads wait together: none stands behind a write.
        float old[TOGETHER], times[TOGETHER];
#pragma unroll
        for (u64 i = 0; i < TOGETHER; i++) {
            const u64 j = first + i < kept ? first + i : 0;
            old[i] = map.last[at + j * channels];
            times[i] = weight[j];
        }
#pragma unroll
        for (u64 i = 0; i < TOGETHER; i++) {
            if (first + i >= kept) break;
            y += times[i] * old[i];
            if (first + i > 0) map.next[at + (first + i - 1) * channels] = old[i];
        }
    }
    map.next[at + (kept - 1) * channels] = x;
    return silu(y + newest * x);
}

// The head's rows of all three projections, one after another: q and k [K], v [V]. One loop, for a token waits for instructions
// that it meets once.
__device__ __forceinline__ void fill(const Decode& args, float* to) {
    // Sequence and head of the block.
    const u32 n = blockIdx.x / args.heads, head = blockIdx.x % args.heads, key = args.key;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < 2 * key + args.value; i += blockDim.x) {
        // Which of the three, and how wide its heads are.
        const u32 which = i < key ? 0 : i < 2 * key ? 1 : 2, width = which == 2 ? args.value : key;
        to[i] = activated((&args.q)[which], n, head * width + i - which * key, (u64)args.heads * width);
    }
}

// To norm 1, by a warp.
__device__ __forceinline__ void normalise(float* x, u32 width, float epsilon) {
    // 32 lanes go through the row.
    float square = 0.0f;
    for (u32 i = threadIdx.x % 32; i < width; i += 32) square += x[i] * x[i];
    float r = 1.0f / hypotf(sqrtf(warp_sum(square)), epsilon);
    for (u32 i = threadIdx.x % 32; i < width; i += 32) x[i] *= r;
}

// The logit of this block's head; 0 where there is none.
__device__ __forceinline__ float number(const GateLogit& logit, const Decode& args) {
    return logit.x ? logit.x[blockIdx.x] + logit.bias[blockIdx.x % args.heads] : 0.0f;
}

// w, r, a, η of the token.
__device__ __forceinline__ Four scalars(const Decode& args) {
    float b = number(args.write, args), e = number(args.other, args);
    Four gates = {0.0f, -INFINITE, sigmoid(b), 0.0f};
    // log a = −exp(a_log) softplus(x + dt_bias).
    if (args.a_log) gates.x = softplus(number(args.retention, args)) * -expf(args.a_log[blockIdx.x % args.heads]);
    switch (args.gate_form) {
        // σ(b) times a factor; the other forms have a third gate.
        case WRITE: gates.z *= args.factor; break;
        case MOMENTUM:
            // log η = log σ(e), and what momentum keeps is not written.
            gates.y = -softplus(-e);
            gates.z *= sigmoid(-e);
            break;
        case ERASE: gates.w = sigmoid(e); break;
        default: gates.w = sigmoid(e) * sigmoid(-b);
    }
    // `lower` looks at the rule's erase alone.
    Linear p;
    p.erase = args.erase;
    return lower(p, gates);
}

// Which W neighbouring columns and which rows of the memory are a thread's: `parts` threads share columns. Single columns are
// filled up to whole warps, to `width`.
template <u32 W> struct Share {
    u32 width, parts, column, part;
    u64 state;
    bool any;

    // Threads past the last whole row of columns have nothing.
    __device__ explicit Share(const Decode& args) {
        width = W == 1 ? (args.value + 31) / 32 * 32 : args.value;
        parts = blockDim.x / (width / W);
        column = threadIdx.x % (width / W) * W;
        part = threadIdx.x / (width / W);
        state = (u64)blockIdx.x * args.key * args.value + column;
        any = part < parts && column < args.value;
    }

    // This thread's place among `sums` [parts,width].
    __device__ __forceinline__ void put(float* sums, const Run<W>& sum) const {
        if (part >= parts) return;
#pragma unroll
        for (u32 j = 0; j < W; j++) sums[part * width + column + j] = sum.x[j];
    }

    // The sum over the threads of column `threadIdx.x`.
    __device__ __forceinline__ float over_parts(const float* sums) const {
        float sum = 0.0f;
        for (u32 p = 0; p < parts; p++) sum += sums[p * width + threadIdx.x];
        return sum;
    }
};

// Asks for the block's state while the projections are made.
__device__ __forceinline__ void ask_for_state(const Decode& args) {
    // A line of the cache has 32 numbers.
    const u32 count = args.key * args.value;
    for (u32 i = threadIdx.x * 32; i < count; i += blockDim.x * 32) {
        ask_for(args.m + (u64)blockIdx.x * count + i);
        if (args.s) ask_for(args.s + (u64)blockIdx.x * count + i);
    }
}

// The first of the thread's rows in registers, from when it asks for them to the write; the others lie where they lie.
template <bool MOMENTUM> struct Kept {
    static constexpr u32 COLUMNS = 1, COUNT = 4;
    float m[COUNT], s[COUNT];

    // Loads the thread's first COUNT rows of its column of M and S.
    __device__ __forceinline__ Kept(const Decode& args, const Share<1>& mine, float*) {
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) {
            const u32 i = mine.part + n * mine.parts;
            const bool inside = mine.any && i < args.key;
            const u64 at = mine.state + (u64)i * args.value;
            m[n] = inside ? args.m[at] : 0.0f;
            s[n] = MOMENTUM && inside ? args.s[at] : 0.0f;
        }
    }

    // Elements of shared memory that it takes.
    static __device__ __forceinline__ u32 room(const Decode&) { return 0; }
    // Nothing to wait for that reads do not wait for.
    __device__ __forceinline__ void arrive() const {}

    // Calls `take` with the number of each of the thread's rows, its place, its memory and its momentum.
    template <class Take> __device__ __forceinline__ void each(const Decode& args, const Share<1>& mine, const Take& take) const {
        if (!mine.any) return;
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) {
            const u32 i = mine.part + n * mine.parts;
            if (i < args.key) take(i, mine.state + (u64)i * args.value, Run<1>{m[n]}, Run<1>{s[n]});
        }
        for (u32 i = mine.part + COUNT * mine.parts; i < args.key; i += mine.parts) {
            const u64 at = mine.state + (u64)i * args.value;
            take(i, at, Run<1>{args.m[at]}, Run<1>{MOMENTUM ? args.s[at] : 0.0f});
        }
    }
};

// All rows of a small memory [K,V] in shared memory, then its momentum: registers, of which a thread has few, stay free. Rows
// are multiples of 16 bytes.
template <bool MOMENTUM> struct Held {
    static constexpr u32 COLUMNS = 4;
    float *m, *s;

    // Starts asynchronous copies of the head's M and S [K,V] to shared memory.
    __device__ __forceinline__ Held(const Decode& args, const Share<4>&, float* to) : m(to), s(to + args.key * args.value) {
        const u32 count = args.key * args.value;
        // Blocks are heads of sequences, whose memories follow each other.
        const u64 first = (u64)blockIdx.x * count;
        for (u32 i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
            copy_16(m + i, args.m + first + i, true);
            if constexpr (MOMENTUM) copy_16(s + i, args.s + first + i, true);
        }
        copies_commit();
    }

    // Returns the elements of shared memory that both take.
    static __device__ __forceinline__ u32 room(const Decode& args) { return args.key * args.value * (MOMENTUM ? 2 : 1); }
    // This thread's part is there; the block has to meet.
    __device__ __forceinline__ void arrive() const { copies_wait<0>(); }

    // Calls `take` with each of the thread's rows: its number, its place in the state, and four columns of M and S.
    template <class Take> __device__ __forceinline__ void each(const Decode& args, const Share<4>& mine, const Take& take) const {
        if (!mine.any) return;
#pragma unroll 4
        for (u32 i = mine.part; i < args.key; i += mine.parts) {
            const u32 at = i * args.value + mine.column;
            // Lanes after one another read runs after one another.
            const Run<4> old = load_run<4>(Array{m, 0}, at);
            take(i, mine.state + (u64)i * args.value, old, MOMENTUM ? load_run<4>(Array{s, 0}, at) : old);
        }
    }
};

// k M over the thread's rows.
// A thread adds up its own rows of its columns; `over_parts` puts the threads of a column together.
template <class State, u32 W>
__device__ __forceinline__ Run<W> recalled(const Decode& args, const Share<W>& mine, const State& state, const float* k) {
    Run<W> sum = {};
    state.each(args, mine, [&](u32 i, u64, const Run<W>& m, const Run<W>&) {
        const float key = k[i];
#pragma unroll
        for (u32 j = 0; j < W; j++) sum.x[j] += key * m.x[j];
    });
    return sum;
}

// Equations (3) and (4) for the thread's rows, and its part of (5); `z` are the pseudo-values of its columns.
template <bool MOMENTUM, class State, u32 W>
__device__ __forceinline__ Run<W> written(
    const Decode& args, const Share<W>& mine, const State& state, Four x, const float* q, const float* k, const float* z
) {
    Run<W> y = {}, value;
#pragma unroll
    for (u32 j = 0; j < W; j++) value.x[j] = mine.any ? z[mine.column + j] : 0.0f;
    state.each(args, mine, [&](u32 i, u64 at, const Run<W>& old, const Run<W>& s) {
        const float key = k[i], query = q[i];
        Run<W> write, now;
#pragma unroll
        for (u32 j = 0; j < W; j++) {
            write.x[j] = key * value.x[j];
            if constexpr (MOMENTUM) write.x[j] = x.w * s.x[j] + write.x[j];
            now.x[j] = x.z * old.x[j] + write.x[j];
            y.x[j] += query * (args.before ? old.x[j] : now.x[j]);
        }
        // Stored for the next token, and read here already.
        if constexpr (MOMENTUM) store_run<W>(Array{args.last_s, 0}, at, write);
        store_run<W>(Array{args.last_m, 0}, at, now);
    });
    return y;
}

// A block of up to 1024 threads has one head of one sequence. A thread has columns of the memory [K,V] and every `parts`th row.
//
// Shared memory, in elements: a small memory; q and k [K], v and u [V], sums over parts, 32 for a sum over the block.
// The memory itself is read and written once.
template <template <bool> class Rows, bool MOMENTUM> __device__ __forceinline__ void decoded(const Decode& args, float* shared) {
    typedef Rows<MOMENTUM> State;
    constexpr u32 W = State::COLUMNS;
    const u32 key = args.key, value = args.value;
    float *q = shared + State::room(args), *k = q + key, *v = k + key, *z = v + value, *sums = z + value;
    float* rest = sums + W * blockDim.x;
    const Share<W> mine(args);
    ask_for_state(args);
    follow();
    const State state(args, mine, shared);
    fill(args, q);
    const Four x = scalars(args);
    // Of the output's column, long before they are wanted.
    const u64 at = (u64)blockIdx.x * value + threadIdx.x;
    const bool column = threadIdx.x < value;
    const float weight = column ? args.weight[threadIdx.x] : 0.0f, gate = column && args.gate ? args.gate[at] : 0.0f;
    state.arrive();
    __syncthreads();
    // The first warp has the query, the second the key.
    if (threadIdx.x < 64) normalise(threadIdx.x < 32 ? q : k, key, args.norm_epsilon);
    __syncthreads();
    // (1): the prediction, a part a thread.
    if (args.erase) mine.put(sums, recalled(args, mine, state, k));
    __syncthreads();
    if (column) {
        // (2): the pseudo-value of a column, by one thread.
        float target = x.x * v[threadIdx.x];
        z[threadIdx.x] = args.erase ? target - x.y * mine.over_parts(sums) : target;
    }
    __syncthreads();
    // (3)-(5): the write, and the read, a part a thread.
    mine.put(sums, written<MOMENTUM>(args, mine, state, x, q, k, z));
    __syncthreads();
    float y = column ? mine.over_parts(sums) : 0.0f;
    float square = block_sum(y * y, rest);
    if (!column) return;
    // The norm of the head's outputs, its weight and the output gate.
    y *= 1.0f / sqrtf(square / (float)value + args.epsilon);
    y *= weight;
    args.out[at] = args.gate ? y * silu(gate) : y;
}

// Takes one token through a head of a layer: convolutions, gates, (1)-(5), the norm and the output gate.
KERNEL(decode, Decode, 1024) {
    DYNAMIC_SHARED(float, shared);
    if (args.s) decoded<Kept, true>(args, shared);
    else decoded<Kept, false>(args, shared);
}

// Small memories, six blocks a multiprocessor: 64 texts with twelve heads run at once.
KERNEL(decode_small, Decode, 128, 6) {
    DYNAMIC_SHARED(float, shared);
    if (args.s) decoded<Held, true>(args, shared);
    else decoded<Held, false>(args, shared);
}
