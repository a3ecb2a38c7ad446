// The exact chunk form, forward: equations (19)-(22), from chunk to chunk with a block of columns.
#include "chunk_walk.cuh"

// `chunk::Forward` is its twin.
struct ChunkForward {
    Linear p;
    // [kept,H,PREPARED]
    const float* prepared;
    // [N,H,K,V]
    const float *m, *s;
    // [rows,H,V]
    Array out;
    // [N,H,K,V]
    float *last_m, *last_s;
    // [kept,H,1 + S,K,V]: states for the backward; null: none
    float* kept;
};

// One block's walk from the first chunk to the last: the memory's columns stay in shared memory.
// In shared memory: K and Q [CHUNK,KEYS], T and Y [CHUNK,CHUNK], V and Z [CHUNK,WIDTH], M and S [KEYS,WIDTH].
// A warp makes the part of each product that `own` (of tokens) or `of_state` (of keys) names.
template <u32 KEYS, u32 WIDTH, bool S>
struct ForwardWalk : ChunkWalk<KEYS, WIDTH, S> {
    using Walk = ChunkWalk<KEYS, WIDTH, S>;
    using Walk::Walk, Walk::p, Walk::first, Walk::seen, Walk::own, Walk::of_state, Walk::k, Walk::q, Walk::t, Walk::y;
    using Walk::m, Walk::s, Walk::v, Walk::z, Walk::w, Walk::r, Walk::vectors, Walk::STRIDE, Walk::NARROW;
    using Own = typename Walk::Own;
    using OfState = typename Walk::OfState;

    // All that a chunk is given; a barrier follows.
    __device__ __forceinline__ void read(const Chunk& chunk, const float* prepared) const {
        read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, STRIDE);
        read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, STRIDE);
        read_rows<WIDTH>(p, chunk, p.v, p.value, first, v, NARROW);
        if (p.erase) read_square(prepared, t);
        read_square(prepared + SQUARE, y);
        this->read_vectors(chunk, prepared);
    }

    // (19): its right side, then the solution Z, which is in `z` for all threads afterwards.
    __device__ __forceinline__ void solve() const {
        // K M and K S of a warp's rows and columns.
        Sum<Own::TILES> x, x1;
        x.clear(), x1.clear();
        if (p.erase) {
            product(x, own.row, own.column, KEYS, Walk::template rows<STRIDE>(k), Walk::template rows<NARROW>(m));
            if (S) product(x1, own.row, own.column, KEYS, Walk::template rows<STRIDE>(k), Walk::template rows<NARROW>(s));
        }
        this->mix(x, x1, this->a(), this->b());
        x.each(own.row, own.column, [&](u32 i, u32 c, float predicted) {
            z[i * NARROW + c] = w[i] * v[i * NARROW + c] - (p.erase ? r[i] * predicted : 0.0f);
        });
        __syncthreads();
        // Without erase (19) is Z = w ∘ V.
        if (!p.erase) return;
        x.clear();
        // T is the inverse that `chunk_prepare.cu` made, so the solve is a product.
        product(x, own.row, own.column, CHUNK, Walk::template rows<WIDE>(t), Walk::template rows<NARROW>(z));
        // All have read the right side.
        __syncthreads();
        x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * NARROW + c] = value; });
        __syncthreads();
    }

    // (20), to `out [rows,H,V]`.
    __device__ __forceinline__ void write_outputs(const Chunk& chunk, Array out) const {
        Sum<Own::TILES> x, x1;
        x.clear();
        product(x, own.row, own.column, KEYS, Walk::template rows<STRIDE>(q), Walk::template rows<NARROW>(m));
        x1.clear();
        if (S) product(x1, own.row, own.column, KEYS, Walk::template rows<STRIDE>(q), Walk::template rows<NARROW>(s));
        this->mix(x, x1, this->a() + seen, this->b() + seen);
        product(x, own.row, own.column, CHUNK, Walk::template rows<WIDE>(y), Walk::template rows<NARROW>(z));
        x.each(own.row, own.column, [&](u32 i, u32 c, float value) {
            // The last chunk is padded with zeros, the last block of columns too.
            if (i < chunk.tokens && first + c < p.value) store(out, chunk.token(p, i) * p.value + first + c, value);
        });
    }

    // (21), (22): the memory and the momentum after the chunk; every element is one thread's.
    __device__ __forceinline__ void advance(const Chunk& chunk) const {
        const float *a = this->a(), *b = this->b(), *last_c = this->last_c(), *last_e = this->last_e();
        Sum<OfState::TILES> to_m, to_s;
        to_m.clear(), to_s.clear();
        // What is left of a write at the chunk's end, in M and in S.
        auto write = [&](u32 i, u32 c) { return last_c[i] * z[i * NARROW + c]; };
        auto push = [&](u32 i, u32 c) { return last_e[i] * z[i * NARROW + c]; };
        product(to_m, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(k), write);
        if (S) product(to_s, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(k), push);
        // A[n], b[n], E[n,0]: what is left of the state before.
        const float an = a[chunk.tokens], bn = b[chunk.tokens], en = vectors[AT_E0];
        to_m.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            const u32 at = j * NARROW + c;
            m[at] = an * m[at] + (S ? bn * s[at] : 0.0f) + value;
        });
        if (S) to_s.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            const u32 at = j * NARROW + c;
            s[at] = en * s[at] + value;
        });
    }
};

// A block has WIDTH value columns of one head of one sequence, from its first chunk to its last.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void forward(const ChunkForward& args, float* shared) {
    __shared__ float strengths[2][CHUNK], vectors[VECTORS];
    // A block has WIDTH columns of one head of one sequence.
    const ForwardWalk<KEYS, WIDTH, S> walk(args.p, shared, strengths, vectors);
    walk.read_state(args.m, args.s);
    const Sequence sequence(args.p, walk.state);
    const u32 count = sequence.chunks();
    for (u32 number = 0; number < count; number++) {
        const Chunk chunk(sequence, number);
        // Nobody works on the chunk before any more.
        __syncthreads();
        walk.read(chunk, args.prepared + chunk.kept * PREPARED);
        __syncthreads();
        // Before it changes: the backward starts each chunk from the state in front of it.
        if (args.kept) walk.keep_state(args.kept, chunk);
        walk.solve();
        walk.write_outputs(chunk, args.out);
        // The outputs have read the memory that changes now.
        __syncthreads();
        walk.advance(chunk);
    }
    __syncthreads();
    walk.write_state(args.last_m, args.last_s);
}

// Wide blocks read keys and queries for more columns, but there are fewer of them.
#define FORWARD(name, KEYS, WIDTH, S)           \
    KERNEL(name, ChunkForward, 256) {           \
        DYNAMIC_SHARED(float, shared);          \
        forward<KEYS, WIDTH, S>(args, shared);  \
    }

// Name, keys, value columns of a block, momentum.
FORWARD(chunk_32, 32, 32, false)
FORWARD(chunk_64, 64, 32, false)
FORWARD(chunk_128, 128, 32, false)
FORWARD(chunk_128_wide, 128, 64, false)
FORWARD(chunk_32_momentum, 32, 32, true)
FORWARD(chunk_64_momentum, 64, 32, true)
FORWARD(chunk_128_momentum, 128, 32, true)
FORWARD(chunk_128_wide_momentum, 128, 64, true)
