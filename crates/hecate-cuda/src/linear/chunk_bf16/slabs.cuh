// Gradients of a chunk with bfloat16: what is given, and how it comes to shared memory.
#pragma once
#include "chunk_bf16/columns.cuh"

// `gradients::GradientsArguments` is its twin.
struct Bf16Gradients {
    Linear p;
    // [kept,H,READY]
    const u8* ready;
    // [kept,H,1 + S] states before each chunk, as `kept_at` says
    const u16* kept;
    // [kept,H,1 + S] gradients of the states after
    const u16* kept_grads;
    // [rows,H,V]: Z, Λ
    const u16 *pseudo_values, *solved;
    // [rows,H,V]
    const u16* dout;
    // [rows,H,K]
    u16 *dq, *dk;
    // [rows,H]: gradients of the gates; null where the rule has none
    float *log_a, *log_eta, *theta, *beta;
    // Of each sequence, those from here on
    u32 first, chunks;
};

// Slabs of value columns, one after the other through two places in shared memory. First those of dO and Λ with the
// matrices of the state, then of Z with those of its gradient. A matrix lies there as rows [SLAB,KEYS], for groups in
// panels of 64 columns, and after all of them dO, or Z, and Λ.
template <u32 KEYS, u32 BLOCK, u32 MATRICES, bool GROUP>
struct Slabs {
    // Of rows of tokens a thread copies 8 columns each.
    static constexpr u32 SLAB = BLOCK / 8, ROW = GROUP ? 64 : KEYS + 8, THIN = GROUP ? SLAB : SLAB + 8;
    static constexpr u32 MATRIX = GROUP ? SLAB * KEYS : SLAB * ROW, THIN_TILE = CHUNK * THIN;
    // Bfloat16 in front of dO, of a slab
    static constexpr u32 VALUES = MATRICES * MATRIX, STAGE = VALUES + 2 * THIN_TILE;
    static_assert(!GROUP || STAGE % 512 == 0, "panels begin at multiples of 1 KiB");

    // A tile [16,16] of a matrix is copied by a warp and turn; of the first, these are this thread's row and column.
    static constexpr u32 TURNS = SLAB * KEYS / 8 / BLOCK;
    static_assert(KEYS / 16 % TURNS == 0, "a warp's tiles lie side by side");
    // Tiles of 16 rows, a lane a row and half a tile's columns.
    static __device__ __forceinline__ u32 copied_row() {
        return threadIdx.x / 32 * TURNS / (KEYS / 16) * 16 + threadIdx.x % 16;
    }
    // Returns the first column of the lane's half of a tile.
    static __device__ __forceinline__ u32 copied_column() {
        return threadIdx.x / 32 * TURNS % (KEYS / 16) * 16 + threadIdx.x % 32 / 16 * 8;
    }

    const Bf16Gradients& args;
    const Chunk chunk;
    u16* stages;
    // This thread's part in arrays [rows,H,V]; the first matrix of the chunk
    u64 values, matrices;
    // Rounds: of states, then of their gradients
    u32 fetched, next_column, round;

    // `stages` has places for two slabs.
    __device__ __forceinline__ Slabs(const Bf16Gradients& args, const Chunk& chunk, u16* stages)
        : args(args), chunk(chunk), stages(stages),
          values(chunk.token(args.p, threadIdx.x / (SLAB / 8)) * args.p.value + threadIdx.x % (SLAB / 8) * 8),
          matrices(chunk.kept * MATRICES * kept_size<KEYS>(args.p)), fetched(0), next_column(0), round(0) {}

    // Matrix `which` of this chunk in an array of kept states.
    __device__ __forceinline__ const u16* matrix(const u16* of, u32 which) const {
        return of + matrices + which * kept_size<KEYS>(args.p);
    }

    // Where columns from `column` of row `v` of a matrix are.
    // `further` pieces of 8 from there, as with `in_panel`.
    static __device__ __forceinline__ u32 place(u32 v, u32 column, u32 further = 0) {
        if constexpr (GROUP) return column / 64 * (SLAB * 64) + in_panel(v, column, further);
        else return v * ROW + column + 8 * further;
    }

    // Where columns of token `t` are of dO, Z or Λ.
    static __device__ __forceinline__ u32 thin(u32 t, u32 column) {
        if constexpr (GROUP) return in_panel<SLAB>(t, column);
        else return t * THIN + column;
    }

    // Starts the copies of the next slab. After the last slab of both rounds nothing is copied, and the commit is empty.
    __device__ __forceinline__ void fetch() {
        if (round < 2) {
            const Linear& p = args.p;
            // A thread has one piece of eight columns of dO or Z, one of Λ, and TURNS of each matrix.
            const u32 t = threadIdx.x / (SLAB / 8), first = threadIdx.x % (SLAB / 8) * 8;
            u16 *matrix_to = stages + fetched % 2 * STAGE, *to = matrix_to + VALUES;
            const bool here = t < chunk.tokens && next_column + first < p.value;
            const u64 at = here ? values + next_column : 0;
            copy_16(to + thin(t, first), (round == 0 ? args.dout : args.pseudo_values) + at, here);
            if (round == 0) copy_16(to + THIN_TILE + thin(t, first), args.solved + at, here);
            const u32 v = copied_row(), c = copied_column();
            const bool inside = next_column + v < (p.value + 15) / 16 * 16;
            #pragma unroll
            for (u32 m = 0; m < MATRICES; m++, matrix_to += MATRIX) {
                const u16* x = matrix(round == 0 ? args.kept : args.kept_grads, m);
                x += inside ? next_column * KEYS + kept_at<KEYS>(v, c) : 0;
                #pragma unroll
                for (u32 i = 0; i < TURNS; i++) copy_16(matrix_to + place(v, c, 2 * i), x + 256 * i, inside);
            }
            next_column += SLAB;
            if (next_column >= p.value) next_column = 0, round++;
        }
        copies_commit();
        fetched++;
    }
    // The slab that was fetched last, by all; the one after it is then on its way. The matrices, dO (or Z), Λ.
    __device__ __forceinline__ const u16* next() {
        // This thread's copies are done; the barrier waits for the others'.
        copies_wait<0>();
        if (GROUP) show_to_groups();
        __syncthreads();
        const u16* at = stages + (fetched + 1) % 2 * STAGE;
        fetch();
        return at;
    }

    // Eight columns each of a slab of a state, which was here before. The lanes of a warp have 8 rows, 4 lanes each; in
    // panels lanes that read at once have rows that are 4 apart, which lie in other banks.
    static constexpr u32 EACH = SLAB * KEYS / 8 / BLOCK, APART = 8 * BLOCK / KEYS;
    // First row and column of the thread's pieces of a slab.
    static __device__ __forceinline__ u32 row() {
        const u32 r = threadIdx.x % 32 / 4;
        return threadIdx.x / KEYS * 8 + (GROUP ? r / 2 + r % 2 * 4 : r);
    }
    // Returns the first column of the thread's pieces of a slab.
    static __device__ __forceinline__ u32 column() { return threadIdx.x % KEYS / 32 * 32 + threadIdx.x % 4 * 8; }
    static_assert(APART % 16 == 0, "tiles are whole");
    // Rows from `first` on of a state of this chunk; zeros past V.
    __device__ __forceinline__ void read_state(u32 which, u32 first, uint4 (&x)[EACH]) const {
        const u32 v = first + row();
        const u16* from = matrix(args.kept, which) + first * KEYS + kept_at<KEYS>(row(), column());
        #pragma unroll
        for (u32 n = 0; n < EACH; n++)
            x[n] = v + n * APART < args.p.value ? *(const uint4*)(from + n * APART * KEYS) : uint4{};
    }
    // Products of 8 rows with 8 rows, of which `inner` takes those of the same: of the first tile the upper ones, of the
    // second the lower.
    static __device__ __forceinline__ void add_inner(float (&x)[2][4], const uint4 (&a)[EACH], const u16* matrix) {
        matrix += place(row(), column());
        #pragma unroll
        for (u32 n = 0; n < EACH; n++) {
            // Elements are bfloat16: products of two of them are exact in 32 bits.
            const uint4 b = *(const uint4*)(matrix + n * APART * ROW);
            const u32 both[4] = {a[n].x, a[n].z, a[n].y, a[n].w};
            multiply_add_bf16(x[0], both, b.x, b.y);
            multiply_add_bf16(x[1], both, b.z, b.w);
        }
    }
    // This thread's part of the inner product.
    static __device__ __forceinline__ float inner(const float (&x)[2][4]) {
        const u32 i = threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
        return i == j ? x[0][0] + x[1][2] : i == j + 1 ? x[0][1] + x[1][3] : 0.0f;
    }

    // Asks for what is read after the squares.
    __device__ __forceinline__ void ask() const {
        const u16 *state = matrix(args.kept, 0), *gradient = matrix(args.kept_grads, 0);
        for (u32 i = 64 * threadIdx.x; i < MATRICES * kept_size<KEYS>(args.p); i += 64 * BLOCK)
            ask_for(state + i), ask_for(gradient + i);
    }
};
