// The exact chunk form with bfloat16 for rules that never erase: M = A M + Kᵀ (c ∘ w ∘ V). Nothing is solved, so that a
// chain from chunk to chunk waits for sums only, and long sequences go in segments that run beside each other.
//
// The way back is the same chain from the last chunk to the first, dM = A dM + Qᵀ (a⁺ ∘ dO), where keys and queries change
// places. What is told of V here is told of dO there.
#pragma once
#include "chunk_bf16/columns.cuh"

// `additive::AdditiveArguments` is its twin.
struct Bf16Additive {
    Linear p;
    // [rows,H,V]: V, or dO
    const u16* values;
    // [N,H,K,V]: the state that the chain begins with, and the one it ends with
    const float* first;
    float* last;
    // [rows,H,V]: O, or dV
    u16* out;
    // [kept,H] states before each chunk, or gradients of those after, as `kept_at` says; null: none
    u16* kept;
    // [N,H,segments - 1,END]: what each segment alone makes of an empty state
    float* ends;
    // Of every sequence; chunks of a segment
    u32 segments, each;
};

// A block has one segment of a head, with up to 128 keys and value columns. Two groups of warps hold 64 columns of the state each, in
// registers, transposed. The warps of a third make the square and the factors of the next chunk, those of a fourth read ahead.
//
// Decays are powers of two of differences of sums of logarithms, c[t,j] = 2^(L[t] - L[j]).
//
// BACK: from the last chunk to the first. ENDS: the state at a segment's end alone, from an empty one.
template <bool BACK, bool ENDS>
struct Additive {
    static constexpr u32 KEYS = 128, COLUMNS = 128, HOLDERS = 256, COUNT = 128, STAGES = 4;
    // Registers of a thread that holds a state, that makes, and that reads ahead.
    static constexpr u32 MANY = 192, SOME = 80, FEW = 40;
    using Rows = Tile<KEYS, true>;
    using Square = Tile<CHUNK, true>;
    // Bytes of a chunk that was read ahead: rows that write, values, rows that read [CHUNK,128].
    static constexpr u32 TILE = 2 * Rows::SIZE, STAGE = (ENDS ? 2 : 3) * TILE;
    // Vectors of a chunk: factors of rows that read and that write, w, logarithms of decays up to a token's read and with it,
    // then the decay of the chunk, the factor of the square, and maxima of warps.
    enum { READS = 0, WRITES = CHUNK, STRENGTHS = 2 * CHUNK, READ_LOGS = 3 * CHUNK, LOGS = 4 * CHUNK };
    enum { DECAY = 5 * CHUNK, DOWN, MOST = DECAY + 4, VECTORS = DECAY + 8 };
    // Two squares, then vectors of two chunks.
    static constexpr u32 SQUARES = STAGES * STAGE, VECTORS_AT = SQUARES + (ENDS ? 0 : 2 * 2 * SQUARE);
    static constexpr u32 SHARED = VECTORS_AT + 2 * 4 * VECTORS;
    // Elements of a segment's end: a state [128,128] as threads hold it, and its decay.
    static constexpr u32 END = KEYS * COLUMNS + 64;

    const Bf16Additive& args;
    const Linear& p;
    u8* shared;
    const Sequence sequence;
    // Of the segment, among those of the head
    u32 segment;
    // Chunks of the sequence; steps of the segment
    u32 count, begin, end;

    // Segments of one head stand side by side.
    __device__ __forceinline__ Additive(const Bf16Additive& args, u8* shared, u32 segments)
        : args(args), p(args.p), shared(shared), sequence(args.p, blockIdx.x / segments), segment(blockIdx.x % segments),
          count(sequence.chunks()), begin(segment * args.each), end(min(count, begin + args.each)) {}

    // The chunk of a step.
    __device__ __forceinline__ Chunk chunk(u32 n) const { return Chunk(sequence, BACK ? count - 1 - n : n); }
    // Parts of a step's chunk in shared memory; steps take places in turn.
    __device__ __forceinline__ u16* stage(u32 n) const { return (u16*)(shared + n % STAGES * STAGE); }
    // Returns the tile [CHUNK,KEYS] of rows that write: keys, or queries on the way back.
    __device__ __forceinline__ Rows writers(u32 n) const { return {stage(n)}; }
    // Returns the tile [CHUNK,COLUMNS] of values, or dO on the way back.
    __device__ __forceinline__ Rows values(u32 n) const { return {stage(n) + Rows::SIZE}; }
    // Returns the tile [CHUNK,KEYS] of rows that read: queries, or keys on the way back.
    __device__ __forceinline__ Rows readers(u32 n) const { return {stage(n) + 2 * Rows::SIZE}; }
    // Returns the tile [CHUNK,CHUNK] of masked products of readers and writers; two steps alternate.
    __device__ __forceinline__ Square square(u32 n) const { return {(u16*)(shared + SQUARES) + n % 2 * SQUARE}; }
    // Returns the vectors of a step's chunk, by the offsets READS to VECTORS; two steps alternate.
    __device__ __forceinline__ float* vectors(u32 n) const { return (float*)(shared + VECTORS_AT) + n % 2 * VECTORS; }
    // First column of this warp.
    static __device__ __forceinline__ u32 warp_column() { return threadIdx.x / 32 * 16; }

    // What a segment leaves for those after it.
    __device__ __forceinline__ float* end_of(u32 number) const {
        return args.ends + (sequence.state * (args.segments - 1) + number) * END;
    }
    // A thread's elements of it lie HOLDERS apart.
    template <class F>
    static __device__ __forceinline__ void each(F f) {
        #pragma unroll
        for (u32 n = 0; n < KEYS / 8; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(n, i, (4 * n + i) * HOLDERS + threadIdx.x);
    }
    // The state before the segment: that of the chain's beginning through all segments before.
    __device__ __forceinline__ void start(Columns<KEYS>& m) const {
        m.read(p, args.first + sequence.state * p.key * p.value, warp_column());
        for (u32 i = 0; i < segment; i++) {
            const float *of = end_of(i), decay = of[KEYS * COLUMNS];
            each([&](u32 n, u32 e, u32 at) { m.sums.x[n][e] = decay * m.sums.x[n][e] + of[at]; });
        }
    }

    // Threads that read ahead, and threads that make.
    __device__ __forceinline__ void fetch(u32 n) const;
    // Fetches chunk after chunk until the segment ends.
    __device__ __forceinline__ void read_ahead() const;
    // Gates of two neighbouring tokens.
    struct Pair {
        float2 log_a, theta;
    };
    // Returns this thread's number among those that make squares and factors.
    static __device__ __forceinline__ u32 who() { return threadIdx.x - HOLDERS; }
    // Loads the gates of this thread's two neighbouring tokens.
    __device__ __forceinline__ Pair gates(u32 n) const;
    // Computes the chunk's vectors: factors of reads and writes and logarithms of decays.
    __device__ __forceinline__ void factors(const Pair& gates, u32 n) const;
    // g [CHUNK,CHUNK] = readers @ writers.T, unmasked.
    __device__ __forceinline__ void multiply_rows(Sums<8>& g, u32 n) const;
    // square = mask ∘ g, with the decays between tokens.
    __device__ __forceinline__ void apply_mask(Sums<8>& g, u32 n) const;
    // Makes the square and the vectors of chunk `n`, and loads the gates of the next one.
    __device__ __forceinline__ void make(Pair& gates, u32 n) const;
    // Makes those of all chunks of the segment.
    __device__ __forceinline__ void make_all() const;

    // Threads that hold a state.
    __device__ __forceinline__ void values_of(Lefts<4>& v, u32 n) const;
    // Turns values into halves with a scale a column.
    __device__ __forceinline__ void halve(Lefts<4>& v, float (&down)[2]) const;
    // Writes the state before a chunk to `kept`.
    __device__ __forceinline__ void keep_state(const Lefts<KEYS / 16>& state, u32 n) const;
    // x [CHUNK,COLUMNS] = reads ∘ (readers @ m) + square @ values.
    __device__ __forceinline__ void read(Sums<8>& x, const Columns<KEYS>& m, u32 n) const;
    // m = decay * m, before the chunk's writes are added.
    __device__ __forceinline__ void begin_write(Columns<KEYS>& m, u32 n) const;
    // Writes a chunk's outputs.
    __device__ __forceinline__ void store(const Sums<8>& x, u32 n) const;
    // Takes the state through all chunks of the segment.
    __device__ __forceinline__ void take_through() const;
};
