// One frozen group backward with all factors of products in shared memory as fp16. A layer's weights are loaded when they are
// needed, since there is no room for everything at once.
#pragma once
#include "resident_states.cuh"

struct ResidentReverse : ResidentStates {
    // The gradient of `masked`, q kᵀ before the mask [rows,rows].
    Plane dmasked;
    // dout [rows,V], in the place of queries; the gradients of pre-activations at queries [rows,width] and of z0 [rows,width].
    Plane dout, dpreq, dz0;
    // The gradient of errors [rows,V], later in the place of dout; that of pre-activations at keys [rows,width].
    Plane dless, dpre;
    // z1 W1ᵀ before the slope, pre-activations at queries, and the gradient of the hidden layer at keys [rows,width].
    OwnHalves back, preq, dh;
    // Gradients of z1 [rows,V] and of keys [rows,K]; that of errors in f32 [rows,V].
    Own dz1, dk;
    Panel less;
    // e [rows,rows], what S has of each write after each token; then its gradient.
    Panel pushed;
    // Row sums of products, one a tile: for the factors of X, S and the anchor that are read, and of writes to X and S.
    float* parts;

    // Divides the block's memory, by one thread, in the order of `resident::Resident::backward` in Rust, which counts the sizes.
    TOGETHER_OF void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_resident(call, options, arena);
        // Numbers of tokens come first, as in a forward.
        n.place_back(arena.take(TokenNumbers::BACK * rows), rows);
        // Each layer has places for its state, or both share them where planes are large. Gradients later replace the state there.
        u32 low = o.key * width, high = width * o.value, most = low > high ? low : high, wider = o.key > o.value ? o.key : o.value;
        // Places 0 and 1: weights and momentum of the first layer or of both; 2: both layers' anchor; 3 and 4: the second layer's.
        for (u32 i = 0; i < 5; i++) {
            float* place = arena.take(has(i % 3) && (i < 3 || !tight) ? Plane::size(most, 1) : 0);
            for (u32 l = 0; l < 2; l++)
                if (i == ANCHOR || (tight ? i < 3 : l == i / 3)) w[l][i % 3] = {place, height(l), wide(l)};
        }
        for (u32 l = 0; l < 2; l++) keys[l] = plane(arena, rows, height(l));
        z0 = plane(arena, rows, width), z1 = plane(arena, rows, o.value);
        // Once masked products are read, e of each write takes their place.
        float* square = arena.take(Plane::size(rows, rows));
        masked = {square, rows, rows}, dmasked = plane(arena, rows, rows), pushed = {square, rows};
        // Queries are read before dout is loaded, and loaded again after it.
        float* shared = arena.take(Plane::size(rows, wider));
        queries[0] = {shared, rows, o.key}, dout = {shared, rows, o.value}, dless = dout;
        // What is computed later takes the place of what is not read any more.
        queries[1] = plane(arena, rows, width), dz0 = queries[1], dpreq = plane(arena, rows, width), dpre = dpreq;
        parts = arena.take(5 * rows * most_tiles());
        // The rest does not fit shared memory and lies in the workspace.
        c = panel(arena, rows, rows), dc = panel(arena, rows, rows), e = Panel{nullptr, 0};
        pre = own_halves(arena, rows, width), back = own_halves(arena, rows, width), preq = own_halves(arena, rows, width);
        // `to_keys` writes it where the same threads have read `preq` in `to_queries`, which comes first.
        dh = preq;
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        dz1 = own(arena, rows, o.value), dk = own(arena, rows, o.key);
        for (u32 l = 0; l < 2; l++)
            for (u32 i = 0; i < 2; i++) grads[l][i] = own(arena, has(i) ? height(l) : 0, wide(l));
        // The state before the first group of an interval was kept by the forward.
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 1 ? groups - 1 : 0) * (u64)(low + high) * (momentum ? 2 : 1));
        place_norm(arena);
    }
    // Computes z0 and z1 of a group again, from its rows and the state before it, and keeps what their gradients need.
    TOGETHER_OF void inner_grads(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count, bool momenta) {
        // Kept planes were requested in the group before. Gradients are taken at X, or at X + S where momentum looks ahead.
        if (!halves) ask(0, momenta);
        if (!halves && !tight) ask(1, momenta);
        begin_group(call, sequence, start, count);
        await(0);
        expect_rows(call, call.dout, sequence, start, o.value);
        hidden_of_keys();
        if (tight) __syncthreads(), ask(1, ahead());
        await(1);
        teach_group(call, sequence, start);
        values_of_first(back);
    }

    // Returns how many tiles lie side by side in the widest matrix.
    __device__ u32 most_tiles() const { return max(max(o.key, o.value), width) / (8 * SIDE); }
    // Returns the array [rows, most_tiles] of row sums `which`.
    __device__ float* part_of(u32 which) const { return parts + which * rows * most_tiles(); }
    // parts[which, tile, row] = (x * y).sum over the tile's columns, for x and y [16, 8 * N].
    template <u32 N>
    __device__ __forceinline__ void row_sums(const float (&x)[N][4], const float (&y)[N][4], const Tile& tile, u32 which) const {
        // A thread has two rows of a tile.
        float of[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < 4 * N; i++) of[i % 4 / 2] += x[i / 4][i % 4] * y[i / 4][i % 4];
        float* to = part_of(which) + tile.side / (8 * N) * rows;
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            // Four threads share a row.
            of[m] += shuffle_xor(of[m], 1), of[m] += shuffle_xor(of[m], 2);
            if (threadIdx.x % 4 == 0) to[tile.row(m)] = of[m];
        }
    }
    // Adds the row sums of all tiles to dkept, dpushed, dlast_c and dlast_e [rows]: `across` tiles for what was read, `down` for
    // what was written. A barrier comes before.
    __device__ __forceinline__ void take_row_sums(u32 across, u32 down) const {
        u32 rows = this->rows, each = rows * most_tiles();
        const float* parts = this->parts;
        float* to = n.dkept;
        // Tiles are added in order, so that results do not depend on which warp computed them.
        auto sum_of = [&](u32 which, u32 t) {
            u32 count = which < 3 ? across : down;
            float sum = 0.0f;
            for (u32 n = 0; n < count; n++) sum += parts[which * each + n * rows + t];
            return sum;
        };
        // A thread has one kind and row; the four arrays lie one after another.
        EACH(i, 4 * rows) {
            u32 kind = i / rows, t = i % rows, which = kind < 2 ? kind : kind + 1;
            if (!has(kind % 2)) continue;
            float sum = to[i] + sum_of(which, t);
            // Reading A of the weights is reading 1 - A of the anchor.
            to[i] = kind == WEIGHTS && anchored ? sum - sum_of(ANCHOR, t) : sum;
        }
    }

    // Returns the writes z of layer l.
    __device__ Plane values(u32 l) const { return l ? z1 : z0; }
    // Returns the gradients of what queries read of layer l.
    __device__ Plane read_grads(u32 l) const { return l ? dout : dpreq; }

    // dc (+)= (q kᵀ) ∘ (dr zᵀ), masked = c ∘ (q kᵀ), dmasked = c ∘ (dr zᵀ) of layer l, all [rows,rows].
    __device__ __forceinline__ void squares(u32 l) const {
        Panel dc = this->dc;
        Plane masked = this->masked, dmasked = this->dmasked, z = values(l), query = queries[l], key = keys[l], dr = read_grads(l);
        u32 depth = height(l), other = wide(l);
        tiles<2>(rows, rows, [&](const Tile& tile) {
            // found = q kᵀ and taken = dr zᵀ.
            float found[2][4] = {}, taken[2][4] = {}, sum[2][4] = {};
            MaskPart by(*this, tile);
            // The second layer comes first and begins dc.
            if (l == 0) get_tile(sum, dc, tile);
            add_product<false, true>(found, query, key, tile, depth);
            add_product<false, true>(taken, dr, z, tile, other);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                // The mask's gradient takes both products before the mask.
                float &x = found[i / 4][i % 4], &d = taken[i / 4][i % 4], c = by.x[i / 4][i % 4];
                sum[i / 4][i % 4] += x * d, x *= c, d *= c;
            }
            set_tile(dc, tile, sum);
            set_tile(masked, tile, found), set_tile(dmasked, tile, taken);
        });
        __syncthreads();
    }
    // dq = A ∘ (dr Xᵀ) + B ∘ (dr Sᵀ) + (1 - A) ∘ (dr anchorᵀ) + dmasked k of layer l. In the second layer the queries are hidden,
    // and dq goes on through the activation to dpreq [rows,width].
    __device__ __forceinline__ void to_queries(u32 l) const {
        Plane query = queries[l], key = keys[l], dr = read_grads(l), dpreq = this->dpreq;
        OwnHalves preq = this->preq;
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key};
        u32 depth = wide(l), kind = o.activation;
        tiles<SIDE>(rows, height(l), [&](const Tile& tile) {
            // The gradient of each factor is a row's inner product with what was read.
            float sum[SIDE][4] = {}, own[SIDE][4];
            get_tile(own, query, tile);
#pragma unroll 1
            for (u32 i = 0; i < 3; i++) {
                if (!has(i)) continue;
                float other[SIDE][4] = {};
                add_product<false, true>(other, dr, w[l][i], tile, depth);
                row_sums(other, own, tile, i);
                add_rows(sum, other, read_share(i), tile);
            }
            // Reads of the group's own writes.
            add_product<false, false>(sum, dmasked, key, tile, rows);
            if (l == 0) return set_tile(of_q, tile, sum);
            // Hidden queries come out of the activation.
            get_tile(own, preq, tile);
            activate<SLOPE>(own, kind);
            multiply_by(sum, own);
            set_tile(dpreq, tile, sum);
        });
    }
    // dk = last_c ∘ (z dXᵀ) + last_E ∘ (z dSᵀ) + dmaskedᵀ q of layer l, with gradients dX and dS after the group.
    __device__ __forceinline__ void to_keys(u32 l) const {
        Plane query = queries[l], z = values(l);
        OwnHalves to_hidden = dh;
        Own to = dk;
        u32 depth = wide(l);
        tiles<SIDE>(rows, height(l), [&](const Tile& tile) {
            float sum[SIDE][4] = {};
#pragma unroll 1
            for (u32 i = 0; i < 2; i++) {
                if (!has(i)) continue;
                float other[SIDE][4] = {};
                add_product<false, true>(other, z, w[l][i], tile, depth);
                add_rows(sum, other, last_share(i), tile);
            }
            // Later tokens of the group read the key through the mask.
            add_product<true, false>(sum, dmasked, query, tile, rows);
            if (l) set_tile(to_hidden, tile, sum);
            else set_tile(to, tile, sum);
        });
    }
    // dz = last_c ∘ (k dX) + last_E ∘ (k dS) + maskedᵀ dr of layer l. That of the first layer goes on to z1 W1ᵀ and to the
    // pre-activations at keys.
    __device__ __forceinline__ void to_values(u32 l) const {
        Plane key = keys[l], dr = read_grads(l), dz0 = this->dz0, z = values(l);
        OwnHalves pre = this->pre, back = this->back, dh = this->dh;
        Own dz1 = this->dz1;
        u32 depth = height(l), kind = o.activation;
        tiles<SIDE>(rows, wide(l), [&](const Tile& tile) {
            // Row sums give the gradients of last_c and last_E.
            float sum[SIDE][4] = {}, other[SIDE][4];
            get_tile(other, z, tile);
#pragma unroll 1
            for (u32 i = 0; i < 2; i++) {
                if (!has(i)) continue;
                float own[SIDE][4] = {};
                add_product<false, false>(own, key, w[l][i], tile, depth);
                row_sums(own, other, tile, 3 + i);
                add_rows(sum, own, last_share(i), tile);
            }
            // Later tokens of the group read the write.
            add_product<true, false>(sum, masked, dr, tile, rows);
            if (l) return set_tile(dz1, tile, sum);
            // Pre-activations at keys get gradients through h and through the slope in z0. θ is already in `back`, but not in dz0.
            float at[SIDE][4], by[SIDE][4];
            get_tile(other, pre, tile), get_tile(by, back, tile);
            multiply_by(by, sum);
            // `pre` is read twice, because registers are scarcer than shared memory.
            get_tile(at, pre, tile);
            activate<SECOND>(other, kind), activate<SLOPE>(at, kind);
            multiply_by(by, other), multiply_by(sum, at);
            get_tile(other, dh, tile);
            multiply_by(other, at), add_to(other, by);
            set_tile(dh, tile, other), set_tile(dz0, tile, sum);
        });
    }
    // danchor += (1 - A) dX + ((1 - A) ∘ q)ᵀ dr of layer l, with dX after the group.
    TOGETHER_OF void to_anchor(u32 l) const {
        // What the weights forget, the anchor adds.
        float rest = n.gone[tokens - 1];
        const float* by = n.rest;
        Panel danchor = this->danchor[l];
        Own dx = grads[l][WEIGHTS];
        Plane query = queries[l], dr = read_grads(l);
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float sum[SIDE][4], of[SIDE][4];
            // dX is still the gradient after the group.
            get_tile(sum, danchor, tile), get_tile(of, dx, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) sum[i / 4][i % 4] += rest * of[i / 4][i % 4];
            add_scaled(sum, of, false, query, dr, tile, by, by, depth);
            set_tile(danchor, tile, sum);
        });
    }
    // dX = A dX + (A ∘ q)ᵀ dr and dS = E dS + B dX + (B ∘ q)ᵀ dr: from after the group to before it.
    __device__ __forceinline__ void give_back(u32 l) const {
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        // How much each token reads of the state before the group.
        const float *by_x = n.kept, *by_s = n.pushed;
        Own dx = grads[l][WEIGHTS], ds = grads[l][MOMENTUM];
        Plane query = queries[l], dr = read_grads(l);
        bool momentum = this->momentum;
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float of_x[SIDE][4], of_s[SIDE][4] = {};
            get_tile(of_x, dx, tile);
            if (momentum) get_tile(of_s, ds, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) {
                float &d = of_x[i / 4][i % 4], &pushed = of_s[i / 4][i % 4];
                // X after the group is A X + B S, and S after it is E S.
                pushed = E * pushed + B * d, d = A * d;
            }
            // Reads of the state before the group.
            add_scaled(of_x, of_s, momentum, query, dr, tile, by_x, by_s, depth);
            set_tile(dx, tile, of_x);
            if (momentum) set_tile(ds, tile, of_s);
        });
    }
    // Takes a layer's read and write back. Returns this thread's part of the gradients of A, B and E after the group.
    TOGETHER_OF Last layer(u32 l) const {
        // These two read the state before the group.
        squares(l);
        to_queries(l);
        __syncthreads();
        // From here on the gradients after the group are in the state's place.
        Last of = exchange(l);
        to_keys(l), to_values(l);
        __syncthreads();
        // All row sums lie in shared memory now.
        take_row_sums(height(l) / (8 * SIDE), wide(l) / (8 * SIDE));
        if (anchored) to_anchor(l);
        give_back(l);
        __syncthreads();
        return of;
    }
    // dW += kᵀ d at the gradient point, with the gradient d of what keys met: errors or pre-activations. The second layer gets
    // dz0ᵀ z1 as well. Where momentum looks ahead the point is X + S, and both get it.
    TOGETHER_OF void add_to_point(u32 l) const {
        Own of_x = grads[l][WEIGHTS], of_s = grads[l][MOMENTUM];
        Plane key = keys[l], other = l ? dless : dpre, dz0 = this->dz0, z1 = this->z1;
        bool both = ahead();
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float sum[SIDE][4], of[SIDE][4] = {};
            get_tile(sum, of_x, tile);
            // What comes through z0 = z1 W1ᵀ, then what comes through predictions.
            if (l) add_product<true, false>(of, dz0, z1, tile, depth);
            add_product<true, false>(of, key, other, tile, depth);
            add_to(sum, of);
            set_tile(of_x, tile, sum);
            // Momentum leads the point only where it looks ahead.
            if (!both) return;
            get_tile(sum, of_s, tile);
            add_to(sum, of);
            set_tile(of_s, tile, sum);
        });
    }

    // Takes the gradients back through one group.
    TOGETHER_OF void group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Both layers add to these, so they start at zero.
        EACH(t, rows) n.dkept[t] = n.dpushed[t] = n.dlast_c[t] = n.dlast_e[t] = n.ddelta[t] = 0.0f;
        // First the forward again, as far as gradients need it.
        inner_grads(call, sequence, start, count, !tight || ahead());
        // Shared places hold the second layer's point now; reads need weights and momentum of the first.
        if (tight) ask(0, true);
        stage_anchor(0);
        mask_of(0);
        await(0);
        // Outputs are computed again only where a norm follows them.
        u32 kind = o.activation;
        Plane q = queries[0], hq = queries[1], z0 = this->z0;
        OwnHalves preq = this->preq;
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {};
            read(sum, 0, q, z0, tile);
            set_tile(preq, tile, sum);
            activate<VALUE>(sum, kind);
            set_tile(hq, tile, sum);
        });
        __syncthreads();
        if (tight) ask(1, true);
        // This thread's part of the gradients of A, B and E after the group.
        float dlast[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (u32 l = 2; l-- > 0;) {
            // dout is loaded in the queries' place, and then the queries again in dout's.
            fill_rows(l ? dout : queries[0], l ? call.dout : call.q, call, sequence, start, count, l ? o.value : o.key);
            stage_anchor(l);
            await(l);
            if (l && o.norm) norm_back(call, sequence, start);
            Last of = layer(l);
            dlast[0] += of.A, dlast[1] += of.B, dlast[2] += of.E;
            // The gradients are read: their place gets what is read next, which is the layer's point or, of shared places, the
            // other layer's.
            ask(tight ? 1 - l : l, ahead() || tight && l);
        }
        sum_up(dlast);
        // Gradients of gates come through the masks; errors and rows do not need e any more.
        push_again();
        __syncthreads();
        if (halves && next_planes) expect_group(call, sequence, start - call.frozen);
        masks_back(dlast, pushed);
        errors_back(call, sequence, start);
        finish(call, sequence, start);
    }
    // Computes the outputs again and takes dout back through the norm.
    TOGETHER_OF void norm_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        // `layer` computes masked products again, together with their gradients.
        mask_of(1);
        __syncthreads();
        // This place gets parts of the errors' gradients later.
        Panel part = outputs_again(), d = {sums + (u64)2 * rows * o.value, o.value};
        Plane hq = queries[1], z1 = this->z1;
        tiles<SIDE>(rows, o.value, [&](const Tile& tile) {
            float sum[SIDE][4] = {};
            read(sum, 1, hq, z1, tile);
            set_tile(part, tile, sum);
        });
        fours<2>(rows, o.value, [&](u32 t, u32 i) { return get_four(call.dout, sequence.row(call, start + (t < tokens ? t : 0)) * o.value + i, t < tokens); },
              [&](u32 t, u32 i, float4 x) { d.four(t, i) = x; });
        outputs_vjp(less, d);
        fill<1>(dout, rows, o.value, [&](u32 t, u32 i) { return d.four(t, i); });
        __syncthreads();
    }
    // x = x summed over the block's threads, in all of them.
    TOGETHER_OF static void sum_up(float (&x)[3]) {
        u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
        float* parts = partial();
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            float sum = warp_sum(x[i]);
            if (first_lane()) parts[i * warps + warp] = sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            // Warps in their order.
            x[i] = 0.0f;
            for (u32 n = 0; n < warps; n++) x[i] += parts[i * warps + n];
        }
    }
    // Computes e [rows,rows] again, as `of_write` does: only now there is room for it.
    TOGETHER_OF void push_again() const {
        Panel to = pushed;
        const float* of_s = n.s;
        u32 rows = this->rows;
        EACH(j, rows) {
            float e = 0.0f, y = n.y[j];
            for (u32 top = 0; top < rows; top += 8) {
                Eight s(of_s + top);
#pragma unroll
                for (u32 i = 0; i < 8; i++) e = top + i == j ? y : e * s.x[i], to.at(top + i, j) = e;
            }
        }
    }
    // Takes dz1 and dz0 back through the errors: to dv, to the hidden layer at keys, and to the weights at the gradient point.
    __device__ __forceinline__ void errors_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        // The second layer at the point is needed once more; the first one is still in place.
        await(1);
        Panel sums_of = {sums + (u64)2 * rows * o.value, o.value}, less = this->less, u = this->u;
        OwnHalves pre = this->pre, dh = this->dh;
        Own dk = this->dk, dz1 = this->dz1;
        Plane dz0 = this->dz0, dless = this->dless, dpre = this->dpre;
        u32 kind = o.activation, width = this->width, value = o.value, rows = this->rows;
        tiles<SIDE>(rows, value, [&](const Tile& tile) {
            float sum[SIDE][4];
            // z1 went into both: the write, and z0 = z1 W1ᵀ.
            get_tile(sum, dz1, tile);
            point<false>(sum, dz0, 1, tile, width);
            set_tile(sums_of, tile, sum);
        });
        cluster.meet();
        // θ scaled the inner gradient.
        const float* theta = n.theta;
        auto take = [&](u32 t, u32 i, const Two& of) {
            less.four(t, i) = map([&](float d) { return -theta[t] * d; }, of.x);
            return dot(of.x, of.y);
        };
        fours_by_row<2>(rows, value, [&](u32 t, u32 i) { return Two{total(sums_of.row(t) + i), u.four(t, i)}; }, take,
                        [&](u32 t, float sum) { n.dtheta[t] = -sum; });
        __syncthreads();
        // Reuse the dz1 buffer for the gradient of predictions before the norm.
        bool norm = o.norm;
        Panel output = {dz1.x, value};
        if (!plain()) {
            // Through what shortens errors and the norm, row by row.
            ROWS(t, rows) row_back(t, less.row(t), output);
            __syncthreads();
        }
        // All blocks have the same dv; each stores some of its rows.
        u32 tokens = this->tokens, count = cluster.count, rank = cluster.rank;
        fill<1>(dless, rows, value, [&](u32 t, u32 i) {
            float4 x = less.four(t, i);
            if (t < tokens && t % count == rank)
                set_four(call.dv, sequence.row(call, start + t) * value + i, make_float4(-x.x, -x.y, -x.z, -x.w));
            return norm ? output.four(t, i) : x;
        });
        __syncthreads();
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {}, slope[SIDE][4], old[SIDE][4];
            // Adds what errors give to the hidden layer to what it already has.
            get_tile(slope, pre, tile), get_tile(old, dh, tile);
            point<true>(sum, dless, 1, tile, value);
            activate<SLOPE>(slope, kind);
            multiply_by(sum, slope), add_to(sum, old);
            set_tile(dpre, tile, sum);
        });
        add_to_point(1);
        __syncthreads();
        // The first layer's point is still there, or loaded again where places are shared. The second layer's own place is free
        // for the next group.
        if (tight) ask(0, ahead());
        else ask_ahead(1);
        await(0);
        // The workspace has parts of keys after those of queries.
        Panel of_k = {sums + (u64)3 * rows * o.value + (u64)rows * o.key, o.key};
        tiles<SIDE>(rows, o.key, [&](const Tile& tile) {
            float sum[SIDE][4];
            // What keys got as they were read and written, then what comes through pre-activations.
            get_tile(sum, dk, tile);
            point<true>(sum, dpre, 0, tile, width);
            set_tile(of_k, tile, sum);
        });
        add_to_point(0);
    }
    // to [tokens,K] = sums_of summed over blocks, plus the residual's part; each block stores some rows.
    template <class F>
    __device__ __forceinline__ void store_sums(Array to, Panel sums_of, const RecurrentCall& call, const SequenceHead& sequence, u32 start,
                                               F residual) const {
        u32 blocks = cluster.count, rank = cluster.rank, mine = (tokens + blocks - 1 - rank) / blocks;
        fours<2>(mine, o.key, [&](u32 i, u32 j) { return total(sums_of.row(i * blocks + rank) + j); }, [&](u32 i, u32 j, float4 x) {
            u32 t = i * blocks + rank;
            // Rows of the caller's arrays.
            u64 row = sequence.row(call, start + t);
            if (o.residual) x = map([](float x, float y) { return x + y; }, x, residual(t, j, row));
            set_four(to, row * o.key + j, x);
        });
    }
    // Stores dq, dk [tokens,K] and gradients of gates [tokens], each summed over blocks.
    __device__ __forceinline__ void finish(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key}, of_k = {of_q.row(rows), o.key}, gates = {of_k.row(rows), 4};
        Panel dc = this->dc, e = pushed;
        fours_by_row<2>(tokens, rows, [&](u32 t, u32 j) { return dc.four(t, j); },
                        [&](u32, u32, float4 x) { return x.x + x.y + x.z + x.w; },
                        [&](u32 t, float da) { gates.at(t, 0) = n.a[t] * (da + n.da[t]); });
        fours_by_row<2>(tokens, rows, [&](u32 t, u32 j) { return e.four(t, j); }, [&](u32, u32, float4 x) { return x.x + x.y + x.z + x.w; },
                        [&](u32 t, float deta) { gates.at(t, 1) = n.eta[t] * (deta + n.deta[t]); });
        // Parts of all blocks are there.
        cluster.meet();
        ask_ahead(0);
        // With a residual keys and values are equally wide.
        store_sums(call.dq, of_q, call, sequence, start, [&](u32, u32 j, u64 row) {
            return get_four(call.dout, row * o.key + j);
        });
        Panel less = this->less;
        store_sums(call.dk, of_k, call, sequence, start, [&](u32 t, u32 j, u64) { return less.four(t, j); });
        u32 blocks = cluster.count, rank = cluster.rank, mine = (tokens + blocks - 1 - rank) / blocks;
        EACH(i, mine) {
            // Gates are scalars: a thread a token.
            u32 t = i * blocks + rank;
            u64 row = sequence.row(call, start + t);
            float sum[2] = {0.0f, 0.0f};
            for (u32 r = 0; r < blocks; r++) {
                // From the first block on.
                const float* of = gates.row(t) - rank * each + r * each;
                sum[0] += of[0], sum[1] += of[1];
            }
            call.dgates[0][row] = sum[0];
            if (momentum) call.dgates[1][row] = sum[1];
            call.dgates[1 + after()][row] = n.dtheta[t];
            if (huber) call.dgates[2 + after()][row] = n.ddelta[t];
        }
        // The next group writes its parts of these again.
        __syncthreads();
    }
};
