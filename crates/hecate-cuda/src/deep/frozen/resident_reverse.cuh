// One group of frozen tokens backward, with all factors in shared memory. A layer's weights are put there when they are used.
#pragma once
#include "resident.cuh"

struct ResidentReverse : Resident {
    // Gradients of both layers' weights and momentum; those of masked products.
    Plane dw[2][2], dmasked;
    // Gradients of outputs, which lie where queries do; of pre-activations at queries, and of values of the first layer.
    Plane dout, dpreq, dz0;
    // Of errors, where gradients of outputs were; of pre-activations at keys.
    Plane dless, dpre;
    // What comes back to the hidden layer, pre-activations at queries, gradients at keys [rows,width].
    Own back, preq, dh;
    // [rows,V], [rows,K], and rows [rows,V].
    Own dz1, dk;
    Panel less;
    // Sums of rows by tiles: of shares of X, S and the anchor, and of writes to X and S.
    float* parts;
    // States before groups, weights and momentum one after another.
    float* begun;
    // Where the state before the group is.
    State now;
    // Gradients of weights and momentum after the group, which become those before it.
    Own grads[2][2];
    // Gradients of the anchor by this sequence.
    Panel danchor[2];

    // By one thread; the order is that of `resident::Resident::backward`.
    TOGETHER_OF void place(const RecurrentCall& call, const Options& options, Arena& arena) {
        begin_places(call, options, arena);
        // Numbers of tokens come first, as in a forward.
        n.place_back(arena.take(TokenNumbers::BACK * rows), rows);
        // Both layers' weights take the same place in turn.
        u32 low = o.key * width, high = width * o.value, most = low > high ? low : high, wider = o.key > o.value ? o.key : o.value;
        // Weights, momentum and the anchor, then gradients of the first two.
        for (u32 i = 0; i < 5; i++) {
            float* place = arena.take(has(i % 3) ? Plane::size(most, 1) : 0);
            for (u32 l = 0; l < 2; l++) (i < 3 ? w[l][i] : dw[l][i - 3]) = {place, height(l), wide(l)};
        }
        for (u32 l = 0; l < 2; l++) keys[l] = plane(arena, rows, height(l));
        z0 = plane(arena, rows, width), z1 = plane(arena, rows, o.value), masked = plane(arena, rows, rows);
        dmasked = plane(arena, rows, rows);
        // Queries are read before gradients of outputs, and again after them.
        float* shared = arena.take(Plane::size(rows, wider));
        queries[0] = {shared, rows, o.key}, dout = {shared, rows, o.value}, dless = dout;
        // What comes later takes the place of what is read no more.
        queries[1] = plane(arena, rows, width), dz0 = queries[1], dpreq = plane(arena, rows, width), dpre = dpreq;
        parts = arena.take(5 * rows * most_tiles());
        // What fits no more goes to the workspace.
        c = panel(arena, rows, rows), dc = panel(arena, rows, rows), e = panel(arena, rows, rows);
        pre = own(arena, rows, width), back = own(arena, rows, width), preq = own(arena, rows, width);
        // `to_keys` writes it where the same threads have read `preq` in `to_queries`, which comes first.
        dh = preq;
        v = panel(arena, rows, o.value), u = panel(arena, rows, o.value), less = panel(arena, rows, o.value);
        dz1 = own(arena, rows, o.value), dk = own(arena, rows, o.key);
        for (u32 l = 0; l < 2; l++)
            for (u32 i = 0; i < 2; i++) grads[l][i] = own(arena, has(i) ? height(l) : 0, wide(l));
        // The state before the first group of an interval was kept by the forward.
        u32 groups = call.period / call.frozen;
        begun = arena.take((groups > 1 ? groups - 1 : 0) * (u64)(low + high) * (momentum ? 2 : 1));
    }
    // What a sequence and head has of its own, by one thread.
    __device__ void open(const RecurrentCall& call, u32 head, u64 index) {
        find_anchor(call, head);
        if (!anchored) return;
        danchor[0] = low(call.danchor[0] + index * call.sizes[0]), danchor[1] = high(call.danchor[1] + index * call.sizes[1]);
    }
    // The state before group g of an interval, g from 1 on.
    __device__ State before(u32 g) const {
        // Both layers' weights, then both momenta.
        u32 low = o.key * width, high = width * o.value;
        float* at = begun + (g - 1) * (u64)(low + high) * (momentum ? 2 : 1);
        float* after = at + low + high;
        return {{{at, width}, {at + low, o.value}}, {{after, width}, {after + low, o.value}}};
    }

    // A layer's weights into their place, and momentum, the anchor or gradients if they are asked for and there.
    TOGETHER_OF void stage(u32 l, bool momenta, bool anchors, bool gradients) const {
        u32 height = this->height(l), wide = this->wide(l);
        fill_plane(w[l][WEIGHTS], now.x[l], height, wide);
        if (momenta && momentum) fill_plane(w[l][MOMENTUM], now.s[l], height, wide);
        if (anchors && anchored) fill_plane(w[l][ANCHOR], anchor[l], height, wide);
        if (gradients) copy(dw[l][WEIGHTS], grads[l][WEIGHTS], height, wide);
        if (gradients && momentum) copy(dw[l][MOMENTUM], grads[l][MOMENTUM], height, wide);
        __syncthreads();
    }
    // Gradients of states into planes, and between where the caller has them and where this block does.
    template <class To, class From> TOGETHER_OF static void copy(To to, From from, u32 height, u32 wide) {
        tiles<SIDE>(height, wide, [&](const Tile& tile) {
            float x[SIDE][4];
            get_tile(x, from, tile), set_tile(to, tile, x);
        });
    }
    template <class Move> __device__ __forceinline__ void each_grad(const State& of, Move move) const {
        for (u32 l = 0; l < 2; l++) {
            move(grads[l][WEIGHTS], of.x[l], height(l), wide(l));
            if (momentum) move(grads[l][MOMENTUM], of.s[l], height(l), wide(l));
        }
    }
    // Values of both layers, with all that gradients need of the way to them; the second layer is left in place.
    TOGETHER_OF void inner_grads(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        // The point is X, or X + S.
        stage(0, ahead(), false, false);
        hidden_of_keys();
        __syncthreads();
        stage(1, ahead(), false, false);
        teach_group(call, sequence, start);
        values_of_first(back);
    }

    // Tiles across the widest matrix.
    __device__ u32 most_tiles() const { return max(max(o.key, o.value), width) / (8 * SIDE); }
    __device__ float* part_of(u32 which) const { return parts + which * rows * most_tiles(); }
    // Rows of two tiles multiplied: a sum a row and tile.
    template <u32 N>
    __device__ __forceinline__ void row_sums(const float (&x)[N][4], const float (&y)[N][4], const Tile& tile, u32 which) const {
        // A thread has two rows of a tile.
        float of[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < 4 * N; i++) of[i % 4 / 2] += x[i / 4][i % 4] * y[i / 4][i % 4];
        float* to = part_of(which) + tile.side / (8 * N) * rows;
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            // Four threads have a row.
            of[m] += shuffle_xor(of[m], 1), of[m] += shuffle_xor(of[m], 2);
            if (threadIdx.x % 4 == 0) to[tile.row(m)] = of[m];
        }
    }
    // The sums of rows, of shares by `across` tiles and of writes by `down`, to the numbers of tokens. After a barrier.
    __device__ __forceinline__ void take_row_sums(u32 across, u32 down) const {
        // Numbers that each kind is added to.
        float* to[5] = {n.dkept, n.dpushed, n.dkept, n.dlast_c, n.dlast_e};
        u32 rows = this->rows, each = rows * most_tiles();
        const float* parts = this->parts;
        // A thread a row: as much as is kept of weights, the anchor loses.
        EACH(t, rows) {
#pragma unroll 1
            for (u32 which = 0; which < 5; which++) {
                if (!has(which % 3)) continue;
                // Tiles are added up in their order, whoever made them.
                u32 count = which < 3 ? across : down;
                float sum = 0.0f;
                for (u32 n = 0; n < count; n++) sum += parts[which * each + n * rows + t];
                to[which][t] += which == ANCHOR ? -sum : sum;
            }
        }
    }

    // What the way back takes of a layer: queries, keys and values, and gradients of what was read.
    __device__ Plane values(u32 l) const { return l ? z1 : z0; }
    __device__ Plane read_grads(u32 l) const { return l ? dout : dpreq; }

    // Masked products of a layer and of their gradients; dc gets, or begins with, this layer's part.
    __device__ __forceinline__ void squares(u32 l) const {
        Panel dc = this->dc;
        Plane masked = this->masked, dmasked = this->dmasked, z = values(l), query = queries[l], key = keys[l], dr = read_grads(l);
        u32 depth = height(l), other = wide(l);
        tiles<2>(rows, rows, [&](const Tile& tile) {
            // Products of queries and keys, and of gradients of reads and values.
            float found[2][4] = {}, taken[2][4] = {}, sum[2][4] = {};
            MaskPart by(*this, tile);
            // The second layer comes first.
            if (l == 0) get_tile(sum, dc, tile);
            add_product<false, true>(found, query, key, tile, depth);
            add_product<false, true>(taken, dr, z, tile, other);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                // The mask's gradient takes both before they are masked.
                float &x = found[i / 4][i % 4], &d = taken[i / 4][i % 4], c = by.x[i / 4][i % 4];
                sum[i / 4][i % 4] += x * d, x *= c, d *= c;
            }
            set_tile(dc, tile, sum);
            set_tile(masked, tile, found), set_tile(dmasked, tile, taken);
        });
        __syncthreads();
    }
    // Gradients of queries: A ∘ (dr Xᵀ) + B ∘ (dr Sᵀ) + (1 − A) ∘ (dr anchorᵀ) + dmasked κ. Those of hidden ones go on to what was
    // before the activation.
    __device__ __forceinline__ void to_queries(u32 l) const {
        Plane query = queries[l], key = keys[l], dr = read_grads(l), dpreq = this->dpreq;
        Own preq = this->preq;
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key};
        u32 depth = wide(l), kind = o.activation;
        tiles<SIDE>(rows, height(l), [&](const Tile& tile) {
            // The share of each is taught by what it read: an inner product a row.
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
            // What queries read of writes in the group.
            add_product<false, false>(sum, dmasked, key, tile, rows);
            if (l == 0) return set_tile(of_q, tile, sum);
            // Hidden queries come out of the activation.
            get_tile(own, preq, tile);
            activate<SLOPE>(own, kind);
            multiply_by(sum, own);
            set_tile(dpreq, tile, sum);
        });
    }
    // Of keys: c ∘ (z dXᵀ) + E ∘ (z dSᵀ) + dmaskedᵀ ρ.
    __device__ __forceinline__ void to_keys(u32 l) const {
        Plane query = queries[l], z = values(l);
        Own to = l ? dh : dk;
        u32 depth = wide(l);
        tiles<SIDE>(rows, height(l), [&](const Tile& tile) {
            float sum[SIDE][4] = {};
#pragma unroll 1
            for (u32 i = 0; i < 2; i++) {
                if (!has(i)) continue;
                float other[SIDE][4] = {};
                add_product<false, true>(other, z, dw[l][i], tile, depth);
                add_rows(sum, other, last_share(i), tile);
            }
            // What later tokens read by a key.
            add_product<true, false>(sum, dmasked, query, tile, rows);
            set_tile(to, tile, sum);
        });
    }
    // Of values: c ∘ (κ dX) + E ∘ (κ dS) + maskedᵀ dr. Those of the first layer go on to both that they were made of.
    __device__ __forceinline__ void to_values(u32 l) const {
        Plane key = keys[l], dr = read_grads(l), dz0 = this->dz0, z = values(l);
        Own pre = this->pre, back = this->back, dh = this->dh, dz1 = this->dz1;
        u32 depth = height(l), kind = o.activation;
        tiles<SIDE>(rows, wide(l), [&](const Tile& tile) {
            // Shares of writes in the last state, as those of reads above.
            float sum[SIDE][4] = {}, other[SIDE][4];
            get_tile(other, z, tile);
#pragma unroll 1
            for (u32 i = 0; i < 2; i++) {
                if (!has(i)) continue;
                float own[SIDE][4] = {};
                add_product<false, false>(own, key, dw[l][i], tile, depth);
                row_sums(own, other, tile, 3 + i);
                add_rows(sum, own, last_share(i), tile);
            }
            // What later tokens read of a write.
            add_product<true, false>(sum, masked, dr, tile, rows);
            if (l) return set_tile(dz1, tile, sum);
            // To pre-activations at keys by both ways. θ is in `back`, and not in dz0.
            float at[SIDE][4], by[SIDE][4];
            get_tile(other, pre, tile), get_tile(by, back, tile);
            multiply_by(by, sum);
            // Read twice: registers are dearer than shared memory.
            get_tile(at, pre, tile);
            activate<SECOND>(other, kind), activate<SLOPE>(at, kind);
            multiply_by(by, other), multiply_by(sum, at);
            get_tile(other, dh, tile);
            multiply_by(other, at), add_to(other, by);
            set_tile(dh, tile, other), set_tile(dz0, tile, sum);
        });
    }
    // Gradients of the anchor get (1 − A) dX of the state after the group, and (rest ∘ ρ)ᵀ dr.
    TOGETHER_OF void to_anchor(u32 l) const {
        // What weights forget goes to the anchor.
        float rest = 1.0f - n.A[tokens - 1];
        const float* by = n.rest;
        Panel danchor = this->danchor[l];
        Own dx = grads[l][WEIGHTS];
        Plane query = queries[l], dr = read_grads(l);
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float sum[SIDE][4], of[SIDE][4];
            // Gradients of weights are still those after the group.
            get_tile(sum, danchor, tile), get_tile(of, dx, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) sum[i / 4][i % 4] += rest * of[i / 4][i % 4];
            add_scaled(sum, of, false, query, dr, tile, by, by, depth);
            set_tile(danchor, tile, sum);
        });
    }
    // Gradients of a layer's state from after the group to before it, with this thread's part of those of A, B and E.
    __device__ __forceinline__ void give_back(u32 l, float (&dlast)[3]) const {
        float A = n.A[tokens - 1], B = n.B[tokens - 1], E = n.E[tokens - 1];
        // Shares of the first state that each token reads.
        const float *by_x = n.kept, *by_s = n.pushed;
        Plane own_x = w[l][WEIGHTS], own_s = w[l][MOMENTUM], anchor = w[l][ANCHOR];
        Own dx = grads[l][WEIGHTS], ds = grads[l][MOMENTUM];
        Plane query = queries[l], dr = read_grads(l);
        bool momentum = this->momentum, anchored = this->anchored;
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float of_x[SIDE][4], of_s[SIDE][4] = {}, own[SIDE][4], own_of_s[SIDE][4] = {};
            // Gradients of 32 bits; of the state halves are enough for sums over all of it.
            get_tile(of_x, dx, tile), get_tile(own, own_x, tile);
            if (anchored) {
                // X forgets to it.
                get_tile(of_s, anchor, tile);
#pragma unroll
                for (u32 i = 0; i < 4 * SIDE; i++) own[i / 4][i % 4] -= of_s[i / 4][i % 4], of_s[i / 4][i % 4] = 0.0f;
            }
            if (momentum) get_tile(own_of_s, own_s, tile), get_tile(of_s, ds, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) {
                float &d = of_x[i / 4][i % 4], &pushed = of_s[i / 4][i % 4], other = own_of_s[i / 4][i % 4];
                dlast[0] += d * own[i / 4][i % 4], dlast[1] += d * other, dlast[2] += pushed * other;
                // X after the group has A of X and B of S; S has E of S.
                pushed = E * pushed + B * d, d = A * d;
            }
            // What tokens read of the first state comes back to it.
            add_scaled(of_x, of_s, momentum, query, dr, tile, by_x, by_s, depth);
            set_tile(dx, tile, of_x);
            if (momentum) set_tile(ds, tile, of_s);
        });
    }
    // A layer's read and write back, with this thread's part of what they give to A, B and E after the group.
    TOGETHER_OF void layer(u32 l, float (&dlast)[3]) const {
        // All four read the gradients after the group.
        squares(l);
        to_queries(l), to_keys(l), to_values(l);
        __syncthreads();
        // Each thread's sums lie in shared memory now.
        take_row_sums(height(l) / (8 * SIDE), wide(l) / (8 * SIDE));
        if (anchored) to_anchor(l);
        give_back(l, dlast);
        __syncthreads();
    }
    // Gradients of weights at the point get xᵀ y and further xᵀ y: where the point is X + S, both do.
    TOGETHER_OF void add_to_point(u32 l) const {
        Own of_x = grads[l][WEIGHTS], of_s = grads[l][MOMENTUM];
        Plane key = keys[l], other = l ? dless : dpre, dz0 = this->dz0, z1 = this->z1;
        bool both = ahead();
        u32 depth = rows;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float sum[SIDE][4], of[SIDE][4] = {};
            get_tile(sum, of_x, tile);
            // What comes back through errors to the second layer, then what both got at keys.
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

    // One group back.
    TOGETHER_OF void group(const RecurrentCall& call, const SequenceHead& sequence, u32 start, u32 count) {
        // Both layers add to these.
        EACH(t, rows) n.dkept[t] = n.dpushed[t] = n.dlast_c[t] = n.dlast_e[t] = n.ddelta[t] = 0.0f;
        begin_group(call, sequence, start, count);
        // Forward again, as far as gradients need it.
        inner_grads(call, sequence, start);
        stage(0, true, true, false);
        mask_of(0);
        __syncthreads();
        // Outputs are not made: only the hidden layer is asked for.
        u32 kind = o.activation;
        Plane q = queries[0], hq = queries[1], z0 = this->z0;
        Own preq = this->preq;
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {};
            read(sum, 0, q, z0, tile);
            set_tile(preq, tile, sum);
            activate<VALUE>(sum, kind);
            set_tile(hq, tile, sum);
        });
        __syncthreads();
        // Gradients of A, B and E after the group, a thread's part.
        float dlast[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (u32 l = 2; l-- > 0;) {
            // Gradients of outputs are where queries were, and these again where they were.
            fill_rows(l ? dout : queries[0], l ? call.dout : call.q, call, sequence, start, count, l ? o.value : o.key);
            stage(l, true, true, true);
            layer(l, dlast);
        }
        // The same in all threads of the block.
        for (float& d : dlast) d = together(d);
        // Gates come through the masks; errors and rows need no more of these.
        masks_back(dlast);
        errors_back(call, sequence, start);
        finish(call, sequence, start);
    }
    // Through errors: what values got is theirs times θ.
    __device__ __forceinline__ void errors_back(const RecurrentCall& call, const SequenceHead& sequence, u32 start) {
        // The second layer at the point, once more.
        stage(1, ahead(), false, false);
        Panel sums_of = {sums + (u64)2 * rows * o.value, o.value}, less = this->less, u = this->u;
        Own pre = this->pre, dh = this->dh, dk = this->dk, dz1 = this->dz1;
        Plane dz0 = this->dz0, dless = this->dless, dpre = this->dpre;
        u32 kind = o.activation, width = this->width, value = o.value, rows = this->rows;
        tiles<SIDE>(rows, value, [&](const Tile& tile) {
            float sum[SIDE][4];
            // Both that values of the second layer went into.
            get_tile(sum, dz1, tile);
            point<false>(sum, dz0, 1, tile, width);
            set_tile(sums_of, tile, sum);
        });
        cluster.meet();
        // θ scaled what was taught.
        const float* theta = n.theta;
        auto take = [&](u32 t, u32 i, const Two& of) {
            less.four(t, i) = map([&](float d) { return -theta[t] * d; }, of.x);
            return dot(of.x, of.y);
        };
        fours_by_row<2>(rows, value, [&](u32 t, u32 i) { return Two{total(sums_of.row(t) + i), u.four(t, i)}; }, take,
                        [&](u32 t, float sum) { n.dtheta[t] = -sum; });
        __syncthreads();
        if (!plain()) {
            // Through what shortens errors, row by row.
            ROWS(t, rows) teach_back(t, less.row(t));
            __syncthreads();
        }
        // The same in all blocks: each writes some rows of it.
        u32 tokens = this->tokens, count = cluster.count, rank = cluster.rank;
        fill<1>(dless, rows, value, [&](u32 t, u32 i) {
            float4 x = less.four(t, i);
            if (t < tokens && t % count == rank)
                set_four(call.dv, sequence.row(call, start + t) * value + i, make_float4(-x.x, -x.y, -x.z, -x.w));
            return x;
        });
        __syncthreads();
        tiles<SIDE>(rows, width, [&](const Tile& tile) {
            float sum[SIDE][4] = {}, slope[SIDE][4], old[SIDE][4];
            // What errors give to the hidden layer, and what it already has.
            get_tile(slope, pre, tile), get_tile(old, dh, tile);
            point<true>(sum, dless, 1, tile, value);
            activate<SLOPE>(slope, kind);
            multiply_by(sum, slope), add_to(sum, old);
            set_tile(dpre, tile, sum);
        });
        add_to_point(1);
        __syncthreads();
        stage(0, ahead(), false, false);
        // Keys' parts come after those of queries.
        Panel of_k = {sums + (u64)3 * rows * o.value + (u64)rows * o.key, o.key};
        tiles<SIDE>(rows, o.key, [&](const Tile& tile) {
            float sum[SIDE][4];
            // What was read and written by keys, then what taught them.
            get_tile(sum, dk, tile);
            point<true>(sum, dpre, 0, tile, width);
            set_tile(of_k, tile, sum);
        });
        add_to_point(0);
    }
    // Rows [tokens,K] that are sums over blocks, and a residual; each row by one block.
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
    // Gradients of queries, keys and gates are sums over blocks.
    __device__ __forceinline__ void finish(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        Panel of_q = {sums + (u64)3 * rows * o.value, o.key}, of_k = {of_q.row(rows), o.key}, gates = {of_k.row(rows), 4};
        Panel dc = this->dc, e = this->e;
        fours_by_row<2>(tokens, rows, [&](u32 t, u32 j) { return dc.four(t, j); },
                        [&](u32, u32, float4 x) { return x.x + x.y + x.z + x.w; },
                        [&](u32 t, float da) { gates.at(t, 0) = n.a[t] * (da + n.da[t]); });
        fours_by_row<2>(tokens, rows, [&](u32 t, u32 j) { return e.four(t, j); }, [&](u32, u32, float4 x) { return x.x + x.y + x.z + x.w; },
                        [&](u32 t, float deta) { gates.at(t, 1) = n.eta[t] * (deta + n.deta[t]); });
        // Parts of all blocks are there.
        cluster.meet();
        // Beside a residual, keys and values are as wide.
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
