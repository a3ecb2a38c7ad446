// The recurrence token by token, backward: equations (6)-(14), a span between kept states at a time.
//
// All spans are independent: each starts from the kept state before its first token and the kept gradient of the state
// behind its last. A block goes from span to span. In each it runs forward once, noting the memory every `sub` tokens
// (`checkpoints`); then, from the last such stretch to the first, it runs forward again, noting the memory before every
// token (`slots`), and goes back over its tokens. Sums over columns leave a block as partial sums.
#include "linear.cuh"

struct Backward {
    Linear p;
    const float* kept;         // states before each span
    const float* kept_grads;   // gradients of M, S and M_c behind each span
    Array dout, dv;            // [rows,H,V]
    float *dq, *dk;            // [blocks,rows,H,K]: sums over the columns of a block
    float* dscalars;           // [blocks,rows,H,4]: of w, r, a, η
    float* checkpoints;        // 64 / sub of up to three matrices a block
    float* scratch;            // where R = 0: `scratch_stride` numbers a block
    u64 scratch_stride, tokens;  // `tokens`: rows times H
    u32 sub, lanes, spans, unused;  // `spans`: of the longest sequence
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
        constexpr u32 HALF = N / 2;
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
__device__ __forceinline__ void over_columns(const Lane<R, G>& lane, Own<R>& x, float* to) {
    if constexpr (R > 0) {
        constexpr u32 LEFT = R > 32 / G ? R * G / 32 : 1;
        u32 first = scatter_sum<R, 32 / G>(x.x);
        #pragma unroll
        for (u32 i = 0; i < LEFT; i++) to[lane.key(first + i)] = x[i];
    } else {
        for (u32 i = 0; i < lane.n; i++) to[lane.key(i)] = x[i];
    }
}

template <u32 R, u32 G, bool S>
struct Reverse {
    const Backward& args;
    const Linear& p;
    const Lane<R, G> lane;
    const u32 own, warps;
    float *slots, *k, *q, *v, *dy, *partial, *scalars, *checkpoints;
    Four* gates;
    Own<0> values, group, dgroup;
    Own<R> m, s, dm, ds, x;
    // Inputs of the next tile.
    KeysAhead<R, G, TILE> next_k, next_q;
    ValuesAhead<R, G, TILE> next_v, next_dy;
    GatesAhead next_gates;

    // Numbers in `base`: (1 + S) sub E + 2 TILE K' + 2 TILE COLUMNS + 4 TILE + 3 sub threads + warps (4 K' + 8)
    // + [frozen] 2 E + [R = 0] 7 E.
    __device__ Reverse(const Backward& args, u32 index, float* base)
        : args(args), p(args.p), lane(args.p, index), own(lane.n * blockDim.x), warps(blockDim.x / 32) {
        float* rest = base;
        auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
        slots = take((S ? 2 : 1) * args.sub * own);
        k = take(TILE * lane.width);
        q = take(TILE * lane.width);
        v = take(TILE * lane.COLUMNS);
        dy = take(TILE * lane.COLUMNS);
        gates = (Four*)take(4 * TILE);
        values.at(take(3 * args.sub * blockDim.x));
        partial = take(4 * warps * lane.width);
        scalars = take(8 * warps);
        group.at(rest);
        if (p.frozen) rest += own;
        dgroup.at(rest);
        if (p.frozen) rest += own;
        m.at(rest), s.at(rest + own), dm.at(rest + 2 * own), ds.at(rest + 3 * own), x.at(rest + 4 * own);
        after_base = rest + 5 * own;
        checkpoints = args.checkpoints + (u64)blockIdx.x * (64 / args.sub) * records() * own;
    }
    float* after_base;

    // Matrices of a checkpoint and of a kept gradient: M, S, M_c.
    __device__ __forceinline__ u32 records() const { return (S ? 2 : 1) + (p.frozen ? 1 : 0); }

    __device__ __forceinline__ Own<0> at(float* base, u32 matrix) const {
        Own<0> to;
        to.at(base + (u64)matrix * own);
        return to;
    }

    // Span `j` of the lane.
    __device__ void run(u32 j) {
        const u32 matrices = S ? 2 : 1, count = lane.spans(p), each = (p.period + 63) / 64;
        if (j >= count) return;
        const u32 first = lane.start_of(p, j), end = j + 1 < count ? lane.start_of(p, j + 1) : lane.tokens;
        float *kept = const_cast<float*>(args.kept), *state = kept + lane.keeping(p, j, matrices);
        float* grads = const_cast<float*>(args.kept_grads) + lane.keeping(p, j, records());
        lane.copy(at(state, 0), m);
        if (S) lane.copy(at(state, 1), s);
        // A group of more than 64 tokens: its start is the first kept state of the period.
        if (p.frozen && first % p.frozen != 0) lane.copy(at(kept + lane.keeping(p, j - j % each, matrices), 0), group);
        lane.copy(at(grads, 0), dm);
        if (S) lane.copy(at(grads, 1), ds);
        if (p.frozen) lane.copy(at(grads, matrices), dgroup);
        note(first, end - first);
        u32 tile = (end - first - 1) / TILE * TILE;
        fetch(first + tile, min(TILE, end - first - tile), true);
        for (;; tile -= TILE) {
            put(min(TILE, end - first - tile), true);
            if (tile > 0) fetch(first + tile - TILE, TILE, true);
            back(first + tile, min(TILE, end - first - tile), tile / args.sub);
            if (tile == 0) break;
        }
    }

    __device__ __forceinline__ bool starts_group(u32 t) const { return p.frozen && t % p.frozen == 0; }

    // The inputs of a tile; what only the way back needs on demand.
    __device__ __forceinline__ void fetch(u32 first, u32 count, bool all) {
        next_k.fetch(p, lane, p.k, first, count);
        next_v.fetch(p, lane, p.v, first, count);
        next_gates.fetch(p, lane, first, count);
        if (all) {
            next_q.fetch(p, lane, p.q, first, count);
            next_dy.fetch(p, lane, args.dout, first, count);
        }
    }

    // Puts down what was fetched, for all threads to read.
    __device__ __forceinline__ void put(u32 count, bool all) {
        __syncthreads();
        next_k.put(p, lane, p.k, count, k);
        next_v.put(p.v, v);
        next_gates.put(p, count, gates);
        if (all) {
            next_q.put(p, lane, p.q, count, q);
            next_dy.put(args.dout, dy);
        }
        __syncthreads();
    }

    // The memory before every `sub`th of `count` tokens.
    __device__ void note(u32 first, u32 count) {
        u32 last = (count - 1) / args.sub * args.sub;
        fetch(first, min(TILE, count), false);
        for (u32 t = 0; t <= last; t++) {
            if (t % TILE == 0) {
                put(min(TILE, count - t), false);
                if (t + TILE < count) fetch(first + t + TILE, min(TILE, count - t - TILE), false);
            }
            if (starts_group(first + t)) lane.copy(m, group);
            if (t % args.sub == 0) {
                float* to = checkpoints + (u64)(t / args.sub) * records() * own;
                Own<0> note = at(to, 0);
                lane.copy(m, note);
                note = at(to, 1);
                if (S) lane.copy(s, note);
                note = at(to, S ? 2 : 1);
                if (p.frozen) lane.copy(group, note);
            }
            if (t == last) break;
            write(t % TILE);
        }
    }

    // One token forward.
    __device__ __forceinline__ Written write(u32 t) {
        const float* keys = k + t * lane.width;
        Written done = predict(p, lane, keys, v[t * lane.COLUMNS + lane.column], gates[t], m, group, 0.0f);
        update<R, G, S>(lane, keys, done.z, gates[t], m, s);
        return done;
    }

    // Back over a tile of `count` tokens, whose first checkpoint has number `number`.
    __device__ void back(u32 first, u32 count, u32 number) {
        Own<R> after;
        after.at(after_base);
        for (u32 start = (count - 1) / args.sub * args.sub + args.sub; start > 0;) {
            start -= args.sub;
            u32 tokens = min(args.sub, count - start);
            float* from = checkpoints + (u64)(number + start / args.sub) * records() * own;
            lane.copy(at(from, 0), m);
            if (S) lane.copy(at(from, 1), s);
            Own<0> noted = at(from, S ? 2 : 1);
            if (p.frozen) lane.copy(noted, group);
            for (u32 t = 0; t < tokens; t++) {
                if (starts_group(first + start + t)) lane.copy(m, group);
                Own<0> slot = before(t, 0);
                lane.copy(m, slot);
                slot = before(t, 1);
                if (S) lane.copy(s, slot);
                Written done = write(start + t);
                values[3 * t] = done.target, values[3 * t + 1] = done.p, values[3 * t + 2] = done.z;
            }
            lane.copy(m, after);
            for (u32 t = tokens; t-- > 0;) {
                u32 token = first + start + t, of_group = p.frozen ? token % p.frozen : 0;
                step(token, start + t, t, after, of_group <= t ? before(t - of_group, 0) : noted);
                if (starts_group(token))
                    for (u32 i = 0; i < lane.n; i++) dgroup[i] = 0.0f;
            }
        }
    }

    // M (0) or S (1) before token `t` of the stretch.
    __device__ __forceinline__ Own<0> before(u32 t, u32 matrix) const {
        return at(slots, (S ? 2 : 1) * t + matrix);
    }

    // Token `token` of the lane, `t` of the tile, `slot` of the stretch; `after` goes from M_t to M_{t-1}.
    __device__ __forceinline__ void step(u32 token, u32 t, u32 slot, Own<R>& after, Own<0> mc) {
        const u32 n = R ? R : lane.n;
        const float *keys = k + t * lane.width, *queries = q + t * lane.width;
        const float dout = dy[t * lane.COLUMNS + lane.column];
        const Four gate = gates[t];
        const float target = values[3 * slot], predicted = values[3 * slot + 1], z = values[3 * slot + 2];
        Own<0> old_m = before(slot, 0), old_s = before(slot, 1);
        float* sums = partial + (token % 2) * 2 * warps * lane.width + threadIdx.x / 32 * 2 * lane.width;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // dw, dr, da, dη

        // (6) or (13), (7).
        float dz = 0.0f;
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            Four key = *(const Four*)(keys + lane.key(j)), query = *(const Four*)(queries + lane.key(j));
            const float ks[4] = {key.x, key.y, key.z, key.w}, qs[4] = {query.x, query.y, query.z, query.w};
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                float memory = old_m[i];
                x[i] = dout * (p.before ? memory : after[i]);
                if (!p.before) dm[i] += qs[i - j] * dout;
                total[2] += dm[i] * memory;
                if (S) {
                    ds[i] += dm[i];
                    total[3] += ds[i] * old_s[i];
                }
                dz += ks[i - j] * (S ? ds[i] : dm[i]);
                after[i] = memory;
            }
        }
        over_columns(lane, x, sums);

        // (8), (9).
        dz = lane.over_column(dz);
        const float dv = gate.x * dz, dp = -gate.y * dz;
        if (lane.part == 0) {
            if (lane.value < p.value) store(args.dv, lane.token(p, token) * p.value + lane.value, dv);
            total[0] = dz * target;
            total[1] = -dz * predicted;
        }

        // (8), (10)-(13).
        const bool leaves = starts_group(token);
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            Four key = *(const Four*)(keys + lane.key(j)), query = *(const Four*)(queries + lane.key(j));
            const float ks[4] = {key.x, key.y, key.z, key.w}, qs[4] = {query.x, query.y, query.z, query.w};
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                float dkey = z * (S ? ds[i] : dm[i]), dmemory = gate.z * dm[i];
                if (S) ds[i] = gate.w * ds[i];
                if (p.frozen) {
                    dkey -= dv * mc[i];
                    float dc = dgroup[i] - ks[i - j] * dv;
                    dgroup[i] = dc;
                    if (leaves) dmemory += dc;
                }
                if (p.erase) {
                    dkey += dp * after[i];
                    dmemory += ks[i - j] * dp;
                }
                if (p.before) dmemory += qs[i - j] * dout;
                dm[i] = dmemory;
                x[i] = dkey;
            }
        }
        over_columns(lane, x, sums + lane.width);
        write_sums(token, total);
    }

    // What the block's columns add to the gradients of a token's query, key and scalars. The sums of two tokens have
    // places of their own, so that one barrier a token is enough.
    __device__ __forceinline__ void write_sums(u32 token, float (&total)[4]) {
        u32 side = token % 2, warp = threadIdx.x / 32;
        float* places = scalars + side * 4 * warps;
        u32 which = scatter_sum<4, 32>(total);
        if (threadIdx.x % 32 < 4) places[warp * 4 + which] = total[0];
        __syncthreads();
        const float* sums = partial + side * 2 * warps * lane.width;
        u64 row = (u64)lane.block * args.tokens + lane.token(p, token);
        for (u32 i = threadIdx.x; i < 2 * p.key; i += blockDim.x) {
            bool of_key = i >= p.key;
            u32 k = of_key ? i - p.key : i;
            float sum = 0.0f;
            for (u32 w = 0; w < warps; w++) sum += sums[(2 * w + of_key) * lane.width + k];
            (of_key ? args.dk : args.dq)[row * p.key + k] = sum;
        }
        if (threadIdx.x < 4) {
            float sum = 0.0f;
            for (u32 w = 0; w < warps; w++) sum += places[w * 4 + threadIdx.x];
            args.dscalars[row * 4 + threadIdx.x] = sum;
        }
    }
};

template <u32 R, u32 G, bool S>
__device__ __forceinline__ void back(const Backward& args, float* base) {
    u64 items = (u64)args.lanes * args.spans;
    for (u64 item = blockIdx.x; item < items; item += gridDim.x)
        Reverse<R, G, S>(args, (u32)(item % args.lanes), base).run((u32)(item / args.lanes));
}

#define BACK(name, R, G, S, threads)                                                                  \
    KERNEL(name, Backward, threads) {                                                                 \
        DYNAMIC_SHARED(float, shared);                                                                \
        back<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);       \
    }

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
