// The states of a memory in a backward and their gradients: where they lie, and how they get into shared memory for products.
#pragma once
#include "resident.cuh"

struct ResidentStates : Resident {
    // States before groups in the workspace: weights, then momentum.
    float* begun;
    // The state before the present group in f32; or planes of it, and of the group that comes next (null: none).
    State now;
    float *now_planes, *next_planes;
    // The parity of the phase in which each layer's planes arrive.
    u32 parity[2];
    // Gradients of weights and momentum: those after the group become those before it.
    Own grads[2][2];
    // Gradients of the anchor by this sequence.
    Panel danchor[2];

    // Finds the anchors of a sequence and head, and their gradients, by one thread.
    __device__ void open(const RecurrentCall& call, u32 head, u64 index) {
        find_anchor(call, head);
        if (!anchored) return;
        danchor[0] = low(call.danchor[0] + index * call.sizes[0]), danchor[1] = high(call.danchor[1] + index * call.sizes[1]);
    }
    // Returns the state before group g >= 1 of an interval, in the workspace.
    __device__ State before(u32 g) const {
        // Both layers' weights, then both momenta.
        u32 low = o.key * width, high = width * o.value;
        float* at = begun + (g - 1) * (u64)(low + high) * (momentum ? 2 : 1);
        float* after = at + low + high;
        return {{{at, width}, {at + low, o.value}}, {{after, width}, {after + low, o.value}}};
    }

    // Starts to load a layer's weights and, if `momenta`, its momentum into planes that nobody reads any more.
    __device__ __forceinline__ void ask(u32 l, bool momenta) {
        if (halves) return ask_for(now_planes, l, momenta);
        fill_plane(w[l][WEIGHTS], now.x[l], height(l), wide(l));
        if (momenta && momentum) fill_plane(w[l][MOMENTUM], now.s[l], height(l), wide(l));
    }
    // Starts copies of kept planes, by one thread.
    TOGETHER_OF void ask_for(const float* planes, u32 l, bool momenta) {
        if (threadIdx.x != 0 || !planes) return;
        // A new phase of the layer's gate, which all threads await behind a barrier.
        momenta = momenta && momentum, parity[l] ^= 1;
        // The first layer's come first.
        u32 size = plane_size(l), each = momentum ? 2 : 1;
        u64* gate = plane_gates() + l;
        const float* from = planes + (l ? each * plane_size(0) : 0);
        expect_planes(gate, momenta ? 2 * size : size);
        from = fetch_plane(w[l][WEIGHTS], from, size, gate);
        if (momenta) fetch_plane(w[l][MOMENTUM], from, size, gate);
    }
    // Starts to load the next group's planes, if there is a next group.
    __device__ __forceinline__ void ask_ahead(u32 l) {
        if (halves) ask_for(next_planes, l, !tight || ahead());
    }
    // Prefetches the group's rows [tokens,wide] of an argument into the second cache.
    __device__ __forceinline__ void expect_rows(const RecurrentCall& call, Array of, const SequenceHead& sequence, u32 start,
                                                u32 wide) const {
        EACH(t, tokens) expect_row((const u16*)of.data + sequence.row(call, start + t) * wide, 2 * wide);
    }
    // Prefetches the rows and gates with which the next group begins; it has as many tokens as all groups.
    TOGETHER_OF void expect_group(const RecurrentCall& call, const SequenceHead& sequence, u32 start) const {
        u32 group = call.frozen, wides[3] = {o.key, o.key, o.value};
        Array of[3] = {call.k, call.q, call.v};
        // A thread a row: three kinds of rows, and as many gates.
        for (u32 i = threadIdx.x; i < 3 * group; i += blockDim.x) {
            u32 kind = i / group;
            u64 row = sequence.row(call, start + i % group);
            expect_row((const u16*)of[kind].data + row * wides[kind], 2 * wides[kind]);
            if (kind < call.gate_slots) expect_number(call.gates[kind] + row);
        }
    }
    // Waits until the layer's planes have arrived, and for all that other threads wrote before.
    __device__ __forceinline__ void await(u32 l) const {
        __syncthreads();
        if (halves) wait_for_planes(l, parity[l]);
    }
    // Gradients of A, B and E after the group, in registers.
    struct Last {
        float A, B, E;
    };
    // Loads a layer's anchor into its plane; the caller waits at a barrier.
    __device__ __forceinline__ void stage_anchor(u32 l) const {
        if (anchored) fill_plane(w[l][ANCHOR], anchor[l], height(l), wide(l));
    }
    // The planes of a layer's state become those of its gradients after the group. Returns this thread's part of the gradients of
    // A = ⟨dX, X - anchor⟩, B = ⟨dX, S⟩ and E = ⟨dS, S⟩.
    TOGETHER_OF Last exchange(u32 l) const {
        Last of = {0.0f, 0.0f, 0.0f};
        Plane of_x = w[l][WEIGHTS], of_s = w[l][MOMENTUM], anchor = w[l][ANCHOR];
        Own dx = grads[l][WEIGHTS], ds = grads[l][MOMENTUM];
        bool momentum = this->momentum, anchored = this->anchored;
        tiles<SIDE>(height(l), wide(l), [&](const Tile& tile) {
            float d[SIDE][4], own[SIDE][4], other[SIDE][4] = {};
            // Gradients have f32; fp16 of the state is enough for sums over all of it.
            get_tile(d, dx, tile), get_tile(own, of_x, tile);
            // X forgets to the anchor.
            if (anchored) get_tile(other, anchor, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) of.A += d[i / 4][i % 4] * (own[i / 4][i % 4] - other[i / 4][i % 4]);
            // A warp has read the tile by now.
            set_tile(of_x, tile, d);
            if (!momentum) return;
            get_tile(own, of_s, tile), get_tile(other, ds, tile);
#pragma unroll
            for (u32 i = 0; i < 4 * SIDE; i++) {
                float s = own[i / 4][i % 4];
                of.B += d[i / 4][i % 4] * s, of.E += other[i / 4][i % 4] * s;
            }
            set_tile(of_s, tile, other);
        });
        // Copies may read these planes from here on.
        show_planes();
        __syncthreads();
        return of;
    }
    // to [height,wide] = from, between the caller's order of elements and the block's own.
    template <class To, class From> TOGETHER_OF static void copy(To to, From from, u32 height, u32 wide) {
        // The values do not change, only their order.
        tiles<SIDE>(height, wide, [&](const Tile& tile) {
            float x[SIDE][4];
            get_tile(x, from, tile), set_tile(to, tile, x);
        });
    }
    // Calls move(gradient, slot, height, wide) for the gradients of both layers' weights and momentum.
    template <class Move> __device__ __forceinline__ void each_grad(const State& of, Move move) const {
        for (u32 l = 0; l < 2; l++) {
            move(grads[l][WEIGHTS], of.x[l], height(l), wide(l));
            if (momentum) move(grads[l][MOMENTUM], of.s[l], height(l), wide(l));
        }
    }
};
