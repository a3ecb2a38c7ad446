// One group backward, of memories whose weights are an image of the state.
#pragma once
#include "mapped/mapped.cuh"

struct MappedReverse : Mapped {
    // Gradients begin as those of the last state, and of the anchor as zero.
    TOGETHER_OF void open(const RecurrentCall& call, const SequenceHead& sequence, u64 index) {
        begin_anchors(call, sequence.head);
        auto slot = [&](u32 i) { return call.dlast[i] + index * call.sizes[i]; };
        if (deep()) move(way_back[0].d, low(slot(0)), o.key, width);
        move(way_back[1].d, high(slot(second())), width, o.value);
        if (ANCHORED) clear_anchors(call, index);
        __syncthreads();
    }
    // Finds the gradients of the anchors of state `index`, and sets them to zero.
    __device__ void clear_anchors(const RecurrentCall& call, u64 index) {
        auto slot = [&](u32 i) { return call.danchor[i] + index * call.sizes[i]; };
        if (threadIdx.x == 0) way_back[0].danchor = low(slot(0)), way_back[1].danchor = high(slot(second()));
        __syncthreads();
        for (u32 i = lowest(); i < 2; i++) clear(way_back[i].danchor, layer[i].height, layer[i].wide);
    }
    // Stores the gradients of the initial state `index`.
    TOGETHER_OF void close(const RecurrentCall& call, u64 index) const {
        auto slot = [&](u32 i) { return call.dinitial[i] + index * call.sizes[i]; };
        if (deep()) move(low(slot(0)), way_back[0].d, o.key, width);
        move(high(slot(second())), way_back[1].d, width, o.value);
        __syncthreads();
    }

    // Sums of columns of both gradients: of the second layer this block's part.
    TOGETHER_OF void column_sums_of_gradients() const {
        for (u32 i = lowest(); i < 2; i++) {
            // Down each column, over this block's rows.
            Panel d = way_back[i].d;
            float* to = i ? columns : way_back[0].columns;
            column_sums(layer[i].height, layer[i].wide, [&](u32 r, u32 j) { return d.at(r, j); }, [&](u32 j, float sum) { to[j] = sum; });
        }
        __syncthreads();
    }
    // All blocks' parts, behind a meeting.
    __device__ void add_columns() const {
        // In the order of blocks.
        EACH(j, o.value) {
            float sum = 0.0f;
            for (u32 b = 0; b < cluster.count; b++) sum += of_block(columns, b)[j];
            way_back[1].columns[j] = sum;
        }
        __syncthreads();
    }

    // Gradients of outputs `dy` as `look_back` takes them.
    template <int MAP> TOGETHER_OF void prepare(const Layer& of, const BackLayer& b, Panel dy, bool shared) const {
        Layer l = of;
        Panel given = b.given, taken = b.taken;
        float scale = o.scale;
        ROWS(t, l.tokens) {
            // Of (54): what the norm has of the token.
            // A warp a token.
            float along = 0.0f, omega = MAP == SOFTMAX ? scale : l.omega[t], share = MAP == SOFTMAX ? l.share : 1.0f;
            float own = MAP == SOFTMAX ? 0.0f : l.steep<MAP>() / l.sigma[l.seen(t)];
            LANES(j, l.wide) {
                float d = dy.at(t, j), both = d * l.y.at(t, j);
                given.at(t, j) = share * omega * d, along += both;
                taken.at(t, j) = MAP != SOFTMAX ? own * omega * d : l.sees_given(t) ? 0.0f : share * both;
            }
            along = warp_sum(along);
            if (MAP != SOFTMAX && first_lane()) {
                if (shared) lambdas[t] = along;
                else l.number(KAPPA)[t] *= along;
            }
        }
        if (MAP != SOFTMAX && shared) {
            // The first layer's outputs are all blocks'.
            cluster.meet();
            EACH(t, l.tokens) {
                float sum = 0.0f;
                // Every block has its columns' part.
                for (u32 r = 0; r < cluster.count; r++) sum += of_block(lambdas, r)[t];
                l.number(KAPPA)[t] *= sum;
            }
        }
        __syncthreads();
    }

    // From gradients of weights to those of the state before the group, (54) and (55).
    template <int MAP> TOGETHER_OF void pull_back() const {
        // ⟨dW, W⟩ of both layers, this thread's part.
        float sums[2] = {};
        for (u32 i = lowest(); i < 2; i++) {
            // The second layer's matrices follow the first's.
            Panel w = i ? x1 : x0, dw = i ? dx1 : dx0, d = way_back[i].d;
            if (MAP == SOFTMAX)
                each_of(layer[i], [&](u32 r, u32 j) {
                    d.four(r, j) = map([](float d, float w, float dw) { return d + w * dw; }, d.four(r, j), w.four(r, j), dw.four(r, j));
                });
            else each_of(layer[i], [&](u32 r, u32 j) { sums[i] += dot(w.four(r, j), dw.four(r, j)); });
        }
        if (MAP != SOFTMAX) pull_norms<MAP>(sums);
        __syncthreads();
    }
    // d += map'(x) * W̄ + the norm's part by ⟨W̄, W⟩, of which `sums` are this thread's parts: (54) back, for both layers.
    template <int MAP> __device__ void pull_norms(const float (&sums)[2]) const {
        for (u32 i = lowest(); i < 2; i++) {
            float sum = together(sums[i]);
            if (threadIdx.x == 0) along[i] = sum;
        }
        cluster.meet();
        for (u32 i = lowest(); i < 2; i++) {
            Layer l = layer[i];
            Panel dw = i ? dx1 : dx0, d = way_back[i].d;
            float all = 0.0f, unit = 1.0f / starts[2 * i];
            for (u32 b = 0; b < cluster.count; b++) all += of_block(along, b)[i];
            // X̄ = W̄ times the slope of (54), + (2−q) ν^{−q} ⟨W̄, W⟩ B, in units of σ.
            float own = l.steep<MAP>() * omegas[i] * unit, shared = kappas[i] * all;
            auto take = [&](float d, float x, float dw) { return d + l.pull<MAP>(unit * x, own * dw, shared); };
            each_of(l, [&](u32 r, u32 j) { d.four(r, j) = map(take, d.four(r, j), l.x.four(r, j), dw.four(r, j)); });
        }
    }

    // Gradients of outputs back through the norm; what was read stays.
    TOGETHER_OF void outputs_vjp() const {
        ROWS(t, tokens) {
            const float* read = layer[1].y.row(t);
            // The place of the error's gradient, which comes later.
            float* normed = less.row(t);
            LANES(i, o.value) normed[i] = read[i];
            output_vjp(normed, dout.row(t));
        }
        __syncthreads();
    }

    // What rounding gave all of a row alike is taken off.
    TOGETHER_OF void centre_gradients() const {
        float* mean = layer[1].number(KAPPA);
        means(dhq, layer[1], mean);
        ROWS(t, layer[1].tokens) LANES(i, width) dhq.at(t, i) -= mean[t];
        __syncthreads();
    }

    // Rows beyond the last token write nothing.
    __device__ void clear_rest(Panel x, u32 wide) const { clear(Panel{x.row(tokens), x.stride}, rows - tokens, wide); }

    // One group back, behind `forward`. The state is the one before it; gradients of the state go from after it to before it.
    template <int MAP> __device__ __forceinline__ void group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        if (MAP == SOFTMAX) add_columns();
        // Gradients of outputs, zeros beyond the last token.
        load_rows(dout, call.dout, call, sequence, start, count, o.value);
        if (deep()) clear(dx0, o.key, width);
        clear(dx1, width, o.value);
        clear_rest(dhq, width), clear_rest(dh, width), clear_rest(dz1, o.value), clear_rest(dq, o.key), clear_rest(dk, o.key);
        EACH(t, rows) n.da[t] = n.ddelta[t] = 0.0f;
        __syncthreads();
        if (o.norm) outputs_vjp();
#pragma unroll 1
        for (u32 i = 2; i-- > lowest();) {
            prepare<MAP>(layer[i], way_back[i], i ? dout : dhq, i == 0);
            // The gradient of the first layer's values takes the place of what queried the second.
            if (i == 0) clear_rest(hq, width);
            sweep_back<MAP>(layer[i], way_back[i], offset);
            // Gradients through a norm sum to 0, and so do those of what is asked of distributions.
            if (MAP == SOFTMAX && i && deep() && o.norm) centre_gradients();
            // Back through the activation at queries.
            if (i && deep()) times_slope(dhq, 0.0f, 1.0f, nullptr, dhq, preq);
        }
        inner_grads_back(call, sequence, start);
        pull_back<MAP>();
        // Without momentum and thresholds two of four stay zero.
        Panel gates = of_gates();
        EACH(t, tokens) gates.four(t, 0) = make_float4(n.a[t] * n.da[t], 0.0f, n.dtheta[t], 0.0f);
        give(call, sequence, start);
    }
};
