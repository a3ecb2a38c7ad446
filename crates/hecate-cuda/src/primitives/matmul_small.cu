// Products of few tiles on tensor cores, several in one launch or the sum of several. Of 32-bit matrices each number is split
// into two parts, 22 bits together, of which three products are taken. What bounds them is the way to memory and
// back: a block asks for several stages of its factors at once.
#include "hecate.cuh"
#include "tensor.cuh"

// Eight warps have [16,16] each of a tile of the result: four bands of rows, two sides.
static constexpr u32 BANDS = 4, SIDES = 2, ROWS = 16 * BANDS, COLUMNS = 16 * SIDES, WARPS = BANDS * SIDES;
// Words of the sums' terms in a stage that these warps take, one or two terms each.
static constexpr u32 DEPTH = 32;
// Words from row to row in shared memory, of rows of terms: lanes of a warp find other banks.
static constexpr u32 ALONG = DEPTH + 4;
// Terms in a word of TYPE, and words from term to term where WIDTH of them lie side by side.
template <u32 TYPE> constexpr u32 PER_WORD = TYPE == 0 ? 1 : 2;
template <u32 TYPE, u32 WIDTH> constexpr u32 ACROSS = TYPE == 0 ? WIDTH + 8 : WIDTH / 2 + 4;
// Most products of a launch; `MOST` in `matmul_small.rs`.
#define MOST 8

// out [rows,columns] of a [rows,inner] or [inner,rows], and b [columns,inner] or [inner,columns], all of one type.
struct SmallProduct {
    const u8 *a, *b;
    void* out;
    u32 rows, inner, columns;
    // Tiles of the products up to this one.
    u32 end;
};
// `matmul_small::Products` is its twin.
struct SmallProducts {
    SmallProduct each[MOST];
    // `sum`: all make one result, that of the first. `add`: to what is there already.
    u32 count, sum, add;
};

// How factors lie in memory: `a` as [inner,rows], `b` as [columns,inner]. Sums of gradients of weights are long: two groups of
// warps have half of a stage's terms each. Stages that are under way.
template <bool A, bool B> struct Transposed {
    static constexpr bool OF_A = A, OF_B = B;
    static constexpr u32 GROUPS = A ? 2 : 1, STAGES = A ? 3 : 4, THREADS = 32 * WARPS * GROUPS;
};

// WIDTH rows or columns of a factor, as they lie in memory: rows of terms, or terms of columns.
template <u32 TYPE, bool BY_TERM, u32 WIDTH, u32 GROUPS>
constexpr u32 WORDS = BY_TERM ? GROUPS * DEPTH * PER_WORD<TYPE> * ACROSS<TYPE, WIDTH> : WIDTH * ALONG;
template <u32 TYPE, typename WAYS> struct Stage {
    // Terms of it.
    static constexpr u32 TERMS = WAYS::GROUPS * DEPTH * PER_WORD<TYPE>;
    u32 a[WORDS<TYPE, WAYS::OF_A, ROWS, WAYS::GROUPS>];
    u32 b[WORDS<TYPE, !WAYS::OF_B, COLUMNS, WAYS::GROUPS>];
};

// Copies of stage after stage, of products `number` to `last`.
template <u32 TYPE, typename WAYS> struct Copies {
    // Elements of 16 bytes, and bytes of an element.
    static constexpr u32 PIECE = 4 * PER_WORD<TYPE>, BYTES = 4 / PER_WORD<TYPE>;
    static constexpr u32 THREADS = WAYS::THREADS, TERMS = Stage<TYPE, WAYS>::TERMS;
    const SmallProducts& args;
    const u32 top, left, last;
    u32 number, depth = 0;

    // A piece of N words, of zeros where it is not inside.
    template <u32 N> static __device__ __forceinline__ void copy(u32* to, const u8* x, u64 at, bool inside) {
        const u8* from = x + (inside ? at * BYTES : 0);
        if constexpr (N == 4) copy_16(to, from, inside);
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
    }
    // COUNT rows from row `first` on of `x [rows,inner]`, from the stage's first term on, N words at a time.
    template <u32 COUNT, u32 N>
    __device__ __forceinline__ void rows(u32* to, const u8* x, u32 first, u32 rows, u32 inner) const {
        constexpr u32 PIECES = DEPTH / N;
        const u32 word = threadIdx.x % PIECES * N, term = depth + word * PER_WORD<TYPE>;
#pragma unroll
        for (u32 i = threadIdx.x / PIECES; i < COUNT; i += THREADS / PIECES) {
            const bool inside = first + i < rows && term < inner;
            copy<N>(to + i * ALONG + word, x, (u64)(first + i) * inner + term, inside);
        }
    }
    // The stage's terms of `x [inner,columns]`, WIDTH columns from `first` on.
    template <u32 WIDTH, u32 N>
    __device__ __forceinline__ void terms(u32* to, const u8* x, u32 inner, u32 first, u32 columns) const {
        constexpr u32 PIECES = WIDTH / PER_WORD<TYPE> / N;
        const u32 word = threadIdx.x % PIECES * N, column = first + word * PER_WORD<TYPE>;
#pragma unroll
        for (u32 i = threadIdx.x / PIECES; i < TERMS; i += THREADS / PIECES) {
            const bool inside = depth + i < inner && column < columns;
            copy<N>(to + i * ACROSS<TYPE, WIDTH> + word, x, (u64)(depth + i) * columns + column, inside);
        }
    }
    // Starts those of the next stage; none after the last, which is a group of copies too. Rows of `a` need not begin at
    // multiples of 16 bytes where `b` is not transposed: those of gradients of narrow maps do not.
    __device__ __forceinline__ void next(Stage<TYPE, WAYS>& stage) {
        if (number < last) {
            const SmallProduct& of = args.each[number];
            if constexpr (WAYS::OF_A) {
                if (of.rows % PIECE == 0) terms<ROWS, 4>(stage.a, of.a, of.inner, top, of.rows);
                else terms<ROWS, 1>(stage.a, of.a, of.inner, top, of.rows);
            } else {
                if (WAYS::OF_B || of.inner % PIECE == 0) rows<ROWS, 4>(stage.a, of.a, top, of.rows, of.inner);
                else rows<ROWS, 1>(stage.a, of.a, top, of.rows, of.inner);
            }
            if constexpr (WAYS::OF_B) rows<COLUMNS, 4>(stage.b, of.b, left, of.columns, of.inner);
            else terms<COLUMNS, 4>(stage.b, of.b, of.inner, left, of.columns);
            depth += TERMS;
            if (depth >= of.inner) depth = 0, number++;
        }
        copies_commit();
    }
};

// A warp's [16,16] of sums; in 32 bits those of small parts are apart, so that no product waits for the one before.
struct WarpSums {
    float x[2][4] = {}, small[2][4] = {}, smaller[2][4] = {}, total[2][4] = {};

    // Tensor cores cut sums off: long ones are added up here, part by part.
    __device__ __forceinline__ void add_up() {
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                total[n][e] += x[n][e] + (small[n][e] + smaller[n][e]);
                x[n][e] = small[n][e] = smaller[n][e] = 0.0f;
            }
    }
    // Adds the products of DEPTH words from `begin` on of a stage of 32-bit numbers; `band` and `side` are the warp's first row
    // and column.
    template <typename WAYS>
    __device__ __forceinline__ void add(const Stage<0, WAYS>& stage, u32 begin, u32 band, u32 side) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 8) {
            // Both parts of a left factor [16,8], and then of two right ones [8,8].
            u32 high[4], low[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 row = band + g + i % 2 * 8, term = begin + k + t + i / 2 * 4;
                const u32 at = WAYS::OF_A ? term * ACROSS<0, ROWS> + row : row * ALONG + term;
                split(__uint_as_float(stage.a[at]), high[i], low[i]);
            }
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const u32 column = side + 8 * n + g;
                u32 other[2], rest[2];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const u32 term = begin + k + t + 4 * i;
                    const u32 at = WAYS::OF_B ? column * ALONG + term : term * ACROSS<0, COLUMNS> + column;
                    split(__uint_as_float(stage.b[at]), other[i], rest[i]);
                }
                // What both small parts give is left out.
                multiply_add(smaller[n], low, other);
                multiply_add(small[n], high, rest);
                multiply_add(x[n], high, other);
            }
        }
    }
    // The same of bfloat16, two terms a word. Where terms lie one after another, lane `8 i + r` names row `r` of matrix `i`.
    template <typename WAYS>
    __device__ __forceinline__ void add(const Stage<1, WAYS>& stage, u32 begin, u32 band, u32 side) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 k = begin; k < begin + DEPTH; k += 8) {
            // A left factor [16,16], and two right ones [16,8] side by side.
            u32 a[4], b[4];
            if constexpr (WAYS::OF_A) {
                const u32 term = 2 * k + lane / 16 * 8 + lane % 8;
                load_matrices_across(a, stage.a + term * ACROSS<1, ROWS> + band / 2 + lane / 8 % 2 * 4);
            } else {
#pragma unroll
                for (u32 i = 0; i < 4; i++) a[i] = stage.a[(band + g + i % 2 * 8) * ALONG + k + t + i / 2 * 4];
            }
            if constexpr (WAYS::OF_B) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) b[i] = stage.b[(side + i / 2 * 8 + g) * ALONG + k + t + i % 2 * 4];
            } else {
                const u32 term = 2 * k + lane / 8 % 2 * 8 + lane % 8;
                load_matrices_across(b, stage.b + term * ACROSS<1, COLUMNS> + side / 2 + lane / 16 * 4);
            }
            multiply_add_bf16(x[0], a, b[0], b[1]);
            multiply_add_bf16(x[1], a, b[2], b[3]);
        }
    }

    // Adds those of the other group, which has the same place in the tile; only the first has them all then.
    __device__ __forceinline__ void meet(float* shared, u32 group, u32 thread) {
        // All stages are read.
        __syncthreads();
        float* parts = shared + thread;
#pragma unroll
        for (u32 e = 0; e < 8; e++)
            if (group == 1) parts[e * 32 * WARPS] = total[e / 4][e % 4];
        __syncthreads();
#pragma unroll
        for (u32 e = 0; e < 8; e++)
            if (group == 0) total[e / 4][e % 4] += parts[e * 32 * WARPS];
    }
    // Writes them, or adds them to what is there: `column` is that of a pair, which is there or is not, since columns are even.
    template <u32 TYPE>
    __device__ __forceinline__ void write(const SmallProduct& of, bool add, u32 row, u32 column) const {
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                if (row + 8 * h >= of.rows || column + 8 * n >= of.columns) continue;
                const u64 at = (u64)(row + 8 * h) * of.columns + column + 8 * n;
                // Neighbours go together.
                float pair[2];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    pair[i] = total[n][2 * h + i];
                    if (add) pair[i] += load(Array{of.out, TYPE}, at + i);
                }
                if constexpr (TYPE == 0) ((float2*)of.out)[at / 2] = make_float2(pair[0], pair[1]);
                else ((u32*)of.out)[at / 2] = pack_bf16(pair[0], pair[1]);
            }
    }
};

// A block makes a tile of one result.
template <u32 TYPE, typename WAYS> __device__ __forceinline__ void products(const SmallProducts& args, u8* shared) {
    constexpr u32 TERMS = Stage<TYPE, WAYS>::TERMS, STAGES = WAYS::STAGES;
    Stage<TYPE, WAYS>* stages = (Stage<TYPE, WAYS>*)shared;
    // Which product it is of, and which of its tiles.
    u32 first = 0, tile = blockIdx.x;
    if (!args.sum) {
        while (tile >= args.each[first].end) first++;
        if (first > 0) tile -= args.each[first - 1].end;
    }
    const SmallProduct& of = args.each[first];
    const u32 across = (of.columns + COLUMNS - 1) / COLUMNS, last = args.sum ? args.count : first + 1;
    const u32 top = tile / across * ROWS, left = tile % across * COLUMNS;
    // Stages of all products of the sum.
    u32 steps = 0;
    for (u32 i = first; i < last; i++) steps += (args.each[i].inner + TERMS - 1) / TERMS;
    Copies<TYPE, WAYS> copies{args, top, left, last, first};
    // One place stays free, for the stage that is asked for in a step.
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; i++) copies.next(stages[i]);
    const u32 warp = threadIdx.x / 32 % WARPS, group = threadIdx.x / (32 * WARPS);
    const u32 band = warp % BANDS * 16, side = warp / BANDS * 16;
    WarpSums sums;
    for (u32 step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        // All copies of the stage are there, and the one before is read.
        __syncthreads();
        copies.next(stages[(step + STAGES - 1) % STAGES]);
        sums.add(stages[step % STAGES], group * DEPTH, band, side);
        // After each of the short stages that two groups share, else after eight.
        if (WAYS::GROUPS > 1 || step % 8 == 7) sums.add_up();
    }
    if constexpr (WAYS::GROUPS > 1) {
        sums.meet((float*)shared, group, threadIdx.x % (32 * WARPS));
        if (group > 0) return;
    } else {
        sums.add_up();
    }
    sums.write<TYPE>(of, args.add, top + band + threadIdx.x % 32 / 4, left + side + threadIdx.x % 4 * 2);
}

// Kernels by how factors lie and by type, whose registers differ.
#define SMALL_KERNEL(name, type, of_a, of_b)                                                                                    \
    KERNEL(name, SmallProducts, (Transposed<of_a, of_b>::THREADS)) {                                                            \
        DYNAMIC_SHARED(u8, shared);                                                                                             \
        products<type, Transposed<of_a, of_b>>(args, shared);                                                                   \
    }
// b as weights are stored, [columns,inner].
SMALL_KERNEL(matmul_small_rows, 0, false, true)
SMALL_KERNEL(matmul_small_rows_bf16, 1, false, true)
// b [inner,columns].
SMALL_KERNEL(matmul_small_columns, 0, false, false)
SMALL_KERNEL(matmul_small_columns_bf16, 1, false, false)
// Both by terms, a [inner,rows] and b [inner,columns]: gradients of weights.
SMALL_KERNEL(matmul_small_terms, 0, true, false)
SMALL_KERNEL(matmul_small_terms_bf16, 1, true, false)
