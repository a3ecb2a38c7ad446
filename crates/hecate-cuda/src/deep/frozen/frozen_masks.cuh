// Frozen groups of an MLP memory that decays: all tokens of a group take their inner gradients at the weights before the group.
//
// Weights X and momentum S then follow one linear recurrence, [X;S] ← [a m; 0 s] [X;S] + [x;y] Z, where a token writes Z = κᵀ z.
// Token t reads c[t,j] of the write of token j, and A[t] X + B[t] S of the state before the group. No state is kept a token:
// a layer reads queries ρ as A ∘ (ρ X) + B ∘ (ρ S) + (c ∘ ρ κᵀ) z, with keys κ and values z.
// With an anchor X forgets to it and not to zero, so that (1 − A) ∘ (ρ anchor) is read as well.
#pragma once
#include "activation.cuh"
#include "bias.cuh"
#include "frozen_product.cuh"
#include "recurrent.cuh"

// Four elements more than are used: rows that are read together lie in other banks.
__device__ __forceinline__ u32 strided(u32 width) { return width + 4; }

// The launch hands this over: sequences and arrays, then the rule's options.
struct FrozenArgs {
    RecurrentCall call;
    Options cell;
};

// A member that a block runs together: compiled once, and called.
#define TOGETHER_OF __device__ __noinline__

// Most memories have the first of the activations; the others are called.
TOGETHER_OF Curve other_curve(u32 kind, float x) { return activation(kind, x); }
// The activation at x with its first two derivatives; only SiLU, which most memories have, is inlined.
__device__ __forceinline__ Curve curve(u32 kind, float x) { return kind == SILU ? silu(x) : other_curve(kind, x); }

// Which memories a file is for. With both in one file, products of MLPs had fewer registers.
#define MLPS 1
#define MATRICES 2
#ifndef MEMORIES
#define MEMORIES MLPS
#endif

// Whether inner gradients of all memories of a file are powers of errors, (48) and (49).
#ifndef POWER_GRADS
#define POWER_GRADS false
#endif

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
// Of four.
struct Four {
    float x[4];
    // Loads x[0:4] from a multiple of four.
    __device__ __forceinline__ explicit Four(const float* from) {
        float4 of = *(const float4*)from;
        x[0] = of.x, x[1] = of.y, x[2] = of.z, x[3] = of.w;
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
    // A, B and E of S after each token; A and B as they are read, with 1 − A; c and E of each write after the last token. Before
    // masks are made, `rest` is 1 − a.
    float *A, *B, *E, *kept, *pushed, *rest, *last_c, *last_e;
    // 1 − A after each token.
    float* gone;
    // s of (94).
    float* shrink;
    // Gradients of `kept` and `pushed`, of `last_c` and `last_e`, of θ and δ, and of a and η by the first state.
    float *dkept, *dpushed, *dlast_c, *dlast_e, *dtheta, *ddelta, *da, *deta;

    static constexpr u32 COUNT = 18, BACK = 8;
    // Places the arrays [rows] of a forward one after another from `all` on.
    __device__ void place(float* all, u32 rows) {
        float** each[] = {&theta, &delta, &a, &eta, &m, &s, &x, &y, &A, &B, &E, &kept, &pushed, &rest, &last_c, &last_e, &gone, &shrink};
        for (u32 i = 0; i < COUNT; i++) *each[i] = all + i * rows;
    }
    // Places the arrays [rows] of gradients from `all` on.
    __device__ void place_back(float* all, u32 rows) {
        float** each[] = {&dkept, &dpushed, &dlast_c, &dlast_e, &dtheta, &ddelta, &da, &deta};
        for (u32 i = 0; i < BACK; i++) *each[i] = all + i * rows;
    }
};

// What a block knows of the group in work, whatever makes its products. It lies in shared memory: one thread changes it.
struct FrozenMasks {
    // The rule, and the blocks that share the memory.
    Options o;
    Blocks cluster;
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
    // c, its gradient, and where a backward asks for it E of each write [rows,rows].
    Panel c, dc, e;
    // Errors, inner gradients, and what the last matrix is written with: the same but for a norm [rows,V].
    Panel v, inner_grad, u;

    // By one thread.
    __device__ void begin_places(const RecurrentCall& call, const Options& options, Arena& arena) {
        cluster.join(call.together, call.meetings);
        // Arguments of bfloat16 lose nothing to 10 bits.
        whole_factors() = call.q.type != 1;
        o = options;
        // Every block has as many hidden columns. A matrix is a second layer, read by keys.
        width = (o.hidden ? o.hidden : o.key) / cluster.count, first = cluster.rank * width;
        rows = (call.frozen + 15) / 16 * 16, tokens = 0;
        momentum = call.state_slots == 4, huber = call.gate_slots == (momentum ? 4 : 3), anchored = call.anchor_slots > 0;
        // What blocks exchange comes first in each one's workspace.
        sums = arena.far, each = call.workspace_each, turn = 0;
        arena.far += call.scratch;
        // What is used most comes first, and so into shared memory.
        n.place(arena.take(TokenNumbers::COUNT * rows), rows);
    }
    // Takes a panel [height,wide] from the arena, with padded rows.
    __device__ static Panel panel(Arena& arena, u32 height, u32 wide) {
        return {arena.take((u64)height * strided(wide)), strided(wide)};
    }
    // Whether there is a hidden layer; the slot of the second layer, or of a matrix, and where it lies in a state.
    __device__ __forceinline__ bool deep() const { return MEMORIES == MLPS || (MEMORIES != MATRICES && o.hidden); }
    // Returns the slot of the second layer, or of a matrix.
    __device__ u32 second() const { return deep() ? 1 : 0; }
    // Returns the elements of a state before its second layer.
    __device__ u64 behind_first() const { return deep() ? o.first() : 0; }
    // The block's part of a matrix of the state as it lies in global memory.
    __device__ Panel low(const float* matrix) const { return {(float*)matrix + first, o.hidden}; }
    // Returns the block's rows of a second layer's matrix [D,V] in global memory.
    __device__ Panel high(const float* matrix) const { return {(float*)matrix + (u64)first * o.value, o.value}; }
    // Gates after η move on by one.
    __device__ u32 after() const { return momentum ? 1 : 0; }
    // True if momentum looks ahead.
    __device__ bool ahead() const { return o.look_ahead; }
    // Loads a group's gates and computes the masks and scalars of its recurrence.
    __device__ void begin_numbers(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        begin_gates(call, sequence, start, count);
        masks();
    }
    // Computes θ, δ, a, η and the recurrence's m, s, x, y [rows] of the group's tokens from the gates.
    TOGETHER_OF void begin_gates(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Others read `tokens` behind the barrier below.
        if (threadIdx.x == 0) tokens = count, turn ^= 1;
        EACH(t, rows) {
            bool inside = t < count;
            u64 row = sequence.row(call, start + (inside ? t : 0));
            // Beyond the last token nothing is written or forgotten.
            float log_a = inside ? call.gates[0][row] : 0.0f, log_eta = inside && momentum ? call.gates[1][row] : 0.0f;
            float a = expf(log_a), eta = momentum ? expf(log_eta) : 0.0f, less = -expm1f(log_eta);
            n.theta[t] = inside ? call.gates[1 + after()][row] : 0.0f;
            n.delta[t] = inside && huber ? call.gates[2 + after()][row] : 0.0f;
            n.a[t] = a, n.eta[t] = eta, n.rest[t] = -expm1f(log_a);
            // Heavy ball: P = η S + Z is added to X and is S. Looking ahead: P = a S + Z, of which S keeps η, X gets 1 − η.
            n.m[t] = !inside ? 0.0f : ahead() ? less * a : eta, n.s[t] = !inside ? 1.0f : eta * (ahead() ? a : 1.0f);
            n.x[t] = !inside ? 0.0f : ahead() ? less : 1.0f, n.y[t] = !inside ? 0.0f : ahead() ? eta : 1.0f;
        }
        __syncthreads();
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
            n.kept[t] = !inside ? 0.0f : !earlier ? n.A[t] : t > 0 ? n.A[t - 1] : 1.0f;
            n.rest[t] = !inside ? 0.0f : !earlier ? n.gone[t] : t > 0 ? n.gone[t - 1] : 0.0f;
            n.pushed[t] = !inside ? 0.0f : !earlier ? n.B[t] : t > 0 ? n.B[t - 1] : 0.0f;
        }
        __syncthreads();
    }
    // Computes A, B, E and 1 - A [rows] after each token, which say what is left of the state before the group: one thread.
    __device__ void of_state() const {
        // Before the first token the state is itself: A and E are 1.
        float A = 1.0f, B = 0.0f, E = 1.0f, gone = 0.0f, *all_a = n.A, *all_b = n.B, *all_e = n.E, *all_gone = n.gone;
        const float *of_a = n.a, *of_m = n.m, *of_s = n.s, *lost = n.rest;
        u32 rows = this->rows;
        // Gates are read ahead of the chain that needs them.
        for (u32 top = 0; top < rows; top += 8) {
            Eight a(of_a + top), m(of_m + top), s(of_s + top), l(lost + top);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                // 1 − A as a sum of positive numbers: a difference would be rounding where nearly all is kept.
                gone += A * l.x[i], all_gone[top + i] = gone, A *= a.x[i];
                B = a.x[i] * B + m.x[i] * E, E *= s.x[i];
                all_a[top + i] = A, all_b[top + i] = B, all_e[top + i] = E;
            }
        }
    }
    // Computes column j of c and e [rows,rows]: what X and S have of the write of token j after each token. One thread a write.
    __device__ void of_write(u32 j) const {
        float now = 0.0f, pushed = 0.0f, x = n.x[j], y = n.y[j];
        Panel c = this->c, e = this->e;
        // Copies of places: stores could change those in shared memory.
        const float *all_a = n.a, *all_m = n.m, *all_s = n.s;
        u32 rows = this->rows;
        for (u32 top = 0; top < rows; top += 8) {
            Eight a(all_a + top), m(all_m + top), s(all_s + top);
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
    __device__ float4 read_masks(u32 t, u32 j) const {
        if (o.read_after) return c.four(t, j);
        return t > 0 ? c.four(t - 1, j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    // u = ψ(e) of a row by a warp, (47), (50)–(52), then (94).
    __device__ void shorten(u32 t) const {
        const float* e = v.row(t);
        // The length is needed by two of the three.
        float delta = n.delta[t], length = huber && o.huber != COORDINATE ? sqrtf(warp_dot(e, e, o.value)) : 0.0f;
        LANES(i, o.value) {
            float x = e[i], signed_delta = x > 0.0f ? delta : x < 0.0f ? -delta : x;
            if (huber && o.huber == COORDINATE) x = fabsf(x) <= delta ? x : signed_delta;
            else if (huber && !(length <= delta)) x = o.huber == NORM ? delta / length * x : signed_delta;
            if (POWER_GRADS) x = power_grad(o, x);
            inner_grad.at(t, i) = x;
        }
        __syncwarp();
        // Errors of any length, where nothing is clipped.
        float shrink = 1.0f;
        if (o.per_clip != 0.0f) {
            float ratio = sqrtf(warp_dot(inner_grad.row(t), inner_grad.row(t), o.value)) * o.per_clip;
            shrink = 1.0f / sqrtf(1.0f + ratio * ratio);
        }
        __syncwarp();
        LANES(i, o.value) inner_grad.at(t, i) *= shrink;
        if (first_lane()) n.shrink[t] = shrink;
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

    // Gradients of a row's inner gradient to the error's, in `less`; (44) and what shortens.
    TOGETHER_OF void inner_grad_row_vjp(u32 t, float* du) const {
        // What shortens an error grows with it.
        if (o.per_clip != 0.0f) {
            float along = warp_dot(inner_grad.row(t), du, o.value) * o.per_clip * o.per_clip;
            LANES(i, o.value) du[i] = n.shrink[t] * (du[i] - along * inner_grad.at(t, i));
            __syncwarp();
        }
        if (POWER_GRADS) LANES(i, o.value) du[i] *= power_grad_slope(o, v.at(t, i));
        float ddelta = 0.0f;
        if (huber) {
            // Inside the threshold the inner gradient is the error.
            const float* error = v.row(t);
            float delta = n.delta[t], length = o.huber == COORDINATE ? 0.0f : sqrtf(warp_dot(error, error, o.value));
            if (o.huber == NORM && !(length <= delta)) {
                ddelta = warp_dot(error, du, o.value) / length;
                float own = delta / length, along = -delta / (length * length) * ddelta;
                LANES(i, o.value) du[i] = own * du[i] + along * error[i];
            } else {
                LANES(i, o.value) {
                    bool inside = (o.huber == COORDINATE ? fabsf(error[i]) : length) <= delta;
                    float x = error[i], sign = x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
                    if (!inside) ddelta += sign * du[i], du[i] = 0.0f;
                }
                ddelta = warp_sum(ddelta);
            }
        }
        if (first_lane()) n.ddelta[t] = ddelta;
    }
    // From gradients of the masks to those of a and η of each token: of writes in dc's and e's place.
    TOGETHER_OF void masks_back(const float (&dlast)[3], Panel e) const {
        // Four threads of a warp share a write, or the state before the group: a quarter of the tokens each.
        for (u32 i = threadIdx.x; i < 4 * (rows + 8); i += blockDim.x) {
            // Rows are whole eights, so that a warp has writes or the state.
            u32 j = i / 32 * 8 + i % 8, part = i / 8 % 4;
            if (j < rows) write_mask_back(j, part, e);
            else state_mask_back(dlast, part, j == rows);
        }
        __syncthreads();
    }
    // What comes out of a quarter below, of gradients that come in above: `now` and `pushed` if nothing does, and factors.
    struct Quarter {
        float now = 0.0f, pushed = 0.0f, kept = 1.0f, moved = 0.0f, held = 1.0f;

        // Goes back over one token: (now, pushed) ← (a now, m now + s pushed), and the same for what comes into the quarter.
        __device__ __forceinline__ void go(float a, float m, float s) {
            pushed = m * now + s * pushed, now *= a;
            moved = m * kept + s * moved, kept *= a, held *= s;
        }
        // Nothing before its write has a gradient.
        __device__ __forceinline__ void end() { now = pushed = kept = moved = held = 0.0f; }
        // Of a thread of the warp that has the same write.
        __device__ __forceinline__ static float from(float x, u32 part) {
            return __shfl_sync(0xffffffffu, x, part * 8 + threadIdx.x % 8);
        }
        // From what came into a quarter to what comes out of it.
        __device__ __forceinline__ void take(float& into, float& into_pushed, u32 part) const {
            float other = from(pushed, part) + from(moved, part) * into + from(held, part) * into_pushed;
            into = from(now, part) + from(kept, part) * into, into_pushed = other;
        }
    };
    // Of write j, by the thread of a quarter, from its last token: once to see what comes out, and again with what comes in.
    TOGETHER_OF void write_mask_back(u32 j, u32 part, Panel e) const {
        Panel c = this->c, dc = this->dc;
        // Copies: stores could change what lies in shared memory.
        const float *all_a = n.a, *all_m = n.m, *all_s = n.s, *all_x = n.x, *all_eta = n.eta;
        u32 tokens = this->tokens, first = part * (rows / 4), end = first + rows / 4;
        bool ahead = this->ahead(), after = o.read_after;
        float last_now = n.dlast_c[j], last_pushed = n.dlast_e[j];
        // A token that reads before its write gives to the one before. Others write these two in the end.
        float beyond = after || end == rows ? 0.0f : dc.at(end, j), below = first ? e.at(first - 1, j) : 0.0f;
        Quarter of;
#pragma unroll 1
        for (u32 sweep = 0; sweep < 2; sweep++) {
            float next = beyond;
#pragma unroll 1
            for (u32 top = end; top > first;) {
                top -= 4;
                float own[4], before[4], found[4];
                Four a(all_a + top), m(all_m + top), s(all_s + top), x(all_x + top), eta(all_eta + top);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    // Of the token before; the first one has none, and does not ask.
                    u32 t = top + i, earlier = t > 0 ? t - 1 : 0;
                    own[i] = dc.at(t, j), before[i] = c.at(earlier, j), found[i] = t == first ? below : e.at(earlier, j);
                }
#pragma unroll
                for (u32 i = 4; i-- > 0;) {
                    u32 t = top + i;
                    bool inside = t < tokens && t >= j, last = t + 1 == tokens;
                    // Outside all gradients are zero.
                    if (!inside) of.end();
                    else of.now += (after ? own[i] : next) + (last ? last_now : 0.0f), of.pushed += last ? last_pushed : 0.0f;
                    next = own[i];
                    // The first time quarters above are not known.
                    if (sweep) {
                        float now = of.now, pushed = of.pushed;
                        float da = now * before[i], dm = now * found[i], ds = pushed * found[i];
                        // By the definitions of m, s, x and y in `begin_numbers`.
                        float to_a = ahead ? da + dm * x.x[i] + ds * eta.x[i] : da, to_eta = ahead ? a.x[i] * (ds - dm) : dm + ds;
                        bool itself = t == j;
                        dc.at(t, j) = itself || !inside ? 0.0f : to_a;
                        e.at(t, j) = !inside ? 0.0f : !itself ? to_eta : ahead ? pushed - now : 0.0f;
                    }
                    of.go(a.x[i], m.x[i], s.x[i]);
                }
            }
            // Both recurrences are linear: what comes out of a quarter is a function of what comes in, by five numbers.
            // Nothing comes in above the last one.
            float into = 0.0f, into_pushed = 0.0f;
            for (u32 r = 3; r > 0; r--) {
                float own = into, own_pushed = into_pushed;
                of.take(into, into_pushed, r);
                // Quarters above this one alone.
                if (r <= part) into = own, into_pushed = own_pushed;
            }
            of = Quarter(), of.now = into, of.pushed = into_pushed;
            // All lanes have read what others are about to change.
            __syncwarp();
        }
    }
    // Of the state before the group, in the same way.
    TOGETHER_OF void state_mask_back(const float (&dlast)[3], u32 part, bool writes) const {
        TokenNumbers n = this->n;
        u32 tokens = this->tokens, rows = this->rows, first = part * (rows / 4), end = first + rows / 4;
        bool ahead = this->ahead();
        // Which token reads what one left, and whether there is one.
        u32 reader = o.read_after ? 0 : 1;
        // B moves what E gets as `now` moves `pushed`; A is multiplied as B is.
        Quarter of;
        float A = 0.0f;
#pragma unroll 1
        for (u32 sweep = 0; sweep < 2; sweep++) {
#pragma unroll 1
            for (u32 top = end; top > first;) {
                top -= 4;
                Four a(n.a + top), m(n.m + top), s(n.s + top), x(n.x + top), eta(n.eta + top);
#pragma unroll
                for (u32 i = 4; i-- > 0;) {
                    // Beyond the last token a is 1, m 0 and s 1: nothing changes.
                    u32 t = top + i, by = t + reader < rows ? t + reader : t, earlier = t ? t - 1 : 0;
                    if (t + reader < tokens) A += n.dkept[by], of.now += n.dpushed[by];
                    float B = of.now, E = of.pushed;
                    float before[3] = {t ? n.A[earlier] : 1.0f, t ? n.B[earlier] : 0.0f, t ? n.E[earlier] : 1.0f};
                    float da = A * before[0] + B * before[1], dm = B * before[2], ds = E * before[2];
                    // One of the eight states of the warp is there.
                    if (sweep && writes)
                        n.da[t] = ahead ? da + dm * x.x[i] + ds * eta.x[i] : da, n.deta[t] = ahead ? a.x[i] * (ds - dm) : dm + ds;
                    A *= a.x[i];
                    of.go(a.x[i], m.x[i], s.x[i]);
                }
            }
            // Into the last quarter come gradients of the state after the group.
            float into[3] = {dlast[0], dlast[1], dlast[2]};
            for (u32 r = 3; r > 0; r--) {
                float own[3] = {into[0], into[1], into[2]};
                into[0] = of.from(A, r) + of.from(of.kept, r) * into[0];
                of.take(into[1], into[2], r);
                for (u32 i = 0; i < 3 && r <= part; i++) into[i] = own[i];
            }
            A = into[0], of = Quarter(), of.now = into[1], of.pushed = into[2];
        }
    }
};
