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

    static constexpr u32 COUNT = 25;
    __device__ void place(float* all, u32 rows) {
        float** each[] = {&theta, &delta, &a, &eta, &m, &s, &x, &y, &A, &B, &E, &kept, &pushed, &rest, &last_c, &last_e,
                          &shrink, &dkept, &dpushed, &dlast_c, &dlast_e, &dtheta, &ddelta, &da, &deta};
        for (u32 i = 0; i < COUNT; i++) *each[i] = all + i * rows;
    }
};

// What a block has of a memory and of the group in work. It lies in shared memory: one thread changes it. Places are taken
// in the order of `frozen::Places`.
struct Frozen {
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
        width = o.hidden / cluster.count, first = cluster.rank * width;
        rows = (call.frozen + 15) / 16 * 16, tokens = 0;
        momentum = call.state_slots == 4, huber = call.gate_slots == (momentum ? 4 : 3), anchored = call.anchor_slots > 0;
        // What blocks exchange comes first in each one's workspace.
        sums = arena.far, each = call.workspace_each, turn = 0;
        arena.far += call.scratch;
        n.place(arena.take(TokenNumbers::COUNT * rows), rows);
        u32 widest = o.key > o.value ? o.key : o.value;
        z0 = panel(arena, rows, width), h = panel(arena, rows, width);
        x0 = panel(arena, o.key, width), x1 = panel(arena, width, o.value);
        k = panel(arena, rows, o.key), u = panel(arena, rows, o.value);
        hq = panel(arena, rows, width), q = panel(arena, rows, o.key);
        square = panel(arena, rows, rows), c = panel(arena, rows, rows), e = Panel{nullptr, 0};
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
    __device__ static void move(Panel out, Panel x, u32 height, u32 wide) {
        fours(height, wide, [&](u32 i, u32 j) { out.four(i, j) = x.four(i, j); });
    }
    // out = by ∘ x, of a number a row.
    __device__ void scaled(Panel out, const float* by, Panel x, u32 wide) const {
        fours(rows, wide, [&](u32 i, u32 j) { out.four(i, j) = map([&](float x) { return by[i] * x; }, x.four(i, j)); });
        __syncthreads();
    }
    // out = σ(x) [rows,width].
    __device__ void activate(Panel out, Panel x) const {
        fours(rows, width, [&](u32 t, u32 i) {
            out.four(t, i) = map([&](float x) { return activation(o.activation, x).value; }, x.four(t, i));
        });
        __syncthreads();
    }
    // x = x ∘ σ′(pre) [rows,width].
    __device__ void times_slope(Panel x, Panel pre) const {
        fours(rows, width, [&](u32 t, u32 i) {
            auto slope = [&](float x, float pre) { return x * activation(o.activation, pre).slope; };
            x.four(t, i) = map(slope, x.four(t, i), pre.four(t, i));
        });
        __syncthreads();
    }

    // Both weights and both momenta out of, or into, matrices in global memory.
    __device__ void load(const float* w0, const float* w1, const float* m0, const float* m1) const {
        move(x0, low(w0), o.key, width), move(x1, high(w1), width, o.value);
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

    // Rows of a group, zeros beyond its last token, and its masks.
    __device__ void begin(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        if (threadIdx.x == 0) tokens = count, turn ^= 1;
        ROWS(t, rows) {
            bool inside = t < count;
            u64 row = sequence.row(call, start + (inside ? t : 0));
            LANES(i, o.key) {
                k.at(t, i) = inside ? ::load(call.k, row * o.key + i) : 0.0f;
                q.at(t, i) = inside ? ::load(call.q, row * o.key + i) : 0.0f;
            }
            LANES(i, o.value) v.at(t, i) = inside ? ::load(call.v, row * o.value + i) : 0.0f;
        }
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
            n.m[t] = ahead() ? less * a : eta, n.s[t] = eta * (ahead() ? a : 1.0f);
            n.x[t] = ahead() ? less : 1.0f, n.y[t] = ahead() ? eta : 1.0f;
        }
        __syncthreads();
        masks();
    }

    // c and the other numbers of the recurrence, a thread a write and one the state before the group.
    __device__ void masks() const {
        EACH(j, rows + 1) {
            if (j == rows) of_state();
            else of_write(j);
        }
        __syncthreads();
        EACH(t, rows) {
            bool inside = t < tokens, earlier = !o.read_after;
            float A = !inside ? 0.0f : !earlier ? n.A[t] : t > 0 ? n.A[t - 1] : 1.0f;
            n.kept[t] = A, n.rest[t] = inside ? 1.0f - A : 0.0f;
            n.pushed[t] = !inside ? 0.0f : !earlier ? n.B[t] : t > 0 ? n.B[t - 1] : 0.0f;
        }
        __syncthreads();
    }
    __device__ void of_state() const {
        float A = 1.0f, B = 0.0f, E = 1.0f;
        for (u32 t = 0; t < tokens; t++) {
            A *= n.a[t];
            B = n.a[t] * B + n.m[t] * E, E *= n.s[t];
            n.A[t] = A, n.B[t] = B, n.E[t] = E;
        }
    }
    __device__ void of_write(u32 j) const {
        float now = 0.0f, pushed = 0.0f;
        for (u32 t = 0; t < tokens; t++) {
            if (t > j) now = n.a[t] * now + n.m[t] * pushed, pushed *= n.s[t];
            if (t == j) now = n.x[t], pushed = n.y[t];
            c.at(t, j) = now;
            if (e.x) e.at(t, j) = pushed;
        }
        n.last_c[j] = now, n.last_e[j] = pushed;
        for (u32 t = tokens; t < rows; t++) c.at(t, j) = 0.0f;
    }
    // What token t reads of the write of token j.
    __device__ float read_mask(u32 t, u32 j) const {
        if (o.read_after) return c.at(t, j);
        return t > 0 && t < tokens ? c.at(t - 1, j) : 0.0f;
    }

    // u = ψ(e) of a row by a warp, (47), (50)–(52), then (94).
    __device__ void teach(u32 t) const {
        const float* e = v.row(t);
        float delta = n.delta[t], length = huber && o.huber != COORDINATE ? sqrtf(warp_dot(e, e, o.value)) : 0.0f;
        LANES(i, o.value) {
            float x = e[i], signed_delta = x > 0.0f ? delta : x < 0.0f ? -delta : x;
            if (huber && o.huber == COORDINATE) x = fabsf(x) <= delta ? x : signed_delta;
            else if (huber && !(length <= delta)) x = o.huber == NORM ? delta / length * x : signed_delta;
            u.at(t, i) = x;
        }
        __syncwarp();
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
        multiply(out, keep, nullptr, x.own(), w, rows, wide, depth);
        if (ahead()) multiply(out, 1.0f, nullptr, x.own(), s, rows, wide, depth);
    }
    // Inner gradients at the weights that the group starts with: `pre` and `back` are left for a backward, z0 and z1 are what
    // both layers are written with, and `v` becomes the error. `back` may be z0.
    __device__ void inner_grads(Panel pre, Panel back) const {
        at_point(pre, 0.0f, k, x0.own(), s0.own(), width, o.key);
        activate(h, pre);
        // Outputs are sums over all columns of the hidden layer, and so over blocks.
        Panel part = {sums + (u64)turn * rows * o.value, o.value};
        at_point(part, 0.0f, h, x1.own(), s1.own(), o.value, width);
        cluster.meet();
        ROWS(t, rows) {
            LANES(i, o.value) {
                float out = total(part.row(t) + i);
                v.at(t, i) = (o.residual ? out + k.at(t, i) : out) - v.at(t, i);
            }
            __syncwarp();
            teach(t);
        }
        __syncthreads();
        at_point(back, 0.0f, u, x1.t(), s1.t(), width, o.value);
        fours(rows, width, [&](u32 t, u32 i) {
            auto write = [&](float b, float pre) { return -n.theta[t] * b * activation(o.activation, pre).slope; };
            z0.four(t, i) = map(write, back.four(t, i), pre.four(t, i));
        });
        __syncthreads();
    }
    // The sum over blocks of an element that each has in the same place of its workspace, in the order of blocks.
    __device__ float total(const float* own) const {
        float sum = 0.0f;
        const float* of = own - cluster.rank * each;
        for (u32 r = 0; r < cluster.count; r++, of += each) sum += *of;
        return sum;
    }

    // What queries read of a layer: out = A ∘ (ρ X) + (1 − A) ∘ (ρ anchor) + B ∘ (ρ S) + (c ∘ ρ κᵀ) z.
    __device__ void read(Panel out, Panel query, Panel x, Panel anchor, Panel s, Panel key, Panel z, u32 depth, u32 wide) const {
        multiply(square, 0.0f, nullptr, query.own(), key.t(), rows, rows, depth);
        ROWS(t, rows) LANES(j, rows) square.at(t, j) *= read_mask(t, j);
        __syncthreads();
        multiply(out, 0.0f, n.kept, query.own(), x.own(), rows, wide, depth);
        if (anchored) multiply(out, 1.0f, n.rest, query.own(), anchor.own(), rows, wide, depth);
        if (momentum) multiply(out, 1.0f, n.pushed, query.own(), s.own(), rows, wide, depth);
        multiply(out, 1.0f, nullptr, square.own(), z.own(), rows, wide, rows);
    }

    // A layer's state after the group, without the writes.
    __device__ void forget(Panel x, Panel anchor, Panel s, u32 height, u32 wide) const {
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        fours(height, wide, [&](u32 i, u32 j) {
            float4 sum = map([&](float x) { return A * x; }, x.four(i, j));
            if (anchored) sum = map([&](float sum, float x) { return sum + (1.0f - A) * x; }, sum, anchor.four(i, j));
            if (momentum) {
                float4 old = s.four(i, j);
                sum = map([&](float sum, float s) { return sum + B * s; }, sum, old);
                s.four(i, j) = map([&](float s) { return E * s; }, old);
            }
            x.four(i, j) = sum;
        });
        __syncthreads();
    }
    // The state after the group.
    __device__ void write() const {
        forget(x0, anchor0, s0, o.key, width), forget(x1, anchor1, s1, width, o.value);
        add_writes(x0, x1, n.last_c);
        if (momentum) add_writes(s0, s1, n.last_e);
    }
    // Writes, as much of each as `by` says.
    __device__ void add_writes(Panel low, Panel high, const float* by) const {
        scaled(spare, by, k, o.key);
        multiply(low, 1.0f, nullptr, spare.t(), z0.own(), o.key, width, rows);
        scaled(spare, by, z1, o.value);
        multiply(high, 1.0f, nullptr, h.t(), spare.own(), width, o.value, rows);
    }
};
