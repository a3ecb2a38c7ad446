// Random words that depend on a key and a counter alone.
#pragma once
#include "device.cuh"

// Two random words of a key and a counter: Threefry-2x32 with 20 rounds, as `threefry` of `hecate-core`.
__device__ __forceinline__ uint2 threefry(uint2 key, u64 counter) {
    const u32 keys[3] = {key.x, key.y, 0x1BD11BDA ^ key.x ^ key.y};
    const u32 turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    u32 x = (u32)counter + keys[0], y = (u32)(counter >> 32) + keys[1];
#pragma unroll
    for (u32 round = 0; round < 20; round++) {
        x += y;
        y = __funnelshift_l(y, y, turns[round % 8]) ^ x;
        // The key comes in again after every fourth round.
        if (round % 4 == 3) {
            u32 n = round / 4 + 1;
            x += keys[n % 3];
            y += keys[(n + 1) % 3] + n;
        }
    }
    return {x, y};
}
