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
    return silu(y + weight[kept] * x);
}

// A head's row of a projection; threads from `first` on begin, so that rows after one another are other threads'.
__device__ __forceinline__ void fill(const Decode& args, const Map& map, u32 width, u32 first, float* to) {
    // Sequence and head of the block.
    const u64 n = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
    for (u32 i = (threadIdx.x - first) % blockDim.x; i < width; i += blockDim.x)
        to[i] = activated(map, n, head * width + i, (u64)args.heads * width);
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

// Which column and rows of the memory are a thread's: `parts` threads share a column; columns are filled up to whole
// warps, to `width`.
struct Share {
    u32 width, parts, column, part;
    u64 state;
    bool any;

    // Threads past the last whole row of columns have nothing.
    __device__ explicit Share(const Decode& args) {
        width = (args.value + 31) / 32 * 32;
        parts = blockDim.x / width;
        column = threadIdx.x % width;
        part = threadIdx.x / width;
        state = (u64)blockIdx.x * args.key * args.value + column;
        any = part < parts && column < args.value;
    }

    // The sum over the threads of column `threadIdx.x`; `sums` holds a number a thread.
    __device__ __forceinline__ float over_parts(const float* sums) const {
        float sum = 0.0f;
        for (u32 p = 0; p < parts; p++) sum += sums[p * width + threadIdx.x];
        return sum;
    }
};

// Asks for the thread's rows of the state while the projections are made.
__device__ __forceinline__ void ask_for_state(const Decode& args, const Share& mine) {
    if (!mine.any) return;
    for (u32 i = mine.part; i < args.key; i += mine.parts) {
        const u64 at = mine.state + (u64)i * args.value;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(args.m + at));
        if (args.s) asm volatile("prefetch.global.L2 [%0];" ::"l"(args.s + at));
    }
}

// Rows of its column that a thread keeps from when it asks for them to the write; `KEPT` of `decode.rs`.
#define KEPT 16

// The first of the thread's rows; those after it lie where they lie.
struct Kept {
    float m[KEPT], s[KEPT];

    __device__ __forceinline__ Kept(const Decode& args, const Share& mine) {
#pragma unroll
        for (u32 n = 0; n < KEPT; n++) {
            const u32 i = mine.part + n * mine.parts;
            const bool inside = mine.any && i < args.key;
            const u64 at = mine.state + (u64)i * args.value;
            m[n] = inside ? args.m[at] : 0.0f;
            s[n] = inside && args.s ? args.s[at] : 0.0f;
        }
    }
};

// k M over the thread's rows.
// A thread adds up its own rows of its column; `over_parts` puts the threads of a column together.
__device__ __forceinline__ float recalled(const Decode& args, const Share& mine, const Kept& kept, const float* k) {
    float sum = 0.0f;
    if (!mine.any) return sum;
#pragma unroll
    for (u32 n = 0; n < KEPT; n++) {
        const u32 i = mine.part + n * mine.parts;
        if (i < args.key) sum += k[i] * kept.m[n];
    }
    for (u32 i = mine.part + KEPT * mine.parts; i < args.key; i += mine.parts)
        sum += k[i] * args.m[mine.state + (u64)i * args.value];
    return sum;
}

// Equations (3) and (4) for row `i` of the thread, whose memory and momentum were `old` and `s`, and its part of (5).
__device__ __forceinline__ float written_row(
    const Decode& args, u64 at, Four x, float q, float k, float z, float old, float s
) {
    float write = k * z;
    if (args.s) write = args.last_s[at] = x.w * s + write;
    const float now = x.z * old + write;
    args.last_m[at] = now;
    return q * (args.before ? old : now);
}

// The same for all of the thread's rows.
__device__ __forceinline__ float written(
    const Decode& args, const Share& mine, const Kept& kept, Four x, const float* q, const float* k, float z
) {
    float y = 0.0f;
    if (!mine.any) return y;
#pragma unroll
    for (u32 n = 0; n < KEPT; n++) {
        const u32 i = mine.part + n * mine.parts;
        if (i < args.key) y += written_row(args, mine.state + (u64)i * args.value, x, q[i], k[i], z, kept.m[n], kept.s[n]);
    }
    for (u32 i = mine.part + KEPT * mine.parts; i < args.key; i += mine.parts) {
        const u64 at = mine.state + (u64)i * args.value;
        y += written_row(args, at, x, q[i], k[i], z, args.m[at], args.s ? args.s[at] : 0.0f);
    }
    return y;
}

// A block of up to 1024 threads has one head of one sequence. A thread has a column of the memory [K,V] and every `parts`th row.
//
// Shared memory, in elements: q and k [K], v and u [V], one of each thread for sums over parts, 32 for a sum over the block.
// The memory itself is read and written once.
KERNEL(decode, Decode, 1024) {
    DYNAMIC_SHARED(float, shared);
    const u32 key = args.key, value = args.value;
    float *q = shared, *k = q + key, *v = k + key, *z = v + value, *sums = z + value, *rest = sums + blockDim.x;
    const Share mine(args);
    ask_for_state(args, mine);
    follow();
    const Kept kept(args, mine);
    fill(args, args.q, key, 0, q);
    fill(args, args.k, key, key, k);
    fill(args, args.v, value, 2 * key, v);
    const Four x = scalars(args);
    __syncthreads();
    // The first warp has the query, the second the key.
    if (threadIdx.x < 64) normalise(threadIdx.x < 32 ? q : k, key, args.norm_epsilon);
    __syncthreads();
    // (1): the prediction, a part a thread.
    sums[threadIdx.x] = args.erase ? recalled(args, mine, kept, k) : 0.0f;
    __syncthreads();
    if (threadIdx.x < value) {
        // (2): the pseudo-value of a column, by one thread.
        float target = x.x * v[threadIdx.x];
        z[threadIdx.x] = args.erase ? target - x.y * mine.over_parts(sums) : target;
    }
    __syncthreads();
    // (3)-(5): the write, and the read, a part a thread.
    sums[threadIdx.x] = mine.any ? written(args, mine, kept, x, q, k, z[mine.column]) : 0.0f;
    __syncthreads();
    float y = threadIdx.x < value ? mine.over_parts(sums) : 0.0f;
    float square = block_sum(y * y, rest);
    if (threadIdx.x >= value) return;
    u64 at = (u64)blockIdx.x * value + threadIdx.x;
    // The norm of the head's outputs, its weight and the output gate.
    y *= 1.0f / sqrtf(square / (float)value + args.epsilon);
    y *= args.weight[threadIdx.x];
    args.out[at] = args.gate ? y * silu(args.gate[at]) : y;
}
