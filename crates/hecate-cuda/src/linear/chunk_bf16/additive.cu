// The exact chunk form with bfloat16 for rules that never erase: equations (15)-(24) and (30) without r, chunk by chunk.
#include "chunk_bf16/additive.cuh"

// Reads a step's chunk ahead; a commit follows.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::fetch(u32 n) const {
    const Chunk chunk = this->chunk(n);
    const u32 who = threadIdx.x - HOLDERS - COUNT;
    // Forward keys write and queries read; backward it is the other way round.
    const void *writes = BACK ? p.q.data : p.k.data, *reads = BACK ? p.k.data : p.q.data;
    fetch_tile<COUNT>(p, chunk, writes, p.key, 0, writers(n), who);
    if (!ENDS) fetch_tile<COUNT>(p, chunk, reads, p.key, 0, readers(n), who);
    fetch_tile<COUNT>(p, chunk, args.values, p.value, 0, values(n), who);
}

// In step n all of chunks n and n + 1 is there, and two more are on their way. A barrier stands between two steps for all of the
// block's threads, so that all roles count the same barriers: one before the first step, and one at the start of each.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::read_ahead() const {
    for (u32 n = begin; n < begin + 3; n++) {
        if (n < end) fetch(n);
        copies_commit();
    }
    // The first chunk, for those who make.
    copies_wait<2>();
    show_to_groups();
    __syncthreads();
    for (u32 n = begin; n < end; n++) {
        // Chunk n + 1 is needed by those who make; chunk n + 2 may still be on its way.
        copies_wait<1>();
        show_to_groups();
        __syncthreads();
        // Nobody needs the chunk of the step before any more.
        if (n + 3 < end) fetch(n + 3);
        copies_commit();
    }
}

// Gates of tokens 2 l and 2 l + 1 of a step, of lane l; asked for a step before they are needed.
template <bool BACK, bool ENDS>
__device__ __forceinline__ typename Additive<BACK, ENDS>::Pair Additive<BACK, ENDS>::gates(u32 n) const {
    const Chunk chunk = this->chunk(n);
    const u32 t = threadIdx.x % 32 * 2;
    // After the last token nothing is written or forgotten.
    Pair x = {};
    if (n >= end) return x;
    // Neighbouring tokens are H elements apart.
    const u64 at = chunk.token(p, t);
    if (t < chunk.tokens) x.log_a.x = p.log_a[at], x.theta.x = p.theta[at];
    if (t + 1 < chunk.tokens) x.log_a.y = p.log_a[at + p.heads], x.theta.y = p.theta[at + p.heads];
    return x;
}

// The base-2 logarithm of a retention. From -200 on a power is 0, and sums of logarithms stay exact enough.
__device__ __forceinline__ float log2_of(float log) {
    return log <= 0.0f ? fmaxf(1.44269504f * log, -200.0f) : NOT_A_NUMBER;
}

// Factors of a chunk's rows, by one warp, two tokens a lane.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::factors(const Pair& gates, u32 n) const {
    const u32 lane = threadIdx.x % 32;
    const float first = log2_of(gates.log_a.x), both = first + log2_of(gates.log_a.y);
    // Sums over all tokens up to the lane's second.
    float sum = both;
    #pragma unroll
    for (u32 i = 1; i < 32; i *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, sum, i);
        if (lane >= i) sum += other;
    }
    // Of the whole chunk, and of what is before the lane's first token.
    const float all = shuffle(sum, 31), above = __shfl_up_sync(0xffffffffu, sum, 1), before = lane ? above : 0.0f;
    // A read before the token's own write does not see the token's retention.
    const float2 logs = {before + first, sum}, reads = p.before ? float2{before, before + first} : logs;
    const float2 w = {strength(gates.theta.x), strength(gates.theta.y)};
    // a⁺ of a read, and c[C,·] of a write.
    const float2 read = {short_exp2(reads.x), short_exp2(reads.y)};
    const float2 written = {short_exp2(all - logs.x), short_exp2(all - logs.y)};
    // Vectors [CHUNK], two neighbouring elements a lane. w of forward writes is in the square already.
    float2* x = (float2*)vectors(n) + lane;
    x[READS / 2] = BACK ? written : read;
    x[WRITES / 2] = BACK ? read : float2{written.x * w.x, written.y * w.y};
    x[STRENGTHS / 2] = w, x[READ_LOGS / 2] = reads, x[LOGS / 2] = logs;
    if (lane == 0) vectors(n)[DECAY] = short_exp2(all);
}

// Q Kᵀ [CHUNK,CHUNK] is begun, 16 rows a warp.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::multiply_rows(Sums<8>& g, u32 n) const {
    // The square has queries as rows both ways; backward it is read across.
    const u64 q = described((BACK ? writers(n) : readers(n)).x), k = described((BACK ? readers(n) : writers(n)).x);
    group_begin();
    #pragma unroll
    for (u32 s = 0; s < KEYS / 16; s++) group_multiply<false, false>(g.x, along(q, s), along(k, s), s > 0);
    group_commit();
}

// Y ∘ Q Kᵀ as halves in its place, forward times w of the writes. What an earlier token would take of a later one is nothing.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::apply_mask(Sums<8>& g, u32 n) const {
    float* x = vectors(n);
    const u32 lane = threadIdx.x % 32, i = who() / 32 * 16 + lane / 4;
    // A thread has rows i and i + 8, as sums of a group lie.
    const float rows[2] = {x[READ_LOGS + i], x[READ_LOGS + i + 8]};
    float most = 0.0f;
    #pragma unroll
    for (u32 tile = 0; tile < 8; tile++) {
        // Rows i and i + 8 and columns j and j + 1.
        const u32 j = 8 * tile + lane % 4 * 2;
        const float2 logs = *(const float2*)(x + LOGS + j), w = *(const float2*)(x + STRENGTHS + j);
        #pragma unroll
        for (u32 e = 0; e < 4; e++) {
            // Above the diagonal c may be infinite: a choice, not a product, leaves it out.
            const float c = short_exp2(rows[e / 2] - (e % 2 ? logs.y : logs.x)), by = BACK ? c : c * (e % 2 ? w.y : w.x);
            float& of = g.x[tile][e];
            of = i + e / 2 * 8 >= j + e % 2 + p.before ? by * of : 0.0f;
            most = fmaxf(most, fabsf(of));
        }
    }
    // One power of two for the square, by the largest of all warps.
    most = largest_of_warp(most);
    if (lane == 0) x[MOST + who() / 32] = most;
    wait_for_some<COUNT>();
    const Scale scale = Scale::of(fmaxf(fmaxf(x[MOST], x[MOST + 1]), fmaxf(x[MOST + 2], x[MOST + 3])));
    // Halves [CHUNK,CHUNK] in one panel, two neighbours a word.
    const Square to = square(n);
    #pragma unroll
    for (u32 tile = 0; tile < 8; tile++)
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const float* pair = g.x[tile] + 2 * h;
            *(u32*)to.at(i + 8 * h, 8 * tile + lane % 4 * 2) = pack_halves(scale.up * pair[0], scale.up * pair[1]);
        }
    if (who() == 0) x[DOWN] = scale.down;
}

// Vectors and square of a step, whose rows are there; `of` are its gates, and then the next step's.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::make(Pair& of, u32 n) const {
    Sums<8> g;
    // The product is under way while one warp makes the factors.
    if (!ENDS) multiply_rows(g, n);
    if (who() < 32) factors(of, n);
    of = gates(n + 1);
    if (ENDS) return;
    // Factors are there for all four warps.
    wait_for_some<COUNT>();
    group_wait();
    hold(g.x);
    apply_mask(g, n);
    // Squares are written as any shared memory, and read by products of other groups.
    show_to_groups();
}

// Those who make: in step n, what is needed of chunk n + 1.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::make_all() const {
    Pair of = gates(begin);
    // The first chunk's rows are there.
    __syncthreads();
    if (begin < end) make(of, begin);
    for (u32 n = begin; n < end; n++) {
        __syncthreads();
        if (n + 1 < end) make(of, n + 1);
    }
}

// Values of the warp's columns, transposed.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::values_of(Lefts<4>& v, u32 n) const {
    #pragma unroll
    for (u32 i = 0; i < 4; i++) left_across(v.x[i], values(n), warp_column(), 16 * i);
}

// Values as halves, each row, a value column, by a power of two of its own: nothing is rounded.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::halve(Lefts<4>& v, float (&down)[2]) const {
    // The largest of both rows, two bfloat16 at once without their signs.
    u32 both[2] = {};
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        #pragma unroll
        for (u32 h = 0; h < 4; h++) both[h % 2] = larger_bf16(both[h % 2], v.x[i][h] & 0x7fff7fffu);
    float most[2];
    #pragma unroll
    for (u32 h = 0; h < 2; h++) most[h] = fmaxf(low_half(both[h]), high_half(both[h]));
    largest_of_rows(most);
    const Scale rows[2] = {Scale::of(most[0]), Scale::of(most[1])};
    // Words 0 and 2 are of the upper row, 1 and 3 of the lower.
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            const float up = rows[h % 2].up;
            v.x[i][h] = pack_halves(up * low_half(v.x[i][h]), up * high_half(v.x[i][h]));
        }
    down[0] = rows[0].down, down[1] = rows[1].down;
}

// The state before a step, if it is kept.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::keep_state(const Lefts<KEYS / 16>& state, u32 n) const {
    if (!args.kept || warp_column() >= p.value) return;
    u16* tiles = args.kept + chunk(n).kept * kept_size<KEYS>(p) + kept_at<KEYS>(warp_column(), 0);
    // A matrix [8,8] lies as its lanes hold it.
    u32* to = (u32*)tiles + threadIdx.x % 32;
    #pragma unroll
    for (u32 i = 0; i < KEYS / 16; i++)
        #pragma unroll
        for (u32 h = 0; h < 4; h++) to[128 * i + 32 * h] = state.x[i][h];
}

// (20), or (23): reads of the state before the chunk and of the chunk's own writes.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::read(Sums<8>& x, const Columns<KEYS>& m, u32 n) const {
    // The state is rounded here, as a factor and for what is kept; its sums keep 32 bits.
    Lefts<KEYS / 16> state;
    #pragma unroll
    for (u32 i = 0; i < KEYS / 16; i++) as_left(state.x[i], m.sums.x[2 * i], m.sums.x[2 * i + 1]);
    Lefts<4> v;
    float down[2];
    times_all(x, state, readers(n), [&] {
        // Stores and values pass while the group multiplies.
        keep_state(state, n);
        values_of(v, n);
        halve(v, down);
    });
    const float* factors = vectors(n);
    x.scale(ByToken{factors + READS});
    // The chunk's own writes; backward the square is transposed.
    Sums<8> y;
    times_square<BACK, 0>(y, v, square(n), Nothing{});
    x.add_rows(y, factors[DOWN] * down[0], factors[DOWN] * down[1]);
}

// O; or w ∘ Λ. The way out is where the warp's values were, which nobody else reads.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::store(const Sums<8>& x, u32 n) const {
    const auto at = [place = values(n)](u32 t, u32 c) { return place.at(t, warp_column() + c); };
    const Chunk chunk = this->chunk(n);
    // Λ itself nobody needs: the gradient of w is made with the other gates'.
    Lefts<4> rounded;
    if (BACK) rounded.of(x, ByToken{vectors(n) + STRENGTHS});
    else rounded.of(x);
    store_rows_by(at, p, chunk, rounded, args.out, warp_column());
}

// (21), or (30): M = A M + rows that write, transposed, times their factors and values; `finish_add` follows.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::begin_write(Columns<KEYS>& m, u32 n) const {
    const float *factors = vectors(n), decay = factors[DECAY];
    Lefts<4> v;
    values_of(v, n);
    // Values times their factors, as bfloat16, two neighbouring tokens a word.
    const ByToken by{factors + WRITES};
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        #pragma unroll
        for (u32 h = 0; h < 4; h++) {
            const float2 f = by(2 * i + h / 2);
            v.x[i][h] = pack_bf16(f.x * low_half(v.x[i][h]), f.y * high_half(v.x[i][h]));
        }
    // What was there decays before the group adds to it.
    #pragma unroll
    for (u32 c = 0; c < KEYS / 8; c++)
        #pragma unroll
        for (u32 i = 0; i < 4; i++) m.sums.x[c][i] *= decay;
    m.begin_add(v, writers(n));
}

// Threads that hold a state. Between two steps all threads of the block wait for each other.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void Additive<BACK, ENDS>::take_through() const {
    Columns<KEYS> m;
    if (ENDS) m.sums.clear();
    else start(m);
    float decay = 1.0f;
    __syncthreads();
    for (u32 n = begin; n < end; n++) {
        __syncthreads();
        if (ENDS) {
            decay *= vectors(n)[DECAY];
            begin_write(m, n);
        } else {
            Sums<8> x;
            read(x, m, n);
            begin_write(m, n);
            // Values were read: their place is free while the group adds.
            store(x, n);
        }
        m.template finish_add<true>();
    }
    // An end with its decay for later segments; or, of the last one, the last state.
    if (ENDS) {
        float* to = end_of(segment);
        each([&](u32 n, u32 i, u32 at) { to[at] = m.sums.x[n][i]; });
        if (threadIdx.x == 0) to[KEYS * COLUMNS] = decay;
    } else if (end == count) {
        m.write(p, args.last + sequence.state * p.key * p.value, warp_column());
    }
}

// Gives the block's warps their parts.
template <bool BACK, bool ENDS>
__device__ __forceinline__ void additive(const Bf16Additive& args, u8* shared) {
    // Only GPUs with groups are given these kernels.
    if constexpr (GROUPS_MULTIPLY) {
        using Of = Additive<BACK, ENDS>;
        // There are ends of all segments but the last.
        const Of of(args, shared, args.segments - ENDS);
        // Sequences that end before this segment; ends that no other segment begins with.
        if (of.segment > 0 && of.begin >= of.count || ENDS && of.begin + args.each >= of.count) return;
        if (threadIdx.x < Of::HOLDERS) {
            take_registers<Of::MANY>();
            of.take_through();
        } else if (threadIdx.x < Of::HOLDERS + Of::COUNT) {
            take_registers<Of::SOME>();
            of.make_all();
        } else {
            take_registers<Of::FEW>();
            of.read_ahead();
        }
    }
}

#define ADDITIVE(name, BACK, ENDS)              \
    KERNEL(name, Bf16Additive, 512, 1) {        \
        DYNAMIC_SHARED(u8, shared);             \
        additive<BACK, ENDS>(args, shared);     \
    }

// Name, from the last chunk to the first, ends of segments alone.
ADDITIVE(bf16_additive, false, false)
ADDITIVE(bf16_additive_ends, false, true)
ADDITIVE(bf16_additive_back, true, false)
ADDITIVE(bf16_additive_back_ends, true, true)
