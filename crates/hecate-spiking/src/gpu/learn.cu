// Plasticity after a burst: who fired is noted in words of bits, then weights between two areas change. All is of integers.
typedef unsigned int u32;
typedef unsigned long long u64;

// recent = recent << 1   recent [planes,N]: bit `i` of word `k` says that a neuron fired `32 k + i` bursts ago
extern "C" __global__ void spiking_age(u32* recent, u32 count, u32 planes) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    u32 carry = 0;
    for (u32 plane = 0; plane < planes; plane++) {
        u32* place = recent + (u64)plane * count + index;
        // What leaves a word enters the next one; most words stay zero.
        u32 word = *place, next = word << 1 | carry;
        carry = word >> 31;
        if (next != word) *place = next;
    }
}

// recent[0, fired] |= 1   fired [*,2], counts[parity] of them, each neuron once
extern "C" __global__ void spiking_note(u32* recent, const uint2* fired, const u32* counts, u32 parity) {
    u32 count = counts[parity];
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) recent[fired[i].x] |= 1;
}

// recent[:window, index].sum()
__device__ __forceinline__ u32 often(const u32* recent, u32 count, u32 index, u32 window) {
    u32 sum = 0;
    for (; window >= 32; window -= 32, recent += count) sum += __popc(recent[index]);
    return window ? sum + __popc(recent[index] & ((1u << window) - 1)) : sum;
}

// w = where(s == t == window, w + rise, where(s + t > 0, w - fall, w)).clamp(0, 255)   of synapses from `members [M]` into an area
// A warp has one source at a time. `entries [high-low,2]` are the synapses from `low` to `high` of all.
extern "C" __global__ void spiking_learn_windows(
    const u32* rows, uint2* entries, const u32* recent, const u32* places, const u32* members, u32 member_count, u32 count,
    u32 low, u32 high, u32 start, u32 area, u32 window, u32 rise, u32 fall
) {
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (u32 i = thread >> 5; i < member_count; i += threads >> 5) {
        u32 source = members[i], end = min(rows[source + 1], high), s = often(recent, count, source, window);
        for (u32 at = max(rows[source], low) + (thread & 31); at < end; at += 32) {
            uint2 entry = entries[at - low];
            u32 target = start + entry.x;
            // Rows lead into other areas too.
            if (places[target] != area) continue;
            u32 t = often(recent, count, target, window), weight = entry.y & 255;
            if (s + t == 0) continue;
            // All of the window adds; some of it takes away.
            u32 changed = s == window && t == window ? min(weight + rise, 255u) : weight - min(fall, weight);
            if (changed != weight) entries[at - low].y = (entry.y & ~255u) | changed;
        }
    }
}

// The last bursts of a neuron, the newest in bit 0, without those outside of `mask`.
__device__ __forceinline__ u64 last(const u32* recent, u32 count, u32 planes, u32 index, u64 mask) {
    u64 high = planes > 1 ? recent[count + index] : 0;
    return (high << 32 | recent[index]) & mask;
}

// for d in 36..1: w += rise[d] where source fired d before target; w -= fall[d] where d after; clamped at every step
// Of pairs whose later spike is of this burst. `table [37]`: rise in the low half of a word, fall in the high one.
extern "C" __global__ void spiking_learn_pairs(
    const u32* rows, uint2* entries, const u32* recent, const u32* places, const u32* members, const u32* table,
    u32 member_count, u32 count, u32 low, u32 high, u32 start, u32 area, u32 window, u32 planes
) {
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    u64 mask = (1ull << window) - 1;
    for (u32 i = thread >> 5; i < member_count; i += threads >> 5) {
        u32 source = members[i], end = min(rows[source + 1], high);
        u64 s = last(recent, count, planes, source, mask);
        // A source that never fired has no pair.
        if (!s) continue;
        for (u32 at = max(rows[source], low) + (thread & 31); at < end; at += 32) {
            uint2 entry = entries[at - low];
            u32 target = start + entry.x;
            if (places[target] != area) continue;
            u64 t = last(recent, count, planes, target, mask);
            // What each of the two has to do with a spike of the other now.
            u64 adds = t & 1 ? s & ~1ull : 0, takes = s & 1 ? t & ~1ull : 0;
            u32 before = entry.y & 255, weight = before;
            for (u64 pairs = adds | takes; pairs;) {
                // Those furthest apart come first, and those that add before those that take away.
                u32 apart = 63 - __clzll(pairs), change = table[apart];
                if (adds >> apart & 1) weight = min(weight + (change & 0xffff), 255u);
                if (takes >> apart & 1) weight -= min(change >> 16, weight);
                pairs ^= 1ull << apart;
            }
            if (weight != before) entries[at - low].y = (entry.y & ~255u) | weight;
        }
    }
}
