// The linear recurrence, equations (1)-(5): how the threads of a block hold a memory, and what one token writes.
//
// A block runs one lane: one sequence, one head, one block of value columns. A warp holds 32 / G columns; the G threads
// of a column share its rows, R to a thread, in registers. R = 0 is for any number of rows: then `Linear::rows_held`
// says how many a thread holds, and whatever else is in registers or shared memory is in global memory.
#pragma once
#include "hecate.cuh"

struct alignas(16) Four {
    float x, y, z, w;
};

// How the erase strength follows from the gates: r = 0, θ, θ a, β, θ + β.
enum { ERASE_NOTHING, ERASE_THETA, ERASE_DECAYED, ERASE_BETA, ERASE_BOTH };

struct Linear {
    Array q, k, v;                                // [rows,H,K], [rows,H,K], [rows,H,V]
    const float *log_a, *log_eta, *theta, *beta;  // [rows,H]; null where the rule has none
    const u32* starts;                            // first row of each sequence and the end, then as many first kept states
    u32 tokens, kept;                             // tokens and kept states of every sequence, where `starts` is null
    u32 heads, key, value, blocks;                // H, K, V, blocks of columns
    u32 frozen, period;                           // G (0: not frozen); states are kept every 64 tokens of each period
    u32 erase, before, rows_held, sequences;
};

// Gates of token and head `i` [rows,H]: log a, log η, θ, β; 0 where the rule has none.
__device__ __forceinline__ Four gates_of(const Linear& p, u64 i) {
    return Four{p.log_a[i], p.log_eta ? p.log_eta[i] : -INFINITE, p.theta[i], p.beta ? p.beta[i] : 0.0f};
}

__device__ __forceinline__ float factor(float log) { return log <= 0.0f ? expf(log) : NOT_A_NUMBER; }
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
__device__ __forceinline__ GateGrads raise(const Linear& p, Four gates, float dw, float dr, float da, float deta) {
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

// Numbers that belong to one thread: R in registers, or any number, one every `blockDim.x`, in memory.
template <u32 R>
struct Own {
    float x[R];
    __device__ __forceinline__ void at(float*) {}
    __device__ __forceinline__ float& operator[](u32 i) { return x[i]; }
};
template <>
struct Own<0> {
    float* x;
    __device__ __forceinline__ void at(float* base) { x = base + threadIdx.x; }
    __device__ __forceinline__ float& operator[](u32 i) { return x[(u64)i * blockDim.x]; }
};

template <u32 R, u32 G>
struct Lane {
    static constexpr u32 COLUMNS = R ? 32 : 8;  // of the block
    u32 n, width;                               // rows that a thread holds; K rounded up, n G
    u32 part, column, value;                    // which rows; which column, of the block and of V
    u32 block, head, tokens;
    u64 row, kept, state;                       // first row, first kept state, index into [N,H]

    // Lane `index`, counted from sequence to head to block of columns.
    __device__ Lane(const Linear& p, u32 index) {
        n = R ? R : p.rows_held;
        width = n * G;
        u32 thread = threadIdx.x % 32;
        part = thread / (32 / G);
        column = threadIdx.x / 32 * (32 / G) + thread % (32 / G);
        block = index % p.blocks;
        state = index / p.blocks;
        value = block * COLUMNS + column;
        head = (u32)(state % p.heads);
        u64 sequence = state / p.heads;
        row = p.starts ? p.starts[sequence] : sequence * p.tokens;
        tokens = p.starts ? p.starts[sequence + 1] - (u32)row : p.tokens;
        kept = p.starts ? p.starts[p.sequences + 1 + sequence] : sequence * p.kept;
    }

    // Row of the memory that is a thread's `i`th: four in turn, so that they are read from rows of keys at once.
    __device__ __forceinline__ u32 key(u32 i) const { return i / 4 * 4 * G + 4 * part + i % 4; }

    // Token and head in arrays [rows,H].
    __device__ __forceinline__ u64 token(const Linear& p, u32 t) const { return (row + t) * p.heads + head; }

    // Kept states, and the first token of each.
    __device__ __forceinline__ u32 spans(const Linear& p) const {
        return tokens / p.period * ((p.period + 63) / 64) + (tokens % p.period + 63) / 64;
    }
    __device__ __forceinline__ u32 start_of(const Linear& p, u32 j) const {
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

    // `count` rows of `x [rows,H,K]` from token `first`, as [count,width] with zeros behind K.
    __device__ void read_keys(const Linear& p, Array x, u32 first, u32 count, float* to) const {
        const u32 w = R ? R * G : width;
        for (u32 i = threadIdx.x; i < count * w; i += blockDim.x)
            to[i] = i % w < p.key ? load(x, token(p, first + i / w) * p.key + i % w) : 0.0f;
    }

    // What a thread adds to a row of keys times its column.
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

// Bits of an array as they come, and as a number.
__device__ __forceinline__ u32 bits_of(Array x, u64 i) {
    return x.type == 0 ? ((const u32*)x.data)[i] : ((const u16*)x.data)[i];
}
__device__ __forceinline__ float number_of(Array x, u32 bits) {
    return x.type == 0 ? __uint_as_float(bits) : x.type == 1 ? from_bf16((u16)bits) : from_f16((u16)bits);
}

// Rows of keys [TILE,K'] on their way to shared memory: fetched before other work, put down after it. Bits are converted
// when they are put down, so that nothing waits before; zero bits are zero in every type. With R = 0 nothing is ahead.
template <u32 R, u32 G, u32 TILE>
struct KeysAhead {
    static constexpr u32 WIDTH = R ? R * G : 1, THREADS = Lane<R, G>::COLUMNS * G, EACH = R ? TILE * R / 32 : 1;
    u32 x[EACH], first;

    __device__ __forceinline__ void fetch(const Linear& p, const Lane<R, G>& lane, Array from, u32 token, u32 count) {
        first = token;
        if constexpr (R > 0) {
            #pragma unroll
            for (u32 j = 0; j < EACH; j++) {
                u32 i = threadIdx.x + j * THREADS, t = i / WIDTH, row = i % WIDTH;
                x[j] = t < count && row < p.key ? bits_of(from, lane.token(p, token + t) * p.key + row) : 0;
            }
        }
    }

    __device__ __forceinline__ void put(const Linear& p, const Lane<R, G>& lane, Array from, u32 count, float* to) {
        if constexpr (R > 0) {
            #pragma unroll
            for (u32 j = 0; j < EACH; j++) to[threadIdx.x + j * THREADS] = number_of(from, x[j]);
        } else {
            lane.read_keys(p, from, first, count, to);
        }
    }
};

// The same of rows of values [TILE,COLUMNS].
template <u32 R, u32 G, u32 TILE>
struct ValuesAhead {
    static constexpr u32 COLUMNS = Lane<R, G>::COLUMNS, THREADS = COLUMNS * G;
    static constexpr u32 EACH = (TILE + G - 1) / G;
    u32 x[EACH];

    __device__ __forceinline__ void fetch(const Linear& p, const Lane<R, G>& lane, Array from, u32 token, u32 count) {
        #pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u32 i = threadIdx.x + j * THREADS, t = i / COLUMNS, c = lane.block * COLUMNS + i % COLUMNS;
            x[j] = t < count && c < p.value ? bits_of(from, lane.token(p, token + t) * p.value + c) : 0;
        }
    }

    __device__ __forceinline__ void put(Array from, float* to) {
        #pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u32 i = threadIdx.x + j * THREADS;
            if (i < TILE * COLUMNS) to[i] = number_of(from, x[j]);
        }
    }
};

// The same of gates [TILE].
struct GatesAhead {
    Four x;

    template <u32 R, u32 G>
    __device__ __forceinline__ void fetch(const Linear& p, const Lane<R, G>& lane, u32 token, u32 count) {
        if (threadIdx.x < count) x = gates_of(p, lane.token(p, token + threadIdx.x));
    }

    __device__ __forceinline__ void put(const Linear& p, u32 count, Four* to) {
        if (threadIdx.x < count) to[threadIdx.x] = lower(p, x);
    }
};

// v - f k M_c, k M and z of a token, and the sum of `other` over the column.
struct Written {
    float target, p, z, other;
};

// Equations (1) and (2); `m` and the memory at the group's start are those before the token.
template <u32 R, u32 G>
__device__ __forceinline__ Written predict(
    const Linear& p, const Lane<R, G>& lane, const float* k, float v, Four gates, Own<R>& m, Own<0> group, float other
) {
    float read = p.erase ? lane.dot(k, m) : 0.0f, frozen = p.frozen ? lane.dot(k, group) : 0.0f;
    #pragma unroll
    for (u32 mask = 32 / G; mask < 32; mask *= 2) {
        read += shuffle_xor(read, mask);
        frozen += shuffle_xor(frozen, mask);
        other += shuffle_xor(other, mask);
    }
    Written x = {v - frozen, read, 0.0f, other};
    x.z = gates.x * x.target;
    if (p.erase) x.z -= gates.y * read;
    return x;
}

// Equations (3) and (4).
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void update(
    const Lane<R, G>& lane, const float* k, float z, Four gates, Own<R>& m, Own<R>& s
) {
    #pragma unroll
    for (u32 i = 0; i < (R ? R : lane.n); i += 4) {
        Four x = *(const Four*)(k + i * G + 4 * lane.part);
        float keys[4] = {x.x, x.y, x.z, x.w};
        #pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float write = keys[j] * z;
            if (S) write = s[i + j] = gates.w * s[i + j] + write;
            m[i + j] = gates.z * m[i + j] + write;
        }
    }
}
