// The gradient of the memory alone, token by token in reverse: (6)-(9), (11)-(13) as far as they concern it. It needs no
// states; what it is behind each span between kept states is kept, and the rest of the backward starts from there.
#include "linear.cuh"

struct Reverse {
    Linear p;
    Array dout;                // [rows,H,V]
    const float *dm, *ds;      // gradients of the final state [N,H,K,V]
    float *first_dm, *first_ds;  // gradients of the initial state [N,H,K,V]
    float* kept;               // gradients of M, S and M_c behind each span
    float* scratch;            // where R = 0: `scratch_stride` numbers a block
    u64 scratch_stride;
};

// Tokens whose inputs are in shared memory at once.
static constexpr u32 TILE = 16;

// Inputs of the next tile, on their way while this one is computed.
template <u32 R, u32 G>
struct Ahead {
    KeysAhead<R, G, TILE> k, q;
    ValuesAhead<R, G, TILE> dy;
    GatesAhead gates;

    __device__ __forceinline__ void fetch(const Linear& p, const Lane<R, G>& lane, Array dout, u32 first) {
        u32 count = min(TILE, lane.tokens - first);
        k.fetch(p, lane, p.k, first, count);
        q.fetch(p, lane, p.q, first, count);
        dy.fetch(p, lane, dout, first, count);
        gates.fetch(p, lane, first, count);
    }
};

// Numbers in `base`: as the forward's.
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void reverse(const Reverse& args, float* base) {
    const Linear& p = args.p;
    const Lane<R, G> lane(p, blockIdx.x);
    const u32 n = R ? R : lane.n, own = n * blockDim.x, matrices = S ? 2 : 1;
    const u32 width = R ? R * G : lane.width, columns = Lane<R, G>::COLUMNS;
    float* k = base;
    float* q = k + TILE * width;
    float* dy = q + TILE * width;
    Four* gates = (Four*)(dy + TILE * columns);
    float* rest = (float*)(gates + TILE);
    Own<0> dgroup;
    dgroup.at(rest);
    if (p.frozen) rest += own;
    Own<R> dm, ds;
    dm.at(rest);
    ds.at(rest + own);
    u32 tile = (lane.tokens - 1) / TILE * TILE;
    Ahead<R, G> ahead;
    ahead.fetch(p, lane, args.dout, tile);
    lane.read_state(p, args.dm, dm);
    if (S) lane.read_state(p, args.ds, ds);
    if (p.frozen)
        for (u32 i = 0; i < n; i++) dgroup[i] = 0.0f;

    // The span ends at token `edge`.
    u32 span = lane.spans(p), edge = lane.tokens, of_group = p.frozen ? (lane.tokens - 1) % p.frozen : 0;
    for (;; tile -= TILE) {
        u32 count = min(TILE, lane.tokens - tile);
        __syncthreads();
        ahead.k.put(p, lane, p.k, count, k);
        ahead.q.put(p, lane, p.q, count, q);
        ahead.dy.put(args.dout, dy);
        ahead.gates.put(p, count, gates);
        __syncthreads();
        if (tile > 0) ahead.fetch(p, lane, args.dout, tile - TILE);
        for (u32 t = count; t-- > 0;) {
            if (tile + t + 1 == edge) {
                span--;
                edge = lane.start_of(p, span);
                Own<0> to;
                to.at(args.kept + lane.keeping(p, span, matrices + (p.frozen ? 1 : 0)));
                lane.copy(dm, to);
                to.x += own;
                if (S) {
                    lane.copy(ds, to);
                    to.x += own;
                }
                if (p.frozen) lane.copy(dgroup, to);
            }
            const float *keys = k + t * width, *queries = q + t * width;
            const float dout = dy[t * columns + lane.column];
            const Four gate = gates[t];
            float dz = 0.0f;
            #pragma unroll
            for (u32 j = 0; j < n; j += 4) {
                Four key = *(const Four*)(keys + lane.key(j)), query = *(const Four*)(queries + lane.key(j));
                const float ks[4] = {key.x, key.y, key.z, key.w}, qs[4] = {query.x, query.y, query.z, query.w};
                #pragma unroll
                for (u32 i = j; i < j + 4; i++) {
                    if (!p.before) dm[i] += qs[i - j] * dout;
                    if (S) ds[i] += dm[i];
                    dz += ks[i - j] * (S ? ds[i] : dm[i]);
                }
            }
            dz = lane.over_column(dz);
            const float dv = gate.x * dz, dp = -gate.y * dz;
            const bool leaves = p.frozen && of_group == 0;
            #pragma unroll
            for (u32 j = 0; j < n; j += 4) {
                Four key = *(const Four*)(keys + lane.key(j)), query = *(const Four*)(queries + lane.key(j));
                const float ks[4] = {key.x, key.y, key.z, key.w}, qs[4] = {query.x, query.y, query.z, query.w};
                #pragma unroll
                for (u32 i = j; i < j + 4; i++) {
                    float dmemory = gate.z * dm[i];
                    if (S) ds[i] = gate.w * ds[i];
                    if (p.frozen) {
                        float dc = dgroup[i] - ks[i - j] * dv;
                        dgroup[i] = leaves ? 0.0f : dc;
                        if (leaves) dmemory += dc;
                    }
                    if (p.erase) dmemory += ks[i - j] * dp;
                    if (p.before) dmemory += qs[i - j] * dout;
                    dm[i] = dmemory;
                }
            }
            of_group = of_group == 0 ? p.frozen - 1 : of_group - 1;
        }
        if (tile == 0) break;
    }
    lane.write_state(p, args.first_dm, dm);
    if (S) lane.write_state(p, args.first_ds, ds);
}

#define REVERSE(name, R, G, S, threads)                                                                   \
    KERNEL(name, Reverse, threads) {                                                                      \
        DYNAMIC_SHARED(float, shared);                                                                    \
        reverse<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);        \
    }

REVERSE(scan_reverse_16, 4, 4, false, 128)
REVERSE(scan_reverse_32, 4, 8, false, 256)
REVERSE(scan_reverse_64, 8, 8, false, 256)
REVERSE(scan_reverse_128, 8, 16, false, 512)
REVERSE(scan_reverse_256, 16, 16, false, 512)
REVERSE(scan_reverse_any, 0, 32, false, 256)
REVERSE(scan_reverse_16_momentum, 4, 4, true, 128)
REVERSE(scan_reverse_32_momentum, 4, 8, true, 256)
REVERSE(scan_reverse_64_momentum, 8, 8, true, 256)
REVERSE(scan_reverse_128_momentum, 8, 16, true, 512)
REVERSE(scan_reverse_256_momentum, 16, 16, true, 512)
REVERSE(scan_reverse_any_momentum, 0, 32, true, 256)
