// One group of frozen tokens backward.
#pragma once
#include "frozen.cuh"

// What a layer's way back takes: its arguments, and places of their gradients.
struct LayerBack {
    // State [height,wide], its gradient, the anchor and its.
    Panel x, s, dx, ds, anchor, danchor;
    // Queries and keys [rows,height], values and the gradient of what was read [rows,wide].
    Panel query, key, z, dr;
    Panel dquery, dkey, dz;
    // Places for [rows,height], which may be `dkey`, and [rows,wide].
    Panel tall, broad;
    u32 height, wide;
    // Whether queries are narrower than what was read.
    bool narrow_query;
};

// The same, with the way back.
struct Reverse : Frozen {
    // Gradients of the state; those of the anchor in global memory.
    Panel dx0, dx1, ds0, ds1, danchor0, danchor1;
    // Pre-activations at keys and queries, what comes back to the hidden layer, gradients at queries and keys [rows,width].
    Panel pre, back, preq, dhq, dh;
    // [rows,K], [rows,V]; gradients of the square and of c [rows,rows].
    Panel dq, dk, dout, dz1, less, dsquare, dc;
    // States before groups: weights and momentum one after another.
    float* begun;
    u64 state;
    LayerBack layers[2];

    // By one thread.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        Frozen::place(call, options, arena);
        dhq = panel(arena, rows, width), dh = panel(arena, rows, width), preq = panel(arena, rows, width);
        pre = panel(arena, rows, width), back = panel(arena, rows, width), dout = panel(arena, rows, o.value);
        dq = panel(arena, rows, o.key), dk = panel(arena, rows, o.key);
        dz1 = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        dsquare = panel(arena, rows, rows), dc = panel(arena, rows, rows), e = panel(arena, rows, rows);
        dx0 = panel(arena, o.key, width), dx1 = panel(arena, width, o.value);
        ds0 = panel(arena, momentum ? o.key : 0, width), ds1 = panel(arena, momentum ? width : 0, o.value);
        state = (u64)(o.key + o.value) * width * (momentum ? 2 : 1);
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 2 ? groups - 2 : 0) * state);
    }

    // Gradients begin as those of the last state, and of the anchor as zero.
    __device__ void open(const RecurrentCall& call, const SequenceHead& sequence, u64 index) {
        if (threadIdx.x == 0) {
            find_anchors(call, sequence.head);
            if (anchored) {
                danchor0 = low(call.danchor[0] + index * call.sizes[0]);
                danchor1 = high(call.danchor[1] + index * call.sizes[1]);
            }
            // z0's gradient goes where hq was.
            layers[0] = {x0, s0, dx0, ds0, anchor0, danchor0, q, k, z0, dhq, dq, dk, hq, dk, preq, o.key, width, true};
            layers[1] = {x1, s1, dx1, ds1, anchor1, danchor1, hq, h, z1, dout, dhq, dh, dz1, dh, less, width, o.value, false};
        }
        __syncthreads();
        auto slot = [&](u32 i) { return call.dlast[i] + index * call.sizes[i]; };
        move(dx0, low(slot(0)), o.key, width), move(dx1, high(slot(1)), width, o.value);
        if (momentum) move(ds0, low(slot(2)), o.key, width), move(ds1, high(slot(3)), width, o.value);
        if (anchored) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            fours(o.key, width, [&](u32 i, u32 j) { danchor0.four(i, j) = zero; });
            fours(width, o.value, [&](u32 i, u32 j) { danchor1.four(i, j) = zero; });
        }
        __syncthreads();
    }
    // Those of the first state.
    __device__ void close(const RecurrentCall& call, u64 index) const {
        auto slot = [&](u32 i) { return call.dinitial[i] + index * call.sizes[i]; };
        move(low(slot(0)), dx0, o.key, width), move(high(slot(1)), dx1, width, o.value);
        if (momentum) move(low(slot(2)), ds0, o.key, width), move(high(slot(3)), ds1, width, o.value);
        __syncthreads();
    }

    // The state before group g, kept for the way back; and back.
    template <class F> __device__ void each_of(u32 g, F f) const {
        float* at = begun + (g - 1) * state;
        auto next = [&](Panel x, u32 height, u32 wide) {
            f(x, Panel{at, wide}, height, wide);
            at += (u64)height * wide;
        };
        next(x0, o.key, width), next(x1, width, o.value);
        if (momentum) next(s0, o.key, width), next(s1, width, o.value);
        __syncthreads();
    }
    using Frozen::save;
    __device__ void save(u32 g) const {
        each_of(g, [&](Panel x, Panel to, u32 height, u32 wide) { move(to, x, height, wide); });
    }
    __device__ void recall(u32 g) const {
        each_of(g, [&](Panel x, Panel from, u32 height, u32 wide) { move(x, from, height, wide); });
    }

    // dρ (+)= by ∘ y, and d += sign ⟨ρ, y⟩, row by row of y = dr Xᵀ.
    __device__ void take_rows(const LayerBack& l, const float* by, bool add, float* d, float sign) const {
        ROWS(t, rows) {
            float along = 0.0f;
            FOURS(i, l.height) {
                float4 y = l.tall.four(t, i);
                along += dot(l.query.four(t, i), y);
                float4 of = map([&](float y) { return by[t] * y; }, y);
                l.dquery.four(t, i) = add ? map([](float x, float y) { return x + y; }, l.dquery.four(t, i), of) : of;
            }
            along = warp_sum(along);
            if (first_lane()) d[t] += sign * along;
        }
        __syncthreads();
    }
    // What the state after the group gives to keys, values and each write's share: dX by c of the last token, dS by E's.
    __device__ void take_last(const LayerBack& l, Panel d, const float* by, float* dby) const {
        multiply(l.dkey, 1.0f, by, l.z.own(), d.t(), rows, l.height, l.wide);
        multiply(l.broad, 0.0f, nullptr, l.key.own(), d.own(), rows, l.wide, l.height);
        ROWS(t, rows) {
            float along = 0.0f;
            FOURS(i, l.wide) {
                float4 y = l.broad.four(t, i);
                along += dot(l.z.four(t, i), y);
                l.dz.four(t, i) = map([&](float x, float y) { return x + by[t] * y; }, l.dz.four(t, i), y);
            }
            along = warp_sum(along);
            if (first_lane()) dby[t] += along;
        }
        __syncthreads();
    }
    // d += (by ∘ ρ)ᵀ dr.
    __device__ void take_first(const LayerBack& l, Panel d, const float* by) const {
        if (l.narrow_query) {
            scaled(spare, by, l.query, l.height);
            multiply(d, 1.0f, nullptr, spare.t(), l.dr.own(), l.height, l.wide, rows);
        } else {
            scaled(spare, by, l.dr, l.wide);
            multiply(d, 1.0f, nullptr, l.query.t(), spare.own(), l.height, l.wide, rows);
        }
    }

    // Through what the group keeps of the first state: (A, B; E) transposed, and this thread's part of their gradients.
    __device__ void give_back(const LayerBack& l, float (&dlast)[3]) const {
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        fours(l.height, l.wide, [&](u32 i, u32 j) {
            float4 d = l.dx.four(i, j), x = l.x.four(i, j);
            if (anchored) {
                auto rest = [&](float sum, float d) { return sum + (1.0f - A) * d; };
                x = map([](float x, float anchor) { return x - anchor; }, x, l.anchor.four(i, j));
                l.danchor.four(i, j) = map(rest, l.danchor.four(i, j), d);
            }
            dlast[0] += dot(d, x);
            if (momentum) {
                float4 s = l.s.four(i, j), pushed = l.ds.four(i, j);
                dlast[1] += dot(d, s), dlast[2] += dot(pushed, s);
                l.ds.four(i, j) = map([&](float pushed, float d) { return E * pushed + B * d; }, pushed, d);
            }
            l.dx.four(i, j) = map([&](float d) { return A * d; }, d);
        });
        __syncthreads();
    }

    // A layer's read and write back. Gradients of the state go from after the group to before it.
    __device__ __noinline__ void layer(const LayerBack& l, float (&dlast)[3]) const {
        multiply(square, 0.0f, nullptr, l.query.own(), l.key.t(), rows, rows, l.height);
        multiply(dsquare, 0.0f, nullptr, l.dr.own(), l.z.t(), rows, rows, l.wide);
        ROWS(t, rows) LANES(j, rows) {
            float by = read_mask(t, j), r = dsquare.at(t, j);
            dc.at(t, j) += square.at(t, j) * r;
            dsquare.at(t, j) = by * r, square.at(t, j) *= by;
        }
        __syncthreads();
        multiply(l.tall, 0.0f, nullptr, l.dr.own(), l.x.t(), rows, l.height, l.wide);
        take_rows(l, n.kept, false, n.dkept, 1.0f);
        if (anchored) {
            multiply(l.tall, 0.0f, nullptr, l.dr.own(), l.anchor.t(), rows, l.height, l.wide);
            take_rows(l, n.rest, true, n.dkept, -1.0f);
        }
        if (momentum) {
            multiply(l.tall, 0.0f, nullptr, l.dr.own(), l.s.t(), rows, l.height, l.wide);
            take_rows(l, n.pushed, true, n.dpushed, 1.0f);
        }
        multiply(l.dquery, 1.0f, nullptr, dsquare.own(), l.key.own(), rows, l.height, rows);
        multiply(l.dkey, 0.0f, nullptr, dsquare.t(), l.query.own(), rows, l.height, rows);
        multiply(l.dz, 0.0f, nullptr, square.t(), l.dr.own(), rows, l.wide, rows);
        take_last(l, l.dx, n.last_c, n.dlast_c);
        if (momentum) take_last(l, l.ds, n.last_e, n.dlast_e);
        give_back(l, dlast);
        take_first(l, l.dx, n.kept);
        if (anchored) take_first(l, l.danchor, n.rest);
        if (momentum) take_first(l, l.ds, n.pushed);
    }

    // Gradients of a row's u to the error's, in `less`; (44) and what shortens.
    __device__ void teach_back(u32 t, float* du) const {
        if (o.per_clip != 0.0f) {
            float along = warp_dot(u.row(t), du, o.value) * o.per_clip * o.per_clip;
            LANES(i, o.value) du[i] = n.shrink[t] * (du[i] - along * u.at(t, i));
            __syncwarp();
        }
        float ddelta = 0.0f;
        if (huber) {
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

    // Back through the inner gradients: z0's gradient in `hq`, z1's in `dz1`, h's in `dh`, and dk.
    __device__ void inner_grads_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        Panel dz0 = hq;
        // To b = u W₁ᵀ in dz0's place, and to pre-activations in dh's.
        ROWS(t, rows) {
            float along = 0.0f, theta = n.theta[t];
            FOURS(i, width) {
                float4 all[4] = {pre.four(t, i), dz0.four(t, i), back.four(t, i), dh.four(t, i)};
                float *x = &all[0].x, *d = &all[1].x, *b = &all[2].x, *to_h = &all[3].x;
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    Curve at = activation(o.activation, x[e]);
                    along += d[e] * b[e] * at.slope;
                    float ddelta = -theta * d[e];
                    d[e] = ddelta * at.slope;
                    to_h[e] = ddelta * b[e] * at.second + to_h[e] * at.slope;
                }
                dz0.four(t, i) = all[1], dh.four(t, i) = all[3];
            }
            LANES(i, o.value) along += dz1.at(t, i) * u.at(t, i);
            along = warp_sum(along);
            if (first_lane()) n.dtheta[t] = -along;
        }
        __syncthreads();
        Panel part = {sums + (u64)2 * rows * o.value, o.value};
        at_point(part, 0.0f, dz0, x1.own(), s1.own(), o.value, width);
        ROWS(t, rows) LANES(i, o.value) part.at(t, i) -= n.theta[t] * dz1.at(t, i);
        cluster.meet();
        ROWS(t, rows) {
            LANES(i, o.value) less.at(t, i) = total(part.row(t) + i);
            __syncwarp();
            teach_back(t, less.row(t));
            __syncwarp();
            // The same in all blocks: the first one writes it.
            u64 row = sequence.row(call, start + t);
            if (cluster.rank == 0 && t < tokens) LANES(i, o.value) store(call.dv, row * o.value + i, -less.at(t, i));
        }
        __syncthreads();
        // W₁ of b, then of the output; both got it at the point.
        take_weights(dx1, ds1, dz0, u);
        at_point(preq, 0.0f, less, x1.t(), s1.t(), width, o.value);
        take_weights(dx1, ds1, h, less);
        fours(rows, width, [&](u32 t, u32 i) {
            auto add = [&](float d, float to_h, float pre) { return d + to_h * activation(o.activation, pre).slope; };
            dh.four(t, i) = map(add, dh.four(t, i), preq.four(t, i), pre.four(t, i));
        });
        __syncthreads();
        at_point(dk, 1.0f, dh, x0.t(), s0.t(), o.key, width);
        multiply(dx0, 1.0f, nullptr, k.t(), dh.own(), o.key, width, rows);
        if (ahead()) multiply(ds0, 1.0f, nullptr, k.t(), dh.own(), o.key, width, rows);
    }
    // d += xᵀ y for the second layer, and for what leads it.
    __device__ void take_weights(Panel d, Panel leading, Panel x, Panel y) const {
        multiply(d, 1.0f, nullptr, x.t(), y.own(), width, o.value, rows);
        if (ahead()) multiply(leading, 1.0f, nullptr, x.t(), y.own(), width, o.value, rows);
    }

    // From gradients of the masks to those of a and η of each token: of writes in dc's and e's place.
    __device__ void masks_back(const float (&dlast)[3]) const {
        EACH(j, rows + 1) {
            if (j == rows) state_mask_back(dlast);
            else write_mask_back(j);
        }
        __syncthreads();
    }
    // a and η of a token from the gradients of a, m and s alone.
    __device__ void to_gates(u32 t, float da, float dm, float ds, float& to_a, float& to_eta) const {
        float eta = n.eta[t];
        to_a = ahead() ? da + dm * n.x[t] + ds * eta : da;
        to_eta = ahead() ? n.a[t] * (ds - dm) : dm + ds;
    }
    // Of write j, by one thread.
    __device__ void write_mask_back(u32 j) const {
        // Gradients of c and of E's share; what a token that reads before its write gives to the one before.
        float now = 0.0f, pushed = 0.0f, next = 0.0f;
        for (u32 t = tokens; t-- > 0;) {
            float own = dc.at(t, j);
            now += o.read_after ? own : next;
            next = own;
            if (t < j) {
                dc.at(t, j) = e.at(t, j) = 0.0f;
                continue;
            }
            if (t + 1 == tokens) now += n.dlast_c[j], pushed += n.dlast_e[j];
            if (t == j) {
                dc.at(t, j) = 0.0f, e.at(t, j) = ahead() ? pushed - now : 0.0f;
                now = pushed = 0.0f;
                continue;
            }
            float before = c.at(t - 1, j), pushed_before = e.at(t - 1, j);
            to_gates(t, now * before, now * pushed_before, pushed * pushed_before, dc.at(t, j), e.at(t, j));
            pushed = n.m[t] * now + n.s[t] * pushed;
            now *= n.a[t];
        }
    }
    // Of the state before the group, by one thread.
    __device__ void state_mask_back(const float (&dlast)[3]) const {
        float A = dlast[0], B = dlast[1], E = dlast[2];
        for (u32 t = tokens; t-- > 0;) {
            u32 reader = o.read_after ? t : t + 1;
            if (reader < tokens) A += n.dkept[reader], B += n.dpushed[reader];
            float before = t ? n.A[t - 1] : 1.0f, B_before = t ? n.B[t - 1] : 0.0f, E_before = t ? n.E[t - 1] : 1.0f;
            to_gates(t, A * before + B * B_before, B * E_before, E * E_before, n.da[t], n.deta[t]);
            A *= n.a[t];
            E = n.m[t] * B + n.s[t] * E;
            B *= n.a[t];
        }
    }

    // One group back. The state is the one before it.
    __device__ void group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        begin(call, sequence, start, count);
        ROWS(t, rows) {
            u64 row = sequence.row(call, start + (t < tokens ? t : 0));
            LANES(i, o.value) dout.at(t, i) = t < tokens ? ::load(call.dout, row * o.value + i) : 0.0f;
            LANES(j, rows) dc.at(t, j) = 0.0f;
        }
        EACH(t, rows) n.dkept[t] = n.dpushed[t] = n.dlast_c[t] = n.dlast_e[t] = 0.0f;
        inner_grads(pre, back);
        read(preq, q, x0, anchor0, s0, k, z0, o.key, width);
        activate(hq, preq);
        // Of A, B and E after the group, this thread's part.
        float dlast[3] = {0.0f, 0.0f, 0.0f};
        layer(layers[1], dlast);
        times_slope(dhq, preq);
        layer(layers[0], dlast);
        for (float& d : dlast) d = together(d);
        masks_back(dlast);
        inner_grads_back(call, sequence, start);
        finish(call, sequence, start);
    }
    // Gradients of queries, keys and gates are sums over blocks.
    __device__ void finish(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key}, of_k = {of_q.row(rows), o.key}, gates = {of_k.row(rows), 4};
        ROWS(t, rows) {
            LANES(i, o.key) of_q.at(t, i) = dq.at(t, i), of_k.at(t, i) = dk.at(t, i);
            float da = 0.0f, deta = 0.0f;
            if (t < tokens) LANES(j, tokens) da += dc.at(t, j), deta += e.at(t, j);
            da = warp_sum(da), deta = warp_sum(deta);
            if (first_lane() && t < tokens) {
                gates.at(t, 0) = n.a[t] * (da + n.da[t]), gates.at(t, 1) = n.eta[t] * (deta + n.deta[t]);
                gates.at(t, 2) = n.dtheta[t];
            }
        }
        cluster.meet();
        ROWS(t, tokens) {
            if (t % cluster.count != cluster.rank) continue;
            u64 row = sequence.row(call, start + t);
            LANES(i, o.key) {
                float to_q = total(of_q.row(t) + i), to_k = total(of_k.row(t) + i);
                if (o.residual) to_q += dout.at(t, i), to_k += less.at(t, i);
                store(call.dq, row * o.key + i, to_q), store(call.dk, row * o.key + i, to_k);
            }
            if (!first_lane()) continue;
            call.dgates[0][row] = total(gates.row(t));
            if (momentum) call.dgates[1][row] = total(gates.row(t) + 1);
            call.dgates[1 + after()][row] = total(gates.row(t) + 2);
            if (huber) call.dgates[2 + after()][row] = n.ddelta[t];
        }
        __syncthreads();
    }
};
