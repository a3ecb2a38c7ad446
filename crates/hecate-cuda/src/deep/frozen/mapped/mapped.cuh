// Frozen groups of memories whose weights are an image of the state: inner gradients are products, as where memories decay. What
// follows goes element by element and token by token (`sweep.cuh`), for the image of a sum is no sum of images.
#pragma once
#define MEMORIES (MLPS | MATRICES)
#include "frozen_reverse.cuh"
#include "retention.cuh"
#include "mapped/sweep_back.cuh"

// What a block has of a memory and of the group in work. `x0` and `x1` are the weights that the group starts with, `dx0` and `dx1`
// their gradients; places are taken in the order of `mapped::Places`.
struct Mapped : Reverse {
    Layer layer[2];
    BackLayer way_back[2];
    // Where blocks leave units and norms of states before the group, and what both layers' norms meet.
    // Sums of columns of the second layer's gradient, and inner products with weights.
    float *starts, *lambdas, *columns, *along;
    // The largest magnitudes of both states before the group, ω and κ.
    float most[2], omegas[2], kappas[2];
    // Where warps' parts begin in shared memory.
    u32 offset;

    // What blocks exchange beside what `Frozen` and `Reverse` do.
    __device__ void place_exchanged() {
        // After what `Frozen` and `Reverse` exchange.
        float* at = sums + (u64)rows * (3 * o.value + 2 * o.key + 4);
        auto take = [&](u64 count) {
            float* own = at;
            at += (count + 3) / 4 * 4;
            return own;
        };
        Layer& high = layer[1];
        u64 parts = (u64)(rows + 1) * high.wide;
        high.reads = take(parts), high.sums = take(parts), high.tops = take(parts);
        for (Layer& l : layer) l.norms = take(rows), l.sigma = take(rows + 1);
        // By layer a unit and a norm; the rest as `mapped::Mapped::exchanged` counts it.
        starts = take(4), lambdas = take(rows), columns = take(o.value), along = take(2);
    }
    // By one thread. A forward asks for less than a backward.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena, bool backward) {
        cluster.join(call.together, call.meetings);
        bool matrix = options.hidden == 0;
        u32 columns_each = (matrix ? options.key : options.hidden) / cluster.count;
        // A chunk's tokens and warps' parts come first: `stage` finds them there.
        offset = CHUNK * max(matrix ? 0 : 2 * options.key + 4 * columns_each, 2 * columns_each + 4 * options.value) + CHUNK * NUMBERS;
        arena.take(offset + FROZEN_THREADS / 32 * PARTS);
        begin_places(call, options, arena);
        // No masks and no momentum.
        c = dc = e = s0 = s1 = Panel{nullptr, 0};
        for (u32 i = 0; i < 2; i++) {
            Layer& l = layer[i];
            l.height = i ? width : o.key, l.wide = i ? o.value : width, l.rows = rows, l.after = o.read_after, l.kept = nullptr;
            l.q = o.q, l.literal = o.literal;
            u32 rows_of_all = i && deep() ? o.hidden : o.key;
            l.equal = logf((float)rows_of_all), l.share = 1.0f / (float)rows_of_all;
            l.anchor = Panel{nullptr, 0};
            l.numbers = arena.take(NUMBERS * rows), l.omega = arena.take(rows);
        }
        place_exchanged();
        n.place_back(arena.take(TokenNumbers::BACK * rows), rows);
        // A matrix has no first layer.
        u32 inner = deep() ? rows : 0, keys = deep() ? o.key : 0;
        k = panel(arena, rows, o.key), q = panel(arena, rows, o.key), z0 = panel(arena, inner, width);
        h = panel(arena, inner, width), hq = panel(arena, inner, width), z1 = panel(arena, rows, o.value);
        if (!deep()) h = k, hq = q;
        x0 = panel(arena, keys, width), x1 = panel(arena, width, o.value);
        // Errors and inner gradients.
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value);
        layer[0].x = panel(arena, keys, width), layer[1].x = panel(arena, width, o.value);
        preq = panel(arena, inner, width), layer[1].y = panel(arena, rows, o.value);
        u32 looks = deep() ? rows + 1 : 0;
        layer[0].lse = panel(arena, looks, width), layer[1].lse = panel(arena, rows + 1, o.value);
        // Of this block alone: its columns are no one else's.
        layer[0].reads = arena.take(looks * width), layer[0].sums = arena.take(looks * width), layer[0].tops = arena.take(looks * width);
        // Pre-activations at queries are the first layer's outputs.
        layer[0].y = preq;
        layer[0].key = k, layer[0].query = q, layer[0].value = z0, layer[1].key = h, layer[1].query = hq, layer[1].value = z1;
        place_norm(arena);
        if (backward) place_back(call, arena);
    }
    // Takes the arrays of a backward, by one thread.
    __device__ void place_back(const RecurrentCall& call, Arena& arena) {
        u32 widest = width > o.value ? width : o.value, inner = deep() ? rows : 0, keys = deep() ? o.key : 0;
        Panel given = panel(arena, rows, widest), taken = panel(arena, rows, widest);
        dhq = panel(arena, inner, width), dh = panel(arena, inner, width), pre = panel(arena, inner, width);
        back = panel(arena, inner, width), dout = panel(arena, rows, o.value), dq = panel(arena, rows, o.key);
        dk = panel(arena, rows, o.key), dz1 = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        if (!deep()) dhq = dq, dh = dk;
        dx0 = panel(arena, keys, width), dx1 = panel(arena, width, o.value);
        Panel d0 = panel(arena, keys, width), d1 = panel(arena, width, o.value);
        float *columns0 = arena.take(width), *columns1 = arena.take(o.value);
        // Gradients of queries, keys and values; those of the first layer's values go where hq was.
        Panel none = {nullptr, 0};
        way_back[0] = {d0, columns0, given, taken, dq, dk, hq, n.da, none};
        way_back[1] = {d1, columns1, given, taken, dhq, dh, dz1, n.da, none};
        for (u32 i = lowest(); i < 2; i++) layer[i].kept = arena.take((u64)layer[i].tiles() * layer[i].chunks() * TILE_SIZE);
        // Elements of this block's states.
        state = (u64)(keys + o.value) * width;
        // Neither the first nor the last group of an interval needs one.
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 2 ? groups - 2 : 0) * state);
    }

    // The first layer that there is.
    __device__ u32 lowest() const { return deep() ? 0 : 1; }

    // Loads the block's part of both layers' states from matrices in global memory; a matrix memory has no first layer.
    TOGETHER_OF void load_states(const float* w0, const float* w1) const {
        if (deep()) move(layer[0].x, low(w0), o.key, width);
        move(layer[1].x, high(w1), width, o.value);
        __syncthreads();
    }
    // Stores the block's part of both layers' states to matrices in global memory.
    TOGETHER_OF void save_states(float* w0, float* w1) const {
        if (deep()) move(low(w0), layer[0].x, o.key, width);
        move(high(w1), layer[1].x, width, o.value);
        __syncthreads();
    }
    // The same of a whole state in one piece.
    __device__ void load_state(const float* state) const { load_states(state, state + behind_first()); }
    // Stores the block's part of the weights to a state in one piece.
    __device__ void save_state(float* state) const { save_states(state, state + behind_first()); }
    // A head's anchors, and how large they are.
    TOGETHER_OF void begin_anchors(const RecurrentCall& call, u32 head) {
        if (!ANCHORED) return;
        if (threadIdx.x == 0) find_anchors(call, head), layer[0].anchor = anchor0, layer[1].anchor = anchor1;
        __syncthreads();
        for (u32 i = lowest(); i < 2; i++) {
            Panel anchor = layer[i].anchor;
            float most = 0.0f;
            each_of(layer[i], [&](u32 r, u32 j) { map([&](float x) { return most = fmaxf(most, fabsf(x)); }, anchor.four(r, j)); });
            most = block_max(most, partial());
            if (threadIdx.x == 0) layer[i].farthest = most;
        }
        __syncthreads();
    }
    // Places for the state before group g of an interval, and where it is in work.
    template <class F> __device__ __forceinline__ void each_begun(u32 g, F f) const {
        float* at = begun + (g - 1) * state;
        for (u32 i = lowest(); i < 2; i++) {
            Layer l = layer[i];
            f(Panel{at, l.wide}, l.x, l.height, l.wide);
            at += (u64)l.height * l.wide;
        }
        __syncthreads();
    }
    // The state before group g of an interval, put by and back.
    TOGETHER_OF void put_by(u32 g) const {
        each_begun(g, [&](Panel at, Panel x, u32 height, u32 wide) { move(at, x, height, wide); });
    }
    // Restores the state before group g.
    TOGETHER_OF void take_back(u32 g) const {
        each_begun(g, [&](Panel at, Panel x, u32 height, u32 wide) { move(x, at, height, wide); });
    }
    // Every four of a matrix of the layer.
    template <class F> __device__ __forceinline__ static void each_of(const Layer& l, F f) {
        fours<1>(l.height, l.wide, [&](u32, u32) { return 0; }, [&](u32 i, u32 j, int) { f(i, j); });
    }
    // x [height,wide] = 0
    TOGETHER_OF static void clear(Panel x, u32 height, u32 wide) {
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fours<1>(height, wide, [&](u32, u32) { return zero; }, [&](u32 i, u32 j, float4 x0) { x.four(i, j) = x0; });
    }
    // What block b left in the place of one of this block's.
    __device__ const float* of_block(const float* own, u32 b) const { return own + ((long long)b - cluster.rank) * (long long)each; }

    // What makes outputs and gradients of sums over X' = X / σ, by one thread: ω and κ, by all blocks' units and norms.
    template <int MAP> __device__ void factors(const Layer& l, const float* sigma, const float* norms, float& omega, float& kappa) const {
        float top = 0.0f, sum = 0.0f, own = *sigma, q = l.norm<MAP>();
        for (u32 b = 0; b < cluster.count; b++) top = fmaxf(top, *of_block(sigma, b));
        for (u32 b = 0; b < cluster.count; b++) {
            // At most 1, for the largest unit is taken.
            sum += l.part<MAP>(*of_block(sigma, b) / top) * *of_block(norms, b);
        }
        // ν^q = top^q n, with n = sum + ε / top^q; so W = σ^{q−1} B' / ν^{q−2}, or σ X' / ν^{q−2}.
        float ratio = own / top, per = 1.0f / top;
        sum += (float)LQ_EPSILON * l.part<MAP>(per);
        float root = power(sum, (q - 2.0f) / q);
        // Of the mirror σ^{q−1} / top^{q−2}.
        omega = own * l.raise<MAP>(l.mirrors<MAP>() ? ratio : per) / root;
        // With q = 4 the root's square stands for the sum, so that κ rounds as ω does.
        kappa = (2.0f - q) * l.raise<MAP>(ratio) * ratio * per / (MAP == CUBES ? root * root : sum);
    }
    // Computes ω and κ of the state that each token sees.
    template <int MAP> TOGETHER_OF void factors_of_reads(const Layer& l) const {
        EACH(t, l.tokens) factors<MAP>(l, l.sigma + l.seen(t), l.norms + t, l.omega[t], l.number(KAPPA)[t]);
        __syncthreads();
    }

    // Weights of the state before the group; and their ω and κ.
    template <int MAP> TOGETHER_OF void weights() {
        for (u32 i = lowest(); i < 2; i++) {
            Layer l = layer[i];
            Panel w = i ? x1 : x0;
            float scale = o.scale, largest = 0.0f, norm = 0.0f;
            if (MAP == SOFTMAX) {
                each_of(l, [&](u32 r, u32 j) { w.four(r, j) = map([&](float x) { return scale * expf(x); }, l.x.four(r, j)); });
                continue;
            }
            each_of(l, [&](u32 r, u32 j) { map([&](float x) { return largest = fmaxf(largest, fabsf(x)); }, l.x.four(r, j)); });
            // Powers of what is at most 1 are finite.
            largest = block_max(largest, partial());
            float sigma = unit_over(largest), unit = 1.0f / sigma;
            each_of(l, [&](u32 r, u32 j) {
                map([&](float x) { return norm += l.part<MAP>(unit * x); }, l.x.four(r, j));
            });
            norm = together(norm);
            if (threadIdx.x == 0) most[i] = largest, starts[2 * i] = sigma, starts[2 * i + 1] = norm;
        }
        if (MAP != SOFTMAX) spread<MAP>();
        __syncthreads();
    }
    // The rest of (54), where all blocks' norms are there.
    template <int MAP> __device__ void spread() {
        // Units and norms of all blocks are there.
        cluster.meet();
        if (threadIdx.x >= lowest() && threadIdx.x < 2) factors<MAP>(layer[threadIdx.x], starts + 2 * threadIdx.x, starts + 2 * threadIdx.x + 1, omegas[threadIdx.x], kappas[threadIdx.x]);
        __syncthreads();
        for (u32 i = lowest(); i < 2; i++) {
            Layer l = layer[i];
            Panel w = i ? x1 : x0;
            float unit = 1.0f / starts[2 * i], omega = omegas[i];
            // W = ω times the image of X'.
            auto image = [&](float x) { return l.image<MAP>(unit * x, omega); };
            each_of(l, [&](u32 r, u32 j) { w.four(r, j) = map(image, l.x.four(r, j)); });
        }
    }

    // Outputs, of the parts of all blocks where `shared`.
    template <int MAP> TOGETHER_OF void merge(const Layer& of, bool shared, float scale) const {
        Layer l = of;
        u32 count = shared ? cluster.count : 1, first = shared ? 0 : cluster.rank;
        fours<1>(max(rows, l.looks()), l.wide, [&](u32, u32) { return 0; }, [&](u32 t, u32 j, int) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f), read = zero, sum = zero, top = make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
            auto at = [&](const float* own, u32 p) { return *(const float4*)(of_block(own, first + p) + (u64)t * l.wide + j); };
            // Rows beyond the last token read nothing.
            if (t >= l.tokens && t < rows) l.y.four(t, j) = zero;
            if (t >= (MAP == SOFTMAX ? l.looks() : l.tokens)) return;
            if (MAP == SOFTMAX) {
                // The largest exponent first.
                for (u32 p = 0; p < count; p++) top = map([](float x, float y) { return fmaxf(x, y); }, top, at(l.tops, p));
#pragma unroll 2
                for (u32 p = 0; p < count; p++) {
                    float4 by = map([](float x, float top) { return short_exp2(x - top); }, at(l.tops, p), top);
                    auto add = [](float sum, float by, float x) { return sum + by * x; };
                    read = map(add, read, by, at(l.reads, p)), sum = map(add, sum, by, at(l.sums, p));
                }
                // A call's state is read as it is: its columns count as if their sums were 1.
                if (l.sees_given(t)) sum = map([&](float top) { return short_exp2(-top) / l.share; }, top);
                l.lse.four(t, j) = map([&](float top, float sum) { return top + log2f(l.share * sum); }, top, sum);
                if (t < l.tokens) l.y.four(t, j) = map([&](float x, float sum) { return scale * x / sum; }, read, sum);
            } else {
                // Every block's sums are over states in a unit of its own.
#pragma unroll 2
                for (u32 p = 0; p < count; p++) {
                    float by = l.image<MAP>(of_block(l.sigma, first + p)[l.seen(t)] / l.sigma[l.seen(t)]);
                    read = map([&](float sum, float x) { return sum + by * x; }, read, at(l.reads, p));
                }
                l.y.four(t, j) = map([&](float x) { return l.omega[t] * x; }, read);
            }
        });
        __syncthreads();
    }
    // The mean of a row of all blocks' columns, by token into `to`: what the last layer is asked, or its gradient.
    TOGETHER_OF void means(Panel x, const Layer& l, float* to) const {
        // A matrix has one block. Others have met before: nobody reads what was here.
        ROWS(t, l.tokens) {
            float sum = 0.0f;
            LANES(i, l.height) sum += x.at(t, i);
            sum = warp_sum(sum);
            if (first_lane()) lambdas[t] = sum;
        }
        cluster.meet();
        EACH(t, l.rows) {
            float sum = 0.0f;
            for (u32 b = 0; b < cluster.count; b++) sum += of_block(lambdas, b)[t];
            // A call's state need be no distribution.
            to[t] = t < l.tokens && !l.sees_given(t) ? l.share * sum : 0.0f;
        }
        __syncthreads();
    }
    // Before a norm a query's mean is taken off. Columns have one sum, so all outputs have the same of it; rounded sums differ a
    // little, and that may be all by which a norm tells outputs apart.
    TOGETHER_OF void centre_queries(const Layer& l, bool norm) const {
        if (norm) means(l.query, l, l.number(KAPPA));
        else EACH(t, l.rows) l.number(KAPPA)[t] = 0.0f;
        __syncthreads();
    }

    // Distributions again, behind the group.
    TOGETHER_OF void normalise(const Layer& l) const {
        // The state was left as sums of writes, from equal shares.
        Panel x = l.x, lse = l.lse;
        float equal = l.equal;
        u32 last = l.looks() - 1;
        each_of(l, [&](u32 r, u32 j) {
            x.four(r, j) = map([&](float x, float lse) { return (x - LN_2 * lse) - equal; }, x.four(r, j), lse.four(last, j));
        });
    }

    // A group: inner gradients, both layers' tokens, outputs in the second one's `y`. A forward leaves the state behind it; a backward
    // keeps that before, and states between.
    template <int MAP> __device__ __forceinline__ void forward(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count, bool backward) {
        load_rows(k, call.k, call, sequence, start, count, o.key), load_rows(q, call.q, call, sequence, start, count, o.key);
        load_rows(v, call.v, call, sequence, start, count, o.value);
        if (threadIdx.x == 0) layer[0].tokens = layer[1].tokens = count, layer[0].opens = layer[1].opens = start == 0;
        begin_gates(call, sequence, start, count);
        // The gradient point is the state before the group.
        weights<MAP>();
        inner_grads(backward ? pre : hq, backward ? back : z0);
#pragma unroll 1
        for (u32 i = lowest(); i < 2; i++) {
            plan<MAP>(layer[i], n.a, n.rest, most[i]);
            if (MAP == SOFTMAX) centre_queries(layer[i], o.norm && i);
            sweep<MAP>(layer[i], offset, !backward);
            // Outputs of the second layer and norms are sums over blocks.
            if (MAP != SOFTMAX || i) cluster.meet();
            if (MAP != SOFTMAX) factors_of_reads<MAP>(layer[i]);
            merge<MAP>(layer[i], i, o.scale);
            if (i == 0) activate(hq, preq);
        }
        for (u32 i = lowest(); i < 2 && MAP == SOFTMAX && !backward; i++) normalise(layer[i]);
        __syncthreads();
    }
};
