// A thread's part of the matrices of a memory: in registers, and as images in memory that it alone reads and writes.
#pragma once
#include "exchange.cuh"
#include "recurrent.cuh"

// A thread's part of weights and momentum, or of their gradients: of its warp's units columns of W0 and rows of W1.
template <u32 E, u32 UNITS, u32 BLOCKS, bool MOMENTUM> struct Matrices {
    static constexpr u32 MATRICES = MOMENTUM ? 4 : 2;
    // W0, W1, S0, S1.
    float x[MATRICES][UNITS][E];

    // Where element i of a unit of the warp lies in matrix `m`.
    __device__ __forceinline__ static u32 place(u32 m, u32 u, u32 i) {
        // The unit among all of the memory, and the key's element of W0 or the value's of W1.
        const u32 unit = Exchange<BLOCKS>::warp() * UNITS + u, wide = threadIdx.x % 32 + 32 * i;
        const u32 hidden = Exchange<BLOCKS>::warps() * UNITS;
        return m % 2 == 0 ? wide * hidden + unit : unit * (32 * E) + wide;
    }
    // Calls `done(matrix, unit, i, place)` for each element, with its place in that matrix.
    template <class Done> __device__ __forceinline__ static void each(Done done) {
#pragma unroll
        for (u32 m = 0; m < MATRICES; m++)
#pragma unroll
            for (u32 u = 0; u < UNITS; u++)
#pragma unroll
                for (u32 i = 0; i < E; i++) done(m, u, i, place(m, u, i));
    }

    // From the slots of sequence and head `index`, and back.
    __device__ __forceinline__ void load(const RecurrentCall& call, const float* const* slots, u64 index) {
        each([&](u32 m, u32 u, u32 i, u32 place) { x[m][u][i] = slots[m][index * call.sizes[m] + place]; });
    }
    // Stores the thread's elements to the slots of sequence and head `index`.
    __device__ __forceinline__ void store(const RecurrentCall& call, float* const* slots, u64 index) const {
        each([&](u32 m, u32 u, u32 i, u32 place) { slots[m][index * call.sizes[m] + place] = x[m][u][i]; });
    }

    // From a kept state, all matrices one after another, and back.
    __device__ __forceinline__ void load(const float* state) {
        // Elements of a matrix: all have as many.
        const u32 size = BLOCKS * blockDim.x * UNITS * E;
        each([&](u32 m, u32 u, u32 i, u32 place) { x[m][u][i] = state[m * size + place]; });
    }
    // Stores the thread's elements to a kept state.
    __device__ __forceinline__ void store(float* state) const {
        const u32 size = BLOCKS * blockDim.x * UNITS * E;
        each([&](u32 m, u32 u, u32 i, u32 place) { state[m * size + place] = x[m][u][i]; });
    }
};

// A thread's part of matrices as it lies in memory: four elements at a time, neighbours by thread.
template <u32 E, u32 UNITS> struct Image {
    // Runs of 16 bytes of a matrix that a thread has.
    static constexpr u32 FOURS = UNITS * E / 4;

    // Elements n.. of matrix `m` of an image that begins at `from`.
    __device__ __forceinline__ static float4* four(float* from, u32 m, u32 n) {
        return (float4*)from + (u64)(m * FOURS + n) * blockDim.x + threadIdx.x;
    }
    // All of matrix `m` there.
    __device__ __forceinline__ static void store(float* to, u32 m, const float (&x)[UNITS][E]) {
        // Elements are numbered unit by unit.
        auto at = [&](u32 j) { return x[j / E][j % E]; };
#pragma unroll
        for (u32 n = 0; n < FOURS; n++)
            *four(to, m, n) = make_float4(at(4 * n), at(4 * n + 1), at(4 * n + 2), at(4 * n + 3));
    }
    // Begins to copy `count` matrices from the first one on.
    __device__ __forceinline__ static void copy(float* to, float* from, u32 count) {
        // Nobody waits here: the copy is there before the next token.
#pragma unroll 8
        for (u32 n = 0; n < count * FOURS; n++) copy_16(four(to, 0, n), four(from, 0, n), true);
        copies_commit();
    }
    // x [UNITS,E] = the thread's part of matrix m of an image.
    __device__ __forceinline__ static void load(float* from, u32 m, float (&x)[UNITS][E]) {
        each(from, m, [&](u32 u, u32 i, float element) { x[u][i] = element; });
    }
    // Calls `done(u, i, element)` for all of matrix `m`.
    template <class Done> __device__ __forceinline__ static void each(float* from, u32 m, Done done) {
#pragma unroll
        for (u32 n = 0; n < FOURS; n++) {
            const float4 x = *four(from, m, n);
            // Four neighbours are of four units, or with E = 2 of two.
            const float all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (u32 j = 0; j < 4; j++) done((4 * n + j) / E, (4 * n + j) % E, all[j]);
        }
    }
};

// The same address, which the compiler takes for a new one: else it keeps addresses of all elements in registers.
__device__ __forceinline__ float* made_here(float* x) {
    asm volatile("" : "+l"(x));
    return x;
}

// Calls `done(four, matrix, places)` for every four of an image of both layers, with the places of its elements there.
// In a loop that takes few registers.
template <u32 E, u32 UNITS, u32 BLOCKS, class Done> __device__ __forceinline__ void each_four(float* image, Done done) {
    using I = Image<E, UNITS>;
#pragma unroll 1
    for (u32 n = 0; n < 2 * I::FOURS; n++) {
        const u32 m = n / I::FOURS, first = 4 * (n % I::FOURS);
        // Elements of an image go unit by unit.
        u32 places[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) places[j] = Matrices<E, UNITS, BLOCKS, false>::place(m, (first + j) / E, (first + j) % E);
        done(I::four(image, m, n % I::FOURS), m, places);
    }
}

// Anchors of both layers of a head, as threads hold them, at `to`. Null where memories forget to zero.
template <u32 E, u32 UNITS, u32 BLOCKS>
__device__ __forceinline__ float* anchor_image(const RecurrentCall& call, u32 head, float* to) {
    if (!call.anchor_slots) return nullptr;
    each_four<E, UNITS, BLOCKS>(to, [&](float4* four, u32 m, const u32(&at)[4]) {
        // A thread reads what it wrote itself.
        const float* anchor = call.anchor[m] + (u64)head * call.sizes[m];
        *four = make_float4(anchor[at[0]], anchor[at[1]], anchor[at[2]], anchor[at[3]]);
    });
    return to;
}
