// The exact chunk form: the gradient of the memory, equations (23)-(25) and (30), from the last chunk to the first.
#include "chunk.cuh"

struct ChunkReverse {
    Linear p;
    const float* prepared;     // [kept,H,PREPARED]
    Array dout;                // [rows,H,V]
    const float *dm, *ds;      // [N,H,K,V]: of the final state
    float *first_dm, *first_ds;  // [N,H,K,V]: of the initial state
    float* kept;               // [kept,H,1 + S,K,V]: of the state behind each chunk
};

template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void reverse(const ChunkReverse& args, float* shared) {
    const Linear& p = args.p;
    const u32 stride = KEYS + 4, narrow = WIDTH + 8, first = blockIdx.x % p.blocks * WIDTH;
    const u64 state = blockIdx.x / p.blocks, matrix = (u64)p.key * p.value;
    float* rest = shared;
    auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
    float *k = take(CHUNK * stride), *q = take(CHUNK * stride), *t = take(CHUNK * WIDE), *y = take(CHUNK * WIDE);
    float *dm = take(KEYS * narrow), *ds = S ? take(KEYS * narrow) : nullptr, *dout = take(CHUNK * narrow);
    float* z = take(CHUNK * narrow);  // dZ, then dP
    __shared__ float w[CHUNK], r[CHUNK], vectors[VECTORS];
    const float *a = vectors + AT_A, *b = vectors + AT_B, *last_c = vectors + AT_C, *last_e = vectors + AT_E;
    const u32 seen = p.before ? 0 : 1;
    read_matrix<KEYS, WIDTH>(p, args.dm + state * matrix, first, dm, narrow);
    if (S) read_matrix<KEYS, WIDTH>(p, args.ds + state * matrix, first, ds, narrow);
    const Share<CHUNK, WIDTH> own;
    const Share<KEYS, WIDTH> of_state;
    const Sequence sequence(p, state);
    for (u32 number = sequence.chunks(); number-- > 0;) {
        const Chunk chunk(sequence, number);
        const float* prepared = args.prepared + chunk.kept * PREPARED;
        __syncthreads();
        float* kept = args.kept + chunk.kept * (S ? 2 : 1) * matrix;
        write_matrix<KEYS, WIDTH>(p, kept, first, dm, narrow);
        if (S) write_matrix<KEYS, WIDTH>(p, kept + matrix, first, ds, narrow);
        if (p.erase) read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, stride);
        read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, stride);
        read_rows<WIDTH>(p, chunk, args.dout, p.value, first, dout, narrow);
        if (p.erase) {
            read_square(prepared, t);
            read_square(prepared + SQUARE, y);
        }
        for (u32 i = threadIdx.x; i < VECTORS; i += THREADS) vectors[i] = prepared[2 * SQUARE + i];
        read_strengths(p, chunk, w, r);
        __syncthreads();
        auto key = [&](u32 i, u32 j) { return k[i * stride + j]; };
        auto key_across = [&](u32 j, u32 i) { return k[i * stride + j]; };
        auto query_across = [&](u32 j, u32 i) { return q[i * stride + j]; };
        Sum<of_state.TILES> to_m, to_s;
        to_m.clear(), to_s.clear();
        // What the reads add to (30); without erase that is all.
        auto read_m = [&](u32 i, u32 c) { return a[i + seen] * dout[i * narrow + c]; };
        auto read_s = [&](u32 i, u32 c) { return b[i + seen] * dout[i * narrow + c]; };
        product(to_m, of_state.row, of_state.column, CHUNK, query_across, read_m);
        if (S) product(to_s, of_state.row, of_state.column, CHUNK, query_across, read_s);
        if (p.erase) {
            // (23), (24), and dP of (25).
            Sum<own.TILES> x, x1;
            x.clear(), x1.clear();
            product(x, own.row, own.column, KEYS, key, [&](u32 j, u32 c) { return dm[j * narrow + c]; });
            if (S) product(x1, own.row, own.column, KEYS, key, [&](u32 j, u32 c) { return ds[j * narrow + c]; });
            #pragma unroll
            for (u32 n = 0; n < own.TILES; n++)
                #pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 row = own.row + threadIdx.x % 32 / 4 + i / 2 * 8;
                    x.x[n][i] = last_c[row] * x.x[n][i] + (S ? last_e[row] * x1.x[n][i] : 0.0f);
                }
            auto read = [&](u32 i, u32 j) { return y[j * WIDE + i]; };
            product(x, own.row, own.column, CHUNK, read, [&](u32 i, u32 c) { return dout[i * narrow + c]; });
            x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * narrow + c] = value; });
            __syncthreads();
            x.clear();
            auto solved = [&](u32 i, u32 j) { return t[j * WIDE + i]; };
            product(x, own.row, own.column, CHUNK, solved, [&](u32 i, u32 c) { return z[i * narrow + c]; });
            __syncthreads();
            x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * narrow + c] = -r[i] * value; });
            __syncthreads();
            auto erase_m = [&](u32 i, u32 c) { return a[i] * z[i * narrow + c]; };
            auto erase_s = [&](u32 i, u32 c) { return b[i] * z[i * narrow + c]; };
            product(to_m, of_state.row, of_state.column, CHUNK, key_across, erase_m);
            if (S) product(to_s, of_state.row, of_state.column, CHUNK, key_across, erase_s);
        }
        __syncthreads();
        const float an = a[chunk.tokens], bn = b[chunk.tokens], en = vectors[AT_E0];
        if (S) to_s.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            u32 at = j * narrow + c;
            ds[at] = bn * dm[at] + en * ds[at] + value;
        });
        to_m.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            u32 at = j * narrow + c;
            dm[at] = an * dm[at] + value;
        });
    }
    __syncthreads();
    write_matrix<KEYS, WIDTH>(p, args.first_dm + state * matrix, first, dm, narrow);
    if (S) write_matrix<KEYS, WIDTH>(p, args.first_ds + state * matrix, first, ds, narrow);
}

#define REVERSE(name, KEYS, WIDTH, S)           \
    KERNEL(name, ChunkReverse, 256) {           \
        DYNAMIC_SHARED(float, shared);          \
        reverse<KEYS, WIDTH, S>(args, shared);  \
    }

REVERSE(chunk_reverse_64, 64, 32, false)
REVERSE(chunk_reverse_128, 128, 32, false)
REVERSE(chunk_reverse_128_wide, 128, 64, false)
REVERSE(chunk_reverse_64_momentum, 64, 32, true)
REVERSE(chunk_reverse_128_momentum, 128, 32, true)
REVERSE(chunk_reverse_128_wide_momentum, 128, 64, true)
