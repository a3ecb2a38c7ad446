// The recurrence token by token, forward: equations (1)-(5).
#include "linear.cuh"

struct Forward {
    Linear p;
    const float *m, *s;        // [N,H,K,V]
    Array out;                 // [rows,H,V]
    float *last_m, *last_s;    // [N,H,K,V]
    float* kept;               // states for the backward; null: none
    float* scratch;            // where R = 0: `scratch_stride` numbers a block
    u64 scratch_stride;
};

// Tokens whose inputs are in shared memory at once.
static constexpr u32 TILE = 16;

// Inputs of the next tile, on their way while the tile before is computed.
template <u32 R, u32 G>
struct Ahead {
    KeysAhead<R, G, TILE> k, q;
    ValuesAhead<R, G, TILE> v;
    GatesAhead gates;

    __device__ __forceinline__ void fetch(const Linear& p, const Lane<R, G>& lane, u32 first) {
        u32 count = min(TILE, lane.tokens - first);
        k.fetch(p, lane, p.k, first, count);
        q.fetch(p, lane, p.q, first, count);
        v.fetch(p, lane, p.v, first, count);
        gates.fetch(p, lane, first, count);
    }
};

// Numbers in `base`: 2 TILE K' + TILE COLUMNS + 4 TILE + [frozen] E + [R = 0] 2 E, with E = n threads.
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void scan(const Forward& args, float* base) {
    const Linear& p = args.p;
    const Lane<R, G> lane(p, blockIdx.x);
    const u32 own = lane.n * blockDim.x, matrices = S ? 2 : 1;
    const u32 width = R ? R * G : lane.width, columns = Lane<R, G>::COLUMNS;
    float* k = base;
    float* q = k + TILE * width;
    float* v = q + TILE * width;
    Four* gates = (Four*)(v + TILE * columns);
    float* rest = (float*)(gates + TILE);
    Own<0> group;
    group.at(rest);
    if (p.frozen) rest += own;
    Own<R> m, s;
    m.at(rest);
    s.at(rest + own);
    Ahead<R, G> ahead;
    ahead.fetch(p, lane, 0);
    lane.read_state(p, args.m, m);
    if (S) lane.read_state(p, args.s, s);
    const bool writes = lane.part == 0 && lane.value < p.value;

    u32 of_period = 0, of_group = 0, keeps = 0;
    for (u32 first = 0; first < lane.tokens; first += TILE) {
        u32 count = min(TILE, lane.tokens - first);
        __syncthreads();
        ahead.k.put(p, lane, p.k, count, k);
        ahead.q.put(p, lane, p.q, count, q);
        ahead.v.put(p.v, v);
        ahead.gates.put(p, count, gates);
        __syncthreads();
        if (first + TILE < lane.tokens) ahead.fetch(p, lane, first + TILE);
        // What the thread adds to the read of the token before: its sum over the column is taken with the next token's.
        float y = 0.0f;
        u64 place = lane.token(p, first) * p.value + lane.value;
        for (u32 t = 0; t < count; t++) {
            if (args.kept && of_period % 64 == 0) {
                Own<0> to;
                to.at(args.kept + lane.keeping(p, keeps++, matrices));
                lane.copy(m, to);
                to.x += own;
                if (S) lane.copy(s, to);
            }
            if (p.frozen && of_group == 0) lane.copy(m, group);
            const float *kt = k + t * width, *qt = q + t * width;
            Written x = predict(p, lane, kt, v[t * columns + lane.column], gates[t], m, group, y);
            if (writes && t > 0) store(args.out, place + (u64)(t - 1) * p.heads * p.value, x.other);
            if (p.before) y = lane.dot(qt, m);
            update<R, G, S>(lane, kt, x.z, gates[t], m, s);
            if (!p.before) y = lane.dot(qt, m);
            if (++of_period == p.period) of_period = 0;
            if (++of_group == p.frozen) of_group = 0;
        }
        y = lane.over_column(y);
        if (writes) store(args.out, place + (u64)(count - 1) * p.heads * p.value, y);
    }
    lane.write_state(p, args.last_m, m);
    if (S) lane.write_state(p, args.last_s, s);
}

#define SCAN(name, R, G, S, threads)                                                                   \
    KERNEL(name, Forward, threads) {                                                                   \
        DYNAMIC_SHARED(float, shared);                                                                 \
        scan<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);        \
    }

SCAN(scan_16, 4, 4, false, 128)
SCAN(scan_32, 4, 8, false, 256)
SCAN(scan_64, 8, 8, false, 256)
SCAN(scan_128, 8, 16, false, 512)
SCAN(scan_256, 16, 16, false, 512)
SCAN(scan_any, 0, 32, false, 256)
SCAN(scan_16_momentum, 4, 4, true, 128)
SCAN(scan_32_momentum, 4, 8, true, 256)
SCAN(scan_64_momentum, 8, 8, true, 256)
SCAN(scan_128_momentum, 8, 16, true, 512)
SCAN(scan_256_momentum, 16, 16, true, 512)
SCAN(scan_any_momentum, 0, 32, true, 256)
