// Products of up to 64 rows, those of texts that are drawn side by side, with several matrices: out = a bᵀ. Factors meet on
// tensor cores in 16 bits, sums have 32. A cluster of blocks has 64 columns and shares the sums' terms; a block by itself has 128.
//
// Before them may stand a norm of the rows, whose factor sums are times; after them a gate, or a sum with other rows.
//
// A token runs through this code once, and waits for instructions longer than for anything else: loops are not unrolled but where
// registers are counted.
#include "follow.cuh"
#include "hecate.cuh"
#include "maps.cuh"

// A warp has eight columns of a tile. Terms are taken 32 at a time, AHEAD times of which are on their way.
static constexpr u32 ROWS = 64, DEEP = 32, AHEAD = 8, MATRICES = 8;

// A matrix [columns,inner], its product [rows,columns], and the tiles up to its last.
struct Matrix {
    const void* b;
    void* out;
    u64 columns, end;
};

// `matmul_rows::RowsProduct` is its twin.
struct RowsProduct {
    // [rows,inner], of 32 bits or the matrices' type, which products have too
    Array a;
    u64 rows, inner;
    // Of matrices
    u32 type;
    // Of the matrices on tensor cores
    u32 tiles;
    Matrix matrices[MATRICES];
    // [inner], the norm's weight; [rows,columns], what is added. Null where there is none, else `a` has 32 bits.
    const float *norm, *residual;
    // Added to mean squares
    float epsilon;
    // 1 where a tile is half columns of the first matrix and half of the second, which makes their gate
    u32 gated;
    // Clusters that have tiles; blocks of others have narrow matrices of 32 bits, whose `end` counts groups of columns.
    u32 clusters, first_narrow, groups;
    // Elements of 32 bits from `a` in shared memory to what follows it
    u32 staged;
};

// Which block of a cluster this is, and how many there are.
struct Cluster {
    u32 rank, count;
    // Reads the block's rank and the cluster's size; before sm_90 a block is alone.
    __device__ __forceinline__ Cluster() : rank(0), count(1) {
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    }
    // All blocks meet between these two, and see what the others sent before.
    __device__ __forceinline__ void arrive() const {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }
    // Waits until all blocks have arrived.
    __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
    // Writes 16 bytes to this place of the shared memory of block `other`: the way between blocks is slow for less.
    __device__ __forceinline__ void send(float* place, u32 other, float4 x) const {
#if __CUDA_ARCH__ >= 900
        // An address of the cluster's window on all its blocks.
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(place)), "r"(other));
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};"
                     :: "r"(there), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#else
        *(float4*)place = x;
#endif
    }
};

// A block's terms: steps of 32, from `first` on. Blocks of a cluster have as many each, and the last may have fewer or none.
struct Slice {
    u32 first, count;
    // Steps of a block with as many as any that are on their way at once
    u32 ahead;
    // From row to row of `a` in shared memory: rows after one another begin in other halves of the banks.
    u32 stride;
    // Divides the steps of the inner dimension among the cluster's blocks.
    __device__ __forceinline__ Slice(const RowsProduct& args, const Cluster& cluster) {
        // `exists` of `matmul_rows.rs` saw to it that steps are whole.
        const u32 steps = (u32)args.inner / DEEP, each = (steps + cluster.count - 1) / cluster.count;
        first = cluster.rank * each < steps ? cluster.rank * each : steps;
        count = steps - first < each ? steps - first : each;
        ahead = each < AHEAD ? each : AHEAD;
        stride = (count | 1) * DEEP;
    }
};

// What a block has in shared memory.
struct Room {
    // [64], of this block's part of rows
    float* squares;
    // [ahead,threads]: a thread's steps of `b`
    uint4* steps;
    // [64,stride] in 16 bits
    u16* rows;
    // [64,placed]: a block's own sums. Blocks of a cluster put them where rows were.
    float* own;
    // [64,columns], then [64]: sums and squares that blocks of a cluster send
    float* parts;
    u32 columns, placed;
    // Divides the block's shared memory into these arrays.
    __device__ __forceinline__ Room(const RowsProduct& args, const Cluster& cluster, const Slice& slice, u8* shared) {
        columns = blockDim.x / 4;
        // Stores of pairs meet all banks.
        placed = columns + 8;
        squares = (float*)shared;
        steps = (uint4*)(squares + ROWS);
        rows = (u16*)(steps + slice.ahead * blockDim.x);
        parts = (float*)rows + args.staged;
        own = cluster.count == 1 ? parts : (float*)rows;
    }
};

// The block's part of `a` in 16 bits, times the norm's weight, with zeros after its rows; and squares of that part, a number a
// row. Reads of all rows of a warp wait together. Types are known while compiling.
template <u32 TYPE, u32 FROM, bool NORMED>
__device__ __forceinline__ void stage(const RowsProduct& args, const Slice& slice, const Room& room) {
    // Of eight warps; of more, a warp has fewer.
    // An array of registers needs a constant length.
    constexpr u32 MOST = ROWS / 8;
    const u32 pieces = slice.count * DEEP / 4, count = (u32)args.rows, whole = (count + 15) / 16 * 16;
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const Array a = {args.a.data, FROM};
    float square[MOST] = {};
#pragma unroll 1
    for (u32 piece = threadIdx.x % 32; piece < pieces; piece += 32) {
        const u32 at = slice.first * DEEP + piece * 4;
        // Without a norm rows are times 1.
        Run<4> x[MOST], w = {1.0f, 1.0f, 1.0f, 1.0f};
        if constexpr (NORMED) w = load_run<4>(Array{(void*)args.norm, 0}, at);
#pragma unroll
        for (u32 i = 0; i < MOST; i++) {
            const u32 row = warp + i * warps;
            x[i] = load_run_if<4>(row < count, a, row * (u32)args.inner + at);
        }
#pragma unroll
        for (u32 i = 0; i < MOST; i++) {
            const u32 row = warp + i * warps;
            // Products go by sixteen rows.
            if (row >= whole) break;
            float(&y)[4] = x[i].x;
            if constexpr (NORMED) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) square[i] += y[j] * y[j], y[j] *= w.x[j];
            }
            *(uint2*)(room.rows + row * slice.stride + piece * 4) = make_uint2(to_word(TYPE, y[0], y[1]), to_word(TYPE, y[2], y[3]));
        }
    }
    // A row is one warp's, so its squares are added up in one order.
    if constexpr (!NORMED) return;
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        const u32 row = warp + i * warps;
        const float sum = warp_sum(square[i]);
        if (threadIdx.x % 32 == 0 && row < ROWS) room.squares[row] = sum;
    }
}

// Of the type of matrices, or of 32 bits.
template <u32 TYPE> __device__ __forceinline__ void stage_any(const RowsProduct& args, const Slice& slice, const Room& room) {
    if (args.a.type) stage<TYPE, TYPE, false>(args, slice, room);
    else if (args.norm) stage<TYPE, 0, true>(args, slice, room);
    else stage<TYPE, 0, false>(args, slice, room);
}

// What sums of a row are times, of its squares.
__device__ __forceinline__ float norm_factor(const RowsProduct& args, float squares) {
    return 1.0f / sqrtf(squares / (float)args.inner + args.epsilon);
}

// x [16,8] += a [16,32] b [32,8], 32 terms in an order of their own, the same in both: a thread has eight neighbours.
template <u32 TYPE>
__device__ __forceinline__ void multiply(float (&x)[4], const uint4& upper, const uint4& lower, const uint4& b) {
    // Words 0 and 1 are the first product's, 2 and 3 the second's.
    const u32 first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
    if constexpr (TYPE == 1) {
        multiply_add_bf16(x, first, b.x, b.y);
        multiply_add_bf16(x, second, b.z, b.w);
    } else {
        multiply_add_halves(x, first, b.x, b.y);
        multiply_add_halves(x, second, b.z, b.w);
    }
}

// Which matrix a tile is of, and where it begins there.
struct Tile {
    const Matrix* matrix;
    u32 column;
    // Finds the matrix of tile number `tile` and the tile's first column there.
    __device__ __forceinline__ Tile(const RowsProduct& args, u32 tile) {
        // The first whose tiles reach so far.
        u32 i = 0;
        while (tile >= args.matrices[i].end) i++;
        matrix = &args.matrices[i];
        column = (tile - (i ? (u32)args.matrices[i - 1].end : 0)) * (blockDim.x / (args.gated ? 8 : 4));
    }
    // This lane's part of the block's terms of its row of `b`; rows after the last are the last.
    __device__ __forceinline__ const u16* row(const RowsProduct& args, const Slice& slice) const {
        const u32 place = threadIdx.x / 4, half = blockDim.x / 8, second = args.gated && place >= half;
        const u32 own = column + place - second * half, last = (u32)matrix->columns - 1;
        return (const u16*)matrix[second].b + (u64)(own < last ? own : last) * args.inner + slice.first * DEEP + threadIdx.x % 4 * 8;
    }
};

// The block's part of a tile, on its way to the cache.
__device__ __forceinline__ void ask_for_tile(const RowsProduct& args, const Slice& slice, u32 tile) {
    const u16* b = Tile(args, tile).row(args, slice) - threadIdx.x % 4 * 8;
#pragma unroll 1
    for (u32 i = threadIdx.x % 4; i < (slice.count + 1) / 2; i += 4) ask_for(b + i * 64);
}

// This lane's rows of `b`, of one tile after another, step by step. Copies are read by the thread that asked for them.
struct Steps {
    uint4* place;
    const u16 *b, *after;
    // Where the next is, and how many are asked for before they are taken
    u32 slot, ahead;
    // Starts the first `ahead` copies of this lane's row of `b`.
    __device__ __forceinline__ Steps(const Room& room, const Slice& slice, const u16* first)
        : place(room.steps + threadIdx.x), b(first), after(nullptr), slot(0) {
        ahead = slice.count < slice.ahead ? slice.count : slice.ahead;
#pragma unroll 1
        for (u32 i = 0; i < ahead; i++) copy(i, b + i * DEEP);
    }
    // Starts an asynchronous copy of 16 bytes to place `to`.
    __device__ __forceinline__ void copy(u32 to, const u16* from) {
        copy_16(place + to * blockDim.x, from, true);
        copies_commit();
    }
    // The next step.
    __device__ __forceinline__ uint4 take() {
        // How many copies may be left is a constant: of short slices all are there.
        if (ahead < AHEAD) copies_wait<0>();
        else copies_wait<AHEAD - 1>();
        return place[slot * blockDim.x];
    }
    // It is in use, and its place free for a later one: of this tile, of the next, or of none.
    __device__ __forceinline__ void go_on(const Slice& slice, u32 step) {
        const u32 next = step + ahead;
        if (next < slice.count) copy(slot, b + next * DEEP);
        else if (after) copy(slot, after + (next - slice.count) * DEEP);
        // An empty group keeps the count.
        else copies_commit();
        slot = slot + 1 < ahead ? slot + 1 : 0;
    }
};

// This warp's eight columns: a row of `b` each four lanes.
template <u32 TYPE>
__device__ __forceinline__ void sums(const RowsProduct& args, const Slice& slice, const Room& room, Steps& steps, float (&x)[4][4]) {
    const u16* place = room.rows + threadIdx.x % 32 / 4 * slice.stride + threadIdx.x % 4 * 8;
#pragma unroll 1
    for (u32 step = 0; step < slice.count; step++, place += DEEP) {
        const uint4 b = steps.take();
#pragma unroll
        for (u32 m = 0; m < 4; m++) {
            // Rows that are not there cost nothing.
            if (16 * m >= args.rows) break;
            const u16* upper = place + 16 * m * slice.stride;
            multiply<TYPE>(x[m], *(const uint4*)upper, *(const uint4*)(upper + 8 * slice.stride), b);
        }
        steps.go_on(slice, step);
    }
}

// A thread's sums to the block's: two neighbouring columns, in two rows of each sixteen.
__device__ __forceinline__ void place_sums(const Room& room, const float (&x)[4][4]) {
    float* to = room.own + threadIdx.x % 32 / 4 * room.placed + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < 8; i++) *(float2*)(to + i * 8 * room.placed) = make_float2(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// Blocks of a cluster send their sums and squares to whoever has the rows, in the order of blocks.
__device__ __forceinline__ void exchange(const RowsProduct& args, const Cluster& cluster, const Room& room) {
    const u32 owned = ROWS / cluster.count, from = cluster.rank * owned, fours = room.columns / 4;
    // All have begun.
    cluster.wait();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < args.rows * fours; i += blockDim.x) {
        const u32 row = i / fours, column = i % fours * 4;
        // Four columns at a time, in the order of the block's own rows.
        const float4 four = *(const float4*)(room.own + row * room.placed + column);
        cluster.send(room.parts + (from + row % owned) * room.columns + column, row / owned, four);
    }
    if (args.norm && threadIdx.x < ROWS / 4) {
        const u32 row = threadIdx.x * 4;
        cluster.send(room.parts + ROWS * room.columns + from + row % owned, row / owned, *(const float4*)(room.squares + row));
    }
    // Who has arrived sends nothing more, so nobody has to stay for others.
    cluster.arrive();
    cluster.wait();
}

// Neighbouring results of a row to their place, and what they are added to.
__device__ __forceinline__ void write(const RowsProduct& args, const Tile& tile, u32 row, u32 column, float (&x)[4]) {
    const u32 columns = (u32)tile.matrix->columns, own = tile.column + column;
    const u64 at = (u64)row * columns + own;
    const Array out = {tile.matrix->out, args.a.type};
    // Rows begin at multiples of 16 bytes.
    if (columns % 4 == 0) {
        if (own >= columns) return;
        Run<4> y = args.residual ? load_run<4>(Array{(void*)args.residual, 0}, at) : Run<4>{};
#pragma unroll
        for (u32 j = 0; j < 4; j++) y.x[j] += x[j];
        return store_run<4>(out, at, y);
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++)
        if (own + j < columns) store(out, at + j, args.residual ? x[j] + args.residual[at + j] : x[j]);
}

// The block's rows of a tile: `count` parts of each sum and square, the norm's factor, a gate.
__device__ __forceinline__ void finish(const RowsProduct& args, const Cluster& cluster, const Room& room, const Tile& tile) {
    // By itself a block finds all of a sum where it put it.
    const bool alone = cluster.count == 1;
    const u32 owned = ROWS / cluster.count, from = cluster.rank * owned, width = args.gated ? room.columns / 2 : room.columns;
    const u32 stride = alone ? room.placed : room.columns, fours = width / 4;
    const float* squares = alone ? room.squares : room.parts + ROWS * room.columns;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < owned * fours; i += blockDim.x) {
        const u32 row = i / fours, column = i % fours * 4;
        if (from + row >= args.rows) break;
        float sum[4] = {}, gate[4] = {}, square = 0.0f;
#pragma unroll 1
        for (u32 part = 0; part < cluster.count; part++) {
            const float* place = room.parts + (part * owned + row) * stride + column;
            const Run<4> x = load_run<4>(Array{(void*)place, 0}, 0), g = load_run<4>(Array{(void*)(place + (args.gated ? width : 0)), 0}, 0);
#pragma unroll
            for (u32 j = 0; j < 4; j++) sum[j] += x.x[j], gate[j] += g.x[j];
            square += squares[part * owned + row];
        }
        const float factor = args.norm ? norm_factor(args, square) : 1.0f;
#pragma unroll
        for (u32 j = 0; j < 4; j++) sum[j] *= args.gated ? factor * silu(gate[j] * factor) : factor;
        write(args, tile, from + row, column, sum);
    }
}

// Columns of a narrow matrix that a warp has at once, with one row.
static constexpr u32 TOGETHER = 4;

// Rows of `a` with narrow matrices of 32 bits, which gates are made of: no rounding, and so no tensor cores.
__device__ __forceinline__ void narrow(const RowsProduct& args, u32 block, u32 blocks) {
    const float4 *a = (const float4*)args.a.data, *norm = (const float4*)args.norm;
    const u32 fours = (u32)args.inner / 4, lane = threadIdx.x % 32;
    for (u32 unit = block * (blockDim.x / 32) + threadIdx.x / 32; unit < args.rows * args.groups; unit += blocks * (blockDim.x / 32)) {
        const u32 row = unit / args.groups, group = unit % args.groups;
        // Groups of narrow matrices follow each other as tiles do.
        u32 m = args.first_narrow;
        while (group >= args.matrices[m].end) m++;
        const Matrix& matrix = args.matrices[m];
        const u32 first = (group - (m > args.first_narrow ? (u32)args.matrices[m - 1].end : 0)) * TOGETHER;
        float square = 0.0f, sum[TOGETHER] = {};
#pragma unroll 2
        for (u32 i = lane; i < fours; i += 32) {
            float4 x = a[row * fours + i], w = norm ? norm[i] : make_float4(1.0f, 1.0f, 1.0f, 1.0f), y[TOGETHER];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++)
                y[j] = ((const float4*)matrix.b)[(u64)(first + j < matrix.columns ? first + j : first) * fours + i];
            square += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
            x = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) sum[j] += x.x * y[j].x + x.y * y[j].y + x.z * y[j].z + x.w * y[j].w;
        }
        // A warp has all of its row.
        const float factor = norm ? norm_factor(args, warp_sum(square)) : 1.0f;
#pragma unroll
        for (u32 j = 0; j < TOGETHER; j++) {
            const float total = warp_sum(sum[j]) * factor;
            if (lane == j && first + j < matrix.columns) ((float*)matrix.out)[row * matrix.columns + first + j] = total;
        }
    }
}

// The tiles of a cluster, which has one where it is more than a block.
template <u32 TYPE> __device__ __forceinline__ void tiles(const RowsProduct& args, const Cluster& cluster, const Slice& slice, const Room& room) {
    const u32 first = blockIdx.x / cluster.count;
    Steps steps(room, slice, Tile(args, first).row(args, slice));
    // Rows come while the first steps of the matrix do.
    stage_any<TYPE>(args, slice, room);
#pragma unroll 1
    for (u32 number = first; number < args.tiles; number += args.clusters) {
        const Tile tile(args, number);
        const u32 next = number + args.clusters;
        steps.after = next < args.tiles ? Tile(args, next).row(args, slice) : nullptr;
        if (steps.after) ask_for_tile(args, slice, next);
        // Rows are there, and sums of the tile before are written.
        __syncthreads();
        // 64 rows of eight columns a warp.
        float x[4][4] = {};
        sums<TYPE>(args, slice, room, steps, x);
        // Its first steps are on their way.
        steps.b = steps.after;
        // Sums may take the place of rows.
        if (cluster.count > 1) __syncthreads();
        place_sums(room, x);
        __syncthreads();
        if (cluster.count > 1) exchange(args, cluster, room);
        finish(args, cluster, room, tile);
    }
}

// 256 threads in a cluster, 512 in a block by itself. Shared memory is a `Room`.
KERNEL(matmul_rows, RowsProduct, 512) {
    DYNAMIC_SHARED(u8, shared);
    const Cluster cluster;
    const Slice slice(args, cluster);
    const Room room(args, cluster, slice, shared);
    const u32 first = blockIdx.x / cluster.count, tiled = args.clusters * cluster.count;
    const bool wide = first < args.clusters;
    if (wide) {
        if (cluster.count > 1) cluster.arrive();
        // Matrices are seldom what the kernel before this made, so they can be on their way.
        ask_for_tile(args, slice, first);
    }
    follow();
    if (!wide) narrow(args, blockIdx.x - tiled, gridDim.x - tiled);
    else if (args.type == 1) tiles<1>(args, cluster, slice, room);
    else tiles<2>(args, cluster, slice, room);
}
