// Products of up to 64 rows, those of texts that are drawn side by side, with several matrices: out = a bᵀ. Factors meet on
// tensor cores in 16 bits, sums have 32. A cluster of blocks has 64 columns and shares the sums' terms.
#include "follow.cuh"
#include "hecate.cuh"

// A warp has eight columns of a tile. Terms are taken 32 at a time, AHEAD times at once.
static constexpr u32 ROWS = 64, COLUMNS = 64, DEEP = 32, AHEAD = 8, MATRICES = 8;

// A matrix [columns,inner], its product [rows,columns], and the tiles up to its last.
struct Matrix {
    const u16* b;
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
    // Of all matrices
    u32 tiles;
    Matrix matrices[MATRICES];
};

// Which block of a cluster this is, and how many there are.
struct Cluster {
    u32 rank, count;
    __device__ __forceinline__ Cluster() : rank(0), count(1) {
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    }
    // All blocks meet, and see what the others wrote.
    __device__ __forceinline__ void meet() const {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
    // What block `other` has at this place of its shared memory.
    __device__ __forceinline__ float of(const float* place, u32 other) const {
        // An address of the cluster's window on all its blocks.
        float x = *place;
#if __CUDA_ARCH__ >= 900
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(place)), "r"(other));
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
#endif
        return x;
    }
};

// A block's terms: steps of 32, from `first` on. Blocks of a cluster have as many each, and the last may have fewer or none.
struct Slice {
    u32 first, count;
    // From row to row of `a` in shared memory: rows after one another begin in other halves of the banks.
    u32 stride;
    __device__ __forceinline__ Slice(const RowsProduct& args, const Cluster& cluster) {
        const u32 steps = (u32)args.inner / DEEP, each = (steps + cluster.count - 1) / cluster.count;
        first = cluster.rank * each < steps ? cluster.rank * each : steps;
        count = steps - first < each ? steps - first : each;
        stride = (count + (count % 2 == 0)) * DEEP;
    }
};

// The block's part of `a` in 16 bits, with zeros after its rows.
template <u32 TYPE> __device__ __forceinline__ void stage(const RowsProduct& args, const Slice& slice, u16* rows) {
    // Four neighbours a thread, read and put down at once.
    const u32 pieces = slice.count * DEEP / 4, whole = ((u32)args.rows + 15) / 16 * 16;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < whole * pieces; i += blockDim.x) {
        const u32 row = i / pieces, piece = i % pieces;
        const bool inside = row < args.rows;
        const Run<4> x = load_run_if<4>(inside, args.a, row * args.inner + slice.first * DEEP + piece * 4);
        *(uint2*)(rows + row * slice.stride + piece * 4) = make_uint2(to_word(TYPE, x.x[0], x.x[1]), to_word(TYPE, x.x[2], x.x[3]));
    }
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

// This warp's eight columns: a row of `b` each four lanes.
__device__ __forceinline__ void sums(
    u32 type, const RowsProduct& args, const Slice& slice, const u16* rows, const u16* b, float (&x)[4][4]
) {
    const u32 lane = threadIdx.x % 32, row = lane / 4, at = lane % 4 * 8;
    for (u32 step = 0; step < slice.count; step += AHEAD) {
        // Reads wait together.
        uint4 next[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++)
            next[i] = *(const uint4*)(b + (step + i < slice.count ? step + i : step) * DEEP);
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (step + i >= slice.count) break;
#pragma unroll
            for (u32 m = 0; m < 4; m++) {
                if (16 * m >= args.rows) break;
                const u16* upper = rows + (16 * m + row) * slice.stride + (step + i) * DEEP + at;
                const uint4 a = *(const uint4*)upper, lower = *(const uint4*)(upper + 8 * slice.stride);
                if (type == 1) multiply<1>(x[m], a, lower, next[i]);
                else multiply<2>(x[m], a, lower, next[i]);
            }
        }
    }
}

// Which matrix a tile is of, and where it begins there.
struct Tile {
    const Matrix* matrix;
    // Of the matrix, the first of 64
    u64 column;
    __device__ __forceinline__ Tile(const RowsProduct& args, u64 tile) {
        u32 i = 0;
        while (tile >= args.matrices[i].end) i++;
        matrix = &args.matrices[i];
        column = (tile - (i ? args.matrices[i - 1].end : 0)) * COLUMNS;
    }
    // This lane's part of the block's terms of its row of `b`; rows after the last are the last.
    __device__ __forceinline__ const u16* row(const RowsProduct& args, const Slice& slice) const {
        const u64 own = column + threadIdx.x / 4, last = matrix->columns - 1;
        return matrix->b + (own < last ? own : last) * args.inner + slice.first * DEEP + threadIdx.x % 4 * 8;
    }
};

// A thread has two neighbouring columns, in two rows of each sixteen.
template <class Put> __device__ __forceinline__ void each_sum(const float (&x)[4][4], const Put& put) {
    const u32 row = threadIdx.x % 32 / 4, column = threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2;
#pragma unroll
    for (u32 m = 0; m < 4; m++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) put(16 * m + row + i / 2 * 8, column + i % 2, x[m][i]);
}

// The sum to its place, where that is inside.
__device__ __forceinline__ void write(const RowsProduct& args, const Tile& tile, u32 row, u32 column, float x) {
    const u64 columns = tile.matrix->columns, at = tile.column + column;
    if (row < args.rows && at < columns) store(Array{tile.matrix->out, args.a.type}, row * columns + at, x);
}

// 256 threads. Shared memory: the block's part of `a` [64,stride] in 16 bits; then its sums [64,64].
KERNEL(matmul_rows, RowsProduct, 256) {
    DYNAMIC_SHARED(u8, shared);
    // The same bytes, one after the other.
    u16* rows = (u16*)shared;
    float* parts = (float*)shared;
    const Cluster cluster;
    const Slice slice(args, cluster);
    const u64 first = blockIdx.x / cluster.count, step = gridDim.x / cluster.count;
    {
        // Matrices are seldom what the kernel before this made, so they can be on their way.
        const u16* b = Tile(args, first).row(args, slice);
        for (u32 i = threadIdx.x % 4; i < (slice.count + 1) / 2; i += 4) ask_for(b - threadIdx.x % 4 * 8 + i * 64);
    }
    follow();
    if (args.type == 1) stage<1>(args, slice, rows);
    else stage<2>(args, slice, rows);
    __syncthreads();
    for (u64 number = first; number < args.tiles; number += step) {
        const Tile tile(args, number);
        // 64 rows of eight columns a warp.
        float x[4][4] = {};
        sums(args.type, args, slice, rows, tile.row(args, slice), x);
        if (cluster.count == 1) {
            each_sum(x, [&](u32 row, u32 column, float sum) { write(args, tile, row, column, sum); });
            continue;
        }
        // A cluster has one tile, and a block adds up its rows of all blocks' sums, in their order.
        // The rows of `a` are read, and sums take their place.
        __syncthreads();
        each_sum(x, [&](u32 row, u32 column, float sum) { parts[row * COLUMNS + column] = sum; });
        cluster.meet();
        const u32 own = ROWS * COLUMNS / cluster.count;
        for (u32 i = cluster.rank * own + threadIdx.x; i < (cluster.rank + 1) * own; i += blockDim.x) {
            float sum = 0.0f;
            for (u32 other = 0; other < cluster.count; other++) sum += cluster.of(parts + i, other);
            write(args, tile, i / COLUMNS, i % COLUMNS, sum);
        }
        // Nobody leaves while others read.
        cluster.meet();
    }
}
