// The exact chunk form with bfloat16, forward: equations (19)-(22), from chunk to chunk, 16 columns to a pair of warps.
//
// One of a pair takes the memory through the chunk, (19), (21) and (22); the other, a chunk later, makes the outputs (20)
// of the memory as it was before and of Z, which the first leaves as left factors. Warps of their own read ahead for all.
#include "bf16.cuh"

struct Bf16Forward {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const float *m, *s;        // [N,H,K,V]
    u16* out;                  // [rows,H,V]
    float *last_m, *last_s;    // [N,H,K,V]
    u16* kept;                 // [kept,H,1 + S] states before each chunk for the backward, as `kept_at` says; null: none
    u16* written;              // [rows,H,V]: Z for the backward; null where `kept` is
    u32 begin, chunks;         // of each sequence, those from here on; what is before them left the memory in `last_m`
};

template <u32 KEYS, u32 WARPS, bool S>
struct Forward {
    // Threads that read ahead: behind those of the pairs, but where two matrices leave no registers for more, their second
    // warps.
    static constexpr bool APART = !S || KEYS * WARPS < 512;
    static constexpr u32 COUNT = APART ? 128 : 32 * WARPS, READERS = (APART ? 64 : 32) * WARPS;
    // Four of the first warps, and of the second ones, multiply as groups where that exists.
    static constexpr bool GROUP = GROUPS_MULTIPLY && WARPS == 4;
    // Chunks that lie in shared memory for the first of a pair: `Tiles::fronts`.
    static constexpr u32 FRONTS = GROUP && (!S || KEYS == 64) ? 3 : 2;
    using Keys = Tile<KEYS, GROUP>;
    using Values = Tile<16 * WARPS, GROUP>;
    using Square = Tile<CHUNK, GROUP>;
    static constexpr u32 STEPS = KEYS / 16;
    // Bytes of a chunk for the first of a pair (K, V, T, vectors) and for the second (Q, Y ∘ Q Kᵀ, vectors), and of left
    // factors, 16 a lane each: M, S, Z of every pair.
    static constexpr u32 FRONT = whole<GROUP>(2 * (Keys::SIZE + Values::SIZE + Square::SIZE) + 4 * NUMBERS);
    static constexpr u32 BACK = whole<GROUP>(2 * (Keys::SIZE + Square::SIZE) + 4 * NUMBERS);
    static constexpr u32 FACTORS = STEPS * (S ? 2 : 1) + 4, HANDED = 32 * 16 * FACTORS * WARPS;

    const Bf16Forward& args;
    const Linear& p;
    u8* shared;
    const Sequence sequence;
    u64 matrix;
    u32 first, own;  // columns of the block and of the pair

    __device__ __forceinline__ Keys keys(u32 n) const { return {(u16*)(shared + n % FRONTS * FRONT)}; }
    __device__ __forceinline__ Values values(u32 n) const { return {keys(n).x + Keys::SIZE}; }
    __device__ __forceinline__ Square solution(u32 n) const { return {values(n).x + Values::SIZE}; }
    __device__ __forceinline__ float* front_numbers(u32 n) const { return (float*)(solution(n).x + Square::SIZE); }
    __device__ __forceinline__ Keys queries(u32 n) const { return {(u16*)(shared + FRONTS * FRONT + n % 2 * BACK)}; }
    __device__ __forceinline__ Square reads(u32 n) const { return {queries(n).x + Keys::SIZE}; }
    __device__ __forceinline__ float* back_numbers(u32 n) const { return (float*)(reads(n).x + Square::SIZE); }
    // Factor `i` of this pair and lane: M, then Z, then S.
    __device__ __forceinline__ uint4* handed(u32 n, u32 i) const {
        u8* all = shared + FRONTS * FRONT + 2 * BACK + n % 2 * HANDED;
        return (uint4*)all + (threadIdx.x / 32 % WARPS * FACTORS + i) * 32 + threadIdx.x % 32;
    }
    static constexpr u32 OF_M = 0, OF_Z = STEPS, OF_S = STEPS + 4;

    __device__ __forceinline__ void fetch_front(u32 n) const {
        const Chunk chunk(sequence, n);
        const u32 who = threadIdx.x - READERS;
        const u8* from = args.ready + chunk.kept * READY;
        fetch_tile<COUNT>(p, chunk, p.k.data, p.key, 0, keys(n), who);
        fetch_tile<COUNT>(p, chunk, p.v.data, p.value, first, values(n), who);
        if (p.erase) fetch_square<COUNT>((const u16*)from, solution(n), who);
        fetch_numbers<COUNT>((const float*)(from + 4 * SQUARE), front_numbers(n), who);
    }
    __device__ __forceinline__ void fetch_back(u32 n) const {
        const Chunk chunk(sequence, n);
        const u32 who = threadIdx.x - READERS;
        const u8* from = args.ready + chunk.kept * READY;
        fetch_tile<COUNT>(p, chunk, p.q.data, p.key, 0, queries(n), who);
        fetch_square<COUNT>((const u16*)from + SQUARE, reads(n), who);
        fetch_numbers<COUNT>((const float*)(from + 4 * SQUARE), back_numbers(n), who);
    }

    // r a⁻ ∘ (K M) + r b⁻ ∘ (K S), turned over; M and S are handed on.
    __device__ __forceinline__ void predict(Sums<8>& x, const Columns<KEYS>& m, const Columns<KEYS>& s, u32 n) const {
        const float* numbers = front_numbers(n);
        if (!p.erase) {
            m.hand_on(handed(n, OF_M));
            if (S) s.hand_on(handed(n, OF_S));
            x.clear();
            return;
        }
        m.times_rows(x, keys(n), handed(n, OF_M));
        x.scale(ByToken{numbers + OF_ERASE_A * CHUNK});
        if (!S) return;
        Sums<8> y;
        s.times_rows(y, keys(n), handed(n, OF_S));
        y.scale(ByToken{numbers + OF_ERASE_B * CHUNK});
        x.add(y);
    }

    // (19): the right side in place of what was predicted, then the solution.
    __device__ __forceinline__ void solve(Sums<8>& x, u32 n) const {
        const ByToken w{front_numbers(n) + OF_W * CHUNK};
        #pragma unroll
        for (u32 s = 0; s < 4; s++) {
            u32 v[4];
            left_across(v, values(n), threadIdx.x / 32 * 16, 16 * s);
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                float2 f = w(16 * s + 8 * h + threadIdx.x % 4 * 2);
                float (&of)[4] = x.x[2 * s + h];
                of[0] = f.x * low_half(v[2 * h]) - of[0];
                of[1] = f.y * high_half(v[2 * h]) - of[1];
                of[2] = f.x * low_half(v[2 * h + 1]) - of[2];
                of[3] = f.y * high_half(v[2 * h + 1]) - of[3];
            }
        }
        if (!p.erase) return;
        Lefts<4> known;
        known.of(x);
        x.clear();
        times_lower(x, known, solution(n));
    }

    // The first of a pair: Z, then (21), (22).
    __device__ __forceinline__ void go(Columns<KEYS>& m, Columns<KEYS>& s, u32 n) const {
        Sums<8> x;
        predict(x, m, s, n);
        solve(x, n);
        Lefts<4> z;
        z.of(x);
        #pragma unroll
        for (u32 i = 0; i < 4; i++) hand(handed(n, OF_Z + i), z.x[i]);
        const float *numbers = front_numbers(n), an = numbers[SCALARS], bn = numbers[SCALARS + 1], en = numbers[SCALARS + 2];
        #pragma unroll
        for (u32 c = 0; c < KEYS / 8; c++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                m.sums.x[c][i] = an * m.sums.x[c][i] + (S ? bn * s.sums.x[c][i] : 0.0f);
                if (S) s.sums.x[c][i] *= en;
            }
        z.of(x, ByToken{numbers + OF_LAST_C * CHUNK});
        m.add(z, keys(n));
        if (S) {
            z.of(x, ByToken{numbers + OF_LAST_E * CHUNK});
            s.add(z, keys(n));
        }
    }

    // O, and Z if it is kept; by way of where Z lay.
    __device__ __forceinline__ void store(u32 n, const Chunk& chunk, const Sums<8>& out, const Lefts<4>& z) const {
        if constexpr (GROUP) {
            u16* place = (u16*)(handed(n, OF_Z) - threadIdx.x % 32);
            const auto at = [=](u32 t, u32 piece) { return place + 16 * t + (piece ^ t / 4 % 2) * 8; };
            Lefts<4> narrow;
            narrow.of(out);
            store_rows_by(at, p, chunk, narrow, args.out, own);
            if (args.kept) store_rows_by(at, p, chunk, z, args.written, own);
        } else {
            store_rows(p, chunk, out, args.out, own);
            if (args.kept) store_rows(p, chunk, z, args.written, own);
        }
    }

    // The second of a pair: (20), and what is kept.
    __device__ __forceinline__ void read(u32 n) const {
        const Chunk chunk(sequence, n);
        const float* numbers = back_numbers(n);
        Sums<8> out;
        handed_times<STEPS>(out, handed(n, OF_M), queries(n));
        out.scale(ByToken{numbers + OF_READ_A * CHUNK});
        if (S) {
            Sums<8> y;
            handed_times<STEPS>(y, handed(n, OF_S), queries(n));
            y.scale(ByToken{numbers + OF_READ_B * CHUNK});
            out.add(y);
        }
        Lefts<4> z;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) take(handed(n, OF_Z + i), z.x[i]);
        times_lower(out, z, reads(n));
        store(n, chunk, out, z);
        if (!args.kept) return;
        const u32 size = kept_size<KEYS>(p);
        u16* kept = args.kept + chunk.kept * (S ? 2 : 1) * size;
        #pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            keep_factor<KEYS>(p, handed(n, OF_M + i), kept, own, i);
            if (S) keep_factor<KEYS>(p, handed(n, OF_S + i), kept + size, own, i);
        }
    }

    // In step n the first of each pair goes through chunk n, and the second makes the outputs of the one before; what both
    // need in the next step is sent for. Between two steps all wait for each other.
    __device__ __forceinline__ void take_through(u32 begin, u32 end) const {
        Columns<KEYS> m, s;
        m.read(p, (begin ? args.last_m : args.m) + sequence.state * matrix, own);
        if (S) s.read(p, (begin ? args.last_s : args.s) + sequence.state * matrix, own);
        for (u32 n = begin; n <= end; n++) {
            __syncthreads();
            if (n < end) go(m, s, n);
        }
        m.write(p, args.last_m + sequence.state * matrix, own);
        if (S) s.write(p, args.last_s + sequence.state * matrix, own);
    }
    __device__ __forceinline__ void clear() const {
        #pragma unroll
        for (u32 n = 0; n < FRONTS; n++) clear_above<COUNT>(solution(n), threadIdx.x - READERS);
        #pragma unroll
        for (u32 n = 0; n < 2; n++) clear_above<COUNT>(reads(n), threadIdx.x - READERS);
    }
    // Of the second warps, of those that read ahead, or of warps that do both. What the second warps need is there a step
    // later, what the first need may take two.
    __device__ __forceinline__ void follow(u32 begin, u32 end, bool reads, bool fetches) const {
        if (fetches) clear();
        #pragma unroll
        for (u32 n = 0; n + 1 < FRONTS; n++) {
            if (fetches && begin + n < end) fetch_front(begin + n);
            copies_commit();
        }
        for (u32 n = begin; n <= end; n++) {
            copies_wait<FRONTS - 2>();
            if (GROUP && fetches) show_to_groups();
            __syncthreads();
            if (fetches && n < end) fetch_back(n);
            if (FRONTS > 2) copies_commit();
            if (fetches && n + FRONTS - 1 < end) fetch_front(n + FRONTS - 1);
            copies_commit();
            if (reads && n > begin) read(n - 1);
        }
    }
};

template <u32 KEYS, u32 WARPS, bool S>
__device__ __forceinline__ void forward(const Bf16Forward& args, u8* shared) {
    const u32 first = blockIdx.x % args.p.blocks * 16 * WARPS, own = first + threadIdx.x / 32 % WARPS * 16;
    const Sequence sequence(args.p, blockIdx.x / args.p.blocks);
    const Forward<KEYS, WARPS, S> of{args, args.p, shared, sequence, (u64)args.p.key * args.p.value, first, own};
    const u32 count = sequence.chunks(), begin = args.begin, end = min(count, begin + args.chunks);
    if (begin > 0 && begin >= count) return;
    if (threadIdx.x < 32 * WARPS) of.take_through(begin, end);
    else if (!of.APART) of.follow(begin, end, true, true);
    else if (threadIdx.x < of.READERS) of.follow(begin, end, true, false);
    else of.follow(begin, end, false, true);
}

#define FORWARD(name, KEYS, WARPS, S)            \
    KERNEL(name, Bf16Forward, 64 * WARPS + (Forward<KEYS, WARPS, S>::APART ? 128 : 0), 1) {   \
        DYNAMIC_SHARED(u8, shared);              \
        forward<KEYS, WARPS, S>(args, shared);   \
    }

FORWARD(bf16_64_2, 64, 2, false)
FORWARD(bf16_64_4, 64, 4, false)
FORWARD(bf16_128_2, 128, 2, false)
FORWARD(bf16_128_4, 128, 4, false)
FORWARD(bf16_64_2_momentum, 64, 2, true)
FORWARD(bf16_64_4_momentum, 64, 4, true)
FORWARD(bf16_128_2_momentum, 128, 2, true)
FORWARD(bf16_128_4_momentum, 128, 4, true)
FORWARD(bf16_256_2, 256, 2, false)
