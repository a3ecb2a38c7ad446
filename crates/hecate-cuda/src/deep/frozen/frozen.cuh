// Frozen groups of an MLP memory that decays: all inner gradients of a group are products at the weights it starts with.
//
// Weights X and momentum S are then one linear recurrence of two numbers by elements, [X;S] ← [a m; 0 s] [X;S] + [x;y] Z, of
// the writes Z. What token t reads of the write of token j is a mask c[t,j], of the first state A[t] X + B[t] S. Nothing is
// kept by token: a layer reads ρ as A ∘ (ρ X) + B ∘ (ρ S) + (c ∘ ρ κᵀ) z, with keys κ and values z.
// An anchor takes the place of zero: X forgets to it, and (1 − A) ∘ (ρ anchor) is read beside.
#pragma once
#include "activation.cuh"
#include "deep_options.cuh"
#include "frozen_product.cuh"
#include "recurrent.cuh"

// Four elements more than are used: rows that are read together lie in other banks.
__device__ __forceinline__ u32 strided(u32 width) { return width + 4; }

// A member that a block runs together: compiled once, and called.
#define TOGETHER_OF __device__ __noinline__

// Most memories have the first of the activations; the others are called.
TOGETHER_OF Curve other_curve(u32 kind, float x) { return activation(kind, x); }
__device__ __forceinline__ Curve curve(u32 kind, float x) { return kind == SILU ? silu(x) : other_curve(kind, x); }

// Numbers of eight tokens, read at once.
struct Eight {
    float x[8];
    // From a multiple of four.
    __device__ __forceinline__ explicit Eight(const float* from) {
        float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }
};
// Fours that are read at once.
struct Two {
    float4 x, y;
};
struct Three {
    float4 x, y, z;
};

// Numbers of each token of a group, one after another.
struct TokenNumbers {
    // Gates, and the recurrence that they make.
    float *theta, *delta, *a, *eta, *m, *s, *x, *y;
    // A, B and E of S after each token; A and B as they are read, with 1 − A; c and E of each write after the last token.
    float *A, *B, *E, *kept, *pushed, *rest, *last_c, *last_e;
    // s of (94).
    float* shrink;
    // Gradients of `kept` and `pushed`, of `last_c` and `last_e`, of θ and δ, and of a and η by the first state.
    float *dkept, *dpushed, *dlast_c, *dlast_e, *dtheta, *ddelta, *da, *deta;

    static constexpr u32 COUNT = 17, BACK = 8;
    __device__ void place(float* all, u32 rows) {
        float** each[] = {&theta, &delta, &a, &eta, &m, &s, &x, &y, &A, &B, &E, &kept, &pushed, &rest, &last_c, &last_e, &shrink};
        for (u32 i = 0; i < COUNT; i++) *each[i] = all + i * rows;
    }
    __device__ void place_back(float* all, u32 rows) {
        float** each[] = {&dkept, &dpushed, &dlast_c, &dlast_e, &dtheta, &ddelta, &da, &deta};
        for (u32 i = 0; i < BACK; i++) *each[i] = all + i * rows;
    }
};

// What a block has of a memory and of the group in work. It lies in shared memory: one thread changes it. Places are taken
// in the order of `frozen::Places`.
struct Frozen {
    // The rule, and the blocks that share the memory.
    Options o;
    Cluster cluster;
    // Columns of the hidden layer, and the first of them.
    u32 width, first;
    // Rows of panels: a group's tokens to the next sixteen. Tokens in it.
    u32 rows, tokens;
    bool momentum, huber, anchored;
    // What blocks exchange, from where on the next block's lies `each` elements further; which of the first two is in use.
    float* sums;
    u64 each;
    u32 turn;

    TokenNumbers n;
    // Values of the first layer, the hidden layer at keys and at queries [rows,width].
    Panel z0, h, hq;
    // Weights [K,width], [width,V].
    Panel x0, x1;
    // Keys and queries [rows,K], what is taught [rows,V].
    Panel k, q, u;
    // Products of queries and keys, c, and where a backward asks for it E of each write [rows,rows].
    Panel square, c, e;
    // Values of the second layer, errors [rows,V]; rows of either width.
    Panel z1, v, spare;
    // Momentum; anchors in global memory.
    Panel s0, s1, anchor0, anchor1;

    // By one thread.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        cluster.join();
        o = options;
        // Every block has as many hidden columns.
        width = o.hidden / cluster.count, first = cluster.rank * width;
        rows = (call.frozen + 15) / 16 * 16, tokens = 0;
        momentum = call.state_slots == 4, huber = call.gate_slots == (momentum ? 4 : 3), anchored = call.anchor_slots > 0;
        // What blocks exchange comes first in each one's workspace.
        sums = arena.far, each = call.workspace_each, turn = 0;
        arena.far += call.scratch;
        // What is used most comes first, and so into shared memory.
        n.place(arena.take(TokenNumbers::COUNT * rows), rows);
        u32 widest = o.key > o.value ? o.key : o.value;
        z0 = panel(arena, rows, width), h = panel(arena, rows, width);
        x0 = panel(arena, o.key, width), x1 = panel(arena, width, o.value);
        k = panel(arena, rows, o.key), u = panel(arena, rows, o.value);
        hq = panel(arena, rows, width), square = panel(arena, rows, rows);
        q = panel(arena, rows, o.key), c = panel(arena, rows, rows), e = Panel{nullptr, 0};
        z1 = panel(arena, rows, o.value), v = panel(arena, rows, o.value), spare = panel(arena, rows, widest);
        s0 = panel(arena, momentum ? o.key : 0, width), s1 = panel(arena, momentum ? width : 0, o.value);
    }
    __device__ static Panel panel(Arena& arena, u32 height, u32 wide) {
        return {arena.take((u64)height * strided(wide)), strided(wide)};
    }

    // The block's part of a matrix of the state as it lies in global memory.
    __device__ Panel low(const float* matrix) const { return {(float*)matrix + first, o.hidden}; }
    __device__ Panel high(const float* matrix) const { return {(float*)matrix + (u64)first * o.value, o.value}; }
    // Gates after η move on by one.
    __device__ u32 after() const { return momentum ? 1 : 0; }
    __device__ bool ahead() const { return o.look_ahead; }

    // The anchors of a head, by one thread.
    __device__ void find_anchors(const RecurrentCall& call, u32 head) {
        if (!anchored) return;
        anchor0 = low(call.anchor[0] + (u64)head * call.sizes[0]), anchor1 = high(call.anchor[1] + (u64)head * call.sizes[1]);
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
        move(x0, low(w0), o.key, width), move(x1, high(w1), width, o.value);
        // Without momentum these addresses are nowhere.
        if (momentum) move(s0, low(m0), o.key, width), move(s1, high(m1), width, o.value);
        __syncthreads();
    }
    __device__ void save(float* w0, float* w1, float* m0, float* m1) const {
        move(low(w0), x0, o.key, width), move(high(w1), x1, width, o.value);
        if (momentum) move(low(m0), s0, o.key, width), move(high(m1), s1, width, o.value);
        __syncthreads();
    }
    // The same of a whole state in one piece.
    __device__ void load(const float* state) const {
        load(state, state + o.first(), state + o.all(), state + o.all() + o.first());
    }
    __device__ void save(float* state) const {
        save(state, state + o.first(), state + o.all(), state + o.all() + o.first());
    }

    // Rows of a group, zeros beyond its last token.
    TOGETHER_OF void load_rows(Panel out, Array x, const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count,
                              u32 wide) const {
        // Rows beyond the last token are zeros, which teach nothing.
        fours<4>(rows, wide, [&](u32 t, u32 i) { return load_run_if<4>(t < count, x, sequence.row(call, start + t) * wide + i); },
              [&](u32 t, u32 i, const Run<4>& x) { out.four(t, i) = make_float4(x.x[0], x.x[1], x.x[2], x.x[3]); });
    }
    // A group's rows and masks.
    TOGETHER_OF void begin(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Others read `tokens` behind the barrier below.
        if (threadIdx.x == 0) tokens = count, turn ^= 1;
        // Keys, queries and values: all wait together.
        load_rows(k, call.k, call, sequence, start, count, o.key);
        load_rows(q, call.q, call, sequence, start, count, o.key);
        load_rows(v, call.v, call, sequence, start, count, o.value);
        EACH(t, rows) {
            bool inside = t < count;
            u64 row = sequence.row(call, start + (inside ? t : 0));
            // Beyond the last token nothing is written or forgotten.
            float log_a = inside ? call.gates[0][row] : 0.0f, log_eta = inside && momentum ? call.gates[1][row] : 0.0f;
            float a = expf(log_a), eta = momentum ? expf(log_eta) : 0.0f, less = -expm1f(log_eta);
            n.theta[t] = inside ? call.gates[1 + after()][row] : 0.0f;
            n.delta[t] = inside && huber ? call.gates[2 + after()][row] : 0.0f;
            n.a[t] = a, n.eta[t] = eta;
            // Heavy ball: P = η S + Z is added to X and is S. Looking ahead: P = a S + Z, of which S keeps η, X gets 1 − η.
            n.m[t] = !inside ? 0.0f : ahead() ? less * a : eta, n.s[t] = !inside ? 1.0f : eta * (ahead() ? a : 1.0f);
            n.x[t] = !inside ? 0.0f : ahead() ? less : 1.0f, n.y[t] = !inside ? 0.0f : ahead() ? eta : 1.0f;
        }
        __syncthreads();
        masks();
    }

    // c and the other numbers of the recurrence, a thread a write and one the state before the group.
    __device__ void masks() const {
        EACH(j, rows + 1) {
            // The state has a warp of its own where groups have 32 tokens or 64.
            if (j == rows) of_state();
            else of_write(j);
        }
        __syncthreads();
        EACH(t, rows) {
            // Tokens that read before their write find what the one before left.
            bool inside = t < tokens, earlier = !o.read_after;
            float A = !inside ? 0.0f : !earlier ? n.A[t] : t > 0 ? n.A[t - 1] : 1.0f;
            n.kept[t] = A, n.rest[t] = inside ? 1.0f - A : 0.0f;
            n.pushed[t] = !inside ? 0.0f : !earlier ? n.B[t] : t > 0 ? n.B[t - 1] : 0.0f;
        }
        __syncthreads();
    }
    __device__ void of_state() const {
        // Before the first token the state is itself: A and E are 1.
        float A = 1.0f, B = 0.0f, E = 1.0f, *all_a = n.A, *all_b = n.B, *all_e = n.E;
        // Gates are read ahead of the chain that needs them.
        for (u32 top = 0; top < rows; top += 8) {
            Eight a(n.a + top), m(n.m + top), s(n.s + top);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                A *= a.x[i];
                B = a.x[i] * B + m.x[i] * E, E *= s.x[i];
                all_a[top + i] = A, all_b[top + i] = B, all_e[top + i] = E;
            }
        }
    }
    __device__ void of_write(u32 j) const {
        float now = 0.0f, pushed = 0.0f, x = n.x[j], y = n.y[j];
        Panel c = this->c, e = this->e;
        for (u32 top = 0; top < rows; top += 8) {
            Eight a(n.a + top), m(n.m + top), s(n.s + top);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                u32 t = top + i;
                // Before the write itself both are zero, and stay so.
                now = t == j ? x : a.x[i] * now + m.x[i] * pushed, pushed = t == j ? y : pushed * s.x[i];
                c.at(t, j) = now;
                if (e.x) e.at(t, j) = pushed;
            }
        }
        n.last_c[j] = now, n.last_e[j] = pushed;
    }
    // What token t reads of the write of token j.
    __device__ float read_mask(u32 t, u32 j) const {
        if (o.read_after) return c.at(t, j);
        return t > 0 ? c.at(t - 1, j) : 0.0f;
    }
    __device__ float4 read_masks(u32 t, u32 j) const {
        if (o.read_after) return c.four(t, j);
        return t > 0 ? c.four(t - 1, j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    // u = ψ(e) of a row by a warp, (47), (50)–(52), then (94).
    __device__ void teach(u32 t) const {
        const float* e = v.row(t);
        // The length is needed by two of the three.
        float delta = n.delta[t], length = huber && o.huber != COORDINATE ? sqrtf(warp_dot(e, e, o.value)) : 0.0f;
        LANES(i, o.value) {
            float x = e[i], signed_delta = x > 0.0f ? delta : x < 0.0f ? -delta : x;
            if (huber && o.huber == COORDINATE) x = fabsf(x) <= delta ? x : signed_delta;
            else if (huber && !(length <= delta)) x = o.huber == NORM ? delta / length * x : signed_delta;
            u.at(t, i) = x;
        }
        __syncwarp();
        // Errors of any length, where nothing is clipped.
        float shrink = 1.0f;
        if (o.per_clip != 0.0f) {
            float ratio = sqrtf(warp_dot(u.row(t), u.row(t), o.value)) * o.per_clip;
            shrink = 1.0f / sqrtf(1.0f + ratio * ratio);
        }
        __syncwarp();
        LANES(i, o.value) {
            float x = u.at(t, i) * shrink;
            u.at(t, i) = x, z1.at(t, i) = -n.theta[t] * x;
        }
        if (first_lane()) n.shrink[t] = shrink;
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
    // both layers are written with, and `v` becomes the error. `back` may be z0.
    TOGETHER_OF void inner_grads(Panel pre, Panel back) const {
        at_point(pre, 0.0f, k, x0.own(), s0.own(), width, o.key);
        activate(h, pre);
        // Outputs are sums over all columns of the hidden layer, and so over blocks.
        // Two places in turn: others may still read the last group's.
        Panel part = {sums + (u64)turn * rows * o.value, o.value};
        at_point(part, 0.0f, h, x1.own(), s1.own(), o.value, width);
        cluster.meet();
        // Rows by warps only where a bias or (94) looks at a whole row.
        bool plain = !huber && o.per_clip == 0.0f;
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return total(part.row(t) + i); }, [&](u32 t, u32 i, float4 out) {
            float4 own = o.residual ? k.four(t, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            // Prediction minus value.
            float4 error = map([](float out, float own, float v) { return out + own - v; }, out, own, v.four(t, i));
            v.four(t, i) = error;
            // Most memories are taught the error itself.
            if (plain) u.four(t, i) = error, z1.four(t, i) = map([&](float x) { return -n.theta[t] * x; }, error);
        });
        __syncthreads();
        if (!plain) {
            ROWS(t, rows) teach(t);
            __syncthreads();
        }
        // b = u W₁ᵀ, of this block's columns: nothing is exchanged.
        at_point(back, 0.0f, u, x1.t(), s1.t(), width, o.value);
        times_slope(z0, 0.0f, -1.0f, n.theta, back, pre);
    }
    // The sum over blocks of what each has in the same place of its workspace, in the order of blocks.
    __device__ float4 total(const float* own) const {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        // From the first block on, whichever this is.
        const float* of = own - cluster.rank * each;
#pragma unroll 2
        for (u32 r = 0; r < cluster.count; r++, of += each) sum = map([](float x, float y) { return x + y; }, sum, *(const float4*)of);
        return sum;
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
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        // What a rule does not have counts nothing.
        auto load = [&](u32 i, u32 j) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            return Three{x.four(i, j), anchored ? anchor.four(i, j) : zero, momentum ? s.four(i, j) : zero};
        };
        fours<2>(height, wide, load, [&](u32 i, u32 j, const Three& of) {
            // X becomes A X + (1 − A) anchor + B S.
            auto after = [&](float x, float anchor, float s) { return A * x + (1.0f - A) * anchor + B * s; };
            x.four(i, j) = map(after, of.x, of.y, of.z);
            if (momentum) s.four(i, j) = map([&](float s) { return E * s; }, of.z);
        });
        __syncthreads();
    }
    // The state after the group.
    TOGETHER_OF void write() const {
        forget(x0, anchor0, s0, o.key, width), forget(x1, anchor1, s1, width, o.value);
        add_writes(x0, x1, n.last_c);
        if (momentum) add_writes(s0, s1, n.last_e);
    }
    // Writes, as much of each as `by` says.
    __device__ void add_writes(Panel low, Panel high, const float* by) const {
        // The narrower factor of each layer is scaled.
        scaled(spare, by, k, o.key);
        multiply(low, 1.0f, nullptr, spare.t(), z0.own(), o.key, width, rows);
        scaled(spare, by, z1, o.value);
        multiply(high, 1.0f, nullptr, h.t(), spare.own(), width, o.value, rows);
    }
};
