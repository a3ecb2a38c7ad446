// The exact chunk form with bfloat16, forward: what the second of each pair of warps makes, and the kernels.
#include "chunk_bf16/forward.cuh"

// Z as bfloat16 instead of halves. What a token's is rounded by goes into the next one's of this thread, so that sums over
// tokens are nearly those of Z. Gradients of gates are such sums, and keys that are alike make them small.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Forward<KEYS, WARPS, S>::narrow(Lefts<4>& z, const float (&down)[2]) const {
    // Of the two rows that a thread has.
    float left[2] = {};
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            const float2 of = unpack_halves(z.x[i][h]);
            float& rest = left[h % 2];
            // The rounding of one token goes on to the next.
            const float first = down[h % 2] * of.x + rest, low = low_half(pack_bf16(first, 0.0f));
            rest = first - low;
            const float second = down[h % 2] * of.y + rest, high = low_half(pack_bf16(second, 0.0f));
            rest = second - high;
            z.x[i][h] = pack_bf16(low, high);
        }
}

// Z as the first warp left it, halves, and what its columns are times.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Forward<KEYS, WARPS, S>::take_solution(Lefts<4>& z, float (&down)[2], u32 n) const {
    #pragma unroll
    for (u32 i = 0; i < 4; i++) load_fragment(left_factors(n, OF_Z + i), z.x[i]);
    const float* scales = left_scales(n) + threadIdx.x % 32 / 4;
    down[0] = scales[0], down[1] = scales[8];
}

// The second of a pair: (20), and what is kept.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Forward<KEYS, WARPS, S>::read(u32 n) const {
    const Chunk chunk(sequence, n);
    // Factors lie where the first warp left them, until the next step but one.
    if (args.kept) keep_states(n, chunk);
    const float* vectors = back_vectors(n);
    Sums<8> out, y;
    // a⁺ ∘ (Q M₀), and with momentum b⁺ ∘ (Q S₀).
    left_factors_times<STEPS>(out, left_factors(n, OF_M), queries(n));
    out.scale(ByToken{vectors + OF_READ_A * CHUNK});
    if (S) {
        left_factors_times<STEPS>(y, left_factors(n, OF_S), queries(n));
        y.scale(ByToken{vectors + OF_READ_B * CHUNK});
        out.add(y);
    }
    Lefts<4> z;
    float down[2];
    take_solution(z, down, n);
    const float more = vectors[OF_READS];
    // (Y ∘ Q Kᵀ) Z.
    times_lower(y, z, reads(n));
    out.add_rows(y, more * down[0], more * down[1]);
    store(n, chunk, out, z, down);
}

// The states before the chunk, out of the places of left factors, by the second warps while the first go on.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Forward<KEYS, WARPS, S>::keep_states(u32 n, const Chunk& chunk) const {
    const u32 size = kept_size<KEYS>(p), lane = threadIdx.x % 32;
    u16* to = args.kept + chunk.kept * (S ? 2 : 1) * size;
    if (GROUPS_MULTIPLY && lane == 0) show_to_groups();
    keep<KEYS>(p, left_factors(n, OF_M) - lane, to, own);
    if (S) keep<KEYS>(p, left_factors(n, OF_S) - lane, to + size, own);
    if (GROUPS_MULTIPLY) stores_commit();
}

// Of the second warps, of those that read ahead, or of warps that do both. What the second warps need is there a step
// later, what the first need may take two.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Forward<KEYS, WARPS, S>::follow(u32 begin, u32 end, bool reads, bool fetches) const {
    if (fetches) clear();
    #pragma unroll
    for (u32 n = 0; n + 1 < FRONTS; n++) {
        if (fetches && begin + n < end) fetch_front(begin + n);
        copies_commit();
    }
    for (u32 n = begin; n <= end; n++) {
        // What the first warps need of chunk n, and the second of chunk n - 1, is there.
        copies_wait<FRONTS - 2>();
        if (GROUP && fetches) show_to_groups();
        if (GROUPS_MULTIPLY && reads) stores_read();
        __syncthreads();
        if (fetches && n < end) fetch_back(n);
        if (FRONTS > 2) copies_commit();
        if (fetches && n + FRONTS - 1 < end) fetch_front(n + FRONTS - 1);
        copies_commit();
        if (reads && n > begin) read(n - 1);
    }
    if (GROUPS_MULTIPLY && reads) stores_read();
}

// Gives the block's warps their parts: pairs' first warps, second warps, and those that read ahead.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void forward(const Bf16Forward& args, u8* shared) {
    // Neighbouring blocks have columns of one head and share its keys in the cache.
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS, own = first + threadIdx.x / 32 % WARPS * 16;
    const Sequence sequence(args.p, blockIdx.x / args.p.blocks);
    const Forward<KEYS, WARPS, S> of{args, args.p, shared, sequence, (u64)args.p.key * args.p.value, first, own};
    const u32 count = sequence.chunks(), begin = args.begin, end = min(count, begin + args.chunks);
    // A sequence that ended before this segment: its last state is written.
    if (begin > 0 && begin >= count) return;
    using Of = Forward<KEYS, WARPS, S>;
    if (threadIdx.x < 32 * WARPS) {
        if constexpr (Of::GROUP) take_registers<Of::MANY>();
        of.take_through(begin, end);
    } else if (!Of::APART) {
        of.follow(begin, end, true, true);
    } else if (threadIdx.x < Of::READERS) {
        if constexpr (Of::GROUP) take_registers<Of::SOME>();
        of.follow(begin, end, true, false);
    } else {
        if constexpr (Of::GROUP) take_registers<Of::FEW>();
        of.follow(begin, end, false, true);
    }
}

// One block a multiprocessor: its shared memory is full.
#define FORWARD(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Forward, 64 * WARPS + (Forward<KEYS, WARPS, S>::APART ? 128 : 0), 1) {   \
        DYNAMIC_SHARED(u8, shared);              \
        forward<KEYS, WARPS, S>(args, shared);   \
    }

// Name, keys, pairs of warps, momentum.
FORWARD(bf16_64_2, 64, 2, false)
FORWARD(bf16_64_4, 64, 4, false)
FORWARD(bf16_128_2, 128, 2, false)
FORWARD(bf16_128_4, 128, 4, false)
FORWARD(bf16_64_2_momentum, 64, 2, true)
FORWARD(bf16_64_4_momentum, 64, 4, true)
FORWARD(bf16_128_2_momentum, 128, 2, true)
FORWARD(bf16_128_4_momentum, 128, 4, true)
FORWARD(bf16_256_2, 256, 2, false)
