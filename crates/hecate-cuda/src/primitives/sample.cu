// Drawing tokens: what `Cut::draw` of `hecate-core` defines, number by number. A block has a text, a thread a lane of tokens.
#include "follow.cuh"
#include "hecate.cuh"
#include "random.cuh"

// `sample::Call` is its twin.
struct Sample {
    // [B,V]
    Array scores;
    // [B,3]: a seed of two words, and the number of draws
    const u32* streams;
    // [B]
    u32* tokens;
    // [B,3]: one draw on
    u32* next;
    u32 vocabulary;
    // As in `Cut`.
    u32 greedy;
    float scale, limit;
    u32 top_k, top_p;
};

#define LANES 1024
#define WARPS (LANES / 32)
// Level of a token without weight.
#define NEVER 0xffffffffu

// Of 2⁻ᶠ times 2³¹, with alternating signs.
#define POWERS {0x80000000u, 0x58b90472u, 0x1ebec46du, 0x07150107u, 0x012e5362u, 0x001f1256u}

// A token among others: before those of a higher level, and before later ones of its own.
struct Token {
    u32 level, number;
    __device__ __forceinline__ bool before(const Token& other) const {
        return level < other.level || (level == other.level && level != NEVER && number < other.number);
    }
};

// 2³¹ at level 0, half of it 2²⁴ levels further.
__device__ __forceinline__ u32 weight(u32 level) {
    const u32 powers[6] = POWERS;
    const u32 fraction = level << 8;
    u32 power = powers[5];
#pragma unroll
    for (u32 i = 5; i > 0; i--) power = powers[i - 1] - __umulhi(fraction, power);
    return level == NEVER ? 0 : power >> (level >> 24);
}

// A part of a whole under 2⁶², in parts of 2³².
__device__ __forceinline__ u64 share(u64 whole, u32 part) {
    return (whole >> 32) * part + ((whole & 0xffffffffu) * part >> 32);
}

// Number and weight of some tokens.
struct Sum {
    u64 count, mass;
};

// Over the block, in every thread. Sums of whole numbers do not depend on the order.
__device__ __forceinline__ Sum block_total(Sum x, Sum* shared) {
    for (u32 mask = 16; mask > 0; mask >>= 1) {
        x.count += __shfl_xor_sync(0xffffffffu, x.count, mask);
        x.mass += __shfl_xor_sync(0xffffffffu, x.mass, mask);
    }
    // Whoever used `shared` before is through with it.
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    Sum sum = {0, 0};
#pragma unroll 4
    for (u32 i = 0; i < WARPS; i++) sum.count += shared[i].count, sum.mass += shared[i].mass;
    return sum;
}

// The sum over this lane of the warp and those before it.
__device__ __forceinline__ u64 running(u64 x) {
    for (u32 step = 1; step < 32; step *= 2) {
        u64 left = __shfl_up_sync(0xffffffffu, x, step);
        if (threadIdx.x % 32 >= step) x += left;
    }
    return x;
}

// The scores of a text, of a type known while compiling.
template <u32 TYPE> struct Row {
    void* data;
    u64 first;
    u32 vocabulary, top_k;
    float scale, limit;
    // Of the largest score
    float half;

    __device__ __forceinline__ float score(u32 i) const { return load(Array{data, TYPE}, first + i); }
    __device__ __forceinline__ u32 level(u32 i) const {
        float distance = half - 0.5f * score(i);
        return distance < limit ? (u32)(distance * scale) : NEVER;
    }

    // The largest score as a number that grows with it, in the upper half, and the earlier of equals; all ones for NaN.
    __device__ __forceinline__ u64 top() const {
        u64 best = 0;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < vocabulary; i += LANES) {
            u32 bits = __float_as_uint(score(i));
            u64 own = (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (u32)~i;
            if ((bits & 0x7fffffffu) > 0x7f800000u) own = ~0ull;
            best = own > best ? own : best;
        }
        return best;
    }

    // This lane's tokens before `bound`.
    __device__ __forceinline__ Sum ahead(Token bound) const {
        Sum sum = {0, 0};
#pragma unroll 4
        for (u32 i = threadIdx.x; i < vocabulary; i += LANES) {
            Token own = {level(i), i};
            if (own.before(bound)) sum.count++, sum.mass += weight(own.level);
        }
        return sum;
    }

    // This block's tokens up to a level: nothing is weighed.
    __device__ __forceinline__ u32 count(u32 highest, Sum* shared) const {
        u32 own = 0;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < vocabulary; i += LANES) own += level(i) <= highest;
        return (u32)block_total({own, 0}, shared).count;
    }

    // The weight of the first `top_k` tokens; of all where that is 0.
    __device__ __forceinline__ u64 kept(Sum* shared) const {
        u32 low = 0, high = 31u << 24;
        const Sum all = block_total(ahead({NEVER, 0}), shared);
        if (top_k == 0 || all.count <= top_k) return all.mass;
        while (low < high) {
            u32 middle = low + (high - low) / 2, upto = count(middle, shared);
            if (upto < top_k) low = middle + 1;
            else high = middle;
            // Further levels would cut nothing.
            if (upto == top_k) low = high = middle;
        }
        const Sum upto = block_total(ahead({low + 1, 0}), shared);
        return upto.mass - (upto.count - top_k) * weight(low);
    }

    // The token before `bound` whose interval of the weights holds `target`; `own` is what this lane has of them.
    __device__ __forceinline__ Token find(Token bound, u64 target, u64 own, u64* sums, Token* found) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const u64 upto = running(own);
        __syncthreads();
        if (lane == 31) sums[warp] = upto;
        __syncthreads();
        u64 before = upto - own;
        for (u32 i = 0; i < warp; i++) before += sums[i];
        const bool here = before <= target && target - before < own;
        const u32 whose = __ballot_sync(0xffffffffu, here);
        // One warp has the lane, and goes through it 32 tokens at a time.
        if (whose) {
            const u32 owner = __ffs(whose) - 1;
            u64 left = target - __shfl_sync(0xffffffffu, before, owner);
            for (u32 i = warp * 32 + owner + LANES * lane;; i += 32 * LANES) {
                Token token = {i < vocabulary ? level(i) : NEVER, i};
                u64 weighs = token.before(bound) ? weight(token.level) : 0, end = running(weighs);
                if (left < end && left >= end - weighs) *found = token;
                u64 all = __shfl_sync(0xffffffffu, end, 31);
                if (left < all) break;
                left -= all;
            }
        }
        __syncthreads();
        return *found;
    }
};

// A token, or one of core's numbers in its place: NaN, then +∞, then −∞ alone.
template <u32 TYPE> __device__ __forceinline__ u32 drawn(const Sample& args) {
    __shared__ Sum shared[WARPS];
    __shared__ u64 sums[WARPS];
    __shared__ Token found;
    Row<TYPE> row = {
        args.scores.data, (u64)blockIdx.x * args.vocabulary, args.vocabulary, args.top_k, args.scale, args.limit, 0.0f
    };
    // The largest over the block.
    u64 top = row.top();
    for (u32 mask = 16; mask > 0; mask >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, top, mask);
        top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll 4
    for (u32 i = 0; i < WARPS; i++) top = sums[i] > top ? sums[i] : top;
    const u32 largest = (u32)(top >> 32), first = ~(u32)top;
    if (top == ~0ull) return 0xffffffffu;
    if (largest == 0xff800000u) return 0xfffffffeu;
    if (largest == 0x007fffffu) return 0xfffffffdu;
    if (args.greedy) return first;
    row.half = 0.5f * row.score(first);
    u64 wanted = ~0ull;
    if (args.top_p) {
        wanted = share(row.kept(shared), args.top_p);
        wanted = wanted ? wanted : 1;
    }
    const u32* stream = args.streams + 3 * blockIdx.x;
    Token bound = {NEVER, 0};
    Sum own = row.ahead(bound);
    Sum all = block_total(own, shared);
    // What is not kept bounds the next round.
    for (u32 round = 0;; round++) {
        u32 word = threefry({stream[0], stream[1]}, (u64)round << 32 | stream[2]).x;
        bound = row.find(bound, share(all.mass, word), own.mass, sums, &found);
        own = row.ahead(bound);
        all = block_total(own, shared);
        if ((!args.top_k || all.count < args.top_k) && all.mass < wanted) return bound.number;
    }
}

KERNEL(sample, Sample, 1024, 1) {
    u32 token;
    follow();
    BY_TYPE(args.scores.type, token = drawn<TYPE>(args))
    if (threadIdx.x == 0) args.tokens[blockIdx.x] = token;
    if (threadIdx.x < 3) args.next[3 * blockIdx.x + threadIdx.x] = args.streams[3 * blockIdx.x + threadIdx.x] + threadIdx.x / 2;
}
