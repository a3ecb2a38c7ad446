// The exact chunk form with bfloat16, backward through the memory: the producer and consumer warps, which load ahead and write
// down, and the kernels. `reverse.cuh` has the column warps.
#include "chunk_bf16/reverse.cuh"

// Starts loading dO [CHUNK, 16 * WARPS] and the vectors of a chunk into registers, where they stay until `place_prefetched`.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Reverse<KEYS, WARPS, S>::prefetch(Prefetched& x, const Chunk& chunk) const {
    const u32 who = this->who(), t = who / ACROSS, c = first + who % ACROSS * 8;
    const u16* from = args.dout + chunk.token(p, t) * p.value + c;
    #pragma unroll
    for (u32 i = 0; i < PIECES; i++, from += (u64)APART * p.heads * p.value)
        x.outputs[i] = t + i * APART < chunk.tokens && c < p.value ? *(const uint4*)from : uint4{};
    const uint4* vectors = (const uint4*)(args.ready + chunk.kept * READY + 4 * SQUARE);
    #pragma unroll
    for (u32 i = 0; i < Prefetched::TURNS; i++)
        if (needed(who + i * COUNT)) x.vectors[i] = vectors[who + i * COUNT];
}

// Stores the prefetched dO as fp16 with one power-of-two scale for the chunk, and its vectors, in place `stage`.
// All consumers wait for each other in between, so that what they read of the chunk that was there is read.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Reverse<KEYS, WARPS, S>::place_prefetched(const Prefetched& x, u32 stage) const {
    // Each warp has one maximum.
    float* of_readers = left_scales(0) + WIDTH;
    const u32 who = this->who();
    // The largest of dO, two bfloat16 at once without their signs.
    u32 both = 0;
    #pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        const u32 of[4] = {x.outputs[i].x, x.outputs[i].y, x.outputs[i].z, x.outputs[i].w};
        #pragma unroll
        for (u32 e = 0; e < 4; e++) both = larger_bf16(both, of[e] & 0x7fff7fffu);
    }
    float most = largest_of_warp(fmaxf(low_half(both), high_half(both)));
    if (who % 32 == 0) of_readers[who / 32] = most;
    // All warps have left their maxima.
    wait_for_some<COUNT>();
    #pragma unroll
    for (u32 i = 0; i < READERS; i++) most = fmaxf(most, of_readers[i]);
    const Scale scale = Scale::of(most);
    const auto halved = [&](u32 pair) { return pack_halves(scale.up * low_half(pair), scale.up * high_half(pair)); };
    #pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        const uint4 of = x.outputs[i];
        *(uint4*)piece(stage, i) = uint4{halved(of.x), halved(of.y), halved(of.z), halved(of.w)};
    }
    #pragma unroll
    for (u32 i = 0; i < Prefetched::TURNS; i++)
        if (needed(who + i * COUNT)) ((uint4*)vectors(stage))[who + i * COUNT] = x.vectors[i];
    if (who == 0) vectors(stage)[OF_OUTPUTS] = scale.down;
}

// solved = Λ and dv = w ∘ Λ [tokens, 16 * WARPS] in bfloat16, from the fp16 that the column warps left in place `stage`.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Reverse<KEYS, WARPS, S>::store_solved(const Chunk& chunk, u32 step, u32 stage) const {
    const u32 who = this->who(), c = who % ACROSS * 8;
    // The scales of the thread's eight columns, and w of its tokens.
    float down[8], w[PIECES];
    uint4 x[PIECES];
    #pragma unroll
    for (u32 e = 0; e < 8; e += 4) *(float4*)(down + e) = *(const float4*)(left_scales(step) + c + e);
    #pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        x[i] = *(const uint4*)piece(stage, i);
        w[i] = vectors(stage)[OF_W * CHUNK + who / ACROSS + i * APART];
    }
    // Rows are APART tokens from each other.
    u64 at = chunk.token(p, who / ACROSS) * p.value + first + c;
    #pragma unroll
    for (u32 i = 0; i < PIECES; i++, at += (u64)APART * p.heads * p.value) {
        const u32 of[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        u32 solved[4], dv[4];
        #pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const float2 both = unpack_halves(of[e]);
            const float low = down[2 * e] * both.x, high = down[2 * e + 1] * both.y;
            solved[e] = pack_bf16(low, high), dv[e] = pack_bf16(w[i] * low, w[i] * high);
        }
        if (who / ACROSS + i * APART >= chunk.tokens || first + c >= p.value) continue;
        // Both arrays at the same place.
        store_16(args.solved + at, solved);
        store_16(args.dv + at, dv);
    }
}

// Copies the left factors of dM and dS, which column warps stored in this step, to the kept states of the chunk.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Reverse<KEYS, WARPS, S>::keep_states(const Chunk& chunk, u32 step) const {
    const u32 size = kept_size<KEYS>(p), lane = threadIdx.x % 32;
    u16* to = args.kept + chunk.kept * (S ? 2 : 1) * size;
    // The factors of all column warps follow each other.
    const uint4* from = left_factors(step, 0, 0) - lane;
    if (GROUPS_MULTIPLY && lane == 0) show_to_groups();
    #pragma unroll
    for (u32 i = who() / 32; i < WARPS * (S ? 2 : 1); i += READERS) {
        // The column warp, and 0 for dM or 1 for dS.
        const u32 warp = S ? i / 2 : i, which = S ? i % 2 : 0;
        keep<KEYS>(p, from + (warp * FACTORS + which * STEPS) * 32, to + which * size, first + 16 * warp);
    }
    if (GROUPS_MULTIPLY) stores_commit();
}

// Serves the column warps through `count` chunks. Threads that load bring K, Q, T and Y ∘ Q Kᵀ, and keep states; threads that
// store bring dO and write Λ. Where registers do not suffice for both, the same threads do both.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void Reverse<KEYS, WARPS, S>::attend(u32 count, bool loads, bool stores) const {
    const u32 stages = args.stages;
    const bool tells = loads && who() == 0 && args.progress;
    // Segments that only longer sequences have count at once. `due` is the first chunk of the last segment that this one has.
    u32 due = args.progress ? (count + args.segment - 1) / args.segment * args.segment : 0;
    if (tells)
        for (u32 number = max(due, args.segment); number < p.kept; number += args.segment) pass(number);
    if (due > 0) due -= args.segment;
    for (u32 stage = 0; stage < stages && loads; stage++) {
        clear_above<COUNT>(solution(stage), who());
        clear_above<COUNT>(reads(stage), who());
    }
    // All places but one are filled before the first step.
    for (u32 step = 0; step + 1 < stages; step++) {
        if (step < count && loads) fetch(Chunk(sequence, count - 1 - step), step);
        copies_commit();
    }
    // dO of the next chunk waits in registers until its place is free.
    Prefetched next;
    if (stores && count > 0) {
        prefetch(next, Chunk(sequence, count - 1));
        place_prefetched(next, 0);
        if (count > 1) prefetch(next, Chunk(sequence, count - 2));
    }
    for (u32 step = 0, stage = 0, last = stages - 1; step <= count; step++, last = stage, stage = next_stage(stage)) {
        // This step finishes a segment: the column warps left its first chunk two steps ago, and these warps wrote it in the step
        // before.
        const bool tell = due > 0 && count + 1 - step == due;
        // Waits until this step's chunk is in its place.
        wait();
        if (GROUP && loads) show_to_groups();
        if (GROUPS_MULTIPLY && loads && tell) stores_wait();
        else if (GROUPS_MULTIPLY && loads) stores_read();
        __syncthreads();
        if (tell && tells) pass(due);
        if (tell) due -= args.segment;
        // The chunk before this one is not read any more: its place gets the next one.
        const u32 fetched = step + stages - 1;
        if (fetched < count && loads) fetch(Chunk(sequence, count - 1 - fetched), last);
        copies_commit();
        // Writes what the column warps left in the step before.
        const Chunk left(sequence, count - step);
        if (step > 0 && loads) keep_states(left, step - 1);
        if (step > 0 && stores) store_solved(left, step - 1, last);
        if (step + 1 >= count || !stores) continue;
        // Stores the next chunk's dO, in a place that nobody reads.
        place_prefetched(next, next_stage(stage));
        if (step + 2 < count) prefetch(next, Chunk(sequence, count - 3 - step));
    }
    if (GROUPS_MULTIPLY && loads) stores_read();
}

// Gives the block's warps their roles: columns, producers, consumers.
template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void reverse(const Bf16Reverse& args, u8* shared) {
    // Neighbouring blocks have columns of one head and share its keys in the cache.
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS, own = first + threadIdx.x / 32 % WARPS * 16;
    const Sequence sequence(args.p, blockIdx.x / args.p.blocks);
    using Of = Reverse<KEYS, WARPS, S>;
    Of of{args, args.p, shared, sequence, (u64)args.p.key * args.p.value, first, own};
    // The roles of warps: columns first, then those that read ahead, then those that write down.
    const u32 count = of.sequence.chunks();
    if (threadIdx.x < 32 * WARPS) {
        if constexpr (Of::GROUP) take_registers<Of::MANY>();
        of.take_through(count);
    } else {
        if constexpr (Of::GROUP) take_registers<Of::FEW>();
        const bool loads = threadIdx.x < 32 * (WARPS + Of::READERS);
        of.attend(count, loads, !loads || !Of::GROUP);
    }
}

// Arguments of a kernel that waits until `count` blocks have finished a segment.
struct Bf16Await {
    const u32* counter;
    u32 count, unused;
};
// Spins on the counter, in one thread of one block, so that it leaves the multiprocessors to the blocks it waits for.
KERNEL(bf16_await, Bf16Await, 1, 1) {
    // The blocks count up with release, and this load acquires.
    u32 found;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(args.counter) : "memory");
    while (found < args.count);
}

#define REVERSE(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Reverse, 32 * (WARPS + Reverse<KEYS, WARPS, S>::OTHERS), 1) { \
        DYNAMIC_SHARED(u8, shared);              \
        reverse<KEYS, WARPS, S>(args, shared);   \
    }

// Name, keys, warps of the columns, momentum.
REVERSE(bf16_reverse_64_2, 64, 2, false)
REVERSE(bf16_reverse_64_4, 64, 4, false)
REVERSE(bf16_reverse_128_2, 128, 2, false)
REVERSE(bf16_reverse_128_4, 128, 4, false)
REVERSE(bf16_reverse_128_8, 128, 8, false)
REVERSE(bf16_reverse_64_2_momentum, 64, 2, true)
REVERSE(bf16_reverse_64_4_momentum, 64, 4, true)
REVERSE(bf16_reverse_128_2_momentum, 128, 2, true)
REVERSE(bf16_reverse_128_4_momentum, 128, 4, true)
REVERSE(bf16_reverse_256_2, 256, 2, false)
