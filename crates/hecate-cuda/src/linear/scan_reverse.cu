// The gradient of the memory alone, token by token in reverse: (6)-(9), (11)-(13) as far as they concern it. It needs no
// states; what it is after each interval between kept states is kept, and the rest of the backward starts from there.
#include "linear.cuh"

// `scan_reverse::ScanReverseArguments` is its twin.
struct Reverse {
    Linear p;
    // [rows,H,V]
    Array dout;
    // Gradients of the final state [N,H,K,V]
    const float *dm, *ds;
    // Gradients of the initial state [N,H,K,V]
    float *first_dm, *first_ds;
    // Gradients of M, S and M_c after each interval
    float* kept;
    // Where R = 0: `scratch_stride` elements a block
    float* scratch;
    u64 scratch_stride;
};

// Tokens whose inputs are in shared memory at once.
// Each is read by the whole block, and fetched a tile ahead.
static constexpr u32 TILE = 16;

// Gradients that a thread holds while it goes back: of M, S and M_c, after the token in work.
template <u32 R, u32 G, bool S>
struct MemoryGrads {
    const Linear& p;
    const HeadTile<R, G>& head_tile;
    Own<R> dm, ds;
    Own<0> dgroup;

    // Rows of the memory that are this thread's.
    __device__ __forceinline__ u32 rows() const { return R ? R : head_tile.n; }

    // Keeps them as those after checkpoint interval `interval`.
    __device__ __forceinline__ void keep(float* kept, u32 interval) {
        const u32 own = rows() * blockDim.x, matrices = S ? 2 : 1;
        Own<0> to;
        to.at(kept + head_tile.keeping(p, interval, matrices + (p.frozen ? 1 : 0)));
        head_tile.copy(dm, to);
        to.x += own;
        if (S) {
            head_tile.copy(ds, to);
            to.x += own;
        }
        if (p.frozen) head_tile.copy(dgroup, to);
    }

    // (6) or (13), (7): what the token's read and the later momentum give; the thread's part of du of (8) is returned.
    __device__ __forceinline__ float add_read(const float* keys, const float* queries, float dout) {
        const u32 n = rows();
        float du = 0.0f;
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            const KeyAndQuery of(keys, queries, head_tile.key(j));
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                // (6): a read after the write sees M_t.
                if (!p.before) dm[i] += of.q[i - j] * dout;
                // (7).
                if (S) ds[i] += dm[i];
                // (8), this thread's rows of it.
                du += of.k[i - j] * (S ? ds[i] : dm[i]);
            }
        }
        return du;
    }

    // (11)-(13): to the gradients before the token. `leaves`: the token is the first of its group.
    __device__ __forceinline__ void go_back(
        const float* keys, const float* queries, float dout, Four gate, float du, bool leaves
    ) {
        const u32 n = rows();
        const float dv = gate.x * du, dp = -gate.y * du;
        #pragma unroll
        for (u32 j = 0; j < n; j += 4) {
            const KeyAndQuery of(keys, queries, head_tile.key(j));
            #pragma unroll
            for (u32 i = j; i < j + 4; i++) {
                // (11).
                float dmemory = gate.z * dm[i];
                if (S) ds[i] = gate.w * ds[i];
                if (p.frozen) {
                    // (12): what the target's prediction gives to M_c.
                    float dc = dgroup[i] - of.k[i - j] * dv;
                    dgroup[i] = leaves ? 0.0f : dc;
                    if (leaves) dmemory += dc;
                }
                // What the prediction gives to M_{t-1}.
                if (p.erase) dmemory += of.k[i - j] * dp;
                // (13): a read before the write sees M_{t-1}.
                if (p.before) dmemory += of.q[i - j] * dout;
                dm[i] = dmemory;
            }
        }
    }
};

// Elements in `base`: as the forward's.
template <u32 R, u32 G, bool S>
__device__ __forceinline__ void reverse(const Reverse& args, float* base) {
    const Linear& p = args.p;
    const HeadTile<R, G> head_tile(p, blockIdx.x);
    const u32 n = R ? R : head_tile.n, own = n * blockDim.x;
    const u32 width = R ? R * G : head_tile.width, columns = HeadTile<R, G>::COLUMNS;
    float* k = base;
    float* q = k + TILE * width;
    float* dy = q + TILE * width;
    Four* gates = (Four*)(dy + TILE * columns);
    float* rest = (float*)(gates + TILE);
    MemoryGrads<R, G, S> grads{p, head_tile};
    // After the gates: dM_c of frozen rules, then, where R = 0, dM and dS.
    grads.dgroup.at(rest);
    if (p.frozen) rest += own;
    grads.dm.at(rest);
    grads.ds.at(rest + own);
    // The last tile may be short; all before it are whole.
    u32 tile = (head_tile.tokens - 1) / TILE * TILE;
    TileAhead<R, G, TILE> ahead;
    // Loads are under way while the states are read.
    ahead.fetch(p, head_tile, args.dout, tile);
    head_tile.read_state(p, args.dm, grads.dm);
    if (S) head_tile.read_state(p, args.ds, grads.ds);
    if (p.frozen)
        for (u32 i = 0; i < n; i++) grads.dgroup[i] = 0.0f;

    // The interval ends at token `edge`.
    u32 interval = head_tile.intervals(p), edge = head_tile.tokens;
    u32 of_group = p.frozen ? (head_tile.tokens - 1) % p.frozen : 0;
    for (;; tile -= TILE) {
        u32 count = min(TILE, head_tile.tokens - tile);
        ahead.put(p, head_tile, args.dout, count, k, q, dy, gates);
        if (tile > 0) ahead.fetch(p, head_tile, args.dout, tile - TILE);
        for (u32 t = count; t-- > 0;) {
            if (tile + t + 1 == edge) {
                interval--;
                edge = head_tile.start_of(p, interval);
                grads.keep(args.kept, interval);
            }
            const float *keys = k + t * width, *queries = q + t * width;
            const float dout = dy[t * columns + head_tile.column];
            // w, r, a, η of the token.
            const Four gate = gates[t];
            // Over the G threads of a column, by shuffles: no barrier a token.
            const float du = head_tile.over_column(grads.add_read(keys, queries, dout));
            grads.go_back(keys, queries, dout, gate, du, p.frozen && of_group == 0);
            of_group = of_group == 0 ? p.frozen - 1 : of_group - 1;
        }
        if (tile == 0) break;
    }
    // What is left at the first token is the gradient of the initial state.
    head_tile.write_state(p, args.first_dm, grads.dm);
    if (S) head_tile.write_state(p, args.first_ds, grads.ds);
}

#define REVERSE(name, R, G, S, threads)                                                                   \
    KERNEL(name, Reverse, threads) {                                                                      \
        DYNAMIC_SHARED(float, shared);                                                                    \
        reverse<R, G, S>(args, R ? shared : args.scratch + (u64)blockIdx.x * args.scratch_stride);        \
    }

// Name, rows of a thread, threads of a column, momentum, threads of a block.
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
