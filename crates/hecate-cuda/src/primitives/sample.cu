// Drawing tokens: what `Cut::draw` of `hecate-core` defines, number by number. A cluster of blocks has a text, a block some of its
// lanes of tokens. All that blocks tell each other are whole numbers, whose sums do not depend on how many blocks there are.
#include "cluster.cuh"
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
    // 1 where levels of a block's tokens lie in shared memory
    u32 held;
};

#define LANES 1024
#define WARPS (LANES / 32)
// Most blocks of a text, and most numbers that they tell each other at once.
#define BLOCKS 8
#define NUMBERS 8
// Levels that are tried at once.
#define TRIED 7
// Scores that a thread waits for together.
#define TOGETHER 8
// Level of a token without weight.
#define NEVER 0xffffffffu

// Of 2⁻ᶠ times 2³¹, with alternating signs.
#define POWERS {0x80000000u, 0x58b90472u, 0x1ebec46du, 0x07150107u, 0x012e5362u, 0x001f1256u}

// A token among others: before those of a higher level, and before later ones of its own.
struct Token {
    u32 level, number;
    // True if this token ranks before the other one; tokens of level NEVER rank before none.
    __device__ __forceinline__ bool before(const Token& other) const {
        return level < other.level || (level == other.level && level != NEVER && number < other.number);
    }
};

// 2³¹ at level 0, half of it 2²⁴ levels further.
__device__ __forceinline__ u32 weight(u32 level) {
    const u32 powers[6] = POWERS;
    // The lower 24 bits are a fraction of a halving, the upper ones whole halvings.
    const u32 fraction = level << 8;
    u32 power = powers[5];
#pragma unroll
    for (u32 i = 5; i > 0; i--) power = powers[i - 1] - __umulhi(fraction, power);
    return level == NEVER ? 0 : power >> (level >> 24);
}

// A part of a whole under 2⁶², in parts of 2³².
__device__ __forceinline__ u64 share(u64 whole, u32 part) {
    // Both halves by themselves: their product would not fit 64 bits.
    return (whole >> 32) * part + ((whole & 0xffffffffu) * part >> 32);
}

// Number and weight of some tokens.
struct Sum {
    u64 count, mass;
};

// Over a warp, in every lane.
__device__ __forceinline__ u64 warp_total(u64 x) {
    for (u32 mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}
// Every lane gets the sum of 32-bit values over a warp.
__device__ __forceinline__ u32 warp_total(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#else
    for (u32 mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
#endif
}
// Every lane gets the largest value of a warp.
__device__ __forceinline__ u64 warp_largest(u64 x) {
    // A butterfly, so that all lanes have it.
    for (u32 mask = 16; mask > 0; mask >>= 1) {
        const u64 other = __shfl_xor_sync(0xffffffffu, x, mask);
        x = other > x ? other : x;
    }
    return x;
}

// The sum over this lane of the warp and those before it.
__device__ __forceinline__ u64 running(u64 x) {
    for (u32 step = 1; step < 32; step *= 2) {
        // Lanes without a neighbour so far to the left keep what they have.
        u64 left = __shfl_up_sync(0xffffffffu, x, step);
        if (threadIdx.x % 32 >= step) x += left;
    }
    return x;
}

// What a block keeps to tell others and itself; `BOARD` of `sample.rs` has its size.
struct Board {
    // [numbers,warps], of this block
    u64 warps[NUMBERS][WARPS];
    // [turns,blocks,numbers]: who is told something is not told more before the turn after the next.
    u64 blocks[2][BLOCKS][NUMBERS];
    // Weights of threads, and of warps
    u64 threads[LANES], sums[WARPS];
    // A level in the upper half, and a token
    u64 found;
};
static_assert(sizeof(Board) == 11528, "as `BOARD` of `sample.rs`");

// The blocks of a text.
struct Group {
    Board& board;
    Cluster cluster;
    u32 turn;

    // Writes a number to this place of another block's shared memory.
    __device__ __forceinline__ void send(u64* place, u32 other, u64 x) const {
#if __CUDA_ARCH__ >= 900
        // An address of the cluster's window on all its blocks.
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(place)), "r"(other));
        asm volatile("st.shared::cluster.u64 [%0], %1;" :: "r"(there), "l"(x) : "memory");
#else
        *place = x;
#endif
    }

    // A number of each block, which one warp has in all lanes, is everyone's after the meeting.
    __device__ __forceinline__ void tell(u32 number, u64 x) {
        if (threadIdx.x % 32 < cluster.count) send(&board.blocks[turn][cluster.rank][number], threadIdx.x % 32, x);
    }

    // Sums over all threads of all blocks: number `i` is then `told` to lane `i`.
    template <class T, u32 N> __device__ __forceinline__ void add(const T (&x)[N]) {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const T sum = warp_total(x[i]);
            if (lane == 0) board.warps[i][warp] = sum;
        }
        // Blocks that are behind still read the numbers of the turn before.
        turn ^= 1;
        __syncthreads();
        // A warp has a number.
        if (warp < N) tell(warp, warp_total((T)board.warps[warp][lane]));
        cluster.meet();
    }

    // Number `lane % 8` of the last sums, over the blocks before block `end`.
    __device__ __forceinline__ u64 told(u32 end) const {
        u64 sum = 0;
        for (u32 block = threadIdx.x % 32 / NUMBERS; block < end; block += 32 / NUMBERS)
            sum += board.blocks[turn][block][threadIdx.x % NUMBERS];
        // Lanes with the same number meet.
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
    }

    // Over all tokens of the text, in every thread.
    __device__ __forceinline__ Sum total(const Sum& own) {
        add<u64, 2>({own.count, own.mass});
        // Lane 0 has the count, lane 1 the weight.
        const u64 sum = told(cluster.count);
        return {__shfl_sync(0xffffffffu, sum, 0), __shfl_sync(0xffffffffu, sum, 1)};
    }

    // The largest of all threads' numbers, in every thread.
    __device__ __forceinline__ u64 largest(u64 x) {
        x = warp_largest(x);
        if (threadIdx.x % 32 == 0) board.warps[0][threadIdx.x / 32] = x;
        turn ^= 1;
        __syncthreads();
        // The first warp meets what all warps left.
        if (threadIdx.x < 32) tell(0, warp_largest(board.warps[0][threadIdx.x]));
        cluster.meet();
        for (u32 block = 0; block < cluster.count; block++) {
            const u64 other = board.blocks[turn][block][0];
            x = other > x ? other : x;
        }
        return x;
    }
};

// A block's part of the scores of a text, of a type known while compiling: `width` lanes, each with a token in every 1024. Places
// of tokens follow each other lane by lane; thread `t` has places t, t + 1024 and so on.
template <u32 TYPE> struct Row {
    const Sample& args;
    Group& group;
    // [places]: scores, then levels; null where there is no room
    u32* held;
    u32 width, places;
    // Of the largest score
    float half;

    // Counts the block's places: tokens of the vocabulary in whole rounds of LANES.
    __device__ __forceinline__ Row(const Sample& args, Group& group, u32* held) : args(args), group(group), held(held) {
        width = LANES / group.cluster.count;
        // The last round of tokens may not be whole: its empty places count too.
        places = (args.vocabulary + LANES - 1) / LANES * width;
        half = 0.0f;
    }

    // Widths are powers of two: what divides by them is cheap only as shifts.
    __device__ __forceinline__ u32 token(u32 place) const {
        const u32 bits = __ffs(width) - 1;
        return place >> bits << 10 | group.cluster.rank << bits | (place & (width - 1));
    }
    // Returns scores[text, token] of scores [texts,vocabulary].
    __device__ __forceinline__ float score(u32 token) const {
        const u64 text = blockIdx.x / group.cluster.count;
        return load(Array{args.scores.data, TYPE}, text * args.vocabulary + token);
    }
    // Returns how far a score lies below the largest, in levels; NEVER past the limit.
    __device__ __forceinline__ u32 level(float score) const {
        // Halves of scores, whose difference cannot overflow.
        float distance = half - 0.5f * score;
        return distance < args.limit ? (u32)(distance * args.scale) : NEVER;
    }
    // Returns the level of the token at a place of this block.
    __device__ __forceinline__ u32 level_at(u32 place) const {
        // Else the score is read again, from the second cache.
        if (held) return held[place];
        const u32 own = token(place);
        return own < args.vocabulary ? level(score(own)) : NEVER;
    }

    // The largest score as a number that grows with it, in the upper half, and the earlier of equals; all ones for NaN.
    __device__ __forceinline__ u64 top() const {
        u64 best = 0;
#pragma unroll 1
        for (u32 first = threadIdx.x; first < places; first += LANES * TOGETHER) {
            float x[TOGETHER];
#pragma unroll
            for (u32 n = 0; n < TOGETHER; n++) {
                const u32 place = first + n * LANES, own = token(place);
                // Less than every score; where no token is there is none to win.
                x[n] = place < places && own < args.vocabulary ? score(own) : -INFINITE;
            }
#pragma unroll
            for (u32 n = 0; n < TOGETHER; n++) {
                const u32 place = first + n * LANES, i = token(place), bits = __float_as_uint(x[n]);
                if (place >= places) break;
                if (held) held[place] = bits;
                u64 own = (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (u32)~i;
                if ((bits & 0x7fffffffu) > 0x7f800000u) own = ~0ull;
                best = own > best ? own : best;
            }
        }
        return best;
    }

    // From here on levels are held. The largest score is known.
    __device__ __forceinline__ void grade(float largest) {
        half = 0.5f * largest;
        if (!held) return;
        for (u32 place = threadIdx.x; place < places; place += LANES)
            held[place] = token(place) < args.vocabulary ? level(__uint_as_float(held[place])) : NEVER;
    }

    // This thread's tokens before `bound`.
    __device__ __forceinline__ Sum ahead(Token bound) const {
        Sum sum = {0, 0};
#pragma unroll 4
        for (u32 place = threadIdx.x; place < places; place += LANES) {
            Token own = {level_at(place), token(place)};
            if (own.before(bound)) sum.count++, sum.mass += weight(own.level);
        }
        return sum;
    }

    // A level up to which there are `top_k` tokens, or the first up to which there are more: several are tried at once.
    __device__ __forceinline__ u32 edge() {
        u32 low = 0, high = 31u << 24;
        while (low < high) {
            // Levels that are tried lie a step apart.
            const u32 step = (high - low) / (TRIED + 1) + 1;
            u32 upto[TRIED] = {};
#pragma unroll 4
            for (u32 place = threadIdx.x; place < places; place += LANES) {
                const u32 own = level_at(place);
#pragma unroll
                for (u32 i = 0; i < TRIED; i++) upto[i] += own < low + (i + 1) * step;
            }
            group.add(upto);
            const u64 count = group.told(group.cluster.count);
            // Lane `i` has the count of the `i`th; later ones have more.
            const u32 enough = __ballot_sync(0xffffffffu, threadIdx.x % 32 < TRIED && count >= args.top_k);
            const u32 first = enough ? __ffs(enough) - 1 : TRIED;
            const bool exact = enough && __shfl_sync(0xffffffffu, count, first) == args.top_k;
            const u32 last = low + (first + 1) * step - 1;
            low += first * step;
            high = last < high ? last : high;
            // Further levels would cut nothing.
            if (exact) low = high;
        }
        return low;
    }

    // The weight of the first `top_k` tokens; of all where that is 0.
    __device__ __forceinline__ u64 kept(const Sum& all) {
        if (args.top_k == 0 || all.count <= args.top_k) return all.mass;
        const u32 last = edge();
        // All tokens up to that level, of which the last ones are too many.
        const Sum upto = group.total(ahead({last + 1, 0}));
        return upto.mass - (upto.count - args.top_k) * weight(last);
    }

    // The token before `bound` whose interval of the weights holds `target`; `own` is what this thread has of them, and the
    // last that blocks told each other were their sums.
    __device__ __forceinline__ Token find(Token bound, u64 target, u64 own) {
        Board& board = group.board;
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const u64 earlier = __shfl_sync(0xffffffffu, group.told(group.cluster.rank), 1);
        // Threads a width apart have tokens of the same lane.
        board.threads[threadIdx.x] = own;
        __syncthreads();
        // Of a lane of tokens, which several threads have.
        u64 weighs = 0, upto = 0;
        if (threadIdx.x < width) {
            for (u32 i = threadIdx.x; i < LANES; i += width) weighs += board.threads[i];
            upto = running(weighs);
            if (lane == 31) board.sums[warp] = upto;
        }
        __syncthreads();
        u64 before = earlier + upto - weighs;
        if (threadIdx.x < width)
            for (u32 i = 0; i < warp; i++) before += board.sums[i];
        const bool here = before <= target && target - before < weighs;
        const u32 whose = __ballot_sync(0xffffffffu, here);
        // One warp of all has the lane, and goes through it 32 tokens at a time.
        if (whose) {
            const u32 owner = __ffs(whose) - 1;
            u64 left = target - __shfl_sync(0xffffffffu, before, owner);
            for (u32 place = warp * 32 + owner + width * lane;; place += 32 * width) {
                Token own = {place < places ? level_at(place) : NEVER, token(place)};
                u64 weighs = own.before(bound) ? weight(own.level) : 0, end = running(weighs);
                if (left < end && left >= end - weighs)
                    for (u32 other = 0; other < group.cluster.count; other++)
                        group.send(&board.found, other, (u64)own.level << 32 | own.number);
                u64 all = __shfl_sync(0xffffffffu, end, 31);
                if (left < all) break;
                left -= all;
            }
        }
        group.cluster.meet();
        return {(u32)(board.found >> 32), (u32)board.found};
    }
};

// A token, or one of core's numbers in its place: NaN, then +∞, then −∞ alone.
template <u32 TYPE> __device__ __forceinline__ u32 drawn(const Sample& args, Group& group, u32* held) {
    Row<TYPE> row(args, group, held);
    const u64 top = group.largest(row.top());
    const u32 largest = (u32)(top >> 32), first = ~(u32)top;
    if (top == ~0ull) return 0xffffffffu;
    if (largest == 0xff800000u) return 0xfffffffeu;
    if (largest == 0x007fffffu) return 0xfffffffdu;
    if (args.greedy) return first;
    row.grade(row.score(first));
    Token bound = {NEVER, 0};
    Sum own = row.ahead(bound), all = group.total(own);
    u64 wanted = ~0ull;
    if (args.top_p) {
        wanted = share(row.kept(all), args.top_p);
        wanted = wanted ? wanted : 1;
        // What blocks told each other last is the sums again.
        all = group.total(own);
    }
    const u32* stream = args.streams + blockIdx.x / group.cluster.count * 3;
    // What is not kept bounds the next round.
    for (u32 round = 0;; round++) {
        u32 word = threefry({stream[0], stream[1]}, (u64)round << 32 | stream[2]).x;
        bound = row.find(bound, share(all.mass, word), own.mass);
        own = row.ahead(bound);
        all = group.total(own);
        if ((!args.top_k || all.count < args.top_k) && all.mass < wanted) return bound.number;
    }
}

// Draws one token from each row of scores [texts,vocabulary], a cluster a row.
KERNEL(sample, Sample, 1024, 1) {
    DYNAMIC_SHARED(u8, shared);
    u32 token;
    follow();
    Group group = {*(Board*)shared, {}, 0};
    group.cluster.join();
    // All blocks of a cluster run before one writes to another.
    group.cluster.meet();
    BY_TYPE(args.scores.type, token = drawn<TYPE>(args, group, args.held ? (u32*)(shared + sizeof(Board)) : nullptr))
    if (group.cluster.rank != 0) return;
    const u32 text = blockIdx.x / group.cluster.count;
    if (threadIdx.x == 0) args.tokens[text] = token;
    if (threadIdx.x < 3) args.next[3 * text + threadIdx.x] = args.streams[3 * text + threadIdx.x] + threadIdx.x / 2;
}
