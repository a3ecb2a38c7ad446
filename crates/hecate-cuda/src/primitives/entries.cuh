// Many arrays in one call: each has as many blocks as it takes, SPAN elements a block.
#pragma once
#include "hecate.cuh"

#define SPAN 8192

// The last entry whose first block is not behind this one.
template <class E> __device__ __forceinline__ E own_entry(const E* entries, u32 number) {
    u32 low = 0, high = number;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (entries[middle].first <= blockIdx.x) low = middle;
        else high = middle;
    }
    return entries[low];
}
