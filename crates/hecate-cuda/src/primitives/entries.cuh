// Many arrays in one call: each has as many blocks as it takes, BLOCK_ELEMENTS elements a block.
#pragma once
#include "hecate.cuh"

#define BLOCK_ELEMENTS 4096

// The last entry whose first block is not after this one.
template <class E> __device__ __forceinline__ E own_entry(const E* entries, u32 number) {
    // By bisection of the first blocks.
    u32 low = 0, high = number;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (entries[middle].first <= blockIdx.x) low = middle;
        else high = middle;
    }
    return entries[low];
}
