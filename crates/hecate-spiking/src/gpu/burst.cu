// One burst of a spiking network: what fired delivers, then neurons that something reached decide. Sums are integers with
// 16 bits behind the point, so that their order does not matter. Floats are rounded as IEEE says, one operation at a time.
typedef unsigned int u32;
typedef unsigned long long u64;

// amount = round(weight * potential * 2^16 / divisor), half rounds up
__device__ __forceinline__ u64 contribution(u32 weight, u32 potential, u32 divisor) {
    // The product is below 2^32: both factors have eight bits.
    u32 product = weight * potential << 16;
    if (divisor <= 1) return product;
    u32 quotient = product / divisor, rest = product - quotient * divisor;
    return (u64)quotient + (rest >= divisor - rest);
}

// Zero with its sign for what lies below 2^-126.
__device__ __forceinline__ float flushed(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x7f800000u ? x : __uint_as_float(bits & 0x80000000u);
}

// sum.to(float32) * 2^-16; the conversion rounds half to even, and the product is exact.
__device__ __forceinline__ float to_float(u64 sum) { return __fmul_rn(__ll2float_rn((long long)sum), 1.0f / 65536.0f); }

// The word of PCG that decides by chance: a seed of the neuron's id and the burst.
__device__ __forceinline__ u32 word(u32 neuron, u32 burst) {
    // The two constants make a seed of both.
    u32 x = neuron * 2654435761u + burst * 1597334677u;
    u32 state = x * 747796405u + 2891336453u;
    u32 mixed = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    return (mixed >> 22) ^ mixed;
}

// sums[target] += amount; candidates[target] = true
__device__ __forceinline__ void add(u64* sums, u32* candidates, u32 target, u64 amount) {
    atomicAdd(sums + target, amount);
    u32 bit = 1u << (target & 31);
    // Many synapses reach one neuron: most find the bit set.
    if (!(__ldcg(candidates + (target >> 5)) & bit)) atomicOr(candidates + (target >> 5), bit);
}

// sums.index_add_(0, targets[rows[fired]], contributions); then the same of `staged [S,3]`: index, low and high word.
// A warp has one fired neuron at a time. `fired [*,2]` are indices and bits of potentials, `counts[parity]` of them.
// `entries [high-low,2]` are the synapses from `low` to `high` of all: rows begin and end there.
extern "C" __global__ void spiking_deliver(
    const u32* rows, const uint2* entries, const u32* sources, const uint2* fired, u32* counts, const u32* staged,
    u64* sums, u32* candidates, u32 parity, u32 staged_count, u32 first, u32 low, u32 high
) {
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    u32 count = counts[parity];
    // The other counter is that of the burst that begins.
    if (first && thread == 0) counts[1 - parity] = 0;
    for (u32 i = thread >> 5; i < count; i += threads >> 5) {
        uint2 spike = fired[i];
        u32 source = sources[spike.x], divisor = source & 0x7fffffffu, end = min(rows[spike.x + 1], high);
        // round(clamp(potential, 0, 255)), half to even
        u32 driven = __float2uint_rn(fminf(fmaxf(__uint_as_float(spike.y), 0.0f), 255.0f));
        for (u32 at = max(rows[spike.x], low) + (thread & 31); at < end; at += 32) {
            // Target, then weight, potential and kind by bytes from the lowest on.
            uint2 entry = entries[at - low];
            u32 potential = source >> 31 ? driven : entry.y >> 8 & 255;
            // The highest bit of a source says that it delivers its own potential.
            u64 amount = contribution(entry.y & 255, potential, divisor);
            // An inhibitory synapse takes away, modulo 2^64.
            add(sums, candidates, entry.x, entry.y >> 16 ? 0 - amount : amount);
        }
    }
    for (u32 i = thread; i < staged_count; i += threads)
        add(sums, candidates, staged[3 * i], staged[3 * i + 1] | (u64)staged[3 * i + 2] << 32);
}

// What decides whether a neuron fires; 32 bytes.
struct Dynamics {
    // The least and the largest potential that fire.
    float threshold, limit;
    // The factor by which a potential leaks.
    float keep;
    // Refractory bursts in the low half, the fire limit in the high one.
    u32 refractory_fire_limit;
    // Snooze in the low half, 1 in the high one where potentials outlast a burst.
    u32 snooze_accumulate;
    // Words below `chance` fire, and all where `certain` is 1.
    u32 chance, certain;
    // Fills 32 bytes.
    u32 unused;
};

// One neuron that `input` reached: whether it fires, with its potential then. `counts` are refractory bursts and times in a row.
__device__ __forceinline__ bool step(const Dynamics& of, float input, float& potential, u32& counts, u32 neuron, u32 burst) {
    u32 refractory = counts & 0xffff, in_a_row = counts >> 16, fire_limit = of.refractory_fire_limit >> 16;
    // A potential that does not outlast a burst starts at zero.
    if (!(of.snooze_accumulate >> 16)) potential = 0.0f;
    // A refractory neuron loses its input and does not leak.
    if (refractory) {
        refractory -= 1;
        if (refractory == 0 && fire_limit && in_a_row >= fire_limit) in_a_row = 0;
        counts = refractory | in_a_row << 16;
        return false;
    }
    // What reached the neuron adds to its potential.
    potential = flushed(__fadd_rn(potential, input));
    if (potential >= of.threshold && potential <= of.limit) {
        // A neuron at its limit stays silent once, without a leak.
        if (fire_limit && in_a_row >= fire_limit) {
            counts = 0;
            return false;
        }
        // Chance decides by the neuron and the burst alone.
        if (of.certain || word(neuron, burst) < of.chance) {
            in_a_row = min(in_a_row + 1, 65535u);
            u32 snooze = fire_limit && in_a_row >= fire_limit ? of.snooze_accumulate & 0xffff : 0;
            counts = min((of.refractory_fire_limit & 0xffff) + snooze, 65535u) | in_a_row << 16;
            return true;
        }
    }
    // Whoever is silent begins to count again, and leaks.
    if (fire_limit) counts = 0;
    potential = flushed(__fmul_rn(potential, of.keep));
    return false;
}

// fired = candidates.nonzero() where `step` says so; sums and candidates are zero afterwards. A thread has one neuron of the part.
// Fired ones of a warp take places side by side, warps in any order: who reads them sorts.
extern "C" __global__ void spiking_decide(
    u64* sums, u32* candidates, float* potentials, u32* states, const u32* sorts, const Dynamics* table, uint2* fired,
    u32* counts, u32 parity, u32 count, u32 neurons, u32 start, u32 burst, u32 forgets
) {
    u32 place = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    // A warp has one word of candidates.
    u32 bits = place < count ? candidates[place >> 5] : 0;
    bool fires = false;
    float told = 0.0f;
    if (bits >> lane & 1) {
        float input = to_float(sums[place]);
        sums[place] = 0;
        if (place >= neurons) {
            // A memory neuron, which has no state.
            fires = true, told = input;
        } else {
            float potential = potentials[place];
            u32 state = states[place];
            fires = step(table[sorts[place]], input, potential, state, start + place, burst);
            told = potential;
            potentials[place] = fires ? 0.0f : potential;
            states[place] = state;
        }
    // Nothing reached it, and its potential does not outlast the burst.
    } else if (forgets && place < neurons && __float_as_uint(potentials[place]) && !(table[sorts[place]].snooze_accumulate >> 16)) {
        potentials[place] = 0.0f;
    }
    // Every lane has read the word before.
    __syncwarp();
    if (lane == 0 && bits) candidates[place >> 5] = 0;
    u32 all = __ballot_sync(~0u, fires);
    if (!all) return;
    // One lane takes places for its warp.
    u32 base = 0;
    if (lane == 0) base = atomicAdd(counts + parity, __popc(all));
    base = __shfl_sync(~0u, base, 0);
    if (fires) fired[base + __popc(all & ((1u << lane) - 1))] = make_uint2(start + place, __float_as_uint(told));
}
