// Newton-Schulz of matrices [64,64] by groups of four warps, a matrix each: equations (88) to (92).
//
// Numbers are those of `newton_schulz_halves.cuh`. Left factors come from registers, which hold sums as products want them,
// and right ones from shared memory. Where a transpose is wanted, its product is made as well: it waits for nobody.
#pragma once
#include "group.cuh"
#include "newton_schulz_halves.cuh"

// Threads of a group, and groups of a block.
#define GROUP_THREADS 128
#define SQUARE_GROUPS (SQUARE_THREADS / GROUP_THREADS)

// Of a group's matrix: a warp has 16 rows and all columns.
struct GroupSquare : Elements<GroupSquare, 32> {
    // Where tile `n` lies, as `Square::tile` says.
    __device__ __forceinline__ static u32 tile(u32 n) {
        return ((threadIdx.x % GROUP_THREADS / 32 * 8 + n) * 32 + threadIdx.x % 32) * 4;
    }
};

// Halves of one kind of a matrix in shared memory, a panel of 64 columns; a place has those of both kinds.
const u32 PANEL = SIDE * SIDE, PLACE = 2 * PANEL;

// A matrix as sums of two halves, in registers: left factors of sixteen columns, of upper and of lower halves.
struct GroupHalves {
    u32 x[2][4][4];

    // Splits factor * from into upper and lower halves, as left factors.
    __device__ __forceinline__ void make(const GroupSquare& from, float factor = 1.0f) {
#pragma unroll
        for (u32 s = 0; s < 4; s++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                // Rows eight apart come first, then columns.
                const float* two = &from.x[8 * s + 2 * i];
                const float first = factor * two[0], second = factor * two[1];
                x[0][s][i] = pack_halves(first, second);
                const float2 have = unpack_halves(x[0][s][i]);
                x[1][s][i] = pack_halves(first - have.x, second - have.y);
            }
    }
    // To a place, as right factors lie there.
    __device__ __forceinline__ void put(u16* place) const {
        const u32 lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane % 16, column = lane / 16 * 8;
#pragma unroll
        for (u32 lower = 0; lower < 2; lower++)
#pragma unroll
            for (u32 s = 0; s < 4; s++) store_matrices(x[lower][s], place + lower * PANEL + in_panel(row, 16 * s + column));
    }
    // To global memory and back, for the same thread. They stay in the order of products, which they are read beside.
    __device__ __forceinline__ void keep(uint4* to) const {
#pragma unroll
        for (u32 i = 0; i < 8; i++) store_16(to + i * GROUP_THREADS + threadIdx.x % GROUP_THREADS, x[i / 4][i % 4]);
    }
    // Loads what `keep` stored.
    __device__ __forceinline__ void load(const uint4* from) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32(&four)[4] = x[i / 4][i % 4];
            asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                         : "l"(__cvta_generic_to_global(from + i * GROUP_THREADS + threadIdx.x % GROUP_THREADS)) : "memory");
        }
    }
};

// out += x y, or x yᵀ; or = it, where it is the `first` product.
template <bool TRANSPOSED>
__device__ __forceinline__ void group_product(GroupSquare& out, const GroupHalves& x, const u16* y, bool first = true) {
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
        // Upper by upper, upper by lower, lower by upper.
        const u64 right = described(y + (part == 1 ? PANEL : 0));
#pragma unroll
        for (u32 s = 0; s < 4; s++)
            // Sixteen columns, or rows, from one to the next, in units of 16 bytes.
            group_multiply<!TRANSPOSED, 8, 0, true>(
                out.tiles(), x.x[part == 2][s], right + s * (TRANSPOSED ? 2 : 128), !first || part + s > 0
            );
    }
}

struct NewtonSchulzGroups {
    u32 steps;
    // `(α, β, κ)` and ε².
    float alpha, beta, kappa, epsilon;
    // This group's places: of X, of A, of D in a backward or of every other X in a forward; of P in a backward.
    u16 *of_x, *of_a, *of_d, *of_p;
    // In global memory, of a backward: X of all steps, each thread's own halves.
    uint4* kept;

    // The group's threads wait for each other. The whole block's barrier is number 0.
    __device__ __forceinline__ static void meet() {
        asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / GROUP_THREADS), "n"(GROUP_THREADS) : "memory");
    }
    // What all wrote to their places is there for products of all.
    __device__ __forceinline__ static void show() { show_to_groups(), meet(); }

    // What `take` makes of a number of each warp of the group, in order.
    template <class F> __device__ __forceinline__ static float of_warps(float own, F take) {
        float* all = partial() + threadIdx.x / GROUP_THREADS * 4;
        // Whoever reads those of the time before is through with them.
        meet();
        if (threadIdx.x % 32 == 0) all[threadIdx.x % GROUP_THREADS / 32] = own;
        meet();
        return take(take(all[0], all[1]), take(all[2], all[3]));
    }
    // Returns the sum over the threads of a group.
    __device__ __forceinline__ static float sum(float own) {
        return of_warps(warp_sum(own), [](float x, float y) { return x + y; });
    }

    // X of a step in global memory.
    __device__ __forceinline__ uint4* of_step(u32 step) const { return kept + step * 8 * GROUP_THREADS; }

    // NS(S) of tiles in memory; `inverse` is 1/ν. KEEP: a backward follows.
    // X is raised all along, A by the square of that: factors need no product with a scale.
    template <bool KEEP> __device__ __forceinline__ GroupSquare forward(const float* s, float& inverse) const {
        GroupSquare own;
        own.load_tiles(s);
        // (88)
        inverse = 1.0f / sqrtf(sum(own.dot(own)) + epsilon);
        own.scale(RAISED * inverse);
        for (u32 step = 0; step < steps; step++) {
            // Whoever still reads X of the step before has another place.
            u16* place = step % 2 ? of_d : of_x;
            GroupHalves left;
            left.make(own);
            left.put(place);
            if constexpr (KEEP) left.keep(of_step(step));
            show();
            // (89): A = X Xᵀ
            GroupSquare a;
            group_begin();
            group_product<true>(a, left, place);
            group_end(), hold(a.tiles());
            left.make(a);
            left.put(of_a);
            show();
            // (90): B = β A + κ A A, and X ← α X + B X
            // What the product is added to is scaled before, so that it needs no registers of its own.
            a.scale(beta / kappa / LOWERED);
            group_begin();
            group_product<true>(a, left, of_a, false);
            group_end(), hold(a.tiles());
            left.make(a, kappa * LOWERED / RAISED);
            group_begin();
            group_product<false>(a, left, place);
            group_end(), hold(a.tiles());
            own.add(alpha, 1.0f / RAISED, a);
        }
        own.scale(1.0f / RAISED);
        return own;
    }

    // (91): D of one step earlier. `x` is that step's X, and becomes that of the step before it.
    // Halves of one result are made while products of another are under way, which read others' registers.
    __device__ __forceinline__ void step_vjp(GroupSquare& own, GroupHalves& x, u32 step) const {
        GroupHalves left, right;
        left.make(own);
        x.put(of_x), left.put(of_d);
        show();
        // A, and P = D Xᵀ + X Dᵀ = dB + dBᵀ.
        GroupSquare a, p;
        group_begin();
        group_product<true>(a, x, of_x);
        group_commit();
        group_product<true>(p, left, of_x);
        group_product<true>(p, x, of_d, false);
        group_commit();
        group_wait<1>(), hold(a.tiles());
        right.make(a);
        right.put(of_a);
        group_wait(), hold(p.tiles());
        left.make(p, 1.0f / RAISED);
        left.put(of_p);
        show();
        // B = β A + κ A A, and dA + dAᵀ = β P + κ (P A + A P), since A is symmetric.
        // What products are added to is scaled before, so that they need no registers of their own.
        a.scale(beta / kappa / LOWERED), p.scale(beta / kappa * RAISED);
        group_begin();
        group_product<true>(a, right, of_a, false);
        group_commit();
        group_product<true>(p, left, of_a, false);
        group_product<true>(p, right, of_p, false);
        group_commit();
        group_wait<1>(), hold(a.tiles());
        x.make(a, kappa * LOWERED / RAISED);
        // D ← αD + B D + (dA + dAᵀ) X
        group_begin();
        group_product<false>(a, x, of_d);
        group_commit();
        group_wait<1>(), hold(p.tiles());
        // Lower by as much as its factor is raised, far from the largest half.
        left.make(p, kappa * LOWERED / RAISED);
        group_begin();
        group_product<false>(p, left, of_x);
        group_commit();
        group_wait<1>(), hold(a.tiles());
        // On its way while the last product is made.
        if (step) x.load(of_step(step - 1));
        own.add(alpha, 1.0f / RAISED, a);
        group_wait(), hold(p.tiles());
        own.add(1.0f, 1.0f, p);
        // Places are free again.
        meet();
    }

    // NS′(S)ᵀ of `own`, after a forward that kept all steps.
    __device__ __forceinline__ void backward(const float* s, float inverse, GroupSquare& own) const {
        // Numbers that are not negative are in the order of their bits.
        const float own_most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(own.most())));
        const PowerOfTwo start(of_warps(own_most, [](float x, float y) { return fmaxf(x, y); }));
        own.scale(start.up());
        GroupHalves x;
        x.load(of_step(steps - 1));
        for (u32 step = steps; step-- > 0;) step_vjp(own, x, step);
        // (92) with X₀ = S/ν.
        GroupSquare first;
        first.load_tiles(s);
        const float along = sum(own.dot(first)) * inverse * inverse;
        own.add(1.0f, -along, first);
        own.scale(inverse);
        own.scale(start.down());
    }
};
