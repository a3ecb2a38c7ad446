// Frozen groups with all factors of products in shared memory as fp16. Weights and momentum in f32 stay in global memory:
// a group reads them once and writes the state after it once.
#pragma once
#include "frozen_norm.cuh"
#include "kept_planes.cuh"

// The block's columns of a state of f32 in global memory: weights and momentum of both layers.
struct State {
    Panel x[2], s[2];
};

// What `activate` computes: the activation, its first or its second derivative.
enum { VALUE, SLOPE, SECOND };
// silu(x) or a derivative, within an ulp or two: results are rounded to the 11 bits of fp16.
template <u32 OF> __device__ __forceinline__ float quick_silu(float x) {
    float up = short_reciprocal(1.0f + short_exp2(-1.4426950408889634f * x)), down = 1.0f - up;
    if (OF == VALUE) return x * up;
    return OF == SLOPE ? up * (1.0f + x * down) : up * down * (2.0f + x * (down - up));
}
// x = act(x), act'(x) or act''(x), element by element of a thread's part of a tile.
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
// x *= y, element by element.
template <u32 N> __device__ __forceinline__ void multiply_by(float (&x)[N][4], const float (&y)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] *= y[i / 4][i % 4];
}
// x += y, element by element.
template <u32 N> __device__ __forceinline__ void add_to(float (&x)[N][4], const float (&y)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < 4 * N; i++) x[i / 4][i % 4] += y[i / 4][i % 4];
}

// Returns x[i:i+4] of an array of bfloat16 as floats, i a multiple of four; zeros if not `inside`.
__device__ __forceinline__ float4 get_four(Array x, u64 i, bool inside = true) {
    uint2 both = *(const uint2*)((const u16*)x.data + (inside ? i : 0));
    float2 low = unpack_bf16(both.x), high = unpack_bf16(both.y);
    return inside ? make_float4(low.x, low.y, high.x, high.y) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
// to[i:i+4] = x as bfloat16.
__device__ __forceinline__ void set_four(Array to, u64 i, float4 x) {
    *(uint2*)((u16*)to.data + i) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

// Tiles have sixteen columns for both layers: one code for both fits the instruction cache.
#define SIDE 2

// Up to so many elements of weights each layer has planes of its own; `resident::ROOMY` in Rust.
#define ROOMY 8192
// The three planes of a layer.
enum { WEIGHTS, MOMENTUM, ANCHOR };

// What a block holds of one memory and of the group of tokens that it computes. Only one thread changes it.
struct Resident : FrozenNorm {
    // Of both layers: weights, momentum and the anchor [K,width], [width,V].
    Plane w[2][3];
    // Keys and queries [rows,K], and the hidden layer at keys and at queries [rows,width].
    Plane keys[2], queries[2];
    // Writes z of both layers [rows,width], [rows,V]; c ∘ (q kᵀ) [rows,rows].
    Plane z0, z1, masked;
    // Pre-activations at keys [rows,width].
    OwnHalves pre;
    // The head's anchor in global memory, which both layers forget to.
    Panel anchor[2];
    // True if kept states are planes of fp16, false if they are f32.
    bool halves;
    // True if the planes of a layer are so large that both layers share places.
    bool tight;

    // Takes a plane [height,wide] from the arena.
    __device__ static Plane plane(Arena& arena, u32 height, u32 wide) { return {arena.take(Plane::size(height, wide)), height, wide}; }
    // Takes a matrix [height,wide] of f32 that each thread reads back itself.
    __device__ static Own own(Arena& arena, u32 height, u32 wide) { return {arena.take(height * wide), wide / 16}; }
    // Takes the same in fp16.
    __device__ static OwnHalves own_halves(Arena& arena, u32 height, u32 wide) {
        return {arena.take(Plane::size(height, wide)), wide / 16, height};
    }
    // True if the inner gradient is the error itself: no Huber, no clipping and no norm.
    __device__ bool plain() const { return !huber && o.per_clip == 0.0f && !o.norm; }
    // True if a layer has plane i.
    __device__ bool has(u32 i) const { return i == WEIGHTS || (i == MOMENTUM ? momentum : anchored); }
    // Returns factors [rows]: how much of plane i each token reads (A, B, 1 - A).
    __device__ const float* read_share(u32 i) const { return n.kept + i * rows; }
    // Returns factors [rows]: how much of each token's write plane i has after the group (c, E of the last token).
    __device__ const float* last_share(u32 i) const { return n.last_c + i * rows; }
    // Returns the rows of a layer's weights [height,wide] in this block.
    __device__ u32 height(u32 layer) const { return layer ? width : o.key; }
    // Returns the columns of a layer's weights in this block.
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

    // Returns the block's part of a state whose slots are w0 [K,D], w1 [D,V], m0 and m1.
    __device__ State state(const float* w0, const float* w1, const float* m0, const float* m1) const {
        return {{low(w0), high(w1)}, {low(m0), high(m1)}};
    }
    // Returns the block's part of state `index` in arrays of slots.
    __device__ State slots(const float* const* of, const RecurrentCall& call, u64 index) const {
        auto slot = [&](u32 i) { return of[i] + index * call.sizes[i]; };
        return state(slot(0), slot(1), slot(2), slot(3));
    }
    // Returns the block's part of a state that lies in one piece, slot after slot.
    __device__ State whole(const float* state) const {
        return this->state(state, state + o.first(), state + o.all(), state + o.all() + o.first());
    }

    // Returns where the block's planes of a kept state lie: weights and momentum of the first layer, then of the second.
    __device__ float* kept_planes(float* kept) const { return kept + cluster.rank * (u64)(o.key + o.value) * width * (momentum ? 2 : 1); }
    // Returns the 32-bit words of a layer's plane.
    __device__ u32 plane_size(u32 layer) const { return Plane::size(height(layer), wide(layer)); }
    // Starts to copy the planes to a kept state, by one thread; shared memory is read until `planes_read`.
    __device__ void keep(float* to) const {
        for (u32 i = 0; i < 4; i++)
            if (has(i % 2)) to = keep_plane(to, w[i / 2][i % 2], plane_size(i / 2));
        stores_begun();
    }

    // plane [height,wide] = from, rounded to fp16 with a scale a tile.
    TOGETHER_OF static void fill_plane(Plane plane, Panel from, u32 height, u32 wide) {
        fill<2>(plane, height, wide, [&](u32 i, u32 j) { return from.four(i, j); });
    }
    // to [height,wide] = from, in f32.
    TOGETHER_OF static void move(Panel to, Panel from, u32 height, u32 wide) {
        fours<4>(height, wide, [&](u32 i, u32 j) { return from.four(i, j); }, [&](u32 i, u32 j, float4 x) { to.four(i, j) = x; });
    }
    // Loads a state into planes, and copies it in f32 to where the first group reads it.
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

    // out [rows,wide] = the group's rows of an argument, with zeros beyond its last token.
    __device__ __forceinline__ void fill_rows(const Plane& out, Array from, const RecurrentCall& call, const SequenceHead& sequence,
                                              u32 start, u32 count, u32 wide) const {
        fill<1>(out, rows, wide, [&](u32 t, u32 i) {
            return get_four(from, sequence.row(call, start + (t < count ? t : 0)) * wide + i, t < count);
        });
    }
    // Loads a group's keys and queries and computes its masks.
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
    // sum += a @ W of a layer, or a @ W.T with B.
    template <bool B>
    __device__ __forceinline__ void point(float (&sum)[SIDE][4], const Plane& a, u32 layer, const Tile& tile, u32 depth) const {
        // W is X, or X + S where momentum looks ahead: then two products go into one sum.
        u32 count = ahead() ? 2 : 1;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) add_product<false, B>(sum, a, w[layer][i], tile, depth);
    }
    // masked [rows,rows] = c ∘ (query @ key.T) of a layer.
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
    // c of a tile [16,16] as queries read it: shifted down by one token where a token reads before it writes.
    struct MaskPart {
        float x[2][4];

        // Loads the thread's part of the mask's tile.
        __device__ __forceinline__ MaskPart(const FrozenMasks& f, const Tile& tile) {
            // A token that reads before its write finds what the token before it left.
            u32 before = f.o.read_after ? 0 : 1;
            Panel c = f.c;
            pairs(x, [&](u32 m, u32 n, float2& of) {
                u32 t = tile.row(m);
                of = t < before ? make_float2(0.0f, 0.0f) : *(const float2*)(c.row(t - before) + tile.column(n));
            });
        }
    };
    // z1 [rows,V] = -θ[:, None] * u, with predictions h @ W1 summed over the cluster and u their inner gradients.
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
    // z0 [rows,width] = (z1 @ W1.T) * act'(pre); θ is already in z1. `back`, if there is one, gets the product before the slope.
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
    // sum += A ∘ (query @ X) + B ∘ (query @ S) + (1 - A) ∘ (query @ anchor) + masked @ z, one tile of what queries read of a layer.
    __device__ __forceinline__ void read(float (&sum)[SIDE][4], u32 layer, const Plane& query, const Plane& z, const Tile& tile) const {
        // One loop serves all three, since small code is worth more here.
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
    // queries = last_c[:, None] * keys and keys = last_E[:, None] * keys of a layer: the left factors of what the group writes
    // to X and to S. They take the places of queries and keys, which are not read any more.
    __device__ __forceinline__ void share_keys(u32 layer) const {
        Plane key = keys[layer];
        auto scale = [&](const Plane& to, const float* by) {
            // A warp reads what it writes: in place is as good.
            fill<1>(to, rows, height(layer), [&](u32 t, u32 i) { return map([&](float x) { return by[t] * x; }, key.four(t, i)); });
        };
        scale(queries[layer], n.last_c);
        if (momentum) scale(key, n.last_e);
    }
    // Writes the state after the group from `from` to `to`, which may be the same; keys and queries are overwritten.
    template <bool PLANES> TOGETHER_OF void write(const State& from, const State& to) const {
        // Queries are not read again after the group's reads.
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
    // X = A X + B S + (1 - A) anchor + (last_c ∘ k).T @ z, and S = E S + (last_E ∘ k).T @ z, of one layer in f32.
    template <bool PLANES>
    __device__ __forceinline__ void write_layer(u32 layer, const Plane& z, const State& from, const State& to) const {
        // The factors after the group's last token.
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1], gone = n.gone[tokens - 1];
        Panel x0 = from.x[layer], s0 = from.s[layer], x1 = to.x[layer], s1 = to.s[layer], anchor = this->anchor[layer];
        Plane of_x = w[layer][WEIGHTS], of_s = w[layer][MOMENTUM], by_x = queries[layer], by_s = keys[layer];
        bool momentum = this->momentum, anchored = this->anchored;
        u32 depth = rows;
        Tiles<SIDE> all(height(layer), wide(layer));
        // The state is added to in f32: fp16 would round it once a group.
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
                // The anchor is read in f32 here, though queries read it in fp16.
                get_tile(to, anchor, tile);
#pragma unroll
                for (u32 e = 0; e < SIDE * 4; e++) own[e / 4][e % 4] += gone * to[e / 4][e % 4];
            }
            add_product<true, false>(own, by_x, z, tile, depth);
            // The next group adds to f32 and reads fp16.
            set_tile(x1, tile, own);
            if (PLANES) set_tile(of_x, tile, own);
            if (!momentum) continue;
            add_product<true, false>(other, by_s, z, tile, depth);
            set_tile(s1, tile, other);
            if (PLANES) set_tile(of_s, tile, other);
        }
    }
};
