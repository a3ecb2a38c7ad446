// Frozen rules by pieces of a group: as `recurrent.cuh`, but a block does up to `TOKENS` tokens at once that share a gradient
// point. All that depends on the point alone is then done for all of them together.
//
//     struct Cell {
//         // Most tokens of a piece, and whether the gradient of the state is in shared memory.
//         static constexpr u32 TOKENS;
//         static constexpr bool NEAR_ADJOINT;
//         // Whether its phases are functions of their own, which know by `near()` that arrays are in shared memory.
//         static constexpr bool APART;
//         // Elements of global memory by which the blocks of a cluster exchange what they make of a piece.
//         static constexpr u32 SHARED;
//
//         // Elements of a state, from its first on, that are looked at as a gradient point.
//         __device__ u32 point() const;
//
//         // Arrays that a pass needs, taken in the order of the host's list.
//         struct Forward { __device__ Forward(const Cell& cell, Near& near); };
//         struct Backward { __device__ Backward(const Cell& cell, Near& near); };
//
//         // From the state `old` before a piece to `next` after it, which may be `old`. Outputs where `outputs` says so.
//         __device__ void forward(const Piece& piece, const float* point, const float* old, float* next,
//                                 const Forward& room, bool outputs) const;
//
//         // Gradients of a piece's arguments are written; `dstate` becomes that before the piece, `dpoint` is added to.
//         // A `Backward` is a `Forward` too.
//         __device__ void backward(const Piece& piece, const float* point, const float* old, const Adjoint& adjoint,
//                                  const Backward& room) const;
//     };
//
// Everything is visible to the block before and after each of these.
#pragma once
#include "cluster.cuh"
#include "recurrent.cuh"

// Rows of a piece lie this much further apart than they are wide: neighbouring rows are then in other banks.
#define ROW_GAP 4

// Places for arrays in shared memory, which has room for all of them: the compiler is to know where they lie.
struct Near {
    float* at;

    // Arrays begin at multiples of 16 bytes.
    __device__ float* take(u32 count) {
        float* own = at;
        at += (count + 3) / 4 * 4;
        return own;
    }
};

// The same address, known to be in shared memory: functions that are called apart do not see where arrays come from.
__device__ __forceinline__ float* in_shared(const float* at) {
    DYNAMIC_SHARED(float, near);
    return near + (u32)(__cvta_generic_to_shared(at) - __cvta_generic_to_shared(near)) / sizeof(float);
}

// Rows of shared memory. Products read them four elements at once, so that widths are multiples of four.
struct Panel {
    float* at;
    u32 stride;

    // Takes rows [rows,width] from shared memory, with padding.
    __device__ Panel(Near& near, u32 rows, u32 width)
        : at(near.take(rows * (width + ROW_GAP))), stride(width + ROW_GAP) {}
    // Returns row r.
    __device__ float* row(u32 r) const { return at + r * stride; }
    // A copy that lies in shared memory for all to see.
    __device__ __forceinline__ Panel near() const {
        Panel own = *this;
        own.at = in_shared(at);
        return own;
    }
};

// A piece: its tokens, and their rows.
struct Piece {
    const RecurrentCall& call;
    u32 tokens;
    // Row of the first token among rows [rows,H], and how far the next one is.
    u64 first;
    u32 step;
    // How many were loaded before it; the blocks that have it together, and where these exchange results.
    u32 number;
    Cluster cluster;
    float* shared;
    // Its sequence and head, among all and among heads.
    u64 index;
    u32 head;
    // q, k [tokens,K], v, dout [tokens,V], gates [tokens, all gates].
    Panel q, k, v, dout, gates;

    // Places for them; those of `dout` are taken in a backward alone.
    __device__ Piece(const RecurrentCall& call, Near& near, u32 most, bool backward)
        : call(call), tokens(0), first(0), step(call.heads), number(0), shared(nullptr), index(0), head(0),
          q(near, most, call.key), k(near, most, call.key),
          v(near, most, call.value), dout(near, backward ? most : 0, call.value), gates(near, most, call.all_gates) {
        cluster.join();
        shared = call.workspace + (u64)blockIdx.x / cluster.count * cluster.count * call.workspace_each;
    }

    // Functions that are called apart have such a copy of their own.
    __device__ __forceinline__ Piece near() const {
        Piece own = *this;
        own.q = q.near(), own.k = k.near(), own.v = v.near(), own.dout = dout.near(), own.gates = gates.near();
        return own;
    }

    // Sequence and head of the cluster's first turn, and how far its next one is.
    // The blocks of a cluster have one together.
    __device__ u64 begin() const { return blockIdx.x / cluster.count; }
    // Returns how far the cluster's next sequence and head is.
    __device__ u64 stride() const { return gridDim.x / cluster.count; }
    // Whether this block writes what all of the cluster have.
    // All of them make the same bits, and one is enough.
    __device__ bool is_leader() const { return cluster.rank == 0; }
    // True if this block is the one that computes token t.
    __device__ bool owns(u32 t) const { return t % cluster.count == cluster.rank; }

    // What a slot of the state goes back to as it forgets, and its gradient, which is added to; null for zero.
    __device__ const float* anchor(u32 slot) const {
        return call.anchor_slots ? call.anchor[slot] + (u64)head * call.sizes[slot] : nullptr;
    }
    // Returns the gradient of the anchor of `slot`; null without one.
    __device__ float* danchor(u32 slot) const {
        return call.anchor_slots ? call.danchor[slot] + index * call.sizes[slot] : nullptr;
    }

    // Row of token `t` in arrays of the call. Heads lie between tokens.
    __device__ u64 row(u32 t) const { return first + (u64)t * step; }

    // The tokens from `start` to `end` of a sequence.
    // Everything is visible to the block afterwards.
    __device__ void load(const SequenceHead& sequence, u32 start, u32 end, bool backward) {
        tokens = end - start;
        number++;
        first = sequence.row(call, start);
        index = sequence.index, head = sequence.head;
        BY_TYPE(call.q.type, load_rows<TYPE>(backward));
        // Gates are few: the threads that had no rows take them, and their loads wait beside those of rows.
        for (u32 at = blockDim.x - 1 - threadIdx.x; at < tokens * call.all_gates; at += blockDim.x) {
            u32 t = at / call.all_gates, i = at % call.all_gates, slot = 0, own = i;
            while (own >= call.widths[slot]) own -= call.widths[slot++];
            gates.row(t)[i] = call.gates[slot][row(t) * call.widths[slot] + own];
        }
        __syncthreads();
    }

    // The same as a function of its own: kernels that hold much in registers call it.
    __device__ __noinline__ void load_apart(const SequenceHead& sequence, u32 start, u32 end, bool backward) {
        load(sequence, start, end, backward);
    }

    // Runs of four elements of all arrays at one place wait together.
    template <u32 TYPE> __device__ __forceinline__ void load_rows(bool backward) {
        typedef Bits<TYPE, 4> Run4;
        u32 wide = (call.key > call.value ? call.key : call.value) / 4;
        for (u32 at = threadIdx.x; at < tokens * wide; at += blockDim.x) {
            u32 t = at / wide, i = at % wide;
            // Keys and values may differ in width.
            bool has_key = 4 * i < call.key, has_value = 4 * i < call.value, has_dout = has_value && backward;
            u64 of_key = (row(t) * call.key) / 4 + i, of_value = (row(t) * call.value) / 4 + i;
            Run4 own_q = {}, own_k = {}, own_v = {}, own_dout = {};
            // All reads come before the first use of one.
            if (has_key) own_q = ((const Run4*)call.q.data)[of_key], own_k = ((const Run4*)call.k.data)[of_key];
            if (has_value) own_v = ((const Run4*)call.v.data)[of_value];
            if (has_dout) own_dout = ((const Run4*)call.dout.data)[of_value];
            if (has_key) put<TYPE>(q.row(t), i, own_q), put<TYPE>(k.row(t), i, own_k);
            if (has_value) put<TYPE>(v.row(t), i, own_v);
            if (has_dout) put<TYPE>(dout.row(t), i, own_dout);
        }
    }
    // to[4 * i : 4 * i + 4] = four elements as floats.
    template <u32 TYPE> __device__ __forceinline__ static void put(float* to, u32 i, Bits<TYPE, 4> bits) {
        Run<4> run = run_of<4, TYPE>(bits);
        ((float4*)to)[i] = make_float4(run.x[0], run.x[1], run.x[2], run.x[3]);
    }
};

// `to` becomes `from`, `count` elements, a multiple of four; or they are added to it, and are zero then (TAKE).
template <bool TAKE> __device__ __noinline__ void hand_over(float* to, float* from, u32 count) {
    const u32 step = blockDim.x;
    // Four runs of a thread at once.
    for (u32 first = threadIdx.x; first < count / 4; first += 4 * step) {
        float4 own[4], other[4];
        // All reads come before the first use of one.
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            if (first + n * step >= count / 4) continue;
            own[n] = ((float4*)from)[first + n * step];
            if (TAKE) other[n] = ((float4*)to)[first + n * step];
        }
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            if (first + n * step >= count / 4) continue;
            // The sum goes one way, zeros the other.
            if (TAKE) {
                own[n].x += other[n].x, own[n].y += other[n].y, own[n].z += other[n].z, own[n].w += other[n].w;
                ((float4*)from)[first + n * step] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            ((float4*)to)[first + n * step] = own[n];
        }
    }
    __syncthreads();
}

// Most cells have the point and the state in shared memory, where nothing waits for long.
template <class Cell> __device__ __forceinline__ void take_copy(float* to, const float* from, u32 count) {
    if constexpr (Cell::APART) hand_over<false>(to, (float*)from, count);
    else copy(to, from, count);
}

// x·y of `count` elements, a multiple of four, by one thread; both begin at multiples of 16 bytes.
__device__ __forceinline__ float thread_dot(const float* x, const float* y, u32 count) {
    // Four sums, so that additions do not wait for each other.
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (u32 i = 0; i < count; i += 4) {
        float4 a = *(const float4*)(x + i), b = *(const float4*)(y + i);
        sums.x += a.x * b.x, sums.y += a.y * b.y, sums.z += a.z * b.z, sums.w += a.w * b.w;
    }
    return (sums.x + sums.y) + (sums.z + sums.w);
}

// Sums over a warp of N elements a lane, N a power of two up to 32: lane `l` gets that of element `l / (32 / N)`.
template <u32 N, u32 MASK = 16> __device__ __forceinline__ float warp_sums(const float (&x)[N]) {
    if constexpr (N == 1) {
        float sum = x[0];
#pragma unroll
        for (u32 mask = MASK; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        return sum;
    } else {
        // A lane keeps one half and hands on the other.
        bool upper = threadIdx.x & MASK;
        float half[N / 2];
#pragma unroll
        for (u32 i = 0; i < N / 2; i++) {
            float own = upper ? x[i + N / 2] : x[i], other = upper ? x[i] : x[i + N / 2];
            half[i] = own + shuffle_xor(other, MASK);
        }
        return warp_sums<N / 2, MASK / 2>(half);
    }
}

// The pieces of tokens `start` to `end` of a sequence, where `start` begins a group or lies a multiple of `most` after that.
struct Pieces {
    u32 start, end, frozen, most;

    // Of a whole group.
    __device__ u32 each() const { return (frozen + most - 1) / most; }
    // Returns the number of pieces.
    __device__ u32 count() const {
        u32 tokens = end - start;
        return tokens / frozen * each() + (tokens % frozen + most - 1) / most;
    }
    // First token of piece `p`, and the token after its last.
    __device__ u32 begin(u32 p) const { return start + p / each() * frozen + p % each() * most; }
    // Returns the token after the last one of piece p: a group's or the sequence's end may come first.
    __device__ u32 finish(u32 p) const {
        u32 last = begin(p) + most, group = start + (p / each() + 1) * frozen;
        last = last < group ? last : group;
        return last < end ? last : end;
    }
};

// All sequences and heads forward.
template <class Cell> __device__ void run_pieces(const Cell& cell, const RecurrentCall& call, float* shared) {
    Near near = {shared};
    // Arrays in the order of `Pieces::grouped` in `pieces.rs`, which counts them.
    Piece piece(call, near, Cell::TOKENS, false);
    float *state = near.take(call.state), *point = near.take(cell.point());
    const typename Cell::Forward room(cell, near);
    for (u64 index = piece.begin(); index < (u64)call.sequences * call.heads; index += piece.stride()) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        load_state(call, call.initial, index, state);
        opened(cell, state, 0);
        u32 interval = 0;
        const Pieces pieces = {0, sequence.tokens, call.frozen, Cell::TOKENS};
        for (u32 p = 0; p < pieces.count(); p++) {
            // Kept states lie between pieces: both count from the starts of groups.
            u32 t = pieces.begin(p);
            if (call.kept && t == intervals.start(interval)) {
                if (piece.is_leader()) copy(sequence.kept + (u64)interval * call.state, state, call.state);
                interval++;
            }
            // A group begins: its gradient point is the state now.
            if (t % call.frozen == 0) take_copy<Cell>(point, state, cell.point());
            piece.load(sequence, t, pieces.finish(p), false);
            cell.forward(piece, point, state, state, room, true);
        }
        if (piece.is_leader()) store_state(call, call.last, index, state);
    }
}

// One interval backward, piece by piece, its states made again before.
// It goes from the gradient of the state after it. Groups are no longer than an interval.
template <class Cell> struct IntervalBack {
    const Cell& cell;
    const RecurrentCall& call;
    const SequenceHead& sequence;
    const Pieces pieces;
    // Its kept state, those before its other pieces, and the gradient point.
    const float* kept;
    float *begun, *point;

    // Returns the state before piece p.
    __device__ const float* before(u32 p) const { return p ? begun + (u64)(p - 1) * call.state : kept; }

    // `point` becomes that of piece `p`, where the piece looked at last, `p` itself or a neighbour, had another.
    __device__ void find(u32 p, u32 last) const {
        u32 each = pieces.each();
        if (p == last || p / each != last / each) take_copy<Cell>(point, before(p / each * each), cell.point());
    }

    // Piece `p`.
    __device__ void load(Piece& piece, u32 p, bool backward) const {
        if constexpr (Cell::APART) piece.load_apart(sequence, pieces.begin(p), pieces.finish(p), backward);
        else piece.load(sequence, pieces.begin(p), pieces.finish(p), backward);
    }

    // Computes the interval's states again, then takes gradients back through its pieces from the last to the first.
    __device__ void run(Piece& piece, const Adjoint& adjoint, const typename Cell::Backward& room) {
        u32 count = pieces.count();
        // Forward again, but for what the last piece leaves: each state is what the next piece starts with.
        for (u32 p = 0; p + 1 < count; p++) {
            find(p, p ? p - 1 : 0);
            load(piece, p, false);
            cell.forward(piece, point, before(p), begun + (u64)p * call.state, room, false);
        }
        // And back, piece by piece.
        for (u32 p = count; p-- > 0;) {
            find(p, p + 1 < count ? p + 1 : p);
            load(piece, p, true);
            cell.backward(piece, point, before(p), adjoint, room);
            // The gradient of the point joins that of the state where the group begins.
            if (pieces.begin(p) % call.frozen != 0) continue;
            if constexpr (Cell::APART) hand_over<true>(adjoint.state, adjoint.point, cell.point());
            else take_point(call, adjoint.state, adjoint.point);
        }
    }
};

// All sequences and heads backward: interval by interval from the last.
template <class Cell> __device__ void run_pieces_backward(const Cell& cell, const RecurrentCall& call, float* shared) {
    Near near = {shared};
    // In the same order.
    Piece piece(call, near, Cell::TOKENS, true);
    float *dstate = near.take(Cell::NEAR_ADJOINT ? call.state : 0), *point = near.take(cell.point());
    typename Cell::Backward room(cell, near);
    // In global memory: the gradient of the point, and states before all pieces of an interval but the first.
    // A gradient of the state that is not near, and what the cell takes, come last.
    float *dpoint = call.workspace + blockIdx.x * call.workspace_each + Cell::SHARED, *begun = dpoint + call.state;
    const Pieces longest = {0, call.period, call.frozen, Cell::TOKENS};
    float* far = begun + (u64)(longest.count() - 1) * call.state;
    if constexpr (!Cell::NEAR_ADJOINT) {
        dstate = far;
        room.far = far + call.state;
    }
    for (u64 index = piece.begin(); index < (u64)call.sequences * call.heads; index += piece.stride()) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        load_state(call, call.dlast, index, dstate);
        fill(dpoint, 0.0f, call.state);
        for (u32 slot = 0; slot < call.anchor_slots; slot++)
            fill(call.danchor[slot] + index * call.sizes[slot], 0.0f, call.sizes[slot]);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            const Pieces pieces = {intervals.start(interval), intervals.end(interval), call.frozen, Cell::TOKENS};
            const float* kept = sequence.kept + (u64)interval * call.state;
            IntervalBack<Cell>{cell, call, sequence, pieces, kept, begun, point}.run(piece, {dstate, dpoint}, room);
        }
        if (piece.is_leader()) store_state(call, call.dinitial, index, dstate);
    }
}
