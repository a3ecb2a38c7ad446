// Frozen groups whose factors all lie in shared memory as halves. Weights and momentum of 32 bits stay where states are kept:
// a group reads them there once and writes what comes after it.
#pragma once
#include "frozen_norm.cuh"
#include "kept_planes.cuh"

// A state of 32 bits in global memory, of which a block has its columns.
struct State {
    Panel x[2], s[2];
};

// Of the activation: its value, and the first two derivatives.
enum { VALUE, SLOPE, SECOND };
// Within an ulp or two: what it is used for has 11 bits of fraction.
template <u32 OF> __device__ __forceinline__ float quick_silu(float x) {
    float up = short_reciprocal(1.0f + short_exp2(-1.4426950408889634f * x)), down = 1.0f - up;
    if (OF == VALUE) return x * up;
    return OF == SLOPE ? up * (1.0f + x * down) : up * down * (2.0f + x * (down - up));
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
        each[i] = OF == VALUE ? of.value : OF == SLOPE ? of.slope : of.second;
    }
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] = each[i];
}
// By elements.
template <u32 N> __device__ __forceinline__ void multiply_by(float (&x)[N][4], const float (&y)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] *= y[i / 4][i % 4];
}
template <u32 N> __device__ __forceinline__ void add_to(float (&x)[N][4], const float (&y)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] += y[i / 4][i % 4];
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

// Tiles have sixteen columns, those of either layer: code for one that both run fits the cache of instructions.
#define SIDE 2

// Elements of a plane of weights, at most, where each layer has places of its own; `resident::ROOMY`.
#define ROOMY 8192
// Of the planes of a layer.
enum { WEIGHTS, MOMENTUM, ANCHOR };

// What a block has of a memory and of the group in work. One thread changes it.
struct Resident : FrozenNorm {
    // Of both layers: weights, momentum and the anchor [K,width], [width,V].
    Plane w[2][3];
    // Keys and queries [rows,K]; the hidden layer at these [rows,width].
    Plane keys[2], queries[2];
    // Values of both layers [rows,width], [rows,V]; masked products of queries and keys [rows,rows].
    Plane z0, z1, masked;
    // Pre-activations at keys [rows,width].
    OwnHalves pre;
    // The anchor of the head.
    Panel anchor[2];
    // Whether kept states are planes of halves, and not of 32 bits.
    bool halves;
    // Whether planes of a layer are so large that the layers share places.
    bool tight;

    __device__ static Plane plane(Arena& arena, u32 height, u32 wide) { return {arena.take(Plane::size(height, wide)), height, wide}; }
    __device__ static Own own(Arena& arena, u32 height, u32 wide) { return {arena.take(height * wide), wide / 16}; }
    __device__ static OwnHalves own_halves(Arena& arena, u32 height, u32 wide) {
        return {arena.take(Plane::size(height, wide)), wide / 16, height};
    }
    // Whether the inner gradient is the error.
    __device__ bool plain() const { return !huber && o.per_clip == 0.0f && !o.norm; }
    // Which of the planes of a layer there are.
    __device__ bool has(u32 i) const { return i == WEIGHTS || (i == MOMENTUM ? momentum : anchored); }
    // What is read of each, and written to the first two, by token: numbers that lie one after another.
    __device__ const float* read_share(u32 i) const { return n.kept + i * rows; }
    __device__ const float* last_share(u32 i) const { return n.last_c + i * rows; }
    // [height,wide] of a layer's weights.
    __device__ u32 height(u32 layer) const { return layer ? width : o.key; }
    __device__ u32 wide(u32 layer) const { return layer ? o.value : width; }

    // By one thread, before shared memory is divided. Planes of halves are what a group may leave in the place of a state.
    __device__ void begin_resident(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_places(call, options, arena);
        halves = call.record > 0, tight = max(o.key, o.value) * width > ROOMY;
    }
    // By one thread; the order is that of `resident::Resident::forward`.
    TOGETHER_OF void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_resident(call, options, arena);
        // First what must be in shared memory.
        for (u32 l = 0; l < 2; l++) {
            // What a rule does not have takes no place.
            for (u32 i = 0; i < 3; i++) w[l][i] = plane(arena, has(i) ? height(l) : 0, wide(l));
            keys[l] = plane(arena, rows, height(l));
            if (!tight) queries[l] = plane(arena, rows, height(l));
        }
        // One place for both, in turn.
        float* shared = arena.take(tight ? Plane::size(rows, max(o.key, width)) : 0);
        for (u32 l = 0; l < 2 && tight; l++) queries[l] = {shared, rows, height(l)};
        z0 = plane(arena, rows, width), z1 = plane(arena, rows, o.value), masked = plane(arena, rows, rows);
        c = panel(arena, rows, rows), e = Panel{nullptr, 0}, pre = own_halves(arena, rows, width);
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value);
        // No one asks for it.
        if (plain()) u.x = nullptr;
        place_norm(arena);
    }
    // The anchor of a head, by one thread.
    __device__ void find_anchor(const RecurrentCall& call, u32 head) {
        if (!anchored) return;
        anchor[0] = low(call.anchor[0] + (u64)head * call.sizes[0]), anchor[1] = high(call.anchor[1] + (u64)head * call.sizes[1]);
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

    // Planes of what the block has of a kept state: weights and momentum of the first layer, then of the second.
    __device__ float* kept_planes(float* kept) const { return kept + cluster.rank * (u64)(o.key + o.value) * width * (momentum ? 2 : 1); }
    __device__ u32 plane_size(u32 layer) const { return Plane::size(height(layer), wide(layer)); }
    // Of the state that is in planes, by one thread; they are read until `planes_read`.
    __device__ void keep(float* to) const {
        for (u32 i = 0; i < 4; i++)
            if (has(i % 2)) to = keep_plane(to, w[i / 2][i % 2], plane_size(i / 2));
        stores_begun();
    }

    // A matrix into its plane.
    TOGETHER_OF static void fill_plane(Plane plane, Panel from, u32 height, u32 wide) {
        fill<2>(plane, height, wide, [&](u32 i, u32 j) { return from.four(i, j); });
    }
    TOGETHER_OF static void move(Panel to, Panel from, u32 height, u32 wide) {
        fours<4>(height, wide, [&](u32 i, u32 j) { return from.four(i, j); }, [&](u32 i, u32 j, float4 x) { to.four(i, j) = x; });
    }
    // A state into planes, and to where the first group finds it.
    TOGETHER_OF void load(const State& from, const State& to) const {
#pragma unroll 1
        for (u32 l = 0; l < 2; l++) {
            fill_plane(w[l][WEIGHTS], from.x[l], height(l), wide(l)), move(to.x[l], from.x[l], height(l), wide(l));
            if (momentum) fill_plane(w[l][MOMENTUM], from.s[l], height(l), wide(l)), move(to.s[l], from.s[l], height(l), wide(l));
            if (anchored) fill_plane(w[l][ANCHOR], anchor[l], height(l), wide(l));
        }
        show_planes();
        __syncthreads();
    }

    // Rows of a group, zeros beyond its last token.
    __device__ __forceinline__ void fill_rows(const Plane& out, Array from, const RecurrentCall& call, const SequenceHead& sequence,
                                              u32 start, u32 count, u32 wide) const {
        fill<1>(out, rows, wide, [&](u32 t, u32 i) {
            return get_four(from, sequence.row(call, start + (t < count ? t : 0)) * wide + i, t < count);
        });
    }
    // A group's rows and masks.
    TOGETHER_OF void begin_group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Arguments are exact as halves.
        fill_rows(keys[0], call.k, call, sequence, start, count, o.key);
        fill_rows(queries[0], call.q, call, sequence, start, count, o.key);
        begin_numbers(call, sequence, start, count);
        __syncthreads();
    }

    // h = σ(k X₀), with pre-activations.
    TOGETHER_OF void hidden_of_keys() const {
        u32 kind = o.activation, depth = o.key;
        OwnHalves pre = this->pre;
        Plane h = keys[1], k = keys[0];
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {};
            point<false>(sum, k, 0, tile, depth);
            set_tile(pre, tile, sum);
            activate<VALUE>(sum, kind);
            set_tile(h, tile, sum);
        });
    }
    // sum += a W of a layer, or a Wᵀ.
    template <bool B>
    __device__ __forceinline__ void point(float (&sum)[SIDE][4], const Plane& a, u32 layer, const Tile& tile, u32 depth) const {
        // W is X, or X + S.
        u32 count = ahead() ? 2 : 1;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) add_product<false, B>(sum, a, w[layer][i], tile, depth);
    }
    // c ∘ (ρ κᵀ) of a layer.
    TOGETHER_OF void mask_of(u32 layer) const {
        Plane masked = this->masked;
        Plane query = queries[layer], key = keys[layer];
        u32 depth = height(layer);
        tiles<2>(rows, rows, [&](const Tile& tile) {
            // A tile has sixteen keys.
            float sum[2][4] = {};
            MaskPart by(*this, tile);
            add_product<false, true>(sum, query, key, tile, depth);
            multiply_by(sum, by.x);
            set_tile(masked, tile, sum);
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
    // Predictions for keys, and inner gradients: values of both layers.
    TOGETHER_OF void teach_group(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel sums_of = {sums + (u64)turn * rows * o.value, o.value};
        Plane h = keys[1];
        u32 depth = width;
        tiles<SIDE>(rows, o.value, [&](const Tile& tile) {
            float sum[SIDE][4] = {};
            point<false>(sum, h, 1, tile, depth);
            set_tile(sums_of, tile, sum);
        });
        cluster.meet();
        // Without a bias, (94) and a norm the inner gradient is the error.
        bool plain = this->plain(), norm = o.norm;
        Panel u = this->u, v = this->v, normed = this->normed;
        if (norm) predict(sums_of);
        fill<1>(z1, rows, o.value, [&](u32 t, u32 i) {
            // Beyond the last token nothing is written: its θ is zero.
            float4 value = get_four(call.v, sequence.row(call, start + t) * o.value + i, t < tokens);
            float4 error = map([](float out, float v) { return out - v; }, norm ? normed.four(t, i) : total(sums_of.row(t) + i), value);
            if (o.residual) error = map([](float x, float y) { return x + y; }, error, keys[0].four(t, i));
            if (!plain) v.four(t, i) = error;
            else if (u.x) u.four(t, i) = error;
            return map([&](float x) { return -n.theta[t] * x; }, error);
        });
        __syncthreads();
        if (!plain) {
            ROWS(t, rows) {
                shorten(t);
                if (norm) write_with(t);
            }
            __syncthreads();
            fill<1>(z1, rows, o.value, [&](u32 t, u32 i) { return map([&](float x) { return -n.theta[t] * x; }, u.four(t, i)); });
            __syncthreads();
        }
    }
    // z₀ = (z₁ W₁ᵀ) ∘ σ′: θ is in z₁. The product goes to `back`, unless that is nowhere.
    TOGETHER_OF void values_of_first(OwnHalves back) const {
        u32 kind = o.activation, depth = o.value;
        OwnHalves pre = this->pre;
        Plane z0 = this->z0, z1 = this->z1;
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {}, slope[SIDE][4];
            // Asked for before the product, and there when it is done.
            get_tile(slope, pre, tile);
            point<true>(sum, z1, 1, tile, depth);
            if (back.x) set_tile(back, tile, sum);
            activate<SLOPE>(slope, kind);
            multiply_by(sum, slope);
            set_tile(z0, tile, sum);
        });
        __syncthreads();
    }
    // A tile of what queries read of a layer: A ∘ (ρ X) + B ∘ (ρ S) + (1 − A) ∘ (ρ anchor) + masked z.
    __device__ __forceinline__ void read(float (&sum)[SIDE][4], u32 layer, const Plane& query, const Plane& z, const Tile& tile) const {
        // One loop for all three: code counts.
        u32 depth = height(layer);
#pragma unroll 1
        for (u32 i = 0; i < 3; i++) {
            if (!has(i)) continue;
            float other[SIDE][4] = {};
            add_product<false, false>(other, query, w[layer][i], tile, depth);
            // As much of each as the token reads.
            add_rows(sum, other, read_share(i), tile);
        }
        // Writes in the group, of earlier tokens.
        add_product<false, false>(sum, masked, z, tile, rows);
    }
    // Keys of a layer times shares of writes: those of momentum in place, those of weights where queries were.
    __device__ __forceinline__ void share_keys(u32 layer) const {
        Plane key = keys[layer];
        auto scale = [&](const Plane& to, const float* by) {
            // A warp reads what it writes: in place is as good.
            fill<1>(to, rows, height(layer), [&](u32 t, u32 i) { return map([&](float x) { return by[t] * x; }, key.four(t, i)); });
        };
        scale(queries[layer], n.last_c);
        if (momentum) scale(key, n.last_e);
    }
    // The state after the group, from where it is to where it goes, which may be the same place. Keys and queries are lost.
    template <bool PLANES> TOGETHER_OF void write(const State& from, const State& to) const {
        // No one asks for keys or queries behind the group's reads.
#pragma unroll 1
        for (u32 l = 0; l < 2 && !tight; l++) share_keys(l);
        __syncthreads();
#pragma unroll 1
        for (u32 l = 0; l < 2; l++) {
            if (tight) share_keys(l), __syncthreads();
            write_layer<PLANES>(l, l ? z1 : z0, from, to);
            if (tight) __syncthreads();
        }
        if (PLANES) show_planes();
        __syncthreads();
    }
    template <bool PLANES>
    __device__ __forceinline__ void write_layer(u32 layer, const Plane& z, const State& from, const State& to) const {
        // After the last token.
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1], gone = n.gone[tokens - 1];
        Panel x0 = from.x[layer], s0 = from.s[layer], x1 = to.x[layer], s1 = to.s[layer], anchor = this->anchor[layer];
        Plane of_x = w[layer][WEIGHTS], of_s = w[layer][MOMENTUM], by_x = queries[layer], by_s = keys[layer];
        bool momentum = this->momentum, anchored = this->anchored;
        u32 depth = rows;
        Tiles<SIDE> all(height(layer), wide(layer));
        // Of 32 bits: what is added in every group must not be rounded in every group.
        float next[SIDE][4], next_of_s[SIDE][4] = {};
        auto load = [&](u32 i) {
            get_tile(next, x0, all.at(i));
            if (momentum) get_tile(next_of_s, s0, all.at(i));
        };
        u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
        if (warp < all.all) load(warp);
#pragma unroll 1
        for (u32 i = warp; i < all.all; i += warps) {
            Tile tile = all.at(i);
            float own[SIDE][4], other[SIDE][4];
#pragma unroll
            for (u32 e = 0; e < SIDE * 4; e++) {
                float x = next[e / 4][e % 4], s = next_of_s[e / 4][e % 4];
                own[e / 4][e % 4] = A * x + B * s, other[e / 4][e % 4] = E * s;
            }
            // The next tile comes while this one is in work.
            if (i + warps < all.all) load(i + warps);
            if (anchored) {
                float to[SIDE][4];
                // The anchor has 32 bits here, and halves where it is read.
                get_tile(to, anchor, tile);
#pragma unroll
                for (u32 e = 0; e < SIDE * 4; e++) own[e / 4][e % 4] += gone * to[e / 4][e % 4];
            }
            add_product<true, false>(own, by_x, z, tile, depth);
            // For the next group: 32 bits to add to, and halves to read.
            set_tile(x1, tile, own);
            if (PLANES) set_tile(of_x, tile, own);
            if (!momentum) continue;
            add_product<true, false>(other, by_s, z, tile, depth);
            set_tile(s1, tile, other);
            if (PLANES) set_tile(of_s, tile, other);
        }
    }
};
