// Gradients of a chunk with bfloat16: its products, and how the warps of a block share them.
#pragma once
#include "chunk_bf16/slabs.cuh"

// A warp makes 16 ROWS tokens of COLUMNS keys of dQ and dK, and 16 tokens of the squares. Four warps multiply as a group
// where that exists: then all tokens of more keys are theirs.
template <u32 KEYS, u32 APART, bool S>
struct Products {
    static constexpr bool GROUP = GROUPS_MULTIPLY && KEYS <= 128;
    // M and, with momentum, S.
    static constexpr u32 MATRICES = S ? 2 : 1, WARPS = 4 / APART * (KEYS / 32), BLOCK = 32 * WARPS;
    static constexpr u32 ROWS = GROUP ? 1 : APART, COLUMNS = GROUP ? 4 * KEYS / WARPS : 32, GROUPS = KEYS / COLUMNS;
    // Columns of a square that are a warp's.
    static constexpr u32 SIDES = 256 / WARPS;
    static_assert(WARPS == 8 || WARPS == 16, "squares are shared out for these");
    // Q and K of a chunk, [CHUNK,KEYS]; squares [CHUNK,CHUNK]; blocks of value columns of tokens and matrices.
    using Rows = Tile<KEYS, GROUP>;
    using Square = Sums<SIDES / 8>;
    using Slab = Slabs<KEYS, BLOCK, MATRICES, GROUP>;

    // [16 ROWS,COLUMNS] of a warp.
    struct Keys {
        Sums<COLUMNS / 8> x[ROWS];
        // x [16 * ROWS, COLUMNS] = 0
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) x[r].clear();
        }
    };

    // Where the warp's part begins: tokens and keys of dQ and dK, and its part of the squares.
    u32 row, column, square_row, square_column;

    // Warps of one row stand side by side.
    __device__ __forceinline__ Products()
        : row(threadIdx.x / 32 % (4 / ROWS) * 16 * ROWS), column(threadIdx.x / 32 / (4 / ROWS) * COLUMNS) {
        // Blocks on and below the diagonal are shared out so that warps that are 4 apart have about as much to do, as far
        // as groups leave a choice.
        const u32 warp = threadIdx.x / 32;
        if (GROUP) square_row = warp % 4 * 16, square_column = warp / 4 * SIDES;
        else if (WARPS == 8) square_row = (0x12013320 >> 4 * warp & 3) * 16, square_column = (0xe8 >> warp & 1) * 32;
        else square_row = warp / 4 * 16, square_column = (warp / 4 == 2 ? warp + 3 : warp) % 4 * 16;
    }

    // Where an element of a square is: of dN, for groups without its transpose, or of dG.
    static constexpr u32 SQUARES = GROUP ? SQUARE : CHUNK * SIDE;
    // Panels for groups, rows of SIDE elements for warps.
    static __device__ __forceinline__ u32 place(u32 t, u32 j) {
        if constexpr (GROUP) return in_panel(t, j);
        else return t * SIDE + j;
    }

    // x += A Bᵀ, y += C Bᵀ, on and below the diagonal; by groups everywhere.
    template <class T>
    __device__ __forceinline__ void add_squares(Square& x, Square& y, T a, T c, T b, bool more = false) const {
        // Columns of the factors: keys, or a block of value columns.
        constexpr u32 DEPTH = T::SIZE / CHUNK / 64 * 64;
        if constexpr (GROUP) {
            // Both squares share the right factor.
            const u64 of_a = described(a.x), of_c = described(c.x), of_b = described(b.x);
            // A group makes whole squares, above the diagonal too.
            group_begin();
            #pragma unroll
            for (u32 s = 0; s < DEPTH / 16; s++) {
                const bool add = more || s > 0;
                group_multiply<false, false>(x.x, along(of_a, s), along(of_b, s, square_column), add);
                group_multiply<false, false>(y.x, along(of_c, s), along(of_b, s, square_column), add);
            }
            group_end();
            hold(x.x), hold(y.x);
        } else if (square_column <= square_row) {
            #pragma unroll
            for (u32 s = 0; s < DEPTH; s += 16) {
                u32 of_a[4], of_c[4], of_b[4];
                // Sixteen rows of both left factors.
                left(of_a, a, square_row, s);
                left(of_c, c, square_row, s);
                #pragma unroll
                for (u32 n = 0; n < SIDES / 16; n++) {
                    // Nothing above the diagonal.
                    if (square_column + 16 * n > square_row) continue;
                    right(of_b, b.x, b.STRIDE, square_column + 16 * n, s);
                    multiply_pair(x.x[2 * n], x.x[2 * n + 1], of_a, of_b);
                    multiply_pair(y.x[2 * n], y.x[2 * n + 1], of_c, of_b);
                }
            }
        }
    }

    // x += rows [16 ROWS,16] of tokens from column `s` times right factors [16,32].
    static __device__ __forceinline__ void multiply(Sums<4>& x, const u32 (&a)[4], const u32 (&b)[2][4]) {
        multiply_pair(x.x[0], x.x[1], a, b[0]);
        multiply_pair(x.x[2], x.x[3], a, b[1]);
    }
    // x += rows [16 ROWS,16] from column `s`, each warp its own rows.
    __device__ __forceinline__ void multiply(Keys& x, const u16* rows, u32 stride, u32 s, const u32 (&b)[2][4]) const {
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            u32 a[4];
            left(a, rows, stride, row + 16 * r, s);
            multiply(x.x[r], a, b);
        }
    }
    // Rows from `s` as right factors.
    __device__ __forceinline__ void rights(u32 (&b)[2][4], const u16* rows, u32 s) const {
        // Distance of rows in shared memory.
        constexpr u32 ROW = KEYS + 8;
        right_across(b[0], rows, ROW, column, s);
        right_across(b[1], rows, ROW, column + 16, s);
    }
    // A group's x += left factors of DEPTH tokens or columns, out of a panel as wide as their rows, times panels of as many
    // rows; between `group_begin` and `group_end`. TURNED, the factors are a square's columns.
    template <u32 DEPTH, bool TURNED = false>
    __device__ __forceinline__ void multiply(Keys& x, const u16* left, const u16* panels) const {
        const u64 a = described<DEPTH>(left), b = described(panels);
        #pragma unroll
        for (u32 s = 0; s < DEPTH / 16; s++) {
            const u64 of_a = TURNED ? across<CHUNK>(a, s) : along(a, s);
            group_multiply<TURNED, true>(x.x[0].x, of_a, across<DEPTH>(b, s, column), true);
        }
    }

    // x += A M and, of TWO, y += B M, with each matrix of a slab: columns of tokens A and B, rows M of a matrix. Where y is of
    // no use, groups add to it all the same.
    template <bool TWO>
    __device__ __forceinline__ void add_slab(
        Keys (&x)[MATRICES], const u16* a, Keys (&y)[MATRICES], const u16* b, bool useful, const u16* matrices
    ) const {
        if constexpr (GROUP) {
            group_begin();
            #pragma unroll
            for (u32 m = 0; m < MATRICES; m++) {
                multiply<Slab::SLAB>(x[m], a, matrices + m * Slab::MATRIX);
                if (TWO) multiply<Slab::SLAB>(y[m], b, matrices + m * Slab::MATRIX);
            }
            group_end();
            #pragma unroll
            for (u32 m = 0; m < MATRICES; m++) {
                hold(x[m].x[0].x);
                if (TWO) hold(y[m].x[0].x);
            }
        } else {
            #pragma unroll
            for (u32 m = 0; m < MATRICES; m++)
                #pragma unroll
                for (u32 s = 0; s < Slab::SLAB; s += 16) {
                    u32 right[2][4];
                    rights(right, matrices + m * Slab::MATRIX, s);
                    multiply(x[m], a, Slab::THIN, s, right);
                    if (TWO && useful) multiply(y[m], b, Slab::THIN, s, right);
                }
        }
    }
    // One product alone.
    __device__ __forceinline__ void add_slab(Keys (&x)[MATRICES], const u16* a, const u16* matrices) const {
        add_slab<false>(x, a, x, a, false, matrices);
    }

    // dQ += dG K, dK += dGᵀ Q, and, with erase, dK += (dN + dNᵀ) K.
    __device__ __forceinline__ void add_tokens(
        Keys& dq, Keys& dk, const u16* dg, const u16* dn, Rows k, Rows q, bool erase
    ) const {
        if constexpr (GROUP) {
            group_begin();
            multiply<CHUNK>(dq, dg, k.x);
            multiply<CHUNK>(dk, dn, k.x);
            multiply<CHUNK, true>(dk, dn, k.x);
            multiply<CHUNK, true>(dk, dg, q.x);
            group_end();
            hold(dq.x[0].x), hold(dk.x[0].x);
        } else {
            #pragma unroll
            for (u32 s = 0; s < CHUNK; s += 16) {
                u32 b[2][4];
                rights(b, k.x, s);
                // dG is zero above the diagonal: row t has columns up to t.
                if (s < row + 16 * ROWS) multiply(dq, dg, SIDE, s, b);
                if (erase) multiply(dk, dn, SIDE, s, b);
                // Its transpose is, below it.
                if (s < row) continue;
                rights(b, q.x, s);
                #pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    u32 a[4];
                    left_across(a, dg, SIDE, row + 16 * r, s);
                    multiply(dk.x[r], a, b);
                }
            }
        }
    }
};
