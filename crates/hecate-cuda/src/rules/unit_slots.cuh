// Slots of a warp in registers, and what tokens bring along for them.
//
// A warp has four neighbouring slots at once. Their elements are shared out to its lanes, so that a slot's sums are over a warp.
#pragma once
#include "pieces.cuh"

// Slots that a warp has at once.
#define SLOTS 4

// COLUMNS elements a lane of each of a warp's slots of `32 COLUMNS` elements, element `lane + 32 c`.
template <u32 COLUMNS> struct Slots {
    float x[SLOTS][COLUMNS];

    // Of neighbouring rows.
    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (u32 n = 0; n < SLOTS * COLUMNS; n++) x[n / COLUMNS][n % COLUMNS] = from[threadIdx.x % 32 + 32 * n];
    }
    // to [SLOTS, 32 * COLUMNS] = x
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (u32 n = 0; n < SLOTS * COLUMNS; n++) to[threadIdx.x % 32 + 32 * n] = x[n / COLUMNS][n % COLUMNS];
    }
};

// The same of one row.
template <u32 COLUMNS> struct Lanes {
    float x[COLUMNS];

    // x = from [32 * COLUMNS], every 32nd element a lane.
    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) x[c] = from[threadIdx.x % 32 + 32 * c];
    }
    // Added to the row unless it is the first of a sum.
    __device__ __forceinline__ void add(float* to, bool first) const {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            float& own = to[threadIdx.x % 32 + 32 * c];
            own = first ? x[c] : own + x[c];
        }
    }
};

// A number for each of a warp's slots: rows of them begin at multiples of 16 bytes.
struct Four {
    float x[SLOTS];

    // Leaves the four numbers open.
    __device__ __forceinline__ Four() {}
    // Loads x[0:4].
    __device__ __forceinline__ explicit Four(const float* from) {
        float4 all = *(const float4*)from;
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
    // From the lanes where `warp_sums` leaves them.
    __device__ __forceinline__ static Four spread(float sum) {
        Four all;
#pragma unroll
        for (u32 i = 0; i < SLOTS; i++) all.x[i] = shuffle(sum, i * (32 / SLOTS));
        return all;
    }
};

// The slot that `warp_sums` leaves a sum of in this lane, and whether this is the first such lane.
__device__ __forceinline__ u32 summed_slot() { return threadIdx.x % 32 / (32 / SLOTS); }
// True in the first of the lanes with a slot's sum.
__device__ __forceinline__ bool first_of_slot() { return threadIdx.x % (32 / SLOTS) == 0; }
