// Products of tens of rows with quantized matrices on tensor cores (from sm_80 on): y = x Wᵀ. A block makes a tile of y. Weights
// come as blocks of their format and are decoded into shared memory, stage by stage; they are nowhere else as numbers.
//
// Of 32-bit factors each number is split into two parts, 22 bits together, of which three products are taken.
#include "quantized.cuh"
#include "tensor.cuh"

// A tile of y. A group is eight warps, which have [16,16] each of it: four bands of rows, two sides. Two groups take turns: while
// one decodes a stage, the other multiplies.
static constexpr u32 ROWS = 64, COLUMNS = 32, GROUP = 256, GROUPS = 2;
// Words of each row in a stage, of one value of 32 bits or two of 16, and from row to row: lanes of a warp find other banks.
static constexpr u32 DEEP = 64, PITCH = DEEP + 4;
// Stages of x that are there at a time
static constexpr u32 STAGES = 3;
// Values in a word of TYPE, in a row of a stage, and parts there; parts of all rows of weights
template <u32 TYPE> constexpr u32 PER_WORD = TYPE == 0 ? 1 : 2;
template <u32 TYPE> constexpr u32 VALUES = DEEP * PER_WORD<TYPE>;
template <u32 TYPE> constexpr u32 PARTS_OF_ROW = VALUES<TYPE> / PART;
template <u32 TYPE> constexpr u32 UNITS = COLUMNS * PARTS_OF_ROW<TYPE>;
// Stages that parts are on their way
static constexpr u32 AHEAD = 2;

// Of a group.
struct Shared {
    // As they come, in words; and decoded rows of weights, of this turn and the next
    u32 x[STAGES][ROWS * PITCH], w[2][COLUMNS * PITCH];
};

// A warp's sums [16,16] of 16-bit numbers.
template <u32 TYPE> struct Sums {
    float x[2][4] = {};

    // Adds the products of a stage; `band` and `side` are the warp's first row and column.
    __device__ __forceinline__ void add(const u32* left, const u32* right, u32 band, u32 side) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 k = 0; k < DEEP; k += 8) {
            // A left factor [16,16], and two right ones [16,8] side by side: rows of weights are columns of these.
            u32 a[4], b[4];
            load_matrices(a, left + (band + lane % 16) * PITCH + k + lane / 16 * 4);
            load_matrices(b, right + (side + lane / 16 * 8 + lane % 8) * PITCH + k + lane / 8 % 2 * 4);
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                if constexpr (TYPE == 1) multiply_add_bf16(x[n], a, b[2 * n], b[2 * n + 1]);
                else multiply_add_halves(x[n], a, b[2 * n], b[2 * n + 1]);
            }
        }
    }
    // Does nothing: 16-bit products have one sum.
    __device__ __forceinline__ void add_up() {}
};

// Of 32-bit numbers: products of small parts are apart, so that no product waits for the one before.
template <> struct Sums<0> {
    float x[2][4] = {}, big[2][4] = {}, small[2][4] = {}, smaller[2][4] = {};

    // Adds left [16,DEEP] @ right [DEEP,16] of this warp, each factor split into a high and a low part.
    __device__ __forceinline__ void add(const u32* left, const u32* right, u32 band, u32 side) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 k = 0; k < DEEP; k += 8) {
            // Both parts of a left factor [16,8], and then of two right ones [8,8].
            u32 high[4], low[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                split(__uint_as_float(left[(band + g + i % 2 * 8) * PITCH + k + t + i / 2 * 4]), high[i], low[i]);
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                u32 other[2], rest[2];
#pragma unroll
                for (u32 i = 0; i < 2; i++)
                    split(__uint_as_float(right[(side + 8 * n + g) * PITCH + k + t + 4 * i]), other[i], rest[i]);
                // What both small parts give is left out.
                multiply_add(smaller[n], low, other);
                multiply_add(small[n], high, rest);
                multiply_add(big[n], high, other);
            }
        }
    }
    // Tensor cores cut sums off: long ones are added up here.
    __device__ __forceinline__ void add_up() {
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                x[n][e] += big[n][e] + (small[n][e] + smaller[n][e]);
                big[n][e] = small[n][e] = smaller[n][e] = 0.0f;
            }
    }
};

// A group's turns at a tile.
template <u32 TYPE, u32 FORMAT> struct Tile {
    // Parts of a stage that a thread decodes
    // In 32 bits half of a group's threads have none.
    static constexpr u32 OWN = (UNITS<TYPE> + GROUP - 1) / GROUP;
    const QuantizedProduct& args;
    Shared& shared;
    // Which group, and which of its threads
    const u32 group, member;
    // Of its first element
    u64 top, left;
    RawPart<FORMAT> raw[AHEAD][OWN];

    // Tiles of the same columns follow each other: they share weights.
    __device__ __forceinline__ Tile(const QuantizedProduct& args, Shared* groups)
        : args(args), shared(groups[threadIdx.x / GROUP]), group(threadIdx.x / GROUP), member(threadIdx.x % GROUP) {
        const u32 down = (args.rows + ROWS - 1) / ROWS;
        top = (u64)(blockIdx.x % down) * ROWS, left = (u64)(blockIdx.x / down) * COLUMNS;
    }

    // Stages of both groups follow each other.
    __device__ __forceinline__ u32 stage_of(u32 turn) const { return turn * GROUPS + group; }

    // Starts copies of the rows of x of a stage, of zeros where there is nothing.
    __device__ __forceinline__ void copy(u32 turn) {
        // Pieces of 16 bytes; neighbouring threads copy neighbours.
        constexpr u32 PIECES = DEEP / 4, STEP = GROUP / PIECES;
        const u32 piece = member % PIECES;
        const u64 value = (u64)stage_of(turn) * VALUES<TYPE> + piece * 4 * PER_WORD<TYPE>;
#pragma unroll
        for (u32 i = 0; i < ROWS / STEP; i++) {
            const u32 row = member / PIECES + i * STEP;
            const bool inside = value < args.inner && top + row < args.rows;
            const u64 at = inside ? (top + row) * args.inner + value : 0;
            const u8* from = (const u8*)args.x.data + at * (4 / PER_WORD<TYPE>);
            copy_16(shared.x[turn % STAGES] + row * PITCH + 4 * piece, from, inside);
        }
        copies_commit();
    }
    // Asks for the thread's parts of a stage.
    __device__ __forceinline__ void ask(RawPart<FORMAT> (&parts)[OWN], u32 turn) {
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            const u32 unit = member + i * GROUP, row = unit / PARTS_OF_ROW<TYPE>;
            const u64 part = (u64)stage_of(turn) * PARTS_OF_ROW<TYPE> + unit % PARTS_OF_ROW<TYPE>;
            // Rows are whole blocks.
            const u64 bytes_of_row = args.inner / BLOCK<FORMAT> * BYTES<FORMAT>;
            const bool inside = unit < UNITS<TYPE> && left + row < args.columns && part * PART < args.inner;
            // Zeros decode to zeros.
            parts[i] = RawPart<FORMAT>{};
            if (inside) read_part(parts[i], args.weights + (left + row) * bytes_of_row, part);
        }
    }
    // Decodes them into shared memory, rounded to what x has.
    __device__ __forceinline__ void put(const RawPart<FORMAT> (&parts)[OWN], u32 turn) {
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            const u32 unit = member + i * GROUP, row = unit / PARTS_OF_ROW<TYPE>, part = unit % PARTS_OF_ROW<TYPE>;
            if (unit >= UNITS<TYPE>) break;
            // 32 bits until they are rounded
            float value[PART];
            parts[i].decode((stage_of(turn) * PARTS_OF_ROW<TYPE> + part) % PARTS<FORMAT>, value);
            uint4* to = (uint4*)(shared.w[turn % 2] + row * PITCH + part * (PART / PER_WORD<TYPE>));
#pragma unroll
            for (u32 n = 0; n < PART / PER_WORD<TYPE> / 4; n++) to[n] = make_uint4(
                word(value, 4 * n), word(value, 4 * n + 1), word(value, 4 * n + 2), word(value, 4 * n + 3));
        }
    }
    // Word `i` of a part, as it lies in shared memory.
    static __device__ __forceinline__ u32 word(const float (&value)[PART], u32 i) {
        if constexpr (TYPE == 0) return __float_as_uint(value[i]);
        else return to_word(TYPE, value[2 * i], value[2 * i + 1]);
    }

    // Adds the second group's sums to the first's, each thread those at its place.
    __device__ __forceinline__ void gather(Sums<TYPE>& sums, Shared* groups) const {
        // All stages are read.
        __syncthreads();
        float* parts = (float*)groups + member;
#pragma unroll
        for (u32 e = 0; e < 8; e++)
            if (group == 1) parts[e * GROUP] = sums.x[e / 4][e % 4];
        __syncthreads();
#pragma unroll
        for (u32 e = 0; e < 8; e++)
            if (group == 0) sums.x[e / 4][e % 4] += parts[e * GROUP];
    }
    // y[rows,columns] of the warp's [16,16] = sums; what lies outside is not stored.
    __device__ __forceinline__ void store_sums(const Sums<TYPE>& sums, u32 band, u32 side) const {
        // A thread has two neighbours of two rows, in both halves of the warp's columns.
        const u64 row = top + band + threadIdx.x % 32 / 4, column = left + side + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            const u64 r = row + e % 4 / 2 * 8, c = column + e / 4 * 8 + e % 2;
            if (r < args.rows && c < args.columns) store(Array{args.y.data, TYPE}, r * args.columns + c, sums.x[e / 4][e % 4]);
        }
    }

    // Computes the block's tile of y = x @ w.T, with stages of the inner dimension shared among groups of warps.
    __device__ __forceinline__ void work(Shared* groups) {
        const u32 warp = member / 32, band = warp % 4 * 16, side = warp / 4 * 16;
        const u32 stages = (u32)((args.inner + VALUES<TYPE> - 1) / VALUES<TYPE>), turns = (stages + GROUPS - 1) / GROUPS;
        Sums<TYPE> sums;
        // Two stages are on their way before the first is looked at.
        copy(0), copy(1);
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) ask(raw[i], i);
        for (u32 first = 0; first < turns; first += AHEAD) {
            // Parts have names that are known while compiling.
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                const u32 turn = first + i;
                if (turn >= turns) break;
                put(raw[i], turn);
                ask(raw[i], turn + AHEAD);
                copies_wait<1>();
                // What the group's threads brought is there, and the stage before is read.
                asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(GROUP) : "memory");
                copy(turn + 2);
                sums.add(shared.x[turn % STAGES], shared.w[turn % 2], band, side);
                if (turn % 4 == 3) sums.add_up();
            }
        }
        // Copies of stages after the last one.
        copies_wait<0>();
        sums.add_up();
        gather(sums, groups);
        if (group == 0) store_sums(sums, band, side);
    }
};

// The format is known at run time: all threads take the same branch.
template <u32 TYPE> __device__ __forceinline__ void tiles(const QuantizedProduct& args, u8* shared) {
    BY_FORMAT(args.format, Tile<TYPE, FORMAT>(args, (Shared*)shared).work((Shared*)shared))
}

// y [rows,columns] = x [rows,inner] @ weights.T, by the type of x and y.
KERNEL(quantized_tiles_f32, QuantizedProduct, 512, 1) {
    DYNAMIC_SHARED(u8, shared);
    tiles<0>(args, shared);
}
KERNEL(quantized_tiles_bf16, QuantizedProduct, 512, 1) {
    DYNAMIC_SHARED(u8, shared);
    tiles<1>(args, shared);
}
KERNEL(quantized_tiles_f16, QuantizedProduct, 512, 1) {
    DYNAMIC_SHARED(u8, shared);
    tiles<2>(args, shared);
}
