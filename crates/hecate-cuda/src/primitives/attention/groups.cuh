// Products of attention by a group of four warps, out of tiles in shared memory. A group's sums [64,8 COUNT] are x[COUNT][4]:
// 16 rows a warp, which lie as a warp's own do.
#pragma once
#include "attention/tiles.cuh"

#define ROWS_64(TYPE) \
    asm volatile(                                                                                                      \
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"                                                         \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                            \
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "                                       \
            "%32, %33, p, 1, 1, %35, %36;\n\t}"                                                                        \
            : GROUP_SUMS(x, 0), GROUP_SUMS(x, 1), GROUP_SUMS(x, 2), GROUP_SUMS(x, 3),                                  \
              GROUP_SUMS(x, 4), GROUP_SUMS(x, 5), GROUP_SUMS(x, 6), GROUP_SUMS(x, 7)                                   \
            : "l"(a), "l"(b), "r"((u32)add), "n"(0), "n"(0))
#define WEIGHTS_64(TYPE) \
    asm volatile(                                                                                                      \
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"                                                         \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                            \
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "                                       \
            "{%32,%33,%34,%35}, %36, p, 1, 1, %38;\n\t}"                                                               \
            : GROUP_SUMS(x, 0), GROUP_SUMS(x, 1), GROUP_SUMS(x, 2), GROUP_SUMS(x, 3),                                  \
              GROUP_SUMS(x, 4), GROUP_SUMS(x, 5), GROUP_SUMS(x, 6), GROUP_SUMS(x, 7)                                   \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((u32)add), "n"(ACROSS))
#define ROWS_128(TYPE) \
    asm volatile(                                                                                                      \
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"                                                         \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " "                                           \
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                         \
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                         \
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "                                       \
            "%64, %65, p, 1, 1, %67, %68;\n\t}"                                                                        \
            : GROUP_SUMS(x, 0), GROUP_SUMS(x, 1), GROUP_SUMS(x, 2), GROUP_SUMS(x, 3),                                  \
              GROUP_SUMS(x, 4), GROUP_SUMS(x, 5), GROUP_SUMS(x, 6), GROUP_SUMS(x, 7),                                  \
              GROUP_SUMS(x, 8), GROUP_SUMS(x, 9), GROUP_SUMS(x, 10), GROUP_SUMS(x, 11),                                \
              GROUP_SUMS(x, 12), GROUP_SUMS(x, 13), GROUP_SUMS(x, 14), GROUP_SUMS(x, 15)                               \
            : "l"(a), "l"(b), "r"((u32)add), "n"(0), "n"(0))
#define WEIGHTS_128(TYPE) \
    asm volatile(                                                                                                      \
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"                                                         \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " "                                           \
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                         \
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                         \
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "                                       \
            "{%64,%65,%66,%67}, %68, p, 1, 1, %70;\n\t}"                                                               \
            : GROUP_SUMS(x, 0), GROUP_SUMS(x, 1), GROUP_SUMS(x, 2), GROUP_SUMS(x, 3),                                  \
              GROUP_SUMS(x, 4), GROUP_SUMS(x, 5), GROUP_SUMS(x, 6), GROUP_SUMS(x, 7),                                  \
              GROUP_SUMS(x, 8), GROUP_SUMS(x, 9), GROUP_SUMS(x, 10), GROUP_SUMS(x, 11),                                \
              GROUP_SUMS(x, 12), GROUP_SUMS(x, 13), GROUP_SUMS(x, 14), GROUP_SUMS(x, 15)                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((u32)add), "n"(ACROSS))

// x += a bᵀ, or = it: [64,16] of rows of tile `a`, and 16 columns of COUNT 8 rows of tile `b`.
template <u32 TYPE, int COUNT> __device__ __forceinline__ void group_rows(float (&x)[COUNT][4], u64 a, u64 b, bool add) {
    static_assert(COUNT == 8 || COUNT == 16, "what there is");
    if constexpr (COUNT == 8 && TYPE == 1) ROWS_64("bf16");
    else if constexpr (COUNT == 8) ROWS_64("f16");
    else if constexpr (TYPE == 1) ROWS_128("bf16");
    else ROWS_128("f16");
}
// x += a b, or = it: a left factor [64,16] in registers, and COUNT 8 columns of 16 rows of tile `b`. Not ACROSS: of tile `b`,
// transposed, as in `group_rows`.
template <u32 TYPE, bool ACROSS, int COUNT>
__device__ __forceinline__ void group_weights(float (&x)[COUNT][4], const u32 (&a)[4], u64 b, bool add) {
    static_assert(COUNT == 8 || COUNT == 16, "what there is");
    if constexpr (COUNT == 8 && TYPE == 1) WEIGHTS_64("bf16");
    else if constexpr (COUNT == 8) WEIGHTS_64("f16");
    else if constexpr (TYPE == 1) WEIGHTS_128("bf16");
    else WEIGHTS_128("f16");
}

// A tile of ROWS rows as factors: its rows from a multiple of 8 on, 16 columns from step `step` on. A unit is 16 bytes.
template <int ROWS> __device__ __forceinline__ u64 factor_rows(u64 tile, u32 row, u32 step) {
    return tile + row * 8 + step / 4 * (ROWS * 8) + step % 4 * 2;
}
// The same as factors whose depth are rows: panels lie ROWS 128 bytes apart. Sixteen rows a step.
template <int ROWS> __device__ __forceinline__ u64 described_across(const void* tile) {
    return described(tile) - ((u64)1 << 16) + ((u64)(ROWS * 8) << 16);
}
// Returns the descriptor of sixteen rows, step `step` along the depth.
__device__ __forceinline__ u64 factor_depth(u64 tile, u32 step) { return tile + step * 128; }

// x = rows `row` .. of tile `a` times those of tile `b`, transposed, over WIDTH columns; both as `described` says.
template <u32 TYPE, int WIDTH, int ROWS_A, int ROWS_B, int COUNT>
__device__ __forceinline__ void group_scores(float (&x)[COUNT][4], u64 a, u32 row, u64 b) {
    static_assert(8 * COUNT == ROWS_B, "a column of sums for each row of b");
#pragma unroll
    for (u32 s = 0; s < WIDTH / 16; s++)
        group_rows<TYPE, COUNT>(x, factor_rows<ROWS_A>(a, row, s), factor_rows<ROWS_B>(b, 0, s), s > 0);
}
// The same with the left factor in registers, [64,16 STEPS].
template <u32 TYPE, int ROWS, int STEPS, int COUNT>
__device__ __forceinline__ void group_scores(float (&x)[COUNT][4], const u32 (&a)[STEPS][4], u64 b) {
    static_assert(8 * COUNT == ROWS, "a column of sums for each row of b");
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) group_weights<TYPE, false>(x, a[s], factor_rows<ROWS>(b, 0, s), s > 0);
}
// Rows `row` .. of a tile of ROWS rows as left factors of the group's warps.
template <int ROWS, int STEPS> __device__ __forceinline__ void load_factors(u32 (&a)[STEPS][4], const u16* tile, u32 row) {
    const u32 lane = threadIdx.x % 32;
    row += threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) load_matrices(a[s], tile + place<ROWS>(row + lane % 16, 16 * s + lane / 16 * 8));
}
// x += w b, or = it: weights [64,16 STEPS] and all of tile `b`, which `described_across` describes.
template <u32 TYPE, int STEPS, int COUNT>
__device__ __forceinline__ void group_sum(float (&x)[COUNT][4], const u32 (&w)[STEPS][4], u64 b, bool add) {
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) group_weights<TYPE, true>(x, w[s], factor_depth(b, s), add || s > 0);
}

// Starts a copy of 4 bytes to shared memory, of zeros where `inside` is false; `from` is an address in any case.
__device__ __forceinline__ void copy_4(void* to, const void* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

// Keeps what makes `x` before what follows, which the compiler would otherwise put behind a wait for products: it moves
// nothing past a loop. The phase is one that has ended, and cannot come again meanwhile.
template <u32 TILES> __device__ __forceinline__ void made_before(float (&x)[TILES][4], u64* gate, u32 parity) {
    hold(x);
    gate_wait(gate, parity);
}

// Two groups take turns: each waits for its own turn, and gives the other one its.
__device__ __forceinline__ void await_turn(u32 group) { asm volatile("bar.sync %0, 256;" :: "r"(2 + group) : "memory"); }
// Gives the turn to the other warpgroup.
__device__ __forceinline__ void give_turn(u32 group) { asm volatile("bar.arrive %0, 256;" :: "r"(3 - group) : "memory"); }
// The four warps of a group wait for each other.
__device__ __forceinline__ void group_sync(u32 group) { asm volatile("bar.sync %0, 128;" :: "r"(4 + group) : "memory"); }

// Work of a block: it takes one ticket after another, each a job under a head, until there are none. So blocks stay, copy
// ahead for the next job, and none waits for the longest. Who takes which changes no number.
struct Tickets {
    u64 full, empty;
    u32 ticket;

    // By one thread; the first lanes of twelve warps read a ticket.
    __device__ __forceinline__ void open() { gate_open(&full, 1), gate_open(&empty, 12); }

    // Does `work(job)` for each; all threads of the block call it. The counter is zero again when all blocks are done.
    template <class F> __device__ __forceinline__ void each(const AttentionCall& call, const F& work) {
        const u32 all = call.count * call.heads;
        u32* counter = (u32*)call.jobs + (u64)call.count * 4;
        for (u32 turn = 0;; turn++) {
            if (threadIdx.x == 0) {
                gate_wait(&empty, turn % 2 ^ 1);
                ticket = atomicInc(counter, all + gridDim.x - 1);
                gate_arrive(&full);
            }
            gate_wait(&full, turn % 2);
            // Who reads it says that it may be written over, and tells the others.
            u32 mine = 0;
            if (threadIdx.x % 32 == 0) mine = ticket, gate_arrive(&empty);
            mine = __shfl_sync(0xffffffff, mine, 0);
            if (mine >= all) return;
            work(job_of_ticket(call, mine));
        }
    }

    // Returns the job and the head of a ticket; heads of a job follow each other.
    static __device__ __forceinline__ Job job_of_ticket(const AttentionCall& call, u32 ticket) {
        const u32* job = call.jobs + (u64)(ticket / call.heads) * 4;
        return Job{job[0], job[1], job[2], (int)job[3], (int)(ticket % call.heads), 0};
    }
};

// The arrays of a call in boxes of a tile's rows: q and dy in units, k and v in tokens. Not `boxed`: those of units are not
// there, because heads that share keys do not fill tiles.
struct Maps {
    BulkMap q, dy, k, v;
    u32 boxed;

    // Asks for those of every call.
    __device__ __forceinline__ void ask() const {
        ask_for_map(k), ask_for_map(v);
        if (boxed) ask_for_map(q);
    }
};
// What a kernel takes; `groups::Call` is its twin.
template <class Args> struct GroupCall {
    Maps maps;
    Args args;
};

// Rows of a tile in global memory, numbers `first` .. of those that begin at `data`. Each `share` of them are neighbours, and
// the next ones begin `apart` elements on. There are `count`.
struct TileRows {
    const u16* data;
    u64 apart;
    int first, share, count, width;
    // Boxes of the array, if it has some, and the tile's first head and row there
    const BulkMap* map;
    int head, row;

    // Tokens `at` .. of arrays [rows, Hkv, width], up to token `end`.
    static __device__ __forceinline__ TileRows tokens(const AttentionCall& call, const Job& job, Array x, int width, int at,
        int end, const BulkMap* map = nullptr) {
        // Tokens of one head lie all heads' rows apart.
        const u16* data = (const u16*)x.data + token_row(call, job, at) * width;
        return {data, (u64)call.heads * width, 0, 1, end - at, width, map, job.head, (int)job.start + at};
    }
    // Units `at` .. of arrays [rows, Hq, width], up to unit `end`; tiles begin with a token's first.
    static __device__ __forceinline__ TileRows units(const AttentionCall& call, const Job& job, const void* x, int width,
        int at, int end, const BulkMap* map = nullptr) {
        const int share = call.query_heads / call.heads, head = job.head * share;
        const u16* data = (const u16*)x + ((u64)job.start * call.query_heads + head) * width;
        return {data, (u64)call.query_heads * width, at, share, end - at, width, map, head, (int)job.start + at / share};
    }
    // Where row `r` begins.
    __device__ __forceinline__ u64 offset(int r) const {
        const u64 unit = first + r;
        return share == 1 ? unit * apart : (u32)unit / share * apart + (u32)unit % share * width;
    }
};

// Of arrays of units, if there are.
__device__ __forceinline__ const BulkMap* boxes(const Maps& maps, const BulkMap& map) { return maps.boxed ? &map : nullptr; }

// Copies a tile by 128 threads, with zeros where there is nothing; they arrive at `gate` afterwards. A full tile is boxes.
template <int ROWS, int WIDTH> __device__ __forceinline__ void fetch_rows(u16* tile, const TileRows& from, u64* gate) {
    if (from.map && from.count >= ROWS) {
        // The others arrive at once; the phase ends with the last byte.
        if (threadIdx.x % 128 > 0) return;
        gate_expect(gate, 2 * ROWS * WIDTH);
#pragma unroll
        for (int column = 0; column < WIDTH; column += 64)
            copy_box(tile + column * ROWS, *from.map, column, from.head, from.row, gate);
        return;
    }
    // A thread's rows lie STEP apart, and in shared memory at one place of their groups of eight.
    constexpr int PIECES = WIDTH / 8, STEP = 128 / PIECES;
    const int row = threadIdx.x % 128 / PIECES, column = threadIdx.x % PIECES * 8;
    u16* to = tile + place<ROWS>(row, column);
#pragma unroll 1
    for (int i = 0; i < ROWS / STEP; i++) {
        const bool inside = row + i * STEP < from.count && column < from.width;
        copy_16(to + i * STEP * 64, from.data + (inside ? from.offset(row + i * STEP) + column : 0), inside);
    }
}

// What a group has of a job: the units and tokens of a thread's two rows, and the tokens of its own first and last unit.
struct GroupRows {
    int unit[2], token[2], from, to;
    // Finds the thread's two rows and the warpgroup's first and last token.
    __device__ __forceinline__ GroupRows(const Job& job, u32 group, int share) {
        const int first = job.first + group * 64;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            unit[h] = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
            token[h] = unit[h] / share;
        }
        from = first / share, to = (first + 63) / share;
    }
};

// Tiles of COUNT keys that the queries of a job see: those of the prefix, then of the window.
template <int COUNT> struct KeyTiles {
    // The window's first token, and the one after its last; tiles of the prefix, and all
    int low, end, before, count;
    // Counts the tiles of keys that the job's queries see.
    __device__ __forceinline__ KeyTiles(const AttentionCall& call, const Job& job, int units) {
        const Seen all = seen(call, job, units);
        low = all.low, end = all.low + all.count - call.prefix;
        before = (call.prefix + COUNT - 1) / COUNT;
        count = before + (end - low + COUNT - 1) / COUNT;
    }
    // First token of a tile of the window.
    __device__ __forceinline__ int first(int tile) const { return low + (tile - before) * COUNT; }

    // Rows of a tile, of arrays [rows, Hkv, width] and [Np, Hkv, width]; the former has boxes.
    __device__ __forceinline__ TileRows rows(const AttentionCall& call, const Job& job, Array x, Array prefix, int width,
        int tile, const BulkMap& map) const {
        if (tile >= before) return TileRows::tokens(call, job, x, width, first(tile), end, &map);
        // The prefix is copied by threads: it is short, and of no sequence.
        const u64 row = (u64)tile * COUNT * call.heads + job.head;
        const u16* data = (const u16*)prefix.data + row * width;
        return {data, (u64)call.heads * width, 0, 1, call.prefix - tile * COUNT, width, nullptr, 0, 0};
    }

    // Whether a row of the group sees a key of the tile.
    __device__ __forceinline__ bool seen_by(const GroupRows& rows, int kept, int tile) const {
        return tile < before || (first(tile) <= rows.to && first(tile) + COUNT - 1 >= rows.from - kept);
    }
    // Sums of the tile that a row does not see become `nothing`; none are asked where all rows see all keys.
    __device__ __forceinline__ void mask(
        float (&s)[COUNT / 8][4], const AttentionCall& call, const GroupRows& rows, int tile, float nothing) const {
        const int at = first(tile), left = call.prefix - tile * COUNT, column = threadIdx.x % 4 * 2;
        const bool far = tile < before;
        if (far ? left >= COUNT : at + COUNT - 1 <= rows.from && at >= rows.to - call.kept) return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Counted from the thread's first column.
            const int last = (far ? left - 1 : rows.token[h] - at) - column, start = far ? -column : last - call.kept;
#pragma unroll
            for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    s[n][2 * h + i] = 8 * n + i <= last && 8 * n + i >= start ? s[n][2 * h + i] : nothing;
        }
    }
};

// Writes a group's 64 rows, times by[row], by way of a tile of them in shared memory.
template <u32 TYPE, int COUNT>
__device__ __forceinline__ void store_group(
    const float (&x)[COUNT][4], const float (&by)[2], u16* tile, u32 group, const TileRows& to) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    // Nobody reads the rows of the last job any more.
    group_sync(group);
#pragma unroll
    for (u32 n = 0; n < COUNT; n++)
#pragma unroll
        for (u32 h = 0; h < 2; h++)
            *(u32*)(tile + place<64>(row + 8 * h, 8 * n + lane % 4 * 2)) =
                pack<TYPE>(by[h] * x[n][2 * h], by[h] * x[n][2 * h + 1]);
    group_sync(group);
    // A thread's rows lie STEP apart.
    constexpr int STEP = 128 / COUNT;
    const int who = threadIdx.x % 128, first = who / COUNT, column = who % COUNT * 8;
    if (column >= to.width) return;
    const u16* from = tile + place<64>(first, column);
    if (STEP % to.share == 0) {
        u16* at = (u16*)to.data + to.offset(first) + column;
        const u64 step = STEP / to.share * to.apart;
#pragma unroll
        for (int i = 0; i < 64 / STEP; i++, at += step)
            if (first + i * STEP < to.count) *(uint4*)at = *(const uint4*)(from + i * STEP * 64);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 64 / STEP && first + i * STEP < to.count; i++)
        *(uint4*)((u16*)to.data + to.offset(first + i * STEP) + column) = *(const uint4*)(from + i * STEP * 64);
}
