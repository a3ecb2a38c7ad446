// The recurrence token by token, forward: equations (1)-(5).
#include "linear.cuh"

// `scan::ScanArguments` is its twin.
struct Forward {
    Linear p;
    // [N,H,K,V]
    const float *m, *s;
    // [rows,H,V]
    Array out;
    // [N,H,K,V]
    float *last_m, *last_s;
    // States for the backward; null: none
    float* kept;
    // Where R = 0: `scratch_stride` elements a block
    float* scratch;
    u64 scratch_stride;
};

// Tokens whose inputs are in shared memory at once.
static constexpr u32 TILE = 16;

// One head tile from its first token to its last. The memory is in registers, R rows of a column to a thread.
//
// Shared memory has the inputs of TILE tokens: keys and queries [TILE,K'], values [TILE,COLUMNS], gates [TILE]. Two barriers
// a tile are enough, since columns do not interact: one before inputs are put down, one before they are read.
//
// Elements in `base`: 2 TILE K' + TILE COLUMNS + 4 TILE + [frozen] E + [R = 0] 2 E, with E = n threads.
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void scan(const Forward& args, float* base) {
    const Linear& p = args.p;
    const HeadTile<R, G> head_tile(p, blockIdx.x);
    const u32 own = head_tile.n * blockDim.x, matrices = S ? 2 : 1;
    const u32 width = R ? R * G : head_tile.width, columns = HeadTile<R, G>::COLUMNS;
    float* k = base;
    float* q = k + TILE * width;
    float* v = q + TILE * width;
    Four* gates = (Four*)(v + TILE * columns);
    float* rest = (float*)(gates + TILE);
    // The memory at the start of the group, only of frozen rules.
    Own<0> group;
    group.at(rest);
    if (p.frozen) rest += own;
    Own<R> m, s;
    m.at(rest);
    s.at(rest + own);
    TileAhead<R, G, TILE> ahead;
    ahead.fetch(p, head_tile, p.v, 0);
    head_tile.read_state(p, args.m, m);
    if (S) head_tile.read_state(p, args.s, s);
    // One of the threads of a column writes its outputs.
    const bool writes = head_tile.part == 0 && head_tile.value < p.value;

    // Tokens since the last period and group began; checkpoints so far.
    u32 of_period = 0, of_group = 0, keeps = 0;
    for (u32 first = 0; first < head_tile.tokens; first += TILE) {
        u32 count = min(TILE, head_tile.tokens - first);
        ahead.put(p, head_tile, p.v, count, k, q, v, gates);
        // The next tile comes while this one is computed.
        if (first + TILE < head_tile.tokens) ahead.fetch(p, head_tile, p.v, first + TILE);
        // What the thread adds to the read of the token before: its sum over the column is taken with the next token's.
        float y = 0.0f;
        // Where the column's output of the tile's first token goes.
        u64 place = head_tile.token(p, first) * p.value + head_tile.value;
        for (u32 t = 0; t < count; t++) {
            // A checkpoint: what the backward starts from.
            if (args.kept && of_period % 64 == 0) {
                // Each thread has its own place in a checkpoint, so that it needs no exchange.
                Own<0> to;
                to.at(args.kept + head_tile.keeping(p, keeps++, matrices));
                head_tile.copy(m, to);
                to.x += own;
                if (S) head_tile.copy(s, to);
            }
            if (p.frozen && of_group == 0) head_tile.copy(m, group);
            // Key and query of the token.
            const float *kt = k + t * width, *qt = q + t * width;
            // (1), (2); the sum over the column takes the read of the token before along.
            PseudoValue x = predict(p, head_tile, kt, v[t * columns + head_tile.column], gates[t], m, group, y);
            if (writes && t > 0) store(args.out, place + (u64)(t - 1) * p.heads * p.value, x.other);
            // (5), before or after the write (3), (4).
            if (p.before) y = head_tile.dot(qt, m);
            update<R, G, S>(head_tile, kt, x.u, gates[t], m, s);
            if (!p.before) y = head_tile.dot(qt, m);
            if (++of_period == p.period) of_period = 0;
            if (++of_group == p.frozen) of_group = 0;
        }
        y = head_tile.over_column(y);
        if (writes) store(args.out, place + (u64)(count - 1) * p.heads * p.value, y);
    }
    head_tile.write_state(p, args.last_m, m);
    if (S) head_tile.write_state(p, args.last_s, s);
}

// Kernels by K: up to 16, 32, 64, 128, 256 with the memory in registers, any other with it in global memory. Threads of a
// block are 32 G, or 8 G where R = 0.
#define SCAN(name, R, G, S, threads)                                                                   \
    KERNEL(name, Forward, threads) {                                                                   \
        DYNAMIC_SHARED(float, shared);                                                                 \
        scan<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);        \
    }

// Name, rows of a thread, threads of a column, momentum, threads of a block.
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
