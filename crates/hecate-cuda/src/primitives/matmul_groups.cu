// Products of 16-bit matrices by groups of four warps (capability 9.0): out = a bᵀ, both factors with the sum along their
// rows. One thread has tiles copied ahead, two groups multiply 64 rows of the result each by 256 columns.
#include "group.cuh"
#include "hecate.cuh"

// Of a tile of the result; DEEP terms of its sums are copied at once, STAGES times ahead.
static constexpr u32 ROWS = 128, COLUMNS = 256, DEEP = 64, STAGES = 4;

// `matmul_groups::Factors` is its twin.
struct GroupProduct {
    // [rows, inner] and [columns, inner], of one type, in boxes of a tile's rows
    BulkMap rows_of_a, rows_of_b;
    // [rows, columns], of that type or of 32 bits
    Array out;
    u64 rows, columns, inner;
};

struct Shared {
    __align__(1024) u16 a[STAGES][ROWS * DEEP];
    u16 b[STAGES][COLUMNS * DEEP];
    // That a stage is there, and that it is read.
    u64 full[STAGES], empty[STAGES];
};

// Tiles in an order in which neighbours share factors: bands of eight rows of tiles, column by column. Blocks that run at
// once then read each factor from the second cache.
struct Tile {
    // Of its first element.
    u64 row, column;
    // Finds the first element of tile `number`.
    __device__ __forceinline__ Tile(const GroupProduct& args, u64 number) {
        const u64 down = (args.rows + ROWS - 1) / ROWS, across = (args.columns + COLUMNS - 1) / COLUMNS;
        // The last band may be lower.
        const u64 band = number / (8 * across), first = 8 * band, height = down - first < 8 ? down - first : 8;
        row = (first + number % (8 * across) % height) * ROWS;
        column = number % (8 * across) / height * COLUMNS;
    }
    // Of the whole result.
    static __device__ __forceinline__ u64 count(const GroupProduct& args) {
        return (args.rows + ROWS - 1) / ROWS * ((args.columns + COLUMNS - 1) / COLUMNS);
    }
};

// The thread that copies; tiles at the edges end in zeros.
__device__ __forceinline__ void produce(const GroupProduct& args, Shared& shared) {
    Ring<STAGES> ring;
    for (u64 number = blockIdx.x; number < Tile::count(args); number += gridDim.x) {
        const Tile tile(args, number);
        for (u64 term = 0; term < args.inner; term += DEEP, ring.next()) {
            // A place is free once what was there is read; the first time it is at once.
            gate_wait(&shared.empty[ring.stage], ring.parity ^ 1);
            u64* full = &shared.full[ring.stage];
            gate_expect(full, 2 * DEEP * (ROWS + COLUMNS));
            copy_box(shared.a[ring.stage], args.rows_of_a, (int)term, 0, (int)tile.row, full);
            copy_box(shared.b[ring.stage], args.rows_of_b, (int)term, 0, (int)tile.column, full);
            gate_arrive(full);
        }
    }
}

// x += a bᵀ, or = it: [64,16] of rows of `a`, and 16 columns of 256 rows of `b`.
#define ROWS_256(TYPE) \
    asm volatile( \
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t" \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " " \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, " \
        "%128, %129, p, 1, 1, 0, 0;\n\t}" \
        : GROUP_SUMS(x, 0), GROUP_SUMS(x, 1), GROUP_SUMS(x, 2), GROUP_SUMS(x, 3), \
          GROUP_SUMS(x, 4), GROUP_SUMS(x, 5), GROUP_SUMS(x, 6), GROUP_SUMS(x, 7), \
          GROUP_SUMS(x, 8), GROUP_SUMS(x, 9), GROUP_SUMS(x, 10), GROUP_SUMS(x, 11), \
          GROUP_SUMS(x, 12), GROUP_SUMS(x, 13), GROUP_SUMS(x, 14), GROUP_SUMS(x, 15), \
          GROUP_SUMS(x, 16), GROUP_SUMS(x, 17), GROUP_SUMS(x, 18), GROUP_SUMS(x, 19), \
          GROUP_SUMS(x, 20), GROUP_SUMS(x, 21), GROUP_SUMS(x, 22), GROUP_SUMS(x, 23), \
          GROUP_SUMS(x, 24), GROUP_SUMS(x, 25), GROUP_SUMS(x, 26), GROUP_SUMS(x, 27), \
          GROUP_SUMS(x, 28), GROUP_SUMS(x, 29), GROUP_SUMS(x, 30), GROUP_SUMS(x, 31) \
        : "l"(a), "l"(b), "r"((u32)add))
// 128 sums a thread, four for each eight columns.
template <u32 TYPE> __device__ __forceinline__ void group_rows(float (&x)[32][4], u64 a, u64 b, bool add) {
    if constexpr (TYPE == 1) ROWS_256("bf16");
    else ROWS_256("f16");
}

// Writes a group's rows of the result: a thread has two neighbours of each of 32 fours of columns, in two rows.
__device__ __forceinline__ void write(const GroupProduct& args, const Tile& tile, u32 group, const float (&x)[32][4]) {
    const u64 row = tile.row + 64 * group + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const u64 column = tile.column + threadIdx.x % 4 * 2;
#pragma unroll
    for (u32 n = 0; n < 32; n++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            // Columns are even, so a pair is there or is not.
            if (row + 8 * h >= args.rows || column + 8 * n >= args.columns) continue;
            const u64 pair = ((row + 8 * h) * args.columns + column) / 2 + 4 * n;
            if (args.out.type == 0) ((float2*)args.out.data)[pair] = make_float2(x[n][2 * h], x[n][2 * h + 1]);
            else ((u32*)args.out.data)[pair] = to_word(args.out.type, x[n][2 * h], x[n][2 * h + 1]);
        }
}

// A group that multiplies.
template <u32 TYPE> __device__ __forceinline__ void consume(const GroupProduct& args, Shared& shared, u32 group) {
    Ring<STAGES> ring;
    float x[32][4];
    for (u64 number = blockIdx.x; number < Tile::count(args); number += gridDim.x) {
        const Tile tile(args, number);
        // The stage whose products may still be under way.
        u32 before = 0;
        for (u64 term = 0; term < args.inner; term += DEEP, ring.next()) {
            gate_wait(&shared.full[ring.stage], ring.parity);
            const u64 a = described(shared.a[ring.stage] + group * 64 * DEEP), b = described(shared.b[ring.stage]);
            // Sixteen terms are two units of 16 bytes further in each row.
            group_begin();
#pragma unroll
            for (u32 step = 0; step < DEEP / 16; step++) group_rows<TYPE>(x, a + 2 * step, b + 2 * step, term > 0 || step > 0);
            group_commit();
            // The stage before is read when its products are done; these go on.
            group_wait<1>();
            if (term > 0) release(&shared.empty[before]);
            before = ring.stage;
        }
        // Copies for the next tile go on while this one is written.
        group_wait();
        hold(x);
        release(&shared.empty[before]);
        write(args, tile, group, x);
    }
}

// A block's groups; elsewhere than on 9.0 there is no such block.
template <u32 TYPE> __device__ __forceinline__ void product(const GroupProduct& args, Shared& shared) {
    if constexpr (GROUPS_MULTIPLY) {
        // The thread that copies arrives, and of those that multiply one of each warp.
        if (threadIdx.x == 0) {
            ask_for_map(args.rows_of_a), ask_for_map(args.rows_of_b);
#pragma unroll
            for (u32 stage = 0; stage < STAGES; stage++) gate_open(&shared.full[stage], 1), gate_open(&shared.empty[stage], 8);
            show_to_groups();
        }
        __syncthreads();
        if (threadIdx.x < 128) {
            take_registers<40>();
            if (threadIdx.x == 0) produce(args, shared);
        } else {
            take_registers<232>();
            consume<TYPE>(args, shared, threadIdx.x / 128 - 1);
        }
    }
}

// out [rows,columns] = a [rows,inner] @ b.T, with b [columns,inner], by the type of both.
KERNEL(matmul_groups_bf16, GroupProduct, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    product<1>(args, *(Shared*)shared);
}
KERNEL(matmul_groups_f16, GroupProduct, 384, 1) {
    DYNAMIC_SHARED(u8, shared);
    product<2>(args, *(Shared*)shared);
}
