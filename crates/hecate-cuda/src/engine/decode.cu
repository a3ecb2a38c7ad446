// One token of a layer's memory: from what the projections make of it to what goes to the one back. A block has a head of
// a sequence; a thread has a column of the memory and some of its rows.
#include "linear.cuh"
#include "maps.cuh"

// A projection to `heads` rows of a width, and the convolution behind it.
struct Map {
    const float *x, *weight, *last;  // [N,H width], [H width,W], [N,W-1,H width]; weight null: no convolution
    float* next;                     // the last inputs behind the token
    u64 taps;
};

// A number a head: x + bias.
struct Signal {
    const float *x, *bias;  // [N,H], [H]; null where there is none
};

struct Decode {
    Map q, k, v;
    Signal retention, write, other;
    const float* slope;        // [H]
    const float *m, *s;        // [N,H,K,V]; s null without momentum
    float *last_m, *last_s;
    const float *weight, *gate;  // [V], [N,H V]; gate null: none
    float* out;                  // [N,H V]
    u32 heads, key, value;
    u32 strengths, erase, before;
    float factor, norm_epsilon, epsilon;
};

// In the order of `Strengths`.
enum { WRITE, MOMENTUM, ERASE, ERASE_REST };

// Channel `c` of sequence `n`, convolved with its last inputs, then SiLU.
__device__ __forceinline__ float activated(const Map& map, u64 n, u64 c, u64 channels) {
    float x = map.x[n * channels + c], y = 0.0f;
    if (!map.weight) return silu(x);
    const u64 kept = map.taps - 1, at = n * kept * channels + c;
    for (u64 j = 0; j < kept; j++) {
        float old = map.last[at + j * channels];
        y += map.weight[c * map.taps + j] * old;
        if (j > 0) map.next[at + (j - 1) * channels] = old;
    }
    map.next[at + (kept - 1) * channels] = x;
    return silu(y + map.weight[c * map.taps + kept] * x);
}

// A head's row of a projection; threads from `first` on begin, so that rows behind one another are other threads'.
__device__ __forceinline__ void fill(const Decode& args, const Map& map, u32 width, u32 first, float* to) {
    const u64 n = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
    for (u32 i = (threadIdx.x - first) % blockDim.x; i < width; i += blockDim.x)
        to[i] = activated(map, n, head * width + i, (u64)args.heads * width);
}

// To norm 1, by a warp.
__device__ __forceinline__ void normalise(float* x, u32 width, float epsilon) {
    float square = 0.0f;
    for (u32 i = threadIdx.x % 32; i < width; i += 32) square += x[i] * x[i];
    float r = 1.0f / hypotf(sqrtf(warp_sum(square)), epsilon);
    for (u32 i = threadIdx.x % 32; i < width; i += 32) x[i] *= r;
}

__device__ __forceinline__ float number(const Signal& signal, const Decode& args) {
    return signal.x ? signal.x[blockIdx.x] + signal.bias[blockIdx.x % args.heads] : 0.0f;
}

// w, r, a, η of the token.
__device__ __forceinline__ Four scalars(const Decode& args) {
    float b = number(args.write, args), e = number(args.other, args);
    Four gates = {0.0f, -INFINITE, sigmoid(b), 0.0f};
    if (args.slope) gates.x = softplus(number(args.retention, args)) * -expf(args.slope[blockIdx.x % args.heads]);
    switch (args.strengths) {
        case WRITE: gates.z *= args.factor; break;
        case MOMENTUM:
            gates.y = -softplus(-e);
            gates.z *= sigmoid(-e);
            break;
        case ERASE: gates.w = sigmoid(e); break;
        default: gates.w = sigmoid(e) * sigmoid(-b);
    }
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

// k M over the thread's rows.
__device__ __forceinline__ float recalled(const Decode& args, const Share& mine, const float* k) {
    float sum = 0.0f;
    if (!mine.any) return sum;
#pragma unroll 4
    for (u32 i = mine.part; i < args.key; i += mine.parts) sum += k[i] * args.m[mine.state + (u64)i * args.value];
    return sum;
}

// Equations (3) and (4) for the thread's rows, and (5).
__device__ __forceinline__ float written(
    const Decode& args, const Share& mine, Four x, const float* q, const float* k, float z
) {
    float y = 0.0f;
    if (!mine.any) return y;
#pragma unroll 4
    for (u32 i = mine.part; i < args.key; i += mine.parts) {
        u64 at = mine.state + (u64)i * args.value;
        float old = args.m[at], write = k[i] * z;
        if (args.s) write = args.last_s[at] = x.w * args.s[at] + write;
        float now = x.z * old + write;
        args.last_m[at] = now;
        y += q[i] * (args.before ? old : now);
    }
    return y;
}

// Shared: q and k [K], v and z [V], a number a thread, 32 numbers.
KERNEL(decode, Decode, 1024) {
    DYNAMIC_SHARED(float, shared);
    const u32 key = args.key, value = args.value;
    float *q = shared, *k = q + key, *v = k + key, *z = v + value, *sums = z + value, *rest = sums + blockDim.x;
    fill(args, args.q, key, 0, q);
    fill(args, args.k, key, key, k);
    fill(args, args.v, value, 2 * key, v);
    const Four x = scalars(args);
    const Share mine(args);
    __syncthreads();
    if (threadIdx.x < 64) normalise(threadIdx.x < 32 ? q : k, key, args.norm_epsilon);
    __syncthreads();
    sums[threadIdx.x] = args.erase ? recalled(args, mine, k) : 0.0f;
    __syncthreads();
    if (threadIdx.x < value) {
        float target = x.x * v[threadIdx.x];
        z[threadIdx.x] = args.erase ? target - x.y * mine.over_parts(sums) : target;
    }
    __syncthreads();
    sums[threadIdx.x] = mine.any ? written(args, mine, x, q, k, z[mine.column]) : 0.0f;
    __syncthreads();
    float y = threadIdx.x < value ? mine.over_parts(sums) : 0.0f;
    float square = block_sum(y * y, rest);
    if (threadIdx.x >= value) return;
    u64 at = (u64)blockIdx.x * value + threadIdx.x;
    y *= 1.0f / sqrtf(square / (float)value + args.epsilon);
    y *= args.weight[threadIdx.x];
    args.out[at] = args.gate ? y * silu(args.gate[at]) : y;
}
