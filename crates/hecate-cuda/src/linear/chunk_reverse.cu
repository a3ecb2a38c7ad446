// The exact chunk form: the gradient of the memory, equations (23)-(25) and (30), from the last chunk to the first.
#include "chunk_walk.cuh"

// `chunk::Reverse` is its twin.
struct ChunkReverse {
    Linear p;
    // [kept,H,PREPARED]
    const float* prepared;
    // [rows,H,V]
    Array dout;
    // [N,H,K,V]: of the final state
    const float *dm, *ds;
    // [N,H,K,V]: of the initial state
    float *first_dm, *first_ds;
    // [kept,H,1 + S,K,V]: of the state after each chunk
    float* kept;
};

// One block's walk from the last chunk to the first. `m` and `s` hold dM and dS of the state after the chunk, `v` holds
// dO, and `z` first dZ, then dP.
template <u32 KEYS, u32 WIDTH, bool S>
struct ReverseWalk : ChunkWalk<KEYS, WIDTH, S> {
    using Walk = ChunkWalk<KEYS, WIDTH, S>;
    using Walk::Walk, Walk::p, Walk::first, Walk::seen, Walk::own, Walk::of_state, Walk::k, Walk::q, Walk::t, Walk::y;
    using Walk::m, Walk::s, Walk::v, Walk::z, Walk::r, Walk::vectors, Walk::STRIDE, Walk::NARROW;
    using Own = typename Walk::Own;
    using OfState = typename Walk::OfState;
    // A warp's part of a matrix [KEYS,WIDTH].
    using StateSum = Sum<OfState::TILES>;

    // All that a chunk is given; a barrier follows.
    __device__ __forceinline__ void read(const Chunk& chunk, const float* prepared, Array dout) const {
        // Without erase nothing is predicted, so keys and squares are not looked at.
        if (p.erase) read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, STRIDE);
        read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, STRIDE);
        read_rows<WIDTH>(p, chunk, dout, p.value, first, v, NARROW);
        if (p.erase) {
            read_square(prepared, t);
            read_square(prepared + SQUARE, y);
        }
        this->read_vectors(chunk, prepared);
    }

    // What the reads add to (30); without erase that is all.
    __device__ __forceinline__ void add_reads(StateSum& to_m, StateSum& to_s) const {
        const float *a = this->a(), *b = this->b();
        // a⁺ ∘ dO and b⁺ ∘ dO.
        auto read_m = [&](u32 i, u32 c) { return a[i + seen] * v[i * NARROW + c]; };
        auto read_s = [&](u32 i, u32 c) { return b[i + seen] * v[i * NARROW + c]; };
        product(to_m, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(q), read_m);
        if (S) product(to_s, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(q), read_s);
    }

    // (23), (24), and dP of (25), which is in `z` for all threads afterwards.
    __device__ __forceinline__ void solve() const {
        // K dM and K dS of a warp's rows and columns.
        Sum<Own::TILES> x, x1;
        x.clear(), x1.clear();
        product(x, own.row, own.column, KEYS, Walk::template rows<STRIDE>(k), Walk::template rows<NARROW>(m));
        if (S) product(x1, own.row, own.column, KEYS, Walk::template rows<STRIDE>(k), Walk::template rows<NARROW>(s));
        this->mix(x, x1, this->last_c(), this->last_e());
        // (23): Y transposed times dO.
        product(x, own.row, own.column, CHUNK, Walk::template transposed<WIDE>(y), Walk::template rows<NARROW>(v));
        x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * NARROW + c] = value; });
        __syncthreads();
        x.clear();
        product(x, own.row, own.column, CHUNK, Walk::template transposed<WIDE>(t), Walk::template rows<NARROW>(z));
        // All have read dZ.
        __syncthreads();
        x.each(own.row, own.column, [&](u32 i, u32 c, float value) { z[i * NARROW + c] = -r[i] * value; });
        __syncthreads();
    }

    // What the predictions add to (30).
    __device__ __forceinline__ void add_predictions(StateSum& to_m, StateSum& to_s) const {
        const float *a = this->a(), *b = this->b();
        // a⁻ ∘ dP and b⁻ ∘ dP.
        auto erase_m = [&](u32 i, u32 c) { return a[i] * z[i * NARROW + c]; };
        auto erase_s = [&](u32 i, u32 c) { return b[i] * z[i * NARROW + c]; };
        product(to_m, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(k), erase_m);
        if (S) product(to_s, of_state.row, of_state.column, CHUNK, Walk::template transposed<STRIDE>(k), erase_s);
    }

    // (30): dM and dS before the chunk; dS takes dM as it was after it.
    __device__ __forceinline__ void retreat(const Chunk& chunk, StateSum& to_m, StateSum& to_s) const {
        const float an = this->a()[chunk.tokens], bn = this->b()[chunk.tokens], en = vectors[AT_E0];
        // dS first: it needs dM as it was. An element of both is the same thread's.
        if (S) to_s.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            const u32 at = j * NARROW + c;
            s[at] = bn * m[at] + en * s[at] + value;
        });
        to_m.each(of_state.row, of_state.column, [&](u32 j, u32 c, float value) {
            const u32 at = j * NARROW + c;
            m[at] = an * m[at] + value;
        });
    }
};

// A block has WIDTH value columns of one head of one sequence, from its last chunk to its first.
template <u32 KEYS, u32 WIDTH, bool S>
__device__ __forceinline__ void reverse(const ChunkReverse& args, float* shared) {
    using Walk = ReverseWalk<KEYS, WIDTH, S>;
    __shared__ float strengths[2][CHUNK], vectors[VECTORS];
    // A block has WIDTH columns of one head of one sequence.
    const Walk walk(args.p, shared, strengths, vectors);
    walk.read_state(args.dm, args.ds);
    const Sequence sequence(args.p, walk.state);
    for (u32 number = sequence.chunks(); number-- > 0;) {
        const Chunk chunk(sequence, number);
        // Nobody works on the chunk after this one any more.
        __syncthreads();
        // dM and dS after the chunk: the gradients of its tokens start from them.
        walk.keep_state(args.kept, chunk);
        walk.read(chunk, args.prepared + chunk.kept * PREPARED, args.dout);
        __syncthreads();
        typename Walk::StateSum to_m, to_s;
        to_m.clear(), to_s.clear();
        walk.add_reads(to_m, to_s);
        if (args.p.erase) {
            walk.solve();
            walk.add_predictions(to_m, to_s);
        }
        __syncthreads();
        walk.retreat(chunk, to_m, to_s);
    }
    __syncthreads();
    walk.write_state(args.first_dm, args.first_ds);
}

#define REVERSE(name, KEYS, WIDTH, S)           \
    KERNEL(name, ChunkReverse, 256) {           \
        DYNAMIC_SHARED(float, shared);          \
        reverse<KEYS, WIDTH, S>(args, shared);  \
    }

// Name, keys, value columns of a block, momentum.
REVERSE(chunk_reverse_32, 32, 32, false)
REVERSE(chunk_reverse_64, 64, 32, false)
REVERSE(chunk_reverse_128, 128, 32, false)
REVERSE(chunk_reverse_128_wide, 128, 64, false)
REVERSE(chunk_reverse_32_momentum, 32, 32, true)
REVERSE(chunk_reverse_64_momentum, 64, 32, true)
REVERSE(chunk_reverse_128_momentum, 128, 32, true)
REVERSE(chunk_reverse_128_wide_momentum, 128, 64, true)
