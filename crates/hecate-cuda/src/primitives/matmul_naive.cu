// The product as the equation has it, which the others are compared with: out = a b, one thread an element.
//
// For its element a thread reads a row of `a` and a column of `b` from global memory, two numbers for one product and one
// sum. In all every element of `a` is read `columns` times and every one of `b` `rows` times, of which the caches save some.
// What the other kernels add is one step each. `matmul_64` and `matmul_128` bring a tile of both factors to shared memory,
// where a read serves a row of threads, and from there to registers, where it serves a row of elements.
// `matmul_groups` has tensor cores multiply 16-bit tiles straight from shared memory, while the next tiles are copied.
#include "hecate.cuh"

// [batch,length,inner], whichever of the two last axes is contiguous.
struct NaiveOperand {
    Array x;
    // From one number of the result's axis to the next, and from one term of the sum to the next
    u64 stride, inner_stride;
};

// `Naive` is its twin.
struct NaiveProduct {
    NaiveOperand a, b;
    // [batch,rows,columns]
    Array out;
    u64 batch, rows, columns, inner;
};

// Neighbouring threads have neighbouring columns: they read the same element of `a`, and of `b` neighbours or strides.
KERNEL(matmul_naive, NaiveProduct, 256) {
    const u64 count = args.batch * args.rows * args.columns;
    for (u64 i = grid_thread(); i < count; i += grid_threads()) {
        const u64 n = i / args.columns / args.rows, row = i / args.columns % args.rows, column = i % args.columns;
        u64 at_a = n * args.rows * args.inner + row * args.a.stride;
        u64 at_b = n * args.columns * args.inner + column * args.b.stride;
        float sum = 0;
        // In the order of the terms, in 32 bits.
        for (u64 k = 0; k < args.inner; k++, at_a += args.a.inner_stride, at_b += args.b.inner_stride)
            sum += load(args.a.x, at_a) * load(args.b.x, at_b);
        store(args.out, i, sum);
    }
}
