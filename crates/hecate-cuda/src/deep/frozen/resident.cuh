// Frozen groups whose factors all lie in shared memory as bfloat16. Weights and momentum of 32 bits stay where states are kept:
// a group reads them there once and writes what comes after it.
#pragma once
#include "frozen_masks.cuh"
#include "plane.cuh"

// A state of 32 bits in global memory, of which a block has its columns.
struct State {
    Panel x[2], s[2];
};

// Of the activation: its value and its derivative.
enum { VALUE, SLOPE };
// Within an ulp or two: what it is used for has 8 bits of fraction.
template <u32 OF> __device__ __forceinline__ float quick_silu(float x) {
    float up = short_reciprocal(1.0f + short_exp2(-1.4426950408889634f * x)), down = 1.0f - up;
    return OF == VALUE ? x * up : up * (1.0f + x * down);
}
// Of each of a tile, in place.
template <u32 OF, u32 N> __device__ __forceinline__ void activate(float (&x)[N][4], u32 kind) {
    if (kind == SILU) {
#pragma unroll
        for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] = quick_silu<OF>(x[i / 4][i % 4]);
        return;
    }
    // The others are long: called from one place, which takes them out of registers.
    float each[4 * N];
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) each[i] = x[i / 4][i % 4];
#pragma unroll 1
    for (u32 i = 0; i < 4 * N; i++) {
        Curve of = other_curve(kind, each[i]);
        each[i] = OF == VALUE ? of.value : of.slope;
    }
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] = each[i];
}
// By elements.
template <u32 N> __device__ __forceinline__ void multiply_by(float (&x)[N][4], const float (&y)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] *= y[i / 4][i % 4];
}
// A thread's part of a tile out of a part of a panel, and back.
template <u32 N, class From> __device__ __forceinline__ void get_tile(float (&x)[N][4], const From& from) {
    pairs(x, [&](u32 m, u32 n, float2& of) { of = from(m, n); });
}
template <u32 N, class To> __device__ __forceinline__ void set_tile(const To& to, float (&x)[N][4]) {
    pairs(x, [&](u32 m, u32 n, float2& of) { to.set(m, n, of); });
}

// Four neighbours of an array of bfloat16, from a multiple of four; zeros where `inside` is false.
__device__ __forceinline__ float4 get_four(Array x, u64 i, bool inside = true) {
    uint2 both = *(const uint2*)((const u16*)x.data + (inside ? i : 0));
    float2 low = unpack_bf16(both.x), high = unpack_bf16(both.y);
    return inside ? make_float4(low.x, low.y, high.x, high.y) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
__device__ __forceinline__ void set_four(Array to, u64 i, float4 x) {
    *(uint2*)((u16*)to.data + i) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

// What a block has of a memory and of the group in work. One thread changes it.
struct Resident : FrozenMasks {
    // Weights and momentum of both layers [K,width], [width,V].
    FinePlane x[2];
    Plane s[2];
    // Keys and queries [rows,K]; the hidden layer at these [rows,width].
    Plane keys[2], queries[2];
    // Values of both layers [rows,width], [rows,V]; masked products of queries and keys [rows,rows].
    Plane z0;
    FinePlane z1, masked;
    // Pre-activations at keys [rows,width].
    Panel pre;

    // Rounded elements, and those with a rest.
    __device__ static Plane plane(Arena& arena, u32 height, u32 wide) { return {arena.take((u64)height * wide / 2), wide}; }
    __device__ static FinePlane fine(Arena& arena, u32 height, u32 wide) { return {arena.take((u64)height * wide), height, wide}; }
    // Whether what is taught is the error.
    __device__ bool plain() const { return !huber && o.per_clip == 0.0f; }
    // [height,wide] of a layer's weights.
    __device__ u32 height(u32 layer) const { return layer ? width : o.key; }
    __device__ u32 wide(u32 layer) const { return layer ? o.value : width; }

    // By one thread; the order is that of `resident::Places`.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_places(call, options, arena);
        // First what must be in shared memory.
        for (u32 l = 0; l < 2; l++) {
            x[l] = fine(arena, height(l), wide(l)), s[l] = plane(arena, momentum ? height(l) : 0, wide(l));
            keys[l] = plane(arena, rows, height(l)), queries[l] = plane(arena, rows, height(l));
        }
        z0 = plane(arena, rows, width), z1 = fine(arena, rows, o.value), masked = fine(arena, rows, rows);
        c = panel(arena, rows, rows), e = Panel{nullptr, 0}, pre = panel(arena, rows, width);
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value);
    }

    // Of a state by slots, and of one in one piece.
    __device__ State state(const float* w0, const float* w1, const float* m0, const float* m1) const {
        return {{low(w0), high(w1)}, {low(m0), high(m1)}};
    }
    __device__ State slots(const float* const* of, const RecurrentCall& call, u64 index) const {
        auto slot = [&](u32 i) { return of[i] + index * call.sizes[i]; };
        return state(slot(0), slot(1), slot(2), slot(3));
    }
    __device__ State whole(const float* state) const {
        return this->state(state, state + o.first(), state + o.all(), state + o.all() + o.first());
    }

    // A matrix into its plane and to another place of 32 bits.
    template <class P> __device__ __forceinline__ static void fill_plane(P plane, Panel from, Panel to, u32 height, u32 wide) {
        fours<4>(height, wide, [&](u32 i, u32 j) { return from.four(i, j); }, [&](u32 i, u32 j, float4 x) {
            plane.set(i, j, x);
            to.four(i, j) = x;
        });
    }
    // A state into planes, and to where the first group finds it.
    TOGETHER_OF void load(const State& from, const State& to) const {
#pragma unroll 1
        for (u32 l = 0; l < 2; l++) {
            fill_plane(x[l], from.x[l], to.x[l], height(l), wide(l));
            if (momentum) fill_plane(s[l], from.s[l], to.s[l], height(l), wide(l));
        }
        __syncthreads();
    }

    // Rows of a group of 16-bit elements as they are, zeros beyond its last token.
    __device__ __forceinline__ void copy_rows(Plane out, Array from, const RecurrentCall& call, const SequenceHead& sequence, u32 start,
                                              u32 count, u32 wide) const {
        u32 pieces = wide / 8, all = rows * pieces;
        EACH(i, all) {
            u32 t = i / pieces, j = i % pieces * 8;
            copy_16(out.at(t, j), (const u16*)from.data + sequence.row(call, start + (t < count ? t : 0)) * wide + j, t < count);
        }
    }
    // A group's rows and masks.
    TOGETHER_OF void begin_group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Rows come while numbers are made.
        copy_rows(keys[0], call.k, call, sequence, start, count, o.key);
        copy_rows(queries[0], call.q, call, sequence, start, count, o.key);
        copies_commit();
        begin_numbers(call, sequence, start, count);
        copies_wait<0>();
        __syncthreads();
    }

    // h = σ(k X₀), with pre-activations.
    template <u32 N> __device__ __forceinline__ void hidden_of_keys() const {
        u32 kind = o.activation, depth = o.key;
        Panel pre = this->pre;
        Plane h = keys[1], k = keys[0];
        tiles<N>(rows, width, [&](const Tile& tile) {
            float sum[N][4] = {};
            point<false>(sum, k, 0, tile, depth);
            auto to_pre = part(pre, tile);
            auto to_h = part(h, tile);
            set_tile(to_pre, sum);
            activate<VALUE>(sum, kind);
            set_tile(to_h, sum);
        });
    }
    // sum += a W of a layer, or a Wᵀ.
    template <bool B, u32 N, class L>
    __device__ __forceinline__ void point(float (&sum)[N][4], const L& a, u32 layer, const Tile& tile, u32 depth) const {
        add_product<false, B>(sum, a, x[layer], tile, depth);
        if (ahead()) add_product<false, B>(sum, a, s[layer], tile, depth);
    }
    // c ∘ (ρ κᵀ) of a layer.
    __device__ __forceinline__ void mask_of(u32 layer) const {
        FinePlane masked = this->masked;
        Plane query = queries[layer], key = keys[layer];
        u32 depth = height(layer);
        tiles<2>(rows, rows, [&](const Tile& tile) {
            float sum[2][4] = {};
            MaskPart by(*this, tile);
            add_product<false, true>(sum, query, key, tile, depth);
            multiply_by(sum, by.x);
            set_tile(part(masked, tile), sum);
        });
    }
    // What tokens read of writes, of a tile of two times eight columns.
    struct MaskPart {
        float x[2][4];

        __device__ __forceinline__ MaskPart(const FrozenMasks& f, const Tile& tile) {
            // Tokens that read before their write find what the one before left.
            u32 before = f.o.read_after ? 0 : 1;
            Panel c = f.c;
            pairs(x, [&](u32 m, u32 n, float2& of) {
                u32 t = tile.row(m);
                of = t < before ? make_float2(0.0f, 0.0f) : *(const float2*)(c.row(t - before) + tile.column(n));
            });
        }
    };
    // What the network says of keys, and what it is taught: values of both layers.
    template <u32 N> __device__ __forceinline__ void teach_group(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel sums_of = {sums + (u64)turn * rows * o.value, o.value};
        Plane h = keys[1];
        u32 depth = width;
        tiles<N>(rows, o.value, [&](const Tile& tile) {
            float sum[N][4] = {};
            point<false>(sum, h, 1, tile, depth);
            set_tile(part(sums_of, tile), sum);
        });
        cluster.meet();
        // Without a bias and (94) errors stay in registers.
        bool plain = this->plain();
        FinePlane values = z1;
        Panel u = this->u;
        auto load = [&](u32 t, u32 i) {
            // Beyond the last token nothing is taught: its θ is zero.
            float4 v = get_four(call.v, sequence.row(call, start + t) * o.value + i, t < tokens);
            return Two{total(sums_of.row(t) + i), v};
        };
        fours<2>(rows, o.value, load, [&](u32 t, u32 i, const Two& of) {
            float4 error = map([](float out, float v) { return out - v; }, of.x, of.y);
            if (o.residual) error = map([](float x, float y) { return x + y; }, error, keys[0].four(t, i));
            if (plain) values.set(t, i, map([&](float x) { return -n.theta[t] * x; }, error));
            else v.four(t, i) = error;
        });
        __syncthreads();
        if (!plain) {
            ROWS(t, rows) shorten(t);
            __syncthreads();
            fours<2>(rows, o.value, [&](u32 t, u32 i) { return u.four(t, i); }, [&](u32 t, u32 i, float4 x) {
                values.set(t, i, map([&](float x) { return -n.theta[t] * x; }, x));
            });
            __syncthreads();
        }
    }
    // z₀ = (z₁ W₁ᵀ) ∘ σ′: θ is in z₁.
    template <u32 N> __device__ __forceinline__ void values_of_first() const {
        u32 kind = o.activation, depth = o.value;
        Panel pre = this->pre;
        Plane z0 = this->z0;
        FinePlane z1 = this->z1;
        tiles<N>(rows, width, [&](const Tile& tile) {
            float sum[N][4] = {}, slope[N][4];
            // Asked for before the product, and there when it is done.
            get_tile(slope, part(pre, tile));
            point<true>(sum, z1, 1, tile, depth);
            activate<SLOPE>(slope, kind);
            multiply_by(sum, slope);
            set_tile(part(z0, tile), sum);
        });
        __syncthreads();
    }
    // A tile of what queries read of a layer: A ∘ (ρ X) + B ∘ (ρ S) + masked z.
    template <u32 N, class R>
    __device__ __forceinline__ void read(float (&sum)[N][4], u32 layer, const Plane& query, const R& z, const Tile& tile) const {
        u32 depth = height(layer);
        add_product<false, false>(sum, query, x[layer], tile, depth);
        scale_rows(sum, n.kept, tile);
        if (momentum) {
            float other[N][4] = {};
            add_product<false, false>(other, query, s[layer], tile, depth);
            add_rows(sum, other, n.pushed, tile);
        }
        add_product<false, false>(sum, masked, z, tile, rows);
    }
    // A layer's state after the group, from where it is to where it goes, which may be the same place.
    template <u32 N, class R>
    __device__ __forceinline__ void write(u32 layer, const R& z, const State& from, const State& to) const {
        // After the last token.
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        const float *by_x = n.last_c, *by_s = n.last_e;
        Panel x0 = from.x[layer], s0 = from.s[layer], x1 = to.x[layer], s1 = to.s[layer];
        FinePlane of_x = x[layer];
        Plane of_s = s[layer], key = keys[layer];
        bool momentum = this->momentum;
        u32 depth = rows;
        tiles<N>(height(layer), wide(layer), [&](const Tile& tile) {
            float own[N][4], other[N][4] = {};
            // Of 32 bits: what is added in every group must not be rounded in every group.
            get_tile(own, part(x0, tile));
            if (momentum) get_tile(other, part(s0, tile));
#pragma unroll
            for (u32 i = 0; i < N * 4; i++)
                own[i / 4][i % 4] = A * own[i / 4][i % 4] + B * other[i / 4][i % 4], other[i / 4][i % 4] *= E;
            add_scaled(own, other, momentum, key, z, tile, by_x, by_s, depth);
            set_tile(part(x1, tile), own);
            set_tile(part(of_x, tile), own);
            if (!momentum) return;
            set_tile(part(s1, tile), other);
            set_tile(part(of_s, tile), other);
        });
    }
};
