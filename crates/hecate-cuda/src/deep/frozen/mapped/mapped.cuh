// Frozen groups of memories whose weights are an image of the state: inner gradients are products, as where memories decay. What
// follows goes element by element and token by token (`sweep.cuh`), for the image of a sum is no sum of images.
#pragma once
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
        u64 parts = (u64)rows * high.wide;
        high.reads = take(parts), high.sums = take(parts), high.tops = take(parts);
        for (Layer& l : layer) l.norms = take(rows), l.sigma = take(rows + 1);
        // By layer a unit and a norm; the rest as `mapped::Mapped::exchanged` counts it.
        starts = take(4), lambdas = take(rows), columns = take(o.value), along = take(2);
    }
    // By one thread. A forward asks for less than a backward.
    __device__ void place(const RecurrentCall& call, const Options& options, Arena& arena, bool backward) {
        cluster.join(call.together, call.meetings);
        u32 columns_each = options.hidden / cluster.count;
        // A chunk's tokens and warps' parts come first: `stage` finds them there.
        offset = CHUNK * max(2 * options.key + 4 * columns_each, 2 * columns_each + 4 * options.value) + CHUNK * NUMBERS;
        arena.take(offset + FROZEN_THREADS / 32 * PARTS);
        begin_places(call, options, arena);
        // No masks and no momentum.
        c = dc = e = s0 = s1 = Panel{nullptr, 0};
        for (u32 i = 0; i < 2; i++) {
            Layer& l = layer[i];
            l.height = i ? width : o.key, l.wide = i ? o.value : width, l.rows = rows, l.kept = nullptr;
            l.numbers = arena.take(NUMBERS * rows), l.omega = arena.take(rows);
        }
        place_exchanged();
        n.place_back(arena.take(TokenNumbers::BACK * rows), rows);
        k = panel(arena, rows, o.key), q = panel(arena, rows, o.key), z0 = panel(arena, rows, width);
        h = panel(arena, rows, width), hq = panel(arena, rows, width), z1 = panel(arena, rows, o.value);
        x0 = panel(arena, o.key, width), x1 = panel(arena, width, o.value);
        // Errors and what is taught.
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value);
        layer[0].x = panel(arena, o.key, width), layer[1].x = panel(arena, width, o.value);
        preq = panel(arena, rows, width), layer[1].y = panel(arena, rows, o.value);
        layer[0].lse = panel(arena, rows, width), layer[1].lse = panel(arena, rows, o.value);
        // Of this block alone: its columns are no one else's.
        layer[0].reads = arena.take(rows * width), layer[0].sums = arena.take(rows * width), layer[0].tops = arena.take(rows * width);
        // Pre-activations at queries are the first layer's outputs.
        layer[0].y = preq;
        layer[0].key = k, layer[0].query = q, layer[0].value = z0, layer[1].key = h, layer[1].query = hq, layer[1].value = z1;
        if (backward) place_back(call, arena);
    }
    __device__ void place_back(const RecurrentCall& call, Arena& arena) {
        u32 widest = width > o.value ? width : o.value;
        Panel given = panel(arena, rows, widest), taken = panel(arena, rows, widest);
        dhq = panel(arena, rows, width), dh = panel(arena, rows, width), pre = panel(arena, rows, width);
        back = panel(arena, rows, width), dout = panel(arena, rows, o.value), dq = panel(arena, rows, o.key);
        dk = panel(arena, rows, o.key), dz1 = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        dx0 = panel(arena, o.key, width), dx1 = panel(arena, width, o.value);
        Panel d0 = panel(arena, o.key, width), d1 = panel(arena, width, o.value);
        float *columns0 = arena.take(width), *columns1 = arena.take(o.value);
        // Gradients of queries, keys and values; those of the first layer's values go where hq was.
        way_back[0] = {d0, columns0, given, taken, dq, dk, hq, n.da};
        way_back[1] = {d1, columns1, given, taken, dhq, dh, dz1, n.da};
        for (Layer& l : layer) l.kept = arena.take((u64)l.tiles() * l.chunks() * TILE_SIZE);
        // Elements of this block's states.
        state = (u64)(o.key + o.value) * width;
        // Neither the first nor the last group of an interval needs one.
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 2 ? groups - 2 : 0) * state);
    }

    // Both states out of, or into, matrices in global memory, one after another.
    TOGETHER_OF void load_states(const float* w0, const float* w1) const {
        move(layer[0].x, low(w0), o.key, width), move(layer[1].x, high(w1), width, o.value);
        __syncthreads();
    }
    TOGETHER_OF void save_states(float* w0, float* w1) const {
        move(low(w0), layer[0].x, o.key, width), move(high(w1), layer[1].x, width, o.value);
        __syncthreads();
    }
    // The state before group g of an interval, put by and back.
    TOGETHER_OF void put_by(u32 g) const {
        float* at = begun + (g - 1) * state;
        move(Panel{at, width}, layer[0].x, o.key, width), move(Panel{at + (u64)o.key * width, o.value}, layer[1].x, width, o.value);
        __syncthreads();
    }
    TOGETHER_OF void take_back(u32 g) const {
        float* at = begun + (g - 1) * state;
        move(layer[0].x, Panel{at, width}, o.key, width), move(layer[1].x, Panel{at + (u64)o.key * width, o.value}, width, o.value);
        __syncthreads();
    }
    // Every four of a matrix of the layer.
    template <class F> __device__ __forceinline__ static void each_of(const Layer& l, F f) {
        fours<1>(l.height, l.wide, [&](u32, u32) { return 0; }, [&](u32 i, u32 j, int) { f(i, j); });
    }
    TOGETHER_OF static void clear(Panel x, u32 height, u32 wide) {
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fours<1>(height, wide, [&](u32, u32) { return zero; }, [&](u32 i, u32 j, float4 x0) { x.four(i, j) = x0; });
    }
    // What block b left in the place of one of this block's.
    __device__ const float* of_block(const float* own, u32 b) const { return own + ((long long)b - cluster.rank) * (long long)each; }

    // What makes outputs and gradients of sums over X' = X / σ, by one thread: ω and κ, by all blocks' units and norms.
    __device__ void factors(const float* sigma, const float* norms, float& omega, float& kappa) const {
        float top = 0.0f, sum = 0.0f, own = *sigma;
        for (u32 b = 0; b < cluster.count; b++) top = fmaxf(top, *of_block(sigma, b));
        for (u32 b = 0; b < cluster.count; b++) {
            // At most 1, for the largest unit is taken.
            float ratio = *of_block(sigma, b) / top, square = ratio * ratio;
            sum += square * square * *of_block(norms, b);
        }
        // ν⁴ = top⁴ (sum + ε / top⁴), and W = σ³ X'³ / ν².
        float ratio = own / top, per = 1.0f / top, norm = sqrtf(sum + (float)LQ_EPSILON * (per * per) * (per * per));
        omega = own * ratio * ratio / norm;
        kappa = -2.0f * ratio * ratio * ratio * per / (norm * norm);
    }
    TOGETHER_OF void factors_of_reads(const Layer& l) const {
        EACH(t, l.tokens) factors(l.sigma + t + 1, l.norms + t, l.omega[t], l.number(KAPPA)[t]);
        __syncthreads();
    }

    // Weights of the state before the group; and their ω and κ.
    template <int MAP> TOGETHER_OF void weights() {
        for (u32 i = 0; i < 2; i++) {
            Layer l = layer[i];
            Panel w = i ? x1 : x0;
            float scale = o.scale, largest = 0.0f, norm = 0.0f;
            if (MAP == SOFTMAX) {
                each_of(l, [&](u32 r, u32 j) { w.four(r, j) = map([&](float x) { return scale * expf(x); }, l.x.four(r, j)); });
                continue;
            }
            each_of(l, [&](u32 r, u32 j) { map([&](float x) { return largest = fmaxf(largest, fabsf(x)); }, l.x.four(r, j)); });
            // Fourth powers of what is at most 1 are finite.
            largest = block_max(largest, partial());
            float sigma = unit_over(largest), unit = 1.0f / sigma;
            each_of(l, [&](u32 r, u32 j) {
                map([&](float x) {
                    float square = unit * x * (unit * x);
                    return norm += square * square;
                }, l.x.four(r, j));
            });
            norm = together(norm);
            if (threadIdx.x == 0) most[i] = largest, starts[2 * i] = sigma, starts[2 * i + 1] = norm;
        }
        if (MAP != SOFTMAX) spread();
        __syncthreads();
    }
    // The rest of (54), where all blocks' norms are there.
    __device__ void spread() {
        // Units and norms of all blocks are there.
        cluster.meet();
        if (threadIdx.x < 2) factors(starts + 2 * threadIdx.x, starts + 2 * threadIdx.x + 1, omegas[threadIdx.x], kappas[threadIdx.x]);
        __syncthreads();
        for (u32 i = 0; i < 2; i++) {
            Layer l = layer[i];
            Panel w = i ? x1 : x0;
            float unit = 1.0f / starts[2 * i], omega = omegas[i];
            // W = ω X'³.
            auto image = [&](float x) { return omega * (unit * x) * (unit * x) * (unit * x); };
            each_of(l, [&](u32 r, u32 j) { w.four(r, j) = map(image, l.x.four(r, j)); });
        }
    }

    // Outputs, of the parts of all blocks where `shared`.
    template <int MAP> TOGETHER_OF void merge(const Layer& of, bool shared, float scale) const {
        Layer l = of;
        u32 count = shared ? cluster.count : 1, first = shared ? 0 : cluster.rank;
        fours<1>(rows, l.wide, [&](u32, u32) { return 0; }, [&](u32 t, u32 j, int) {
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f), read = zero, sum = zero, top = make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
            auto at = [&](const float* own, u32 p) { return *(const float4*)(of_block(own, first + p) + (u64)t * l.wide + j); };
            if (t >= l.tokens) {
                // Rows beyond the last token read nothing.
                l.y.four(t, j) = zero;
            } else if (MAP == SOFTMAX) {
                // The largest exponent first.
                for (u32 p = 0; p < count; p++) top = map([](float x, float y) { return fmaxf(x, y); }, top, at(l.tops, p));
#pragma unroll 2
                for (u32 p = 0; p < count; p++) {
                    float4 by = map([](float x, float top) { return short_exp2(x - top); }, at(l.tops, p), top);
                    auto add = [](float sum, float by, float x) { return sum + by * x; };
                    read = map(add, read, by, at(l.reads, p)), sum = map(add, sum, by, at(l.sums, p));
                }
                l.lse.four(t, j) = map([](float top, float sum) { return top + log2f(sum); }, top, sum);
                l.y.four(t, j) = map([&](float x, float sum) { return scale * x / sum; }, read, sum);
            } else {
                // Every block's sums are over states in a unit of its own.
#pragma unroll 2
                for (u32 p = 0; p < count; p++) {
                    float ratio = of_block(l.sigma, first + p)[t + 1] / l.sigma[t + 1], by = ratio * ratio * ratio;
                    read = map([&](float sum, float x) { return sum + by * x; }, read, at(l.reads, p));
                }
                l.y.four(t, j) = map([&](float x) { return l.omega[t] * x; }, read);
            }
        });
        __syncthreads();
    }
    // Distributions again, behind the group.
    TOGETHER_OF void normalise(const Layer& l) const {
        // The state was left as sums of writes.
        Panel x = l.x, lse = l.lse;
        u32 last = l.tokens - 1;
        each_of(l, [&](u32 r, u32 j) {
            x.four(r, j) = map([](float x, float lse) { return x - LN_2 * lse; }, x.four(r, j), lse.four(last, j));
        });
    }

    // A group: inner gradients, both layers' tokens, outputs in the second one's `y`. A forward leaves the state behind it; a backward
    // keeps that before, and states between.
    template <int MAP> __device__ __forceinline__ void forward(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count, bool backward) {
        load_rows(k, call.k, call, sequence, start, count, o.key), load_rows(q, call.q, call, sequence, start, count, o.key);
        load_rows(v, call.v, call, sequence, start, count, o.value);
        if (threadIdx.x == 0) layer[0].tokens = layer[1].tokens = count;
        begin_gates(call, sequence, start, count);
        // The gradient point is the state before the group.
        weights<MAP>();
        inner_grads(backward ? pre : hq, backward ? back : z0);
#pragma unroll 1
        for (u32 i = 0; i < 2; i++) {
            // Only what a call is given need not be distributions.
            plan<MAP>(layer[i], n.a, most[i], start == 0);
            sweep<MAP>(layer[i], offset, !backward);
            // Outputs of the second layer and norms are sums over blocks.
            if (MAP != SOFTMAX || i) cluster.meet();
            if (MAP != SOFTMAX) factors_of_reads(layer[i]);
            merge<MAP>(layer[i], i, o.scale);
            if (i == 0) activate(hq, preq);
        }
        if (MAP == SOFTMAX && !backward) normalise(layer[0]), normalise(layer[1]);
        __syncthreads();
    }
};
