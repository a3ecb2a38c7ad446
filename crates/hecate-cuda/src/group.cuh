// Products of 16-bit matrices by a group, four warps that begin at a multiple of four. Bulk copies to and from
// shared memory by one thread. Only GPUs of capability 9.0 have groups, and only code that is compiled for exactly these.
#pragma once
#include "tensor.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static constexpr bool GROUPS_MULTIPLY = true;
#else
static constexpr bool GROUPS_MULTIPLY = false;
#endif

// Factors are described by where they lie: in panels of WIDE columns, 32 or 64. Rows lie one after another from a
// multiple of 1 KiB on, and pieces of 16 bytes change places as `in_panel` says.
template <u32 WIDE = 64>
__device__ __forceinline__ u64 described(const void* panel) {
    static_assert(WIDE == 64 || WIDE == 32, "what there is");
    // Address in units of 16 bytes, distance of groups of eight rows, and the kind of swizzle.
    const u32 at = (u32)__cvta_generic_to_shared(panel);
    return (u64)(at >> 4) | (u64)1 << 16 | (u64)WIDE << 32 | (u64)(WIDE == 64 ? 1 : 2) << 62;
}
// Where an element of a panel is, and `further` pieces from there. These are fewer than a power of two of them that `column`
// is a multiple of.
template <u32 WIDE = 64>
__device__ __forceinline__ u32 in_panel(u32 row, u32 column, u32 further = 0) {
    // Rows that are read together have their pieces in other banks.
    const u32 turn = WIDE == 64 ? row % 8 : row / 2 % 4;
    return row * WIDE + (column % WIDE / 8 ^ turn ^ further) * 8 + column % 8;
}

// What threads wrote to shared memory, copies too, is seen by products and by stores of whole pieces. It is called before the
// barrier that these follow, or after it by the thread that begins them.
__device__ __forceinline__ void show_to_groups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Before the first product: registers are as they were written.
__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// After the last one; then a wait for all, but what was committed LEFT times since.
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all products but those of the last LEFT commits.
template <u32 LEFT = 0> __device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// Both at once.
__device__ __forceinline__ void group_end() { group_commit(), group_wait(); }
// Some of the block's warps, THREADS threads, wait for each other.
template <u32 THREADS> __device__ __forceinline__ void wait_for_some() {
    asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory");
}
// A group's threads have COUNT registers from here on. All groups together have no more than at the start: of three a thread has
// 168 then, of four 128.
template <u32 COUNT> __device__ __forceinline__ void take_registers() {
    if constexpr (COUNT > 168) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
    else asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
// Keeps what uses sums after the wait for them.
template <u32 TILES>
__device__ __forceinline__ void hold(float (&x)[TILES][4]) {
    #pragma unroll
    for (u32 n = 0; n < TILES; n++)
        #pragma unroll
        for (u32 i = 0; i < 4; i++) asm volatile("" : "+f"(x[n][i]) :: "memory");
}

#define GROUP_SUMS(x, n) "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])

// Tiles FIRST.. of x, [64,8 COUNT], += a [64,16] b, or = it: of the group's warps 16 rows each, in which all lies as for one
// warp. b lies as its columns, from a piece of rows of the panel on; or, ACROSS, as its rows. HALVES: both are IEEE halves.
#define GROUP_MULTIPLY(TYPE)                                                                                \
    asm volatile(                                                                                           \
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"                                                   \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                     \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                           \
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "                                \
        "{%32,%33,%34,%35}, %36, p, 1, 1, %38;\n\t}"                                                        \
        : GROUP_SUMS(x, FIRST), GROUP_SUMS(x, FIRST + 1), GROUP_SUMS(x, FIRST + 2), GROUP_SUMS(x, FIRST + 3), \
          GROUP_SUMS(x, FIRST + 4), GROUP_SUMS(x, FIRST + 5), GROUP_SUMS(x, FIRST + 6), GROUP_SUMS(x, FIRST + 7) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((u32)add), "n"(ACROSS))
// x [64, 8 * COUNT] (+)= a [64,16] @ b [16, 8 * COUNT], from tile FIRST of x on; `add` adds, else x is overwritten.
template <bool ACROSS, u32 COUNT, u32 FIRST, bool HALVES = false, u32 TILES>
__device__ __forceinline__ void group_multiply(float (&x)[TILES][4], const u32 (&a)[4], u64 b, bool add) {
    static_assert(COUNT == 8, "what there is");
    if constexpr (HALVES) GROUP_MULTIPLY("f16");
    else GROUP_MULTIPLY("bf16");
}

// The same, with a in shared memory: as its rows or, TURNED, as its columns.
template <bool TURNED, bool ACROSS, u32 COUNT>
__device__ __forceinline__ void group_multiply(float (&x)[COUNT][4], u64 a, u64 b, bool add) {
    static_assert(COUNT == 2 || COUNT == 4 || COUNT == 8, "what there is");
    constexpr u32 FIRST = 0;
    if constexpr (COUNT == 8) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
            "%32, %33, p, 1, 1, %35, %36;\n\t}"
            : GROUP_SUMS(x, FIRST), GROUP_SUMS(x, FIRST + 1), GROUP_SUMS(x, FIRST + 2), GROUP_SUMS(x, FIRST + 3),
              GROUP_SUMS(x, FIRST + 4), GROUP_SUMS(x, FIRST + 5), GROUP_SUMS(x, FIRST + 6), GROUP_SUMS(x, FIRST + 7)
            : "l"(a), "l"(b), "r"((u32)add), "n"(TURNED), "n"(ACROSS));
    } else if constexpr (COUNT == 4) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
            "%16, %17, p, 1, 1, %19, %20;\n\t}"
            : GROUP_SUMS(x, FIRST), GROUP_SUMS(x, FIRST + 1), GROUP_SUMS(x, FIRST + 2), GROUP_SUMS(x, FIRST + 3)
            : "l"(a), "l"(b), "r"((u32)add), "n"(TURNED), "n"(ACROSS));
    } else {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %10, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7}, "
            "%8, %9, p, 1, 1, %11, %12;\n\t}"
            : GROUP_SUMS(x, FIRST), GROUP_SUMS(x, FIRST + 1)
            : "l"(a), "l"(b), "r"((u32)add), "n"(TURNED), "n"(ACROSS));
    }
}

// Starts a copy of multiples of 16 bytes out of shared memory, by one thread, of what was shown as to products. Copies up to
// `stores_commit` belong together; `stores_read` waits until all are out of shared memory, `stores_wait` until all are done.
__device__ __forceinline__ void store_piece(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"((u32)__cvta_generic_to_shared(from)), "r"(bytes) : "memory");
}
// Ends a set of copies, for which the next two functions wait.
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's copies have read shared memory, so that it may be written again.
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until this thread's copies have arrived in global memory.
__device__ __forceinline__ void stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Barriers in shared memory, by which warps wait for copies and for space. A phase ends when COUNT have arrived.
__device__ __forceinline__ void gate_open(u64* gate, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"((u32)__cvta_generic_to_shared(gate)), "r"(count) : "memory");
}
// Arrives once at a barrier in shared memory.
__device__ __forceinline__ void gate_arrive(u64* gate) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"((u32)__cvta_generic_to_shared(gate)) : "memory");
}
// Of the phase under way `bytes` of bulk copies are still to come; it is asked by a thread that has not arrived yet.
__device__ __forceinline__ void gate_expect(u64* gate, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 :: "r"((u32)__cvta_generic_to_shared(gate)), "r"(bytes) : "memory");
}
// This thread arrives when all copies that it started are done, but for bulk copies.
__device__ __forceinline__ void gate_arrive_after_copies(u64* gate) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"
                 :: "r"((u32)__cvta_generic_to_shared(gate)) : "memory");
}
// Waits for the end of a phase of this parity.
__device__ __forceinline__ void gate_wait(u64* gate, u32 parity) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tagain:\n\tmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n\t@!p bra again;\n\t}"
        :: "r"((u32)__cvta_generic_to_shared(gate)), "r"(parity) : "memory");
}
// The same for what products are to read: copies of other threads are shown to them.
__device__ __forceinline__ void gate_wait_to_multiply(u64* gate, u32 parity) {
    gate_wait(gate, parity);
    show_to_groups();
}

// One arrival for each warp, all lanes of which have read what is given free.
__device__ __forceinline__ void release(u64* gate) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) gate_arrive(gate);
}

// An array [rows, heads, columns] as the engine for bulk copies knows it; `bulk.rs` makes it.
struct __align__(64) BulkMap {
    u64 opaque[16];
};

// Asks for what is known of the array, by one thread.
__device__ __forceinline__ void ask_for_map(const BulkMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }

// Starts a bulk copy of a box of the array to shared memory, by one thread, and tells `gate` of each byte that is there: its
// 64 columns from `column` on become a panel, and what is outside of the array zeros.
__device__ __forceinline__ void copy_box(void* to, const BulkMap& map, int column, int head, int row, u64* gate) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(&map), "r"(column), "r"(head), "r"(row),
                 "r"((u32)__cvta_generic_to_shared(gate)) : "memory");
}

// Which of COUNT places of tiles is next, and the parity of its phase.
template <u32 COUNT> struct Ring {
    u32 stage = 0, parity = 0;
    // Moves on to the next place; the parity changes after the last one.
    __device__ __forceinline__ void next() {
        if (++stage == COUNT) stage = 0, parity ^= 1;
    }
};
