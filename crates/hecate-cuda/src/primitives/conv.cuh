// Short causal convolution, each channel by itself. In every sequence, rows 0..W-1 are the state's, then come the tokens:
// u[t, d] = sum over j of weight[d, j] row[t + j, d]. s is u, or SiLU of it. y is s, or heads of it divided by their
// length.
#pragma once
#include "hecate.cuh"
#include "maps.cuh"

// Arrays and sizes of a call; `conv::ConvCall` is its twin.
struct ConvCall {
    // [rows, D], [D, W], [N, W-1, D]
    Array x, weight, state;
    // [N + 1]
    const u32* starts;
    u64 rows, channels;
    u32 sequences, width;
    // Channels of a head that is brought to length 1, a power of two of runs
    u32 silu, l2_norm;
    // Of the number that is added to a length
    float square;
    u32 unused;
};

// A sequence: its number, its first row and its tokens.
struct Range {
    u64 n, start, length;
};

// Sequence `n`.
__device__ __forceinline__ Range sequence(const ConvCall& call, u64 n) {
    u64 start = call.starts[n];
    return Range{n, start, call.starts[n + 1] - start};
}

// The sequence that owns a row.
__device__ __forceinline__ Range owner(const ConvCall& call, u64 row) {
    // By bisection of the first rows.
    u64 low = 0, high = call.sequences;
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (call.starts[middle] <= row) low = middle;
        else high = middle;
    }
    return sequence(call, low);
}

// Row `i` of a sequence with the state in front; both arrays are of one type.
template <u32 N> __device__ __forceinline__ Run<N> input(const ConvCall& call, const Range& range, u64 i, u64 channel) {
    // Rows of the state.
    u64 kept = call.width - 1;
    bool state = i < kept;
    u64 row = state ? range.n * kept + i : range.start + i - kept;
    return load_run<N>(Array{state ? call.state.data : call.x.data, call.x.type}, row * call.channels + channel);
}

// sum += a ∘ b, N neighbouring channels.
template <u32 N> __device__ __forceinline__ void add_product(Run<N>& sum, const Run<N>& a, const Run<N>& b) {
#pragma unroll
    for (u32 n = 0; n < N; n++) sum.x[n] += a.x[n] * b.x[n];
}

// Consecutive rows that a thread takes.
const u32 ROWS_PER_THREAD = 8;
