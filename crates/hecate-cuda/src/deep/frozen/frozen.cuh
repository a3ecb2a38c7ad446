// Frozen groups by products of 32-bit arrays, in shared memory or in the cache: of any sizes and options.
#pragma once
#include "frozen_norm.cuh"

// What a block has of a memory and of the group in work. It lies in shared memory: one thread changes it. Places are taken
// in the order of `frozen::Places`.
struct Frozen : FrozenNorm {
    // Values of the first layer, the hidden layer at keys and at queries [rows,width].
    Panel z0, h, hq;
    // Weights [K,width], [width,V].
    Panel x0, x1;
    // Keys and queries [rows,K], their products [rows,rows].
    Panel k, q, square;
    // Values of the second layer [rows,V]; rows of either width.
    Panel z1, spare;
    // Momentum; anchors in global memory.
    Panel s0, s1, anchor0, anchor1;

    // By one thread.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_places(call, options, arena);
        u32 widest = o.key > o.value ? o.key : o.value, inner = deep() ? rows : 0;
        z0 = panel(arena, inner, width), h = panel(arena, inner, width);
        x0 = panel(arena, deep() ? o.key : 0, width), x1 = panel(arena, width, o.value);
        k = panel(arena, rows, o.key), u = panel(arena, rows, o.value);
        hq = panel(arena, inner, width), square = panel(arena, rows, rows);
        q = panel(arena, rows, o.key), c = panel(arena, rows, rows), e = Panel{nullptr, 0};
        z1 = panel(arena, rows, o.value), v = panel(arena, rows, o.value), spare = panel(arena, rows, widest);
        s0 = panel(arena, momentum ? o.key : 0, width), s1 = panel(arena, momentum ? width : 0, o.value);
        if (!deep()) h = k, hq = q;
        place_norm(arena);
    }

    // The anchors of a head, by one thread.
    __device__ void find_anchors(const RecurrentCall& call, u32 head) {
        if (!anchored) return;
        auto slot = [&](u32 i) { return call.anchor[i] + (u64)head * call.sizes[i]; };
        anchor0 = low(slot(0)), anchor1 = high(slot(second()));
    }

    // out = x, both [height,wide].
    TOGETHER_OF static void move(Panel out, Panel x, u32 height, u32 wide) {
        fours<4>(height, wide, [&](u32 i, u32 j) { return x.four(i, j); }, [&](u32 i, u32 j, float4 x) { out.four(i, j) = x; });
    }
    // out = by ∘ x, of a number a row.
    TOGETHER_OF void scaled(Panel out, const float* by, Panel x, u32 wide) const {
        fours<4>(rows, wide, [&](u32 i, u32 j) { return map([&](float x) { return by[i] * x; }, x.four(i, j)); },
              [&](u32 i, u32 j, float4 x) { out.four(i, j) = x; });
        __syncthreads();
    }
    // out = σ(x) [rows,width].
    TOGETHER_OF void activate(Panel out, Panel x) const {
        // Read once: stores could change what lies in shared memory.
        u32 kind = o.activation;
        fours<2>(rows, width, [&](u32 t, u32 i) { return x.four(t, i); }, [&](u32 t, u32 i, float4 x) {
            out.four(t, i) = map([&](float x) { return curve(kind, x).value; }, x);
        });
        __syncthreads();
    }
    // out = keep out + sign by ∘ x ∘ σ′(pre) [rows,width], `by` a number a row, null for 1.
    TOGETHER_OF void times_slope(Panel out, float keep, float sign, const float* by, Panel x, Panel pre) const {
        u32 kind = o.activation;
        auto load = [&](u32 t, u32 i) {
            return Three{x.four(t, i), pre.four(t, i), keep == 0.0f ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : out.four(t, i)};
        };
        fours<2>(rows, width, load, [&](u32 t, u32 i, const Three& of) {
            float factor = by ? sign * by[t] : sign;
            auto sum = [&](float x, float pre, float old) { return keep * old + factor * x * curve(kind, pre).slope; };
            out.four(t, i) = map(sum, of.x, of.y, of.z);
        });
        __syncthreads();
    }

    // Both weights and both momenta out of, or into, matrices in global memory.
    __device__ void load(const float* w0, const float* w1, const float* m0, const float* m1) const {
        if (deep()) move(x0, low(w0), o.key, width);
        move(x1, high(w1), width, o.value);
        // Without momentum these addresses are nowhere.
        if (momentum) move(s0, low(m0), o.key, width), move(s1, high(m1), width, o.value);
        __syncthreads();
    }
    // Stores the block's part of the state to the four slots.
    __device__ void save(float* w0, float* w1, float* m0, float* m1) const {
        if (deep()) move(low(w0), x0, o.key, width);
        move(high(w1), x1, width, o.value);
        if (momentum) move(low(m0), s0, o.key, width), move(high(m1), s1, width, o.value);
        __syncthreads();
    }
    // The same of a whole state in one piece.
    __device__ void load(const float* state) const {
        load(state, state + behind_first(), state + o.all(), state + o.all() + o.first());
    }
    // Stores it to a state in one piece.
    __device__ void save(float* state) const {
        save(state, state + behind_first(), state + o.all(), state + o.all() + o.first());
    }

    // Rows of a group, zeros beyond its last token.
    TOGETHER_OF void load_rows(Panel out, Array x, const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count,
                              u32 wide) const {
        // Rows beyond the last token are zeros, which write nothing.
        fours<4>(rows, wide, [&](u32 t, u32 i) { return load_run_if<4>(t < count, x, sequence.row(call, start + t) * wide + i); },
              [&](u32 t, u32 i, const Run<4>& x) { out.four(t, i) = make_float4(x.x[0], x.x[1], x.x[2], x.x[3]); });
    }
    // A group's rows and masks.
    TOGETHER_OF void begin(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Keys, queries and values: all wait together.
        load_rows(k, call.k, call, sequence, start, count, o.key);
        load_rows(q, call.q, call, sequence, start, count, o.key);
        load_rows(v, call.v, call, sequence, start, count, o.value);
        begin_numbers(call, sequence, start, count);
    }

    // With what the second layer is written with.
    __device__ void inner_grad_row(u32 t) const {
        shorten(t);
        if (o.norm) write_with(t);
        LANES(i, o.value) z1.at(t, i) = -n.theta[t] * u.at(t, i);
    }

    // out (+)= x W, and where momentum looks ahead x (W + S): products at the point.
    __device__ void at_point(Panel out, float keep, Panel x, Factor w, Factor s, u32 wide, u32 depth) const {
        if (threadIdx.x == 0) {
            Term* terms = terms_of_block();
            terms[0] = {x.own(), w, nullptr, depth}, terms[1] = {x.own(), s, nullptr, depth};
        }
        multiply_terms(out, keep, ahead() ? 2 : 1, rows, wide);
    }
    // Inner gradients at the weights that the group starts with: `pre` and `back` are left for a backward, z0 and z1 are what
    // both layers are written with, and `v` becomes the error. `back` may be z0. A matrix has neither of the first layer.
    __device__ __forceinline__ void inner_grads(Panel pre, Panel back) const {
        if (deep()) inner_grads_of<true>(pre, back);
        else inner_grads_of<false>(pre, back);
    }
    // The same with one code for MLPs (DEEP) and one for matrices: errors v = prediction - value, then z0 and z1.
    template <bool DEEP> TOGETHER_OF void inner_grads_of(Panel pre, Panel back) const {
        if (DEEP) at_point(pre, 0.0f, k, x0.own(), s0.own(), width, o.key), activate(h, pre);
        // Outputs are sums over all columns of the hidden layer, and so over blocks.
        // Two places in turn: others may still read the last group's.
        Panel part = {sums + (u64)turn * rows * o.value, o.value};
        at_point(part, 0.0f, h, x1.own(), s1.own(), o.value, width);
        cluster.meet();
        // Rows by warps only where a bias, (94) or a norm looks at a whole row.
        bool norm = o.norm, plain = !huber && !POWER_GRADS && o.per_clip == 0.0f && !norm;
        if (norm) predict(part);
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return norm ? normed.four(t, i) : total(part.row(t) + i); }, [&](u32 t, u32 i, float4 out) {
            float4 own = o.residual ? k.four(t, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            // Prediction minus value.
            float4 error = map([](float out, float own, float v) { return out + own - v; }, out, own, v.four(t, i));
            v.four(t, i) = error;
            // The inner gradient of most memories is the error itself.
            if (plain) u.four(t, i) = error, z1.four(t, i) = map([&](float x) { return -n.theta[t] * x; }, error);
        });
        __syncthreads();
        if (!plain) {
            ROWS(t, rows) inner_grad_row(t);
            __syncthreads();
        }
        if (!DEEP) return;
        // b = u W₁ᵀ, of this block's columns: nothing is exchanged.
        at_point(back, 0.0f, u, x1.t(), s1.t(), width, o.value);
        times_slope(z0, 0.0f, -1.0f, n.theta, back, pre);
    }

    // What queries read of a layer: out = A ∘ (ρ X) + (1 − A) ∘ (ρ anchor) + B ∘ (ρ S) + (c ∘ ρ κᵀ) z.
    TOGETHER_OF void read(Panel out, Panel query, Panel x, Panel anchor, Panel s, Panel key, Panel z, u32 depth, u32 wide) const {
        // Sums over hidden columns are left to the outputs: the mask is linear.
        multiply(square, 0.0f, nullptr, query.own(), key.t(), rows, rows, depth);
        fours<4>(rows, rows, [&](u32 t, u32 j) { return Two{square.four(t, j), read_masks(t, j)}; },
              [&](u32 t, u32 j, Two of) { square.four(t, j) = map([](float x, float y) { return x * y; }, of.x, of.y); });
        __syncthreads();
        u32 count = 2 + momentum + anchored;
        if (threadIdx.x == 0) {
            Term* terms = terms_of_block();
            terms[0] = {query.own(), x.own(), n.kept, depth}, terms[1] = {square.own(), z.own(), nullptr, rows};
            if (momentum) terms[2] = {query.own(), s.own(), n.pushed, depth};
            if (anchored) terms[count - 1] = {query.own(), anchor.own(), n.rest, depth};
        }
        multiply_terms(out, 0.0f, count, rows, wide);
    }

    // A layer's state after the group, without the writes.
    TOGETHER_OF void forget(Panel x, Panel anchor, Panel s, u32 height, u32 wide) const {
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1], gone = n.gone[tokens - 1];
        // What a rule does not have counts nothing.
        auto load = [&](u32 i, u32 j) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            return Three{x.four(i, j), anchored ? anchor.four(i, j) : zero, momentum ? s.four(i, j) : zero};
        };
        fours<2>(height, wide, load, [&](u32 i, u32 j, const Three& of) {
            // X becomes A X + (1 − A) anchor + B S.
            auto after = [&](float x, float anchor, float s) { return A * x + gone * anchor + B * s; };
            x.four(i, j) = map(after, of.x, of.y, of.z);
            if (momentum) s.four(i, j) = map([&](float s) { return E * s; }, of.z);
        });
        __syncthreads();
    }
    // The state after the group.
    TOGETHER_OF void write() const {
        if (deep()) forget(x0, anchor0, s0, o.key, width);
        forget(x1, anchor1, s1, width, o.value);
        add_writes(x0, x1, n.last_c);
        if (momentum) add_writes(s0, s1, n.last_e);
    }
    // Writes, as much of each as `by` says.
    __device__ void add_writes(Panel low, Panel high, const float* by) const {
        // The narrower factor of each layer is scaled.
        if (deep()) {
            scaled(spare, by, k, o.key);
            multiply(low, 1.0f, nullptr, spare.t(), z0.own(), o.key, width, rows);
        }
        scaled(spare, by, z1, o.value);
        multiply(high, 1.0f, nullptr, h.t(), spare.own(), width, o.value, rows);
    }
};
