// The recurrence token by token, backward: equations (6)-(14), an interval between kept states at a time.
//
// All intervals are independent: each starts from the kept state before its first token and the kept gradient of the state
// after its last. A block goes from interval to interval. In each it runs forward once, noting the memory every `sub` tokens
// (`checkpoints`). Then it goes from the last such sub-chunk to the first: forward again, noting the memory before every
// token (`slots`), and back over the tokens. Sums over columns leave a block as partial sums.
#include "linear.cuh"

// `scan_backward::ScanBackwardArguments` is its twin.
struct Backward {
    Linear p;
    // States before each interval
    const float* kept;
    // Gradients of M, S and M_c after each interval
    const float* kept_grads;
    // [rows,H,V]
    Array dout, dv;
    // [blocks,rows,H,K]: sums over the columns of a block
    float *dq, *dk;
    // [blocks,rows,H,4]: of w, r, a, η
    float* dscalars;
    // 64 / sub of up to three matrices a block
    float* checkpoints;
    // Where R = 0: `scratch_stride` elements a block
    float* scratch;
    // `tokens`: rows times H
    u64 scratch_stride, tokens;
    // `intervals`: of the longest sequence
    u32 sub, head_tiles, intervals, unused;
};

// Tokens whose inputs are in shared memory at once; a multiple of `sub`.
static constexpr u32 TILE = 8;

// Sums over groups of `L` neighbouring threads. Each is left with N / L of them (at least one) at the front of `x`; the
// first of these is the one whose number is returned.
template <u32 N, u32 L, u32 MASK = 1>
__device__ __forceinline__ u32 scatter_sum(float* x) {
    if constexpr (MASK >= L) {
        return 0;
    } else if constexpr (N > 1) {
        // Each exchange halves what a thread has left: log L steps for all N sums.
        constexpr u32 HALF = N / 2;
        // One half of the threads keeps the upper sums, the other the lower ones.
        bool upper = threadIdx.x & MASK;
        #pragma unroll
        for (u32 i = 0; i < HALF; i++) {
            float mine = upper ? x[i + HALF] : x[i], other = upper ? x[i] : x[i + HALF];
            x[i] = mine + shuffle_xor(other, MASK);
        }
        return (upper ? HALF : 0) + scatter_sum<HALF, L, 2 * MASK>(x);
    } else {
        x[0] += shuffle_xor(x[0], MASK);
        return scatter_sum<1, L, 2 * MASK>(x);
    }
}

// The sums over a warp's columns, to `to [K']`.
template <u32 R, u32 G>
__device__ __forceinline__ void over_columns(const HeadTile<R, G>& head_tile, Own<R>& x, float* to) {
    if constexpr (R > 0) {
        // Elements of a row that are left to each thread.
        constexpr u32 LEFT = R > 32 / G ? R * G / 32 : 1;
        // Threads that share a row each get a part of it.
        u32 first = scatter_sum<R, 32 / G>(x.x);
        #pragma unroll
        for (u32 i = 0; i < LEFT; i++) to[head_tile.key(first + i)] = x[i];
    } else {
        for (u32 i = 0; i < head_tile.n; i++) to[head_tile.key(i)] = x[i];
    }
}

// One checkpoint interval of one head tile: forward over it, noting the memory, then back.
//
// `slots` has the memory before each token of a sub-chunk, `checkpoints` in global memory that before each sub-chunk. Inputs
// of TILE tokens lie in shared memory: `k`, `q` [TILE,K'], `v`, `dy` [TILE,COLUMNS], `gates` [TILE].
template <u32 R, u32 G, bool S>
struct Reverse {
    const Backward& args;
    const Linear& p;
    const HeadTile<R, G> head_tile;
    const u32 own, warps;
    float *slots, *k, *q, *v, *dy, *partial, *scalars, *checkpoints;
    Four* gates;
    // Target, prediction and pseudo-value of each token of a sub-chunk; the memory at the group's start and its gradient.
    Own<0> values, group, dgroup;
    // The memory and the momentum, their gradients, and one more row for a sum over columns.
    Own<R> m, s, dm, ds, x;
    // Inputs of the next tile.
    KeysAhead<R, G, TILE> next_k, next_q;
    ValuesAhead<R, G, TILE> next_v, next_dy;
    GatesAhead next_gates;

    // Elements in `base`: (1 + S) sub E + 2 TILE K' + 2 TILE COLUMNS + 4 TILE + 3 sub threads + warps (4 K' + 8)
    // + [frozen] 2 E + [R = 0] 7 E.
    __device__ Reverse(const Backward& args, u32 index, float* base)
        : args(args), p(args.p), head_tile(args.p, index), own(head_tile.n * blockDim.x), warps(blockDim.x / 32) {
        // Shared memory in this order; where R = 0 the block's own part of global memory.
        float* rest = base;
        auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
        slots = take((S ? 2 : 1) * args.sub * own);
        k = take(TILE * head_tile.width);
        q = take(TILE * head_tile.width);
        v = take(TILE * head_tile.COLUMNS);
        dy = take(TILE * head_tile.COLUMNS);
        gates = (Four*)take(4 * TILE);
        values.at(take(3 * args.sub * blockDim.x));
        partial = take(4 * warps * head_tile.width);
        scalars = take(8 * warps);
        group.at(rest);
        if (p.frozen) rest += own;
        dgroup.at(rest);
        if (p.frozen) rest += own;
        m.at(rest), s.at(rest + own), dm.at(rest + 2 * own), ds.at(rest + 3 * own), x.at(rest + 4 * own);
        after_base = rest + 5 * own;
        checkpoints = args.checkpoints + (u64)blockIdx.x * (64 / args.sub) * records() * own;
    }
    // Where the memory after a token lies where R = 0.
    float* after_base;

    // Matrices of a checkpoint and of a kept gradient: M, S, M_c.
    __device__ __forceinline__ u32 records() const { return (S ? 2 : 1) + (p.frozen ? 1 : 0); }

    // A thread's part of one of the matrices [n,threads] from `base` on.
    __device__ __forceinline__ Own<0> at(float* base, u32 matrix) const {
        Own<0> to;
        to.at(base + (u64)matrix * own);
        return to;
    }

    // Interval `j` of the head_tile.
    __device__ void run(u32 j) {
        const u32 matrices = S ? 2 : 1, count = head_tile.intervals(p), each = (p.period + 63) / 64;
        if (j >= count) return;
        const u32 first = head_tile.start_of(p, j), end = j + 1 < count ? head_tile.start_of(p, j + 1) : head_tile.tokens;
        // Read only: `Own` has one type for both directions.
        float *kept = const_cast<float*>(args.kept), *state = kept + head_tile.keeping(p, j, matrices);
        float* grads = const_cast<float*>(args.kept_grads) + head_tile.keeping(p, j, records());
        head_tile.copy(at(state, 0), m);
        if (S) head_tile.copy(at(state, 1), s);
        // A group of more than 64 tokens: its start is the first kept state of the period.
        if (p.frozen && first % p.frozen != 0) head_tile.copy(at(kept + head_tile.keeping(p, j - j % each, matrices), 0), group);
        head_tile.copy(at(grads, 0), dm);
        if (S) head_tile.copy(at(grads, 1), ds);
        if (p.frozen) head_tile.copy(at(grads, matrices), dgroup);
        // Forward over the interval, noting the memory before every sub-chunk.
        note(first, end - first);
        // Then tile by tile from the last.
        u32 tile = (end - first - 1) / TILE * TILE;
        fetch(first + tile, min(TILE, end - first - tile), true);
        for (;; tile -= TILE) {
            put(min(TILE, end - first - tile), true);
            if (tile > 0) fetch(first + tile - TILE, TILE, true);
            back(first + tile, min(TILE, end - first - tile), tile / args.sub);
            if (tile == 0) break;
        }
    }

    // Whether a token is the first of its frozen group.
    __device__ __forceinline__ bool starts_group(u32 t) const { return p.frozen && t % p.frozen == 0; }

    // The inputs of a tile; what only the way back needs on demand.
    __device__ __forceinline__ void fetch(u32 first, u32 count, bool all) {
        // Keys, values and gates are enough for a forward.
        next_k.fetch(p, head_tile, p.k, first, count);
        next_v.fetch(p, head_tile, p.v, first, count);
        next_gates.fetch(p, head_tile, first, count);
        if (all) {
            next_q.fetch(p, head_tile, p.q, first, count);
            next_dy.fetch(p, head_tile, args.dout, first, count);
        }
    }

    // Puts down what was fetched, for all threads to read.
    __device__ __forceinline__ void put(u32 count, bool all) {
        // Whoever reads the tile before is through with it.
        __syncthreads();
        next_k.put(p, head_tile, p.k, count, k);
        next_v.put(p.v, v);
        next_gates.put(p, count, gates);
        if (all) {
            next_q.put(p, head_tile, p.q, count, q);
            next_dy.put(args.dout, dy);
        }
        __syncthreads();
    }

    // The memory before every `sub`th of `count` tokens.
    __device__ void note(u32 first, u32 count) {
        // Nothing is needed of the memory after the last sub-chunk began.
        u32 last = (count - 1) / args.sub * args.sub;
        fetch(first, min(TILE, count), false);
        for (u32 t = 0; t <= last; t++) {
            if (t % TILE == 0) {
                put(min(TILE, count - t), false);
                if (t + TILE < count) fetch(first + t + TILE, min(TILE, count - t - TILE), false);
            }
            if (starts_group(first + t)) head_tile.copy(m, group);
            if (t % args.sub == 0) {
                // The block's checkpoint of this sub-chunk: M, S, M_c.
                float* to = checkpoints + (u64)(t / args.sub) * records() * own;
                Own<0> note = at(to, 0);
                head_tile.copy(m, note);
                note = at(to, 1);
                if (S) head_tile.copy(s, note);
                note = at(to, S ? 2 : 1);
                if (p.frozen) head_tile.copy(group, note);
            }
            if (t == last) break;
            write(t % TILE);
        }
    }

    // One token forward.
    __device__ __forceinline__ PseudoValue write(u32 t) {
        const float* keys = k + t * head_tile.width;
        // (1), (2); then (3), (4).
        PseudoValue done = predict(p, head_tile, keys, v[t * head_tile.COLUMNS + head_tile.column], gates[t], m, group, 0.0f);
        update<R, G, S>(head_tile, keys, done.u, gates[t], m, s);
        return done;
    }

    // Back over a tile of `count` tokens, whose first checkpoint has number `number`.
    __device__ void back(u32 first, u32 count, u32 number) {
        Own<R> after;
        after.at(after_base);
        // Sub-chunks of the tile, from the last.
        for (u32 start = (count - 1) / args.sub * args.sub + args.sub; start > 0;) {
            start -= args.sub;
            u32 tokens = min(args.sub, count - start);
            // Where the sub-chunk begins.
            float* from = checkpoints + (u64)(number + start / args.sub) * records() * own;
            head_tile.copy(at(from, 0), m);
            if (S) head_tile.copy(at(from, 1), s);
            Own<0> noted = at(from, S ? 2 : 1);
            if (p.frozen) head_tile.copy(noted, group);
            // Forward over the sub-chunk, with the memory before each token in shared memory.
            for (u32 t = 0; t < tokens; t++) {
                if (starts_group(first + start + t)) head_tile.copy(m, group);
                Own<0> slot = before(t, 0);
                head_tile.copy(m, slot);
                slot = before(t, 1);
                if (S) head_tile.copy(s, slot);
                PseudoValue done = write(start + t);
                // (9) needs what was predicted and what was written.
                values[3 * t] = done.target, values[3 * t + 1] = done.prediction, values[3 * t + 2] = done.u;
            }
            head_tile.copy(m, after);
            // Back over it.
            for (u32 t = tokens; t-- > 0;) {
                u32 token = first + start + t, of_group = p.frozen ? token % p.frozen : 0;
                step(token, start + t, t, after, of_group <= t ? before(t - of_group, 0) : noted);
                if (starts_group(token))
                    for (u32 i = 0; i < head_tile.n; i++) dgroup[i] = 0.0f;
            }
        }
    }

    // M (0) or S (1) before token `t` of the sub-chunk.
    __device__ __forceinline__ Own<0> before(u32 t, u32 matrix) const {
        return at(slots, (S ? 2 : 1) * t + matrix);
    }

    // Token `token` of the head_tile, `t` of the tile, `slot` of the sub-chunk; `after` goes from M_t to M_{t-1}.
    __device__ __forceinline__ void step(u32 token, u32 t, u32 slot, Own<R>& after, Own<0> mc) {
        const u32 n = R ? R : head_tile.n;
        const float *keys = k + t * head_tile.width, *queries = q + t * head_tile.width;
        const float dout = dy[t * head_tile.COLUMNS + head_tile.column];
        const Four gate = gates[t];
        const float target = values[3 * slot], predicted = values[3 * slot + 1], u = values[3 * slot + 2];
        // M and S before the token.
        Own<0> old_m = before(slot, 0), old_s = before(slot, 1);
        // Sums of this token, [2,K'] of each warp: of its query and of its key.
        float* sums = partial + (token % 2) * 2 * warps * head_tile.width + threadIdx.x / 32 * 2 * head_tile.width;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // dw, dr, da, dη

        // (6) or (13), (7).
        // The memory before the token is where `slots` has it; that after it is in registers.
        float dz = 0.0f;
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            const KeyAndQuery of(keys, queries, head_tile.key(j));
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                float memory = old_m[i];
                // dq of (6) or (13).
                x[i] = dout * (p.before ? memory : after[i]);
                if (!p.before) dm[i] += of.q[i - j] * dout;
                // da of (7).
                total[2] += dm[i] * memory;
                if (S) {
                    ds[i] += dm[i];
                    total[3] += ds[i] * old_s[i];
                }
                dz += of.k[i - j] * (S ? ds[i] : dm[i]);
                after[i] = memory;
            }
        }
        // dq of (6): sums over a warp's columns; warps are put together in `write_sums`.
        over_columns(head_tile, x, sums);

        // (8), (9).
        dz = head_tile.over_column(dz);
        const float dv = gate.x * dz, dp = -gate.y * dz;
        // One thread of a column has what belongs to the column.
        if (head_tile.part == 0) {
            if (head_tile.value < p.value) store(args.dv, head_tile.token(p, token) * p.value + head_tile.value, dv);
            // dw and dr of (9).
            total[0] = dz * target;
            total[1] = -dz * predicted;
        }

        // (8), (10)-(13).
        const bool leaves = starts_group(token);
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            const KeyAndQuery of(keys, queries, head_tile.key(j));
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                // dk of (8); then (12), (10).
                float dkey = u * (S ? ds[i] : dm[i]), dmemory = gate.z * dm[i];
                if (S) ds[i] = gate.w * ds[i];
                if (p.frozen) {
                    dkey -= dv * mc[i];
                    float dc = dgroup[i] - of.k[i - j] * dv;
                    dgroup[i] = dc;
                    if (leaves) dmemory += dc;
                }
                if (p.erase) {
                    dkey += dp * after[i];
                    dmemory += of.k[i - j] * dp;
                }
                if (p.before) dmemory += of.q[i - j] * dout;
                dm[i] = dmemory;
                x[i] = dkey;
            }
        }
        // dk of (8), (10), (12).
        over_columns(head_tile, x, sums + head_tile.width);
        write_sums(token, total);
    }

    // What the block's columns add to the gradients of a token's query, key and scalars. The sums of two tokens have
    // places of their own, so that one barrier a token is enough.
    __device__ __forceinline__ void write_sums(u32 token, float (&total)[4]) {
        u32 side = token % 2, warp = threadIdx.x / 32;
        float* places = scalars + side * 4 * warps;
        // Four sums over a warp at once; the first four lanes have one each.
        u32 which = scatter_sum<4, 32>(total);
        if (threadIdx.x % 32 < 4) places[warp * 4 + which] = total[0];
        __syncthreads();
        const float* sums = partial + side * 2 * warps * head_tile.width;
        // The block's own part of the gradients.
        u64 row = (u64)head_tile.block * args.tokens + head_tile.token(p, token);
        // A thread adds up the warps of one element, in order.
        for (u32 i = threadIdx.x; i < 2 * p.key; i += blockDim.x) {
            bool of_key = i >= p.key;
            u32 k = of_key ? i - p.key : i;
            float sum = 0.0f;
            for (u32 w = 0; w < warps; w++) sum += sums[(2 * w + of_key) * head_tile.width + k];
            (of_key ? args.dk : args.dq)[row * p.key + k] = sum;
        }
        if (threadIdx.x < 4) {
            float sum = 0.0f;
            for (u32 w = 0; w < warps; w++) sum += places[w * 4 + threadIdx.x];
            args.dscalars[row * 4 + threadIdx.x] = sum;
        }
    }
};

// Blocks take intervals of all head tiles in turn; neighbouring blocks have different head tiles.
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void back(const Backward& args, float* base) {
    u64 items = (u64)args.head_tiles * args.intervals;
    for (u64 item = blockIdx.x; item < items; item += gridDim.x)
        Reverse<R, G, S>(args, (u32)(item % args.head_tiles), base).run((u32)(item / args.head_tiles));
}

#define BACK(name, R, G, S, threads)                                                                  \
    KERNEL(name, Backward, threads) {                                                                 \
        DYNAMIC_SHARED(float, shared);                                                                \
        back<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);       \
    }

// Name, rows of a thread, threads of a column, momentum, threads of a block.
BACK(scan_back_16, 4, 4, false, 128)
BACK(scan_back_32, 4, 8, false, 256)
BACK(scan_back_64, 8, 8, false, 256)
BACK(scan_back_128, 8, 16, false, 512)
BACK(scan_back_256, 16, 16, false, 512)
BACK(scan_back_any, 0, 32, false, 256)
BACK(scan_back_16_momentum, 4, 4, true, 128)
BACK(scan_back_32_momentum, 4, 8, true, 256)
BACK(scan_back_64_momentum, 8, 8, true, 256)
BACK(scan_back_128_momentum, 8, 16, true, 512)
BACK(scan_back_256_momentum, 16, 16, true, 512)
BACK(scan_back_any_momentum, 0, 32, true, 256)
