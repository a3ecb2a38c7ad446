// Products of many rows with quantized matrices on tensor cores (from sm_80 on): y = x Wᵀ. A block makes a tile of y. Weights come
// as blocks of their format and are decoded into shared memory, stage by stage; they are nowhere else as numbers.
//
// Of 32-bit factors each number is split into two parts, 22 bits together, of which three products are taken.
#include "quantized.cuh"
#include "tensor.cuh"

// Eight warps have [16 M, 8 N] each of a tile of y: four bands of rows, two sides. A stage has DEEP words of each row, of one
// value of 32 bits or two of 16; parts of weights are AHEAD stages on their way.
template <u32 TYPE_, u32 M_, u32 N_, u32 DEEP_, u32 AHEAD_> struct Shape {
    static constexpr u32 TYPE = TYPE_, M = M_, N = N_, DEEP = DEEP_, AHEAD = AHEAD_;
    static constexpr u32 THREADS = 256, ROWS = 64 * M, COLUMNS = 16 * N, STAGES = 3;
    static constexpr u32 PER_WORD = TYPE == 0 ? 1 : 2, VALUES = DEEP * PER_WORD;
    // From row to row in shared memory: lanes of a warp find other banks.
    static constexpr u32 PITCH = DEEP + 4;
    // Parts of a row of weights in a stage, and of all rows those of a thread
    static constexpr u32 PARTS_OF_ROW = VALUES / PART, UNITS = COLUMNS * PARTS_OF_ROW, OWN = (UNITS + THREADS - 1) / THREADS;
    // Tensor cores cut sums off: those of 32 bits are added up elsewhere after so many stages.
    static constexpr u32 PIECE = 256 / VALUES;
};

template <class S> struct Shared {
    u32 x[S::STAGES][S::ROWS * S::PITCH], w[2][S::COLUMNS * S::PITCH];
};

// A warp's sums [16 M, 8 N]; in 32 bits products of small parts are apart, so that no product waits for the one before.
template <class S> struct Sums {
    float x[S::M][S::N][4] = {};

    // Adds the products of a stage of 16-bit numbers; `band` and `side` are the warp's first row and column.
    __device__ __forceinline__ void add(const u32* left, const u32* right, u32 band, u32 side) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 k = 0; k < S::DEEP; k += 8) {
            u32 a[S::M][4], b[S::N / 2][4];
#pragma unroll
            for (u32 m = 0; m < S::M; m++) load_matrices(a[m], left + (band + 16 * m + lane % 16) * S::PITCH + k + lane / 16 * 4);
            // Two columns of matrices at a time.
#pragma unroll
            for (u32 n = 0; n < S::N / 2; n++)
                load_matrices(b[n], right + (side + 16 * n + lane / 16 * 8 + lane % 8) * S::PITCH + k + lane / 8 % 2 * 4);
#pragma unroll
            for (u32 m = 0; m < S::M; m++)
#pragma unroll
                for (u32 n = 0; n < S::N; n++) {
                    const u32 first = b[n / 2][n % 2 * 2], second = b[n / 2][n % 2 * 2 + 1];
                    if constexpr (S::TYPE == 1) multiply_add_bf16(x[m][n], a[m], first, second);
                    else multiply_add_halves(x[m][n], a[m], first, second);
                }
        }
    }
    __device__ __forceinline__ void add_up() {}
};

// Of 32-bit numbers.
template <u32 M, u32 N, u32 DEEP, u32 AHEAD> struct Sums<Shape<0, M, N, DEEP, AHEAD>> {
    using S = Shape<0, M, N, DEEP, AHEAD>;
    float x[M][N][4] = {}, big[M][N][4] = {}, small[M][N][4] = {};

    __device__ __forceinline__ void add(const u32* left, const u32* right, u32 band, u32 side) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 k = 0; k < DEEP; k += 8) {
            u32 high[M][4], low[M][4];
#pragma unroll
            for (u32 m = 0; m < M; m++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 row = band + 16 * m + g + i % 2 * 8;
                    split(__uint_as_float(left[row * S::PITCH + k + t + i / 2 * 4]), high[m][i], low[m][i]);
                }
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                u32 other[2], rest[2];
#pragma unroll
                for (u32 i = 0; i < 2; i++)
                    split(__uint_as_float(right[(side + 8 * n + g) * S::PITCH + k + t + 4 * i]), other[i], rest[i]);
                // What both small parts give is left out.
#pragma unroll
                for (u32 m = 0; m < M; m++) {
                    multiply_add(small[m][n], low[m], other);
                    multiply_add(big[m][n], high[m], other);
                    multiply_add(small[m][n], high[m], rest);
                }
            }
        }
    }
    __device__ __forceinline__ void add_up() {
#pragma unroll
        for (u32 m = 0; m < M; m++)
#pragma unroll
            for (u32 n = 0; n < N; n++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) x[m][n][e] += big[m][n][e] + small[m][n][e], big[m][n][e] = small[m][n][e] = 0.0f;
    }
};

// A block's tile, and its copies.
template <class S, u32 FORMAT> struct Tile {
    const QuantizedProduct& args;
    Shared<S>& shared;
    // Of its first element
    u64 top, left;
    RawPart raw[S::AHEAD][S::OWN];

    // Tiles of one column follow each other: they share weights.
    __device__ __forceinline__ Tile(const QuantizedProduct& args, Shared<S>& shared) : args(args), shared(shared) {
        const u32 down = (args.rows + S::ROWS - 1) / S::ROWS;
        top = (u64)(blockIdx.x % down) * S::ROWS, left = (u64)(blockIdx.x / down) * S::COLUMNS;
    }

    // Starts copies of the rows of x of a stage, of zeros where there is nothing.
    __device__ __forceinline__ void copy(u32 stage) {
        constexpr u32 PIECES = S::DEEP / 4, STEP = S::THREADS / PIECES;
        const u32 piece = threadIdx.x % PIECES;
        const u64 value = (u64)stage * S::VALUES + piece * 4 * S::PER_WORD;
#pragma unroll
        for (u32 i = 0; i < S::ROWS / STEP; i++) {
            const u32 row = threadIdx.x / PIECES + i * STEP;
            const bool inside = value < args.inner && top + row < args.rows;
            const u64 at = inside ? (top + row) * args.inner + value : 0;
            copy_16(shared.x[stage % S::STAGES] + row * S::PITCH + 4 * piece, (const u8*)args.x.data + at * (4 / S::PER_WORD), inside);
        }
        copies_commit();
    }
    // Asks for the thread's parts of a stage.
    __device__ __forceinline__ void ask(RawPart (&parts)[S::OWN], u32 stage) {
#pragma unroll
        for (u32 i = 0; i < S::OWN; i++) {
            const u32 unit = threadIdx.x + i * S::THREADS, row = unit / S::PARTS_OF_ROW;
            const u64 part = (u64)stage * S::PARTS_OF_ROW + unit % S::PARTS_OF_ROW, blocks = args.inner / BLOCK<FORMAT>;
            const bool inside = unit < S::UNITS && left + row < args.columns && part * PART < args.inner;
            parts[i] = RawPart{};
            if (inside) parts[i] = part_of_row<FORMAT>(args.weights + (left + row) * blocks * BYTES<FORMAT>, part);
        }
    }
    // Decodes them into shared memory, rounded to what x has.
    __device__ __forceinline__ void put(const RawPart (&parts)[S::OWN], u32 stage) {
#pragma unroll
        for (u32 i = 0; i < S::OWN; i++) {
            const u32 unit = threadIdx.x + i * S::THREADS, row = unit / S::PARTS_OF_ROW, part = unit % S::PARTS_OF_ROW;
            if (unit >= S::UNITS) break;
            float value[PART];
            decode<FORMAT>(parts[i], (stage * S::PARTS_OF_ROW + part) % PARTS<FORMAT>, value);
            uint4* to = (uint4*)(shared.w[stage % 2] + row * S::PITCH + part * (PART / S::PER_WORD));
#pragma unroll
            for (u32 n = 0; n < PART / S::PER_WORD / 4; n++) {
                u32 word[4];
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    const u32 at = (4 * n + e) * S::PER_WORD;
                    word[e] = S::TYPE == 0 ? __float_as_uint(value[at]) : to_word(S::TYPE, value[at], value[at + S::PER_WORD - 1]);
                }
                to[n] = make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }

    __device__ __forceinline__ void store_sums(const Sums<S>& sums, u32 band, u32 side) const {
        const u64 row = top + band + threadIdx.x % 32 / 4, column = left + side + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 m = 0; m < S::M; m++)
#pragma unroll
            for (u32 n = 0; n < S::N; n++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    const u64 r = row + 16 * m + e / 2 * 8, c = column + 8 * n + e % 2;
                    if (r < args.rows && c < args.columns) store(Array{args.y.data, S::TYPE}, r * args.columns + c, sums.x[m][n][e]);
                }
    }

    __device__ __forceinline__ void work() {
        const u32 warp = threadIdx.x / 32, band = warp % 4 * 16 * S::M, side = warp / 4 * 8 * S::N;
        const u32 stages = (u32)((args.inner + S::VALUES - 1) / S::VALUES);
        Sums<S> sums;
        copy(0), copy(1);
#pragma unroll
        for (u32 i = 0; i < S::AHEAD; i++) ask(raw[i], i);
        for (u32 first = 0; first < stages; first += S::AHEAD) {
            // Parts have names that are known while compiling.
#pragma unroll
            for (u32 i = 0; i < S::AHEAD; i++) {
                const u32 stage = first + i;
                if (stage >= stages) break;
                put(raw[i], stage);
                ask(raw[i], stage + S::AHEAD);
                copies_wait<1>();
                // What all threads brought is there, and the stage before is read.
                __syncthreads();
                copy(stage + 2);
                sums.add(shared.x[stage % S::STAGES], shared.w[stage % 2], band, side);
                if (stage % S::PIECE == S::PIECE - 1) sums.add_up();
            }
        }
        copies_wait<0>();
        sums.add_up();
        store_sums(sums, band, side);
    }
};

template <class S> __device__ __forceinline__ void tiles(const QuantizedProduct& args, u8* shared) {
    BY_FORMAT(args.format, Tile<S, FORMAT>(args, *(Shared<S>*)shared).work())
}

// Tiles of 64 x 32, so that few of them fill a GPU; larger ones where there are enough, which read and decode less.
#define TILE_KERNEL(name, blocks, ...) \
    KERNEL(name, QuantizedProduct, 256, blocks) { \
        DYNAMIC_SHARED(u8, shared); \
        tiles<Shape<__VA_ARGS__>>(args, shared); \
    }
TILE_KERNEL(quantized_tiles_f32, 1, 0, 1, 2, 64, 2)
TILE_KERNEL(quantized_tiles_bf16, 2, 1, 1, 2, 64, 2)
TILE_KERNEL(quantized_tiles_f16, 2, 2, 1, 2, 64, 2)
TILE_KERNEL(quantized_tiles_wide_f32, 1, 0, 2, 4, 32, 1)
TILE_KERNEL(quantized_tiles_wide_bf16, 1, 1, 2, 8, 32, 1)
TILE_KERNEL(quantized_tiles_wide_f16, 1, 2, 2, 8, 32, 1)
