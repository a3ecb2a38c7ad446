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

// Fours of a matrix of weights and its momentum, and of their gradients.
struct Four4 {
    float4 x, dx, s, ds;
};

// The same, with the way back.
struct Reverse : Frozen {
    // Gradients of the state; those of the anchor in global memory.
    Panel dx0, dx1, ds0, ds1, danchor0, danchor1;
    // Pre-activations at keys and queries, what comes back to the hidden layer, gradients at queries and keys [rows,width].
    Panel pre, back, preq, dhq, dh;
    // [rows,K], [rows,V]; gradients of the square [rows,rows].
    Panel dq, dk, dout, dz1, less, dsquare;
    // States before groups: weights and momentum one after another.
    float* begun;
    u64 state;
    LayerBack layers[2];

    // By one thread.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        // First all that a forward has: no place is used for both.
        Frozen::place(call, options, arena);
        n.place_back(arena.take(TokenNumbers::BACK * rows), rows);
        u32 inner = deep() ? rows : 0, keys = deep() ? o.key : 0;
        dhq = panel(arena, inner, width), dh = panel(arena, inner, width), preq = panel(arena, inner, width);
        pre = panel(arena, inner, width), back = panel(arena, inner, width), dout = panel(arena, rows, o.value);
        dq = panel(arena, rows, o.key), dk = panel(arena, rows, o.key);
        if (!deep()) dhq = dq, dh = dk;
        dz1 = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        dsquare = panel(arena, rows, rows), dc = panel(arena, rows, rows), e = panel(arena, rows, rows);
        dx0 = panel(arena, keys, width), dx1 = panel(arena, width, o.value);
        ds0 = panel(arena, momentum ? o.key : 0, width), ds1 = panel(arena, momentum ? width : 0, o.value);
        state = (u64)(keys + o.value) * width * (momentum ? 2 : 1);
        // Neither the first nor the last group of an interval needs one.
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 2 ? groups - 2 : 0) * state);
    }

    // Gradients begin as those of the last state, and of the anchor as zero.
    TOGETHER_OF void open(const RecurrentCall& call, const SequenceHead& sequence, u64 index) {
        if (threadIdx.x == 0) {
            find_anchors(call, sequence.head);
            auto slot = [&](u32 i) { return call.danchor[i] + index * call.sizes[i]; };
            if (anchored) danchor0 = low(slot(0)), danchor1 = high(slot(second()));
            // z0's gradient goes where hq was.
            layers[0] = {x0, s0, dx0, ds0, anchor0, danchor0, q, k, z0, dhq, dq, dk, hq, dk, preq, o.key, width, true};
            layers[1] = {x1, s1, dx1, ds1, anchor1, danchor1, hq, h, z1, dout, dhq, dh, dz1, dh, less, width, o.value, false};
        }
        __syncthreads();
        // By slot: both weights, then both momenta.
        auto slot = [&](u32 i) { return call.dlast[i] + index * call.sizes[i]; };
        if (deep()) move(dx0, low(slot(0)), o.key, width);
        move(dx1, high(slot(second())), width, o.value);
        if (momentum) move(ds0, low(slot(2)), o.key, width), move(ds1, high(slot(3)), width, o.value);
        if (anchored) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            auto nothing = [&](u32, u32) { return zero; };
            if (deep()) fours<2>(o.key, width, nothing, [&](u32 i, u32 j, float4 x) { danchor0.four(i, j) = x; });
            fours<2>(width, o.value, nothing, [&](u32 i, u32 j, float4 x) { danchor1.four(i, j) = x; });
        }
        __syncthreads();
    }
    // Those of the first state.
    TOGETHER_OF void close(const RecurrentCall& call, u64 index) const {
        auto slot = [&](u32 i) { return call.dinitial[i] + index * call.sizes[i]; };
        if (deep()) move(low(slot(0)), dx0, o.key, width);
        move(high(slot(second())), dx1, width, o.value);
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
        if (deep()) next(x0, o.key, width);
        next(x1, width, o.value);
        if (momentum) next(s0, o.key, width), next(s1, width, o.value);
        __syncthreads();
    }
    using Frozen::save;
    // Keeps the state before group g.
    TOGETHER_OF void save(u32 g) const {
        each_of(g, [&](Panel x, Panel to, u32 height, u32 wide) { move(to, x, height, wide); });
    }
    // Restores the state before group g.
    TOGETHER_OF void recall(u32 g) const {
        each_of(g, [&](Panel x, Panel from, u32 height, u32 wide) { move(x, from, height, wide); });
    }

    // d += sign ⟨ρ, y⟩, row by row of y = dr Xᵀ.
    TOGETHER_OF void take_rows(const LayerBack& l, Panel x, float* d, float sign) const {
        // The gradient of a share is an inner product with what was shared.
        multiply(l.tall, 0.0f, nullptr, l.dr.own(), x.t(), rows, l.height, l.wide);
        Panel query = l.query, tall = l.tall;
        fours_by_row<4>(rows, l.height, [&](u32 t, u32 i) { return Two{query.four(t, i), tall.four(t, i)}; },
                     [&](u32, u32, const Two& of) { return dot(of.x, of.y); }, [&](u32 t, float sum) { d[t] += sign * sum; });
        __syncthreads();
    }
    // What the state after the group gives to values and to each write's share: dX by c of the last token, dS by E.
    TOGETHER_OF void take_last(const LayerBack& l, Panel d, const float* by, float* dby) const {
        multiply(l.broad, 0.0f, nullptr, l.key.own(), d.own(), rows, l.wide, l.height);
        Panel z = l.z, broad = l.broad, dz = l.dz;
        auto take = [&](u32 t, u32 i, const Three& of) {
            dz.four(t, i) = map([&](float x, float y) { return x + by[t] * y; }, of.z, of.y);
            return dot(of.x, of.y);
        };
        fours_by_row<2>(rows, l.wide, [&](u32 t, u32 i) { return Three{z.four(t, i), broad.four(t, i), dz.four(t, i)}; }, take,
                     [&](u32 t, float sum) { dby[t] += sum; });
        __syncthreads();
    }
    // d += (by ∘ ρ)ᵀ dr.
    TOGETHER_OF void take_first(const LayerBack& l, Panel d, const float* by) const {
        // The narrower side is scaled.
        if (l.narrow_query) {
            scaled(spare, by, l.query, l.height);
            multiply(d, 1.0f, nullptr, spare.t(), l.dr.own(), l.height, l.wide, rows);
        } else {
            scaled(spare, by, l.dr, l.wide);
            multiply(d, 1.0f, nullptr, l.query.t(), spare.own(), l.height, l.wide, rows);
        }
    }

    // Through what the group keeps of the first state: (A, B; E) transposed, and this thread's part of their gradients.
    TOGETHER_OF void give_back(const LayerBack& l, float (&dlast)[3]) const {
        // After the last token.
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1], gone = n.gone[tokens - 1];
        Panel x = l.x, s = l.s, dx = l.dx, ds = l.ds, anchor = l.anchor, danchor = l.danchor;
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        auto load = [&](u32 i, u32 j) {
            return Four4{x.four(i, j), dx.four(i, j), momentum ? s.four(i, j) : zero, momentum ? ds.four(i, j) : zero};
        };
        fours<1>(l.height, l.wide, load, [&](u32 i, u32 j, const Four4& of) {
            float4 own = of.x, d = of.dx;
            if (anchored) {
                own = map([](float x, float anchor) { return x - anchor; }, own, anchor.four(i, j));
                danchor.four(i, j) = map([&](float sum, float d) { return sum + gone * d; }, danchor.four(i, j), d);
            }
            dlast[0] += dot(d, own), dlast[1] += dot(d, of.s), dlast[2] += dot(of.ds, of.s);
            if (momentum) ds.four(i, j) = map([&](float pushed, float d) { return E * pushed + B * d; }, of.ds, d);
            dx.four(i, j) = map([&](float d) { return A * d; }, d);
        });
        __syncthreads();
    }

    // Gradients of queries and keys, products of all that was read and written.
    TOGETHER_OF void to_query_and_key(const LayerBack& l) const {
        u32 count = 2 + momentum + anchored;
        if (threadIdx.x == 0) {
            Term* terms = terms_of_block();
            terms[0] = {l.dr.own(), l.x.t(), n.kept, l.wide}, terms[1] = {dsquare.own(), l.key.own(), nullptr, rows};
            if (momentum) terms[2] = {l.dr.own(), l.s.t(), n.pushed, l.wide};
            if (anchored) terms[count - 1] = {l.dr.own(), l.anchor.t(), n.rest, l.wide};
        }
        multiply_terms(l.dquery, 0.0f, count, rows, l.height);
        if (threadIdx.x == 0) {
            Term* terms = terms_of_block();
            terms[0] = {dsquare.t(), l.query.own(), nullptr, rows}, terms[1] = {l.z.own(), l.dx.t(), n.last_c, l.wide};
            if (momentum) terms[2] = {l.z.own(), l.ds.t(), n.last_e, l.wide};
        }
        multiply_terms(l.dkey, 0.0f, momentum ? 3 : 2, rows, l.height);
    }

    // A layer's read and write back. Gradients of the state go from after the group to before it.
    TOGETHER_OF void layer(const LayerBack& l, float (&dlast)[3]) const {
        multiply(square, 0.0f, nullptr, l.query.own(), l.key.t(), rows, rows, l.height);
        // R = dr zᵀ, of all pairs of tokens.
        multiply(dsquare, 0.0f, nullptr, l.dr.own(), l.z.t(), rows, rows, l.wide);
        Panel square = this->square, dsquare = this->dsquare, dc = this->dc;
        auto load = [&](u32 t, u32 j) { return Four4{square.four(t, j), dsquare.four(t, j), read_masks(t, j), dc.four(t, j)}; };
        fours<1>(rows, rows, load, [&](u32 t, u32 j, const Four4& of) {
            auto product = [](float x, float y) { return x * y; };
            dc.four(t, j) = map([](float sum, float x, float r) { return sum + x * r; }, of.ds, of.x, of.dx);
            dsquare.four(t, j) = map(product, of.s, of.dx), square.four(t, j) = map(product, of.s, of.x);
        });
        __syncthreads();
        // What each of the first states gives to its share; then all of it to queries.
        take_rows(l, l.x, n.dkept, 1.0f);
        if (anchored) take_rows(l, l.anchor, n.dkept, -1.0f);
        if (momentum) take_rows(l, l.s, n.dpushed, 1.0f);
        to_query_and_key(l);
        // The masked square is that of the forward.
        multiply(l.dz, 0.0f, nullptr, square.t(), l.dr.own(), rows, l.wide, rows);
        take_last(l, l.dx, n.last_c, n.dlast_c);
        if (momentum) take_last(l, l.ds, n.last_e, n.dlast_e);
        give_back(l, dlast);
        // What was read of the first state, by how much of it.
        take_first(l, l.dx, n.kept);
        if (anchored) take_first(l, l.danchor, n.rest);
        if (momentum) take_first(l, l.ds, n.pushed);
    }

    // Back through the hidden layer of inner gradients: to b = u W₁ᵀ in dz0's place, to pre-activations in dh's, and θ's part.
    TOGETHER_OF void hidden_back(Panel dz0) const {
        // Copies of places: stores could change those in shared memory.
        u32 kind = o.activation;
        Panel pre = this->pre, back = this->back, dh = this->dh;
        auto load = [&](u32 t, u32 i) { return Four4{pre.four(t, i), dz0.four(t, i), back.four(t, i), dh.four(t, i)}; };
        auto take = [&](u32 t, u32 i, Four4 of) {
            float *x = &of.x.x, *d = &of.dx.x, *b = &of.s.x, *to_h = &of.ds.x, along = 0.0f, theta = n.theta[t];
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                Curve at = curve(kind, x[e]);
                along += d[e] * b[e] * at.slope;
                float ddelta = -theta * d[e];
                d[e] = ddelta * at.slope;
                to_h[e] = ddelta * b[e] * at.second + to_h[e] * at.slope;
            }
            dz0.four(t, i) = of.dx, dh.four(t, i) = of.ds;
            return along;
        };
        fours_by_row<1>(rows, width, load, take, [&](u32 t, float sum) { n.dtheta[t] = -sum; });
        __syncthreads();
    }
    // Back through the inner gradients: z0's gradient in `hq`, z1's in `dz1`, h's in `dh`, and dk.
    __device__ __forceinline__ void inner_grads_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        if (deep()) inner_grads_back_of<true>(call, sequence, start);
        else inner_grads_back_of<false>(call, sequence, start);
    }
    // The same with one code for MLPs (DEEP) and one for matrices.
    template <bool DEEP> TOGETHER_OF void inner_grads_back_of(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        Panel dz0 = hq;
        if (DEEP) hidden_back(dz0);
        // θ scales both writes. Sums over blocks come at the end.
        fours_by_row<4>(rows, o.value, [&](u32 t, u32 i) { return Two{dz1.four(t, i), u.four(t, i)}; },
                     [&](u32, u32, const Two& of) { return dot(of.x, of.y); },
                     [&](u32 t, float sum) { n.dtheta[t] = (DEEP ? n.dtheta[t] : 0.0f) - sum; });
        Panel part = {sums + (u64)2 * rows * o.value, o.value};
        // The inner gradient goes back to the hidden layer as well.
        if (DEEP) at_point(part, 0.0f, dz0, x1.own(), s1.own(), o.value, width);
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return Two{DEEP ? part.four(t, i) : zero, dz1.four(t, i)}; }, [&](u32 t, u32 i, const Two& of) {
            part.four(t, i) = map([&](float x, float d) { return x - n.theta[t] * d; }, of.x, of.y);
        });
        cluster.meet();
        errors_back<DEEP>(call, sequence, start, part);
    }
    // From the gradients of inner gradients, which blocks add up, to those of values and of weights.
    template <bool DEEP> TOGETHER_OF void errors_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start, Panel part) {
        Panel less = this->less;
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return total(part.row(t) + i); },
              [&](u32 t, u32 i, float4 x) { less.four(t, i) = x; });
        __syncthreads();
        if (huber || POWER_GRADS || o.per_clip != 0.0f || o.norm) {
            ROWS(t, rows) row_back(t, less.row(t), dz1);
            __syncthreads();
        }
        // The same in all blocks: the first one writes it.
        // No row for the other blocks.
        u32 mine = cluster.rank == 0 ? tokens : 0;
        fours<2>(mine, o.value, [&](u32 t, u32 i) { return less.four(t, i); }, [&](u32 t, u32 i, float4 x) {
            store_run<4>(call.dv, sequence.row(call, start + t) * o.value + i, Run<4>{-x.x, -x.y, -x.z, -x.w});
        });
        // With a norm the gradient of the output is not that of the error.
        Panel output = o.norm ? dz1 : less;
        if (DEEP) {
            layers_back(output);
            return;
        }
        at_point(dk, 1.0f, output, x1.t(), s1.t(), o.key, o.value);
        take_weights(dx1, ds1, k, output);
    }
    // From gradients of the output to weights of both layers and to keys.
    TOGETHER_OF void layers_back(Panel output) {
        // W₁ of b, then of the output; both got it at the point.
        take_weights(dx1, ds1, hq, u);
        at_point(preq, 0.0f, output, x1.t(), s1.t(), width, o.value);
        take_weights(dx1, ds1, h, output);
        times_slope(dh, 1.0f, 1.0f, nullptr, preq, pre);
        at_point(dk, 1.0f, dh, x0.t(), s0.t(), o.key, width);
        multiply(dx0, 1.0f, nullptr, k.t(), dh.own(), o.key, width, rows);
        if (ahead()) multiply(ds0, 1.0f, nullptr, k.t(), dh.own(), o.key, width, rows);
    }
    // d += xᵀ y for the second layer, and for what leads it.
    TOGETHER_OF void take_weights(Panel d, Panel leading, Panel x, Panel y) const {
        // Where the point is X + S, both get its gradient.
        multiply(d, 1.0f, nullptr, x.t(), y.own(), width, o.value, rows);
        if (ahead()) multiply(leading, 1.0f, nullptr, x.t(), y.own(), width, o.value, rows);
    }

    // One group back. The state is the one before it.
    TOGETHER_OF void group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        load_rows(dout, call.dout, call, sequence, start, count, o.value);
        Panel dc = this->dc;
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fours<2>(rows, rows, [&](u32, u32) { return zero; }, [&](u32 t, u32 j, float4 x) { dc.four(t, j) = x; });
        EACH(t, rows) n.dkept[t] = n.dpushed[t] = n.dlast_c[t] = n.dlast_e[t] = n.ddelta[t] = 0.0f;
        begin(call, sequence, start, count);
        // Forward again, as far as gradients need it.
        inner_grads(pre, back);
        // Outputs are made only where a norm is behind them.
        u32 end = o.norm ? 2 : 1;
#pragma unroll 1
        for (u32 i = deep() ? 0 : 1; i < end; i++) {
            const LayerBack& l = layers[i];
            read(i ? outputs_again() : preq, l.query, l.x, l.anchor, l.s, l.key, l.z, l.height, l.wide);
            if (i) outputs_vjp(less, dout);
            else activate(hq, preq);
        }
        // Of A, B and E after the group, this thread's part.
        float dlast[3] = {0.0f, 0.0f, 0.0f};
        layer(layers[1], dlast);
        if (deep()) times_slope(dhq, 0.0f, 1.0f, nullptr, dhq, preq), layer(layers[0], dlast);
        // Of this block; the same in all its threads.
        for (float& d : dlast) d = together(d);
        // Gates come last: all that reads masks has added to them.
        masks_back(dlast, e);
        inner_grads_back(call, sequence, start);
        finish(call, sequence, start);
    }
    // What blocks add up of gates, by token: log a, log η, θ and none.
    __device__ Panel of_gates() const { return {sums + (u64)rows * (3 * o.value + 2 * o.key), 4}; }
    // From the gradients of masks to those of gates, this block's part.
    TOGETHER_OF void finish(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel gates = of_gates(), dc = this->dc, e = this->e;
        auto sum_of = [](float4 x) { return x.x + x.y + x.z + x.w; };
        fours_by_row<4>(tokens, rows, [&](u32 t, u32 j) { return dc.four(t, j); },
                     [&](u32, u32, float4 x) { return sum_of(x); },
                     [&](u32 t, float da) { gates.at(t, 0) = n.a[t] * (da + n.da[t]), gates.at(t, 2) = n.dtheta[t]; });
        fours_by_row<4>(tokens, rows, [&](u32 t, u32 j) { return e.four(t, j); }, [&](u32, u32, float4 x) { return sum_of(x); },
                     [&](u32 t, float deta) { gates.at(t, 1) = n.eta[t] * (deta + n.deta[t]), gates.at(t, 3) = 0.0f; });
        give(call, sequence, start);
    }
    // This block's rows of what blocks add up, of keys' width, with what a residual adds.
    template <class F> __device__ void give_rows(Array to, Panel part, const RecurrentCall& call, const SequenceHead& sequence, u32 start, F residual) const {
        u32 blocks = cluster.count, rank = cluster.rank;
        fours<2>((tokens + blocks - 1 - rank) / blocks, o.key, [&](u32 i, u32 j) { return total(part.row(i * blocks + rank) + j); }, [&](u32 i, u32 j, float4 x) {
            u32 t = i * blocks + rank;
            if (o.residual) x = map([](float x, float y) { return x + y; }, x, residual(t, j));
            store_run<4>(to, sequence.row(call, start + t) * o.key + j, Run<4>{x.x, x.y, x.z, x.w});
        });
    }
    // Gradients of queries, keys and gates are sums over blocks.
    TOGETHER_OF void give(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key}, of_k = {of_q.row(rows), o.key}, gates = of_gates();
        move(of_q, dq, rows, o.key), move(of_k, dk, rows, o.key);
        cluster.meet();
        give_rows(call.dq, of_q, call, sequence, start, [&](u32 t, u32 j) {
            if (!o.norm) return dout.four(t, j);
            // `dout` is what came through the norm; the residual is beside it.
            Run<4> d = load_run_if<4>(true, call.dout, sequence.row(call, start + t) * o.value + j);
            return make_float4(d.x[0], d.x[1], d.x[2], d.x[3]);
        });
        give_rows(call.dk, of_k, call, sequence, start, [&](u32 t, u32 j) { return less.four(t, j); });
        u32 blocks = cluster.count, rank = cluster.rank, mine = (tokens + blocks - 1 - rank) / blocks;
        EACH(i, mine) {
            // Gates are scalars: a thread a token.
            u32 t = i * blocks + rank;
            u64 row = sequence.row(call, start + t);
            float4 of = total(gates.row(t));
            call.dgates[0][row] = of.x;
            if (momentum) call.dgates[1][row] = of.y;
            call.dgates[1 + after()][row] = of.z;
            if (huber) call.dgates[2 + after()][row] = n.ddelta[t];
        }
        __syncthreads();
    }
};
