// The exact chunk form, forward: equations (19)-(22), from chunk to chunk with a block of columns.
#include "chunk.cuh"

struct ChunkForward {
    Linear p;
    const float* prepared;     // [kept,H,PREPARED]
    const float *m, *s;        // [N,H,K,V]
    Array out;                 // [rows,H,V]
    float *last_m, *last_s;    // [N,H,K,V]
    float* kept;               // [kept,H,1 + S,K,V]: states for the backward; null: none
};

template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void forward(const ChunkForward& args, float* shared) {
    const Linear& p = args.p;
    const u32 stride = KEYS + 4, narrow = WIDTH + 8, first = blockIdx.x % p.blocks * WIDTH;
    const u64 state = blockIdx.x / p.blocks, matrix = (u64)p.key * p.value;
    float* rest = shared;
    auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
    float *k = take(CHUNK * stride), *q = take(CHUNK * stride), *t = take(CHUNK * WIDE), *y = take(CHUNK * WIDE);
    float *m = take(KEYS * narrow), *s = S ? take(KEYS * narrow) : nullptr, *v = take(CHUNK * narrow);
    float* z = take(CHUNK * narrow);
    __shared__ float w[CHUNK], r[CHUNK], vectors[VECTORS];
    const float *a = vectors + AT_A, *b = vectors + AT_B, *last_c = vectors + AT_C, *last_e = vectors + AT_E;
    const u32 seen = p.before ? 0 : 1;
    read_matrix<KEYS, WIDTH>(p, args.m + state * matrix, first, m, narrow);
    if (S) read_matrix<KEYS, WIDTH>(p, args.s + state * matrix, first, s, narrow);
    const Share<CHUNK, WIDTH> own;
    const Share<KEYS, WIDTH> of_state;
    const Sequence sequence(p, state);
    const u32 count = sequence.chunks();
    for (u32 number = 0; number < count; number++) {
        const Chunk chunk(sequence, number);
        const float* prepared = args.prepared + chunk.kept * PREPARED;
        __syncthreads();
        read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, stride);
        read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, stride);
        read_rows<WIDTH>(p, chunk, p.v, p.value, first, v, narrow);
        if (p.erase) read_square(prepared, t);
        read_square(prepared + SQUARE, y);
        for (u32 i = threadIdx.x; i < VECTORS; i += THREADS) vectors[i] = prepared[2 * SQUARE + i];
        read_strengths(p, chunk, w, r);
        __syncthreads();
        if (args.kept) {
            float* kept = args.kept + chunk.kept * (S ? 2 : 1) * matrix;
            write_matrix<KEYS, WIDTH>(p, kept, first, m, narrow);
            if (S) write_matrix<KEYS, WIDTH>(p, kept + matrix, first, s, narrow);
        }
        auto key = [&](u32 i, u32 j) { return k[i * stride + j]; };
        auto key_across = [&](u32 j, u32 i) { return k[i * stride + j]; };
        auto query = [&](u32 i, u32 j) { return q[i * stride + j]; };
        auto of_m = [&](u32 j, u32 c) { return m[j * narrow + c]; };
        auto of_s = [&](u32 j, u32 c) { return s[j * narrow + c]; };
        auto of_z = [&](u32 i, u32 c) { return z[i * narrow + c]; };
        // (19): the right side, then the solution.
        Sum<own.TILES> x, x1;
        x.clear(), x1.clear();
        if (p.erase) {
            product(x, own.row, own.column, KEYS, key, of_m);
            if (S) product(x1, own.row, own.column, KEYS, key, of_s);
        }
        #pragma unroll
        for (u32 n = 0; n < own.TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 row = own.row + threadIdx.x % 32 / 4 + i / 2 * 8;
                x.x[n][i] = a[row] * x.x[n][i] + (S ? b[row] * x1.x[n][i] : 0.0f);
            }
        x.each(own.row, own.column, [&](u32 i, u32 c, float predicted) {
            z[i * narrow + c] = w[i] * v[i * narrow + c] - (p.erase ? r[i] * predicted : 0.0f);
        });
        __syncthreads();
        if (p.erase) {
            x.clear();
            product(x, own.row, own.column, CHUNK, [&](u32 i, u32 j) { return t[i * WIDE + j]; }, of_z);
            __syncthreads();
            x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * narrow + c] = value; });
            __syncthreads();
        }
        // (20).
        x.clear();
        product(x, own.row, own.column, KEYS, query, of_m);
        x1.clear();
        if (S) product(x1, own.row, own.column, KEYS, query, of_s);
        #pragma unroll
        for (u32 n = 0; n < own.TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 row = own.row + threadIdx.x % 32 / 4 + i / 2 * 8 + seen;
                x.x[n][i] = a[row] * x.x[n][i] + (S ? b[row] * x1.x[n][i] : 0.0f);
            }
        product(x, own.row, own.column, CHUNK, [&](u32 i, u32 j) { return y[i * WIDE + j]; }, of_z);
        x.each(own.row, own.column, [&](u32 i, u32 c, float value) {
            if (i < chunk.tokens && first + c < p.value) store(args.out, chunk.token(p, i) * p.value + first + c, value);
        });
        __syncthreads();
        // (21), (22).
        Sum<of_state.TILES> to_m, to_s;
        to_m.clear(), to_s.clear();
        auto write = [&](u32 i, u32 c) { return last_c[i] * z[i * narrow + c]; };
        auto push = [&](u32 i, u32 c) { return last_e[i] * z[i * narrow + c]; };
        product(to_m, of_state.row, of_state.column, CHUNK, key_across, write);
        if (S) product(to_s, of_state.row, of_state.column, CHUNK, key_across, push);
        const float an = a[chunk.tokens], bn = b[chunk.tokens], en = vectors[AT_E0];
        to_m.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            u32 at = j * narrow + c;
            m[at] = an * m[at] + (S ? bn * s[at] : 0.0f) + value;
        });
        if (S) to_s.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            u32 at = j * narrow + c;
            s[at] = en * s[at] + value;
        });
    }
    __syncthreads();
    write_matrix<KEYS, WIDTH>(p, args.last_m + state * matrix, first, m, narrow);
    if (S) write_matrix<KEYS, WIDTH>(p, args.last_s + state * matrix, first, s, narrow);
}

#define FORWARD(name, KEYS, WIDTH, S)           \
    KERNEL(name, ChunkForward, 256) {           \
        DYNAMIC_SHARED(float, shared);          \
        forward<KEYS, WIDTH, S>(args, shared);  \
    }

FORWARD(chunk_64, 64, 32, false)
FORWARD(chunk_128, 128, 32, false)
FORWARD(chunk_128_wide, 128, 64, false)
FORWARD(chunk_64_momentum, 64, 32, true)
FORWARD(chunk_128_momentum, 128, 32, true)
FORWARD(chunk_128_wide_momentum, 128, 64, true)
