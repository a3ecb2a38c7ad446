// Products of matrices where there is no library for them: tiles of the result, each by one block, sums in 32 bits.
#include "hecate.cuh"

#define TILE 64
#define DEPTH 16
#define THREADS 256
// Rows and columns of a thread, 16 apart.
#define OWN 4
#define APART (TILE / OWN)

// An operand `[batch, length, inner]` or `[batch, inner, length]`; `length` is that of the result's axis.
struct Operand {
    Array x;
    u64 length;
    u64 stride, inner_stride;
};

struct Product {
    Operand a, b;
    Array out;  // [batch, rows, columns]
    u64 batch, inner;
    u64 tiles;  // across the columns
};

// Elements `first..` of the result's axis and `depth..` of the sums, zero behind the ends. Neighbours are read together.
__device__ __forceinline__ void load_tile(const Operand& from, u64 offset, u64 first, u64 depth, u64 inner,
                                          float (*tile)[TILE + 1]) {
    for (u32 e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        u32 k = from.inner_stride == 1 ? e % DEPTH : e / TILE;
        u32 i = from.inner_stride == 1 ? e / DEPTH : e % TILE;
        bool inside = first + i < from.length && depth + k < inner;
        u64 at = offset + (first + i) * from.stride + (depth + k) * from.inner_stride;
        tile[k][i] = inside ? load(from.x, at) : 0.0f;
    }
}

KERNEL(matmul, Product, THREADS) {
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    u64 top = blockIdx.x / args.tiles * TILE, left = blockIdx.x % args.tiles * TILE;
    u64 rows = args.a.length, columns = args.b.length;
    u32 row = threadIdx.x / APART, column = threadIdx.x % APART;
    for (u64 n = blockIdx.y; n < args.batch; n += gridDim.y) {
        float sum[OWN][OWN] = {};
        for (u64 depth = 0; depth < args.inner; depth += DEPTH) {
            load_tile(args.a, n * rows * args.inner, top, depth, args.inner, a);
            load_tile(args.b, n * columns * args.inner, left, depth, args.inner, b);
            __syncthreads();
            for (u32 k = 0; k < DEPTH; k++)
                for (u32 i = 0; i < OWN; i++)
                    for (u32 j = 0; j < OWN; j++) sum[i][j] += a[k][row + i * APART] * b[k][column + j * APART];
            __syncthreads();
        }
        for (u32 i = 0; i < OWN; i++) {
            for (u32 j = 0; j < OWN; j++) {
                u64 r = top + row + i * APART, c = left + column + j * APART;
                if (r < rows && c < columns) store(args.out, (n * rows + r) * columns + c, sum[i][j]);
            }
        }
    }
}
