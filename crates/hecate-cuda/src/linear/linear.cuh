// The linear recurrence, equations (1)-(5): how the threads of a block hold a memory, and what one token writes.
//
// A block runs one head tile: one sequence, one head, one block of value columns. A warp holds 32 / G columns; the G threads
// of a column share its rows, R to a thread, in registers. R = 0 is for any number of rows: then `Linear::rows_held`
// says how many a thread holds, and whatever else is in registers or shared memory is in global memory.
#pragma once
#include "hecate.cuh"

// Four neighbours, read and written as one word of 16 bytes.
struct alignas(16) Four {
    float x, y, z, w;
};

// How the erase strength follows from the gates: r = 0, θ, θ a, β, θ + β.
enum { ERASE_NOTHING, ERASE_THETA, ERASE_DECAYED, ERASE_BETA, ERASE_BOTH };

// Arrays and sizes of a call, the same for all kernels of the linear engine; `layout::LinearCall` is its twin.
struct Linear {
    // [rows,H,K], [rows,H,K], [rows,H,V]
    Array q, k, v;
    // [rows,H]; null where the rule has none
    const float *log_a, *log_eta, *theta, *beta;
    // First row of each sequence and the end, then as many first kept states
    const u32* starts;
    // Tokens and kept states of every sequence, where `starts` is null
    u32 tokens, kept;
    // H, K, V, blocks of columns
    u32 heads, key, value, blocks;
    // G (0: not frozen); states are kept every 64 tokens of each period
    u32 frozen, period;
    // One of `ERASE_…`; 1 where a token reads the memory before its own write; rows of a thread where R = 0; N.
    u32 erase, before, rows_held, sequences;
};

// Gates of token and head `i` [rows,H]: log a, log η, θ, β; 0 where the rule has none.
__device__ __forceinline__ Four gates_of(const Linear& p, u64 i) {
    return Four{p.log_a[i], p.log_eta ? p.log_eta[i] : -INFINITE, p.theta[i], p.beta ? p.beta[i] : 0.0f};
}

// A retention or a momentum from its logarithm, which may be -∞; NaN above 0. Next to 1 by its series: there `expf` errs one
// way by a quarter of a last digit, which thousands of tokens add up.
__device__ __forceinline__ float factor(float log) {
    if (!(log <= 0.0f)) return NOT_A_NUMBER;
    if (log < -0.0625f) return expf(log);
    float x = fmaf(log, 1.0f / 120.0f, 1.0f / 24.0f);
    x = fmaf(log, x, 1.0f / 6.0f);
    x = fmaf(log, x, 0.5f);
    x = fmaf(log, x, 1.0f);
    return fmaf(log, x, 1.0f);
}
// A strength as it is; NaN where it is not finite.
__device__ __forceinline__ float strength(float x) { return fabsf(x) < INFINITE ? x : NOT_A_NUMBER; }

// w, r, a, η from gates. What is outside its range becomes NaN, which the outputs then show.
__device__ __forceinline__ Four lower(const Linear& p, Four gates) {
    float a = factor(gates.x), eta = factor(gates.y), w = strength(gates.z), beta = strength(gates.w), r = 0.0f;
    switch (p.erase) {
        case ERASE_NOTHING: break;
        case ERASE_THETA: r = w; break;
        case ERASE_DECAYED: r = w * a; break;
        case ERASE_BETA: r = beta; break;
        default: r = w + beta;
    }
    return Four{w, r, a, eta};
}

// Gradients of gates; those that the rule has not are of no meaning.
struct GateGrads {
    float log_a, log_eta, theta, beta;
};

// (14), and what each rule makes of `dw` and `dr`; `gates` are w, r, a, η.
__device__ __forceinline__ GateGrads lower_backward(const Linear& p, Four gates, float dw, float dr, float da, float deta) {
    float dtheta = dw;
    switch (p.erase) {
        case ERASE_THETA:
        case ERASE_BOTH: dtheta += dr; break;
        case ERASE_DECAYED:
            dtheta += gates.z * dr;
            da += gates.x * dr;
            break;
        default: break;
    }
    return GateGrads{gates.z * da, gates.w * deta, dtheta, dr};
}

// Elements that belong to one thread: R in registers, or any number, one every `blockDim.x`, in memory.
template <u32 R>
struct Own {
    float x[R];
    // Registers need no place.
    __device__ __forceinline__ void at(float*) {}
    // Returns the thread's element i, in a register.
    __device__ __forceinline__ float& operator[](u32 i) { return x[i]; }
};
// Of memory: neighbouring threads have neighbouring elements.
template <>
struct Own<0> {
    float* x;
    // Places the thread's elements from `base` on.
    __device__ __forceinline__ void at(float* base) { x = base + threadIdx.x; }
    // Returns the thread's element i, in memory.
    __device__ __forceinline__ float& operator[](u32 i) { return x[(u64)i * blockDim.x]; }
};

// One sequence, one head, one block of value columns: what a block of threads runs.
//
// R rows of the memory are a thread's, G threads share a column. A warp has 32 / G columns, a block 32, or 8 where R = 0.
template <u32 R, u32 G>
struct HeadTile {
    // Of the block
    static constexpr u32 COLUMNS = R ? 32 : 8;
    // Rows that a thread holds; K rounded up, n G
    u32 n, width;
    // Which rows; which column, of the block and of V
    u32 part, column, value;
    u32 block, head, tokens;
    // First row, first kept state, index into [N,H]
    u64 row, kept, state;

    // HeadTile `index`, counted from sequence to head to block of columns.
    // A warp's threads stand as G parts of 32 / G neighbouring columns, so that the sum over a column is an exchange in the warp.
    __device__ HeadTile(const Linear& p, u32 index) {
        n = R ? R : p.rows_held;
        width = n * G;
        // The lane in its warp.
        u32 thread = threadIdx.x % 32;
        part = thread / (32 / G);
        column = threadIdx.x / 32 * (32 / G) + thread % (32 / G);
        block = index % p.blocks;
        state = index / p.blocks;
        value = block * COLUMNS + column;
        head = (u32)(state % p.heads);
        // Without a table all sequences are alike.
        u64 sequence = state / p.heads;
        row = p.starts ? p.starts[sequence] : sequence * p.tokens;
        tokens = p.starts ? p.starts[sequence + 1] - (u32)row : p.tokens;
        kept = p.starts ? p.starts[p.sequences + 1 + sequence] : sequence * p.kept;
    }

    // Row of the memory that is a thread's `i`th: four in turn, so that they are read from rows of keys at once.
    __device__ __forceinline__ u32 key(u32 i) const { return i / 4 * 4 * G + 4 * part + i % 4; }

    // Token and head in arrays [rows,H].
    __device__ __forceinline__ u64 token(const Linear& p, u32 t) const { return (row + t) * p.heads + head; }

    // Checkpoints, and the first token of each.
    // How many checkpoints the sequence has: one every 64 tokens of each period.
    __device__ __forceinline__ u32 intervals(const Linear& p) const {
        return tokens / p.period * ((p.period + 63) / 64) + (tokens % p.period + 63) / 64;
    }
    // The first token after checkpoint `j`.
    __device__ __forceinline__ u32 start_of(const Linear& p, u32 j) const {
        // Checkpoints of a period.
        u32 each = (p.period + 63) / 64;
        return j / each * p.period + j % each * 64;
    }

    // Where kept state `j` of `matrices` matrices lies: [kept,H,blocks,matrices,n,threads].
    __device__ __forceinline__ u64 keeping(const Linear& p, u32 j, u32 matrices) const {
        return (((kept + j) * p.heads + head) * p.blocks + block) * matrices * n * blockDim.x;
    }

    // A thread's part of `x [N,H,K,V]`; zero outside.
    __device__ void read_state(const Linear& p, const float* x, Own<R>& m) const {
        #pragma unroll
        for (u32 i = 0; i < (R ? R : n); i++) {
            u32 k = key(i);
            m[i] = k < p.key && value < p.value ? x[(state * p.key + k) * p.value + value] : 0.0f;
        }
    }

    // A thread's part to `x [N,H,K,V]`; what is outside K and V is not written.
    __device__ void write_state(const Linear& p, float* x, Own<R>& m) const {
        #pragma unroll
        for (u32 i = 0; i < (R ? R : n); i++) {
            u32 k = key(i);
            if (k < p.key && value < p.value) x[(state * p.key + k) * p.value + value] = m[i];
        }
    }

    // Between registers and memory in which every thread has its own places.
    template <class From, class To>
    __device__ __forceinline__ void copy(From from, To& to) const {
        #pragma unroll
        for (u32 i = 0; i < (R ? R : n); i++) to[i] = from[i];
    }

    // `count` rows of `x [rows,H,K]` from token `first`, as [count,width] with zeros after K.
    __device__ void read_keys(const Linear& p, Array x, u32 first, u32 count, float* to) const {
        // Known while compiling where R is.
        const u32 w = R ? R * G : width;
        for (u32 i = threadIdx.x; i < count * w; i += blockDim.x)
            to[i] = i % w < p.key ? load(x, token(p, first + i / w) * p.key + i % w) : 0.0f;
    }

    // What a thread adds to a row of keys times its column.
    // `row` lies in shared memory, `m` in registers. Four sums of their own, so that no product waits for the one before.
    template <class M>
    __device__ __forceinline__ float dot(const float* row, M& m) const {
        float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < (R ? R : n); i += 4) {
            Four x = *(const Four*)(row + i * G + 4 * part);
            a += x.x * m[i];
            b += x.y * m[i + 1];
            c += x.z * m[i + 2];
            d += x.w * m[i + 3];
        }
        return (a + b) + (c + d);
    }

    // The sum over the threads of a column, in each of them.
    __device__ __forceinline__ float over_column(float x) const {
        #pragma unroll
        for (u32 mask = 32 / G; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
        return x;
    }
};

// Element `i` of an array as it lies in memory, and as a 32-bit float. Fetching bits does not wait for their conversion.
__device__ __forceinline__ u32 bits_of(Array x, u64 i) {
    return x.type == 0 ? ((const u32*)x.data)[i] : ((const u16*)x.data)[i];
}
// Converts an element's bits to a float, by the array's type.
__device__ __forceinline__ float number_of(Array x, u32 bits) {
    return x.type == 0 ? __uint_as_float(bits) : x.type == 1 ? from_bf16((u16)bits) : from_f16((u16)bits);
}

// Rows of keys [TILE,K'] on their way to shared memory: fetched before other work, put down after it. Bits are converted
// when they are put down, so that nothing waits before; zero bits are zero in every type. With R = 0 nothing is ahead.
template <u32 R, u32 G, u32 TILE>
struct KeysAhead {
    static constexpr u32 WIDTH = R ? R * G : 1, THREADS = HeadTile<R, G>::COLUMNS * G, EACH = R ? TILE * R / 32 : 1;
    u32 x[EACH], first;

    // Reads are begun and not waited for.
    __device__ __forceinline__ void fetch(const Linear& p, const HeadTile<R, G>& head_tile, Array from, u32 token, u32 count) {
        first = token;
        if constexpr (R > 0) {
            #pragma unroll
            for (u32 j = 0; j < EACH; j++) {
                u32 i = threadIdx.x + j * THREADS, t = i / WIDTH, row = i % WIDTH;
                x[j] = t < count && row < p.key ? bits_of(from, head_tile.token(p, token + t) * p.key + row) : 0;
            }
        }
    }

    // To shared memory, as 32-bit floats.
    __device__ __forceinline__ void put(const Linear& p, const HeadTile<R, G>& head_tile, Array from, u32 count, float* to) {
        if constexpr (R > 0) {
            #pragma unroll
            for (u32 j = 0; j < EACH; j++) to[threadIdx.x + j * THREADS] = number_of(from, x[j]);
        } else {
            head_tile.read_keys(p, from, first, count, to);
        }
    }
};

// The same of rows of values [TILE,COLUMNS].
// Threads take elements in turn: neighbours in a row of values are neighbouring threads'.
template <u32 R, u32 G, u32 TILE>
struct ValuesAhead {
    static constexpr u32 COLUMNS = HeadTile<R, G>::COLUMNS, THREADS = COLUMNS * G;
    static constexpr u32 EACH = (TILE + G - 1) / G;
    u32 x[EACH];

    // Zeros past the last token and past V.
    __device__ __forceinline__ void fetch(const Linear& p, const HeadTile<R, G>& head_tile, Array from, u32 token, u32 count) {
        #pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u32 i = threadIdx.x + j * THREADS, t = i / COLUMNS, c = head_tile.block * COLUMNS + i % COLUMNS;
            x[j] = t < count && c < p.value ? bits_of(from, head_tile.token(p, token + t) * p.value + c) : 0;
        }
    }

    // to [TILE,COLUMNS] = the fetched values as floats.
    __device__ __forceinline__ void put(Array from, float* to) {
        #pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u32 i = threadIdx.x + j * THREADS;
            if (i < TILE * COLUMNS) to[i] = number_of(from, x[j]);
        }
    }
};

// The same of gates [TILE].
// The first TILE threads have a token each.
struct GatesAhead {
    Four x;

    // A thread a token.
    template <u32 R, u32 G>
    __device__ __forceinline__ void fetch(const Linear& p, const HeadTile<R, G>& head_tile, u32 token, u32 count) {
        if (threadIdx.x < count) x = gates_of(p, head_tile.token(p, token + threadIdx.x));
    }

    // to[t] = (w, r, a, η) of token t < count, from the gates of the rule.
    __device__ __forceinline__ void put(const Linear& p, u32 count, Four* to) {
        if (threadIdx.x < count) to[threadIdx.x] = lower(p, x);
    }
};

// Inputs of the next TILE tokens, on their way while a tile is computed: keys, queries, rows of values, gates.
template <u32 R, u32 G, u32 TILE>
struct TileAhead {
    KeysAhead<R, G, TILE> k, q;
    ValuesAhead<R, G, TILE> v;
    GatesAhead gates;

    // Asks for those from token `first` on; `values` are V, or their gradients.
    __device__ __forceinline__ void fetch(const Linear& p, const HeadTile<R, G>& head_tile, Array values, u32 first) {
        u32 count = min(TILE, head_tile.tokens - first);
        k.fetch(p, head_tile, p.k, first, count);
        q.fetch(p, head_tile, p.q, first, count);
        v.fetch(p, head_tile, values, first, count);
        gates.fetch(p, head_tile, first, count);
    }

    // Puts `count` of them into shared memory, for all threads to read: keys and queries [TILE,K'], values [TILE,COLUMNS],
    // w, r, a, η [TILE]. The first barrier waits for those that still read the tile before.
    __device__ __forceinline__ void put(
        const Linear& p, const HeadTile<R, G>& head_tile, Array values, u32 count, float* to_k, float* to_q, float* to_v,
        Four* to_gates
    ) {
        __syncthreads();
        k.put(p, head_tile, p.k, count, to_k);
        q.put(p, head_tile, p.q, count, to_q);
        v.put(values, to_v);
        gates.put(p, count, to_gates);
        __syncthreads();
    }
};

// Four elements of a token's key and of its query, out of rows in shared memory.
struct KeyAndQuery {
    float k[4], q[4];

    // `at` is a multiple of four.
    __device__ __forceinline__ KeyAndQuery(const float* keys, const float* queries, u32 at) {
        const Four key = *(const Four*)(keys + at), query = *(const Four*)(queries + at);
        k[0] = key.x, k[1] = key.y, k[2] = key.z, k[3] = key.w;
        q[0] = query.x, q[1] = query.y, q[2] = query.z, q[3] = query.w;
    }
};

// v - f k M_c, k M and the pseudo-value u (z of (2)) of a token, and the sum of `other` over the column.
struct PseudoValue {
    float target, prediction, u, other;
};

// Equations (1) and (2); `m` and the memory at the group's start are those before the token.
template <u32 R, u32 G>
__device__ __forceinline__ PseudoValue predict(
    const Linear& p, const HeadTile<R, G>& head_tile, const float* k, float v, Four gates, Own<R>& m, Own<0> group, float other
) {
    // All three sums go through the same exchanges.
    float read = p.erase ? head_tile.dot(k, m) : 0.0f, frozen = p.frozen ? head_tile.dot(k, group) : 0.0f;
    #pragma unroll
    for (u32 mask = 32 / G; mask < 32; mask *= 2) {
        read += shuffle_xor(read, mask);
        frozen += shuffle_xor(frozen, mask);
        other += shuffle_xor(other, mask);
    }
    PseudoValue x = {v - frozen, read, 0.0f, other};
    x.u = gates.x * x.target;
    if (p.erase) x.u -= gates.y * read;
    return x;
}

// Equations (3) and (4).
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void update(
    const HeadTile<R, G>& head_tile, const float* k, float u, Four gates, Own<R>& m, Own<R>& s
) {
    #pragma unroll
    for (u32 i = 0; i < (R ? R : head_tile.n); i += 4) {
        Four x = *(const Four*)(k + i * G + 4 * head_tile.part);
        // Four rows of the thread.
        float keys[4] = {x.x, x.y, x.z, x.w};
        #pragma unroll
        for (u32 j = 0; j < 4; j++) {
            // kᵀ u; with momentum S, which M takes in.
            float write = keys[j] * u;
            if (S) write = s[i + j] = gates.w * s[i + j] + write;
            m[i + j] = gates.z * m[i + j] + write;
        }
    }
}
