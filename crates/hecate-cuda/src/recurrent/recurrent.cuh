// Rules whose step is not linear in the memory: token by token, forward and backward, a block a sequence and head.
//
// A rule is a structure `Cell`: sizes and options as the launch gives them, and what the block does for one token. Its
// functions begin with everything visible to the block and end so.
//
//     struct Cell {
//         // Whether `backward` adds to the gradient of the point only after the last time that it reads the gradient of
//         // the state, and has returned that whole. Then both are one array where the point is the state.
//         static constexpr bool IN_PLACE;
//
//         // Optional: whether `forward` has read `old` to the end, and `point` too, before it writes `next`, element by
//         // element; `next` may then be `old`.
//         static constexpr bool OVERWRITES;
//
//         // `out [V]` and the state `next` from the state `old`; every element of `next`, `record`, `out` is written.
//         __device__ void forward(const Token& token, const float* old, const float* point, float* next, float* record,
//                                 float* scratch, float* out) const;
//
//         // Gradients of a token's arguments, and of the state before it. Those of the arguments are zero when given,
//         // and rows of the block's own.
//         __device__ void backward(const Token& token, const States& states, const float* record, const float* dout,
//                                  const Adjoint& adjoint, float* scratch, const TokenGrads& grads) const;
//
//         // Optional: whether columns of weights may go back to their anchor's lengths where groups start (`call.columns`).
//         static constexpr bool RENORMS;
//
//         // Optional. Where a rule is not defined for every initial state: what it makes of one that it is not defined for.
//         __device__ void open(float* state) const;
//     };
//
// A state is all its slots one after another, each row-major.
#pragma once
#include "block.cuh"
#include "renorm.cuh"

// Tokens between kept states.
#define KEPT_EVERY 64
// Gates, and matrices of a state, at most.
#define MOST_SLOTS 4

// A call; `recurrent::RecurrentCall` is its twin.
struct RecurrentCall {
    // [rows,H,K] and [rows,H,V].
    Array q, k, v, out, dout, dq, dk, dv;
    // By slot: [rows,H,width] and [N,H,size].
    const float* gates[MOST_SLOTS];
    float* dgates[MOST_SLOTS];
    const float* initial[MOST_SLOTS];
    float* last[MOST_SLOTS];
    const float* dlast[MOST_SLOTS];
    float* dinitial[MOST_SLOTS];
    // Of the first slots of a state [H,size], and their gradients by sequence [N,H,size]; null where there is no anchor.
    const float* anchor[MOST_SLOTS];
    float* danchor[MOST_SLOTS];
    // First row of every sequence and after them the number of rows; the same of kept states.
    const u32 *starts, *kept_starts;
    // [kept states, H, state], a head's one after another; null where none are kept.
    float* kept;
    // [blocks, workspace]: what does not fit into shared memory.
    float* workspace;
    u64 workspace_each;
    u32 widths[MOST_SLOTS], sizes[MOST_SLOTS];
    // Columns of each slot that has an anchor, where they go back to its lengths as groups start; else 0.
    u32 columns[MOST_SLOTS];
    u32 gate_slots, state_slots;
    // How many slots have an anchor, 0 for none.
    u32 anchor_slots;
    // Elements of the weights, where gradients are taken at their sum with the momentum after them; 0 for none.
    u32 ahead;
    u32 sequences, heads, key, value;
    // Elements of a token's gates, a state, what a token leaves for its backward, and scratch.
    u32 all_gates, state, record, scratch;
    // Tokens that share a gradient point, 0 for none; tokens from which kept states are counted: see `CheckpointIntervals`.
    u32 frozen, period;
    // Elements in shared memory.
    u32 near;
    // Blocks of a memory that are no cluster, and the counters by which they meet, see `Blocks`; else 0 and null.
    u32 together;
    u32* meetings;
};

// One token's arguments, rows that the block has for itself: q and k [K], v [V], gates one slot after another.
struct Token {
    const float *q, *k, *v, *gates;
};

// Gradients of them, rows of the block's own: q and k [K], v [V], gates [all gates].
struct TokenGrads {
    float *q, *k, *v, *gates;
};

// States around one token: before it, where the gradient is taken, after it.
struct States {
    const float *old, *point, *next;
};

// Gradients of states: of that after the token when given, before it when returned, the point not counted; and of
// the point, to be added to.
struct Adjoint {
    float *state, *point;
};

// Places for the arrays of a block: shared memory as long as the next one fits, else its own part of the global workspace.
// `recurrent::near` counts the same.
struct Arena {
    float *near, *far;
    u64 left;

    // Arrays begin at multiples of 16 bytes.
    __device__ float* take(u64 count) {
        count = (count + 3) / 4 * 4;
        if (count <= left) {
            float* own = near;
            near += count;
            left -= count;
            return own;
        }
        float* own = far;
        far += count;
        return own;
    }
};

// Where states are kept: every KEPT_EVERY tokens of each period of `period` tokens, from its start. A period is one
// group of frozen tokens, or as many groups as fit into KEPT_EVERY tokens; without groups it is KEPT_EVERY tokens.
struct CheckpointIntervals {
    u32 tokens, period, each;

    // For a sequence of `tokens` tokens.
    __device__ CheckpointIntervals(const RecurrentCall& call, u32 tokens)
        : tokens(tokens), period(call.period), each((call.period + KEPT_EVERY - 1) / KEPT_EVERY) {}

    // First token of an interval, and the token after its last.
    __device__ u32 start(u32 interval) const { return interval / each * period + interval % each * KEPT_EVERY; }
    // Returns the token after the interval's last one.
    __device__ u32 end(u32 interval) const {
        u32 end = start(interval) + KEPT_EVERY, next = (interval / each + 1) * period;
        end = end < next ? end : next;
        return end < tokens ? end : tokens;
    }
    // Of the interval that starts where the group of `token` does; only for groups that are periods.
    __device__ u32 group(u32 token) const { return token / period * each; }
};

// A sequence and head.
struct SequenceHead {
    // First row, tokens, and number of the head.
    u32 first, tokens, head;
    u64 index;
    // Kept states [intervals, state].
    float* kept;
    u32 intervals;

    // Number `index` among N H.
    __device__ SequenceHead(const RecurrentCall& call, u64 index) : index(index) {
        // Indices go from sequence to head.
        u32 sequence = (u32)(index / call.heads);
        head = (u32)(index % call.heads);
        first = call.starts[sequence];
        tokens = call.starts[sequence + 1] - first;
        u64 before = call.kept_starts[sequence];
        intervals = call.kept_starts[sequence + 1] - (u32)before;
        kept = call.kept + (before * call.heads + (u64)head * intervals) * call.state;
    }

    // Number of its row `t` among rows [rows,H].
    __device__ u64 row(const RecurrentCall& call, u32 t) const { return (u64)(first + t) * call.heads + head; }
};

// Rows of one token.
struct Rows {
    float *q, *k, *v, *gates;

    // Places for the rows of one token.
    __device__ Rows(const RecurrentCall& call, Arena& arena)
        : q(arena.take(call.key)), k(arena.take(call.key)), v(arena.take(call.value)), gates(arena.take(call.all_gates)) {}

    // Returns the rows as a token's arguments.
    __device__ Token token() const { return {q, k, v, gates}; }
    // Returns the rows as gradients of a token's arguments.
    __device__ TokenGrads grads() const { return {q, k, v, gates}; }

    // Row `row` of all arguments, as 32-bit floats; visible to the block afterwards.
    __device__ void load(const RecurrentCall& call, u64 row) const {
        EACH(i, call.key) {
            q[i] = ::load(call.q, row * call.key + i);
            k[i] = ::load(call.k, row * call.key + i);
        }
        EACH(i, call.value) v[i] = ::load(call.v, row * call.value + i);
        float* own = gates;
        for (u32 slot = 0; slot < call.gate_slots; slot++) {
            u32 width = call.widths[slot];
            EACH(i, width) own[i] = call.gates[slot][row * width + i];
            own += width;
        }
        __syncthreads();
    }

    // Zeros; a barrier is left to the caller.
    __device__ void clear(const RecurrentCall& call) const {
        EACH(i, call.key) q[i] = k[i] = 0.0f;
        EACH(i, call.value) v[i] = 0.0f;
        EACH(i, call.all_gates) gates[i] = 0.0f;
    }

    // Those of gradients, to where they belong.
    __device__ void store(const RecurrentCall& call, u64 row) const {
        EACH(i, call.key) {
            ::store(call.dq, row * call.key + i, q[i]);
            ::store(call.dk, row * call.key + i, k[i]);
        }
        EACH(i, call.value) ::store(call.dv, row * call.value + i, v[i]);
        const float* own = gates;
        for (u32 slot = 0; slot < call.gate_slots; slot++) {
            u32 width = call.widths[slot];
            EACH(i, width) call.dgates[slot][row * width + i] = own[i];
            own += width;
        }
        __syncthreads();
    }
};

// `Cell::OVERWRITES`, false where it is not said.
template <class Cell> __device__ constexpr auto overwrites(int) -> decltype(Cell::OVERWRITES, bool()) {
    return Cell::OVERWRITES;
}
// Chosen for cells that do not say it.
template <class Cell> __device__ constexpr bool overwrites(...) { return false; }

// `Cell::RENORMS`, false where it is not said.
template <class Cell> __device__ constexpr auto renorms(int) -> decltype(Cell::RENORMS, bool()) { return Cell::RENORMS; }
// Chosen for cells that do not say it.
template <class Cell> __device__ constexpr bool renorms(...) { return false; }

// The state of a sequence and head out of the slots' arrays, and back.
__device__ inline void load_state(const RecurrentCall& call, const float* const* slots, u64 index, float* state) {
    for (u32 slot = 0; slot < call.state_slots; slot++) {
        u64 size = call.sizes[slot];
        copy(state, slots[slot] + index * size, size);
        state += size;
    }
}

// The first `count` slots of `state`, one after another, to their arrays.
__device__ inline void store_slots(const RecurrentCall& call, float* const* slots, u32 count, u64 index, const float* state) {
    for (u32 slot = 0; slot < count; slot++) {
        u64 size = call.sizes[slot];
        copy(slots[slot] + index * size, state, size);
        state += size;
    }
}

// All of them.
__device__ inline void store_state(const RecurrentCall& call, float* const* slots, u64 index, const float* state) {
    store_slots(call, slots, call.state_slots, index, state);
}

// `shared` memory of this block, and its own part of the workspace.
__device__ inline Arena arena_of(const RecurrentCall& call, float* near) {
    return {near, call.workspace + blockIdx.x * call.workspace_each, call.near};
}

// `Cell::open`, where a rule has one.
template <class Cell> __device__ auto opened(const Cell& cell, float* state, int) -> decltype(cell.open(state)) {
    cell.open(state);
}
// Chosen for cells without `open`: does nothing.
template <class Cell> __device__ void opened(const Cell&, float*, long) {}

// Where gradients are taken: at a state, or in `led` where its momentum leads.
__device__ inline const float* lead(const RecurrentCall& call, const float* state, float* led) {
    if (!call.ahead) return state;
    for (u32 i = threadIdx.x; i < call.ahead; i += blockDim.x) led[i] = state[i] + state[call.ahead + i];
    __syncthreads();
    return led;
}

// The gradient of the point joins that of the state that it was made of, and is zero again.
__device__ inline void take_point(const RecurrentCall& call, float* dstate, float* dpoint) {
    u32 count = call.ahead ? call.ahead : call.state;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float d = dpoint[i];
        dstate[i] += d;
        // The point was a sum of weights and momentum: both get its gradient.
        if (call.ahead) dstate[call.ahead + i] += d;
        dpoint[i] = 0.0f;
    }
    __syncthreads();
}

// What a token finds of `state` where memories go back to an anchor B as they forget: X' = B + a (X - B). The token is told
// that nothing is forgotten, and its gradient point stays X. Momentum that looks ahead forgets too, to zero.
// What a token keeps, a, and what it loses, 1 - a: of the logarithm, since next to 1 the difference itself is rounding.
struct Decay {
    float a, lost;
    // Computes a = exp(log a) and 1 - a.
    __device__ explicit Decay(float log_a) : a(expf(log_a)), lost(-expm1f(log_a)) {}
};

// The first gate is log a.
__device__ inline Decay go_back(const RecurrentCall& call, const Rows& rows, u32 head, const float* state, float* found) {
    Decay decay(rows.gates[0]);
    float a = decay.a;
    __syncthreads();
    if (threadIdx.x == 0) rows.gates[0] = 0.0f;
    for (u32 slot = 0; slot < call.state_slots; slot++) {
        u64 size = call.sizes[slot];
        if (slot < call.anchor_slots) {
            const float* anchor = call.anchor[slot] + head * size;
            for (u64 i = threadIdx.x; i < size; i += blockDim.x) found[i] = anchor[i] + a * (state[i] - anchor[i]);
        } else {
            float other = call.ahead ? a : 1.0f;
            for (u64 i = threadIdx.x; i < size; i += blockDim.x) found[i] = other * state[i];
        }
        state += size;
        found += size;
    }
    __syncthreads();
    return decay;
}

// A group starts: `begun` gets `state`, columns of its weights set back to the lengths of the anchor's.
TOGETHER void renorm(const RecurrentCall& call, u32 head, const float* state, float* begun) {
    for (u32 slot = 0; slot < call.state_slots; slot++) {
        u64 size = call.sizes[slot];
        if (slot < call.anchor_slots) renorm_matrix(state, call.anchor[slot] + head * size, begun, size, call.columns[slot]);
        else if (begun != state) copy(begun, state, size);
        state += size;
        begun += size;
    }
    __syncthreads();
}

// From the gradient of what a group starts with to that of `state` before, in place; adds to that of the anchor.
TOGETHER void renorm_vjp(const RecurrentCall& call, u32 head, const float* state, float* dstate, float* danchor) {
    for (u32 slot = 0; slot < call.anchor_slots; slot++) {
        u64 size = call.sizes[slot];
        renorm_matrix_vjp(state, call.anchor[slot] + head * size, dstate, danchor, size, call.columns[slot]);
        state += size;
        dstate += size;
        danchor += size;
    }
    __syncthreads();
}

// From the gradient of X' to that of X, in place; adds to that of B, and returns that of log a.
__device__ inline float go_back_vjp(const RecurrentCall& call, const SequenceHead& sequence, Decay decay, const float* state,
                                    float* dstate, float* danchor) {
    float sum = 0.0f, a = decay.a;
    for (u32 slot = 0; slot < call.anchor_slots; slot++) {
        u64 size = call.sizes[slot];
        const float* anchor = call.anchor[slot] + sequence.head * size;
        for (u64 i = threadIdx.x; i < size; i += blockDim.x) {
            float d = dstate[i];
            sum += d * (state[i] - anchor[i]);
            danchor[i] += decay.lost * d;
            dstate[i] = a * d;
        }
        state += size;
        dstate += size;
        danchor += size;
    }
    for (u32 i = threadIdx.x; i < call.ahead; i += blockDim.x) {
        sum += dstate[i] * state[i];
        dstate[i] *= a;
    }
    return a * together(sum);
}

// All sequences and heads forward; kept states are written where `call.kept` has a place for them.
template <class Cell> __device__ void run_forward(const Cell& cell, const RecurrentCall& call, float* near) {
    Arena arena = arena_of(call, near);
    Rows rows(call, arena);
    // In the order of `RecurrentLayout::forward_arrays`: what is used most comes first, and so into shared memory.
    float* out = arena.take(call.value);
    float* scratch = arena.take(call.scratch);
    float* record = arena.take(call.record);
    float* state = arena.take(call.state);
    // With an anchor, what a token finds is apart from its gradient point.
    bool anchored = call.anchor_slots;
    float* next = overwrites<Cell>(0) && !anchored ? state : arena.take(call.state);
    float* point = call.frozen ? arena.take(call.state) : nullptr;
    float* led = call.ahead ? arena.take(call.ahead) : nullptr;
    // A block has one sequence and head at a time.
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        load_state(call, call.initial, index, state);
        opened(cell, state, 0);
        u32 interval = 0;
        for (u32 t = 0; t < sequence.tokens; t++) {
            if (call.kept && t == intervals.start(interval)) copy(sequence.kept + (u64)interval++ * call.state, state, call.state);
            // A group begins: its gradient point is the state now.
            if (call.frozen && t % call.frozen == 0) {
                if (renorms<Cell>(0) && call.columns[0]) renorm(call, sequence.head, state, state);
                copy(point, state, call.state);
            }
            u64 row = sequence.row(call, t);
            rows.load(call, row);
            if (anchored) go_back(call, rows, sequence.head, state, next);
            // From `state` to `next`, which may be the same array.
            const float* at = lead(call, call.frozen ? point : state, led);
            cell.forward(rows.token(), anchored ? next : state, at, next, record, scratch, out);
            EACH(i, call.value) store(call.out, row * call.value + i, out[i]);
            __syncthreads();
            // The next state becomes the state.
            float* old = state;
            state = next;
            next = old;
        }
        store_state(call, call.last, index, state);
    }
}

// All sequences and heads backward: interval by interval from the last, the states inside computed again.
template <class Cell> __device__ void run_backward(const Cell& cell, const RecurrentCall& call, float* near) {
    Arena arena = arena_of(call, near);
    // In the order of `RecurrentLayout::backward_arrays`.
    Rows rows(call, arena), grads(call, arena);
    float* dout = arena.take(call.value);
    float* scratch = arena.take(call.scratch);
    float* dstate = arena.take(call.state);
    // Whether the gradient of the point is an array of its own.
    bool anchored = call.anchor_slots;
    bool apart = call.frozen || !Cell::IN_PLACE || anchored || call.ahead;
    float* dpoint = apart ? arena.take(call.state) : dstate;
    u64 longest = call.period < KEPT_EVERY ? call.period : KEPT_EVERY;
    // What a token finds, and the gradient of the anchor, where there is one.
    float* found = anchored ? arena.take(call.state) : nullptr;
    float* danchor = anchored ? arena.take(call.state) : nullptr;
    // What every token of an interval left, and the states before and after each of them.
    float* records = arena.take(longest * call.record);
    float* states = arena.take((longest + 1) * call.state);
    float* led = call.ahead ? arena.take(call.ahead) : nullptr;
    // The state with which a group starts, where that is not what the group before left.
    bool renorming = renorms<Cell>(0) && call.columns[0];
    float* begun = renorming ? arena.take(call.state) : nullptr;
    auto begins = [&](u32 t) { return renorming && t % call.frozen == 0; };
    u64 size = call.state;
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        SequenceHead sequence(call, index);
        CheckpointIntervals intervals(call, sequence.tokens);
        load_state(call, call.dlast, index, dstate);
        if (apart) fill(dpoint, 0.0f, size);
        if (anchored) fill(danchor, 0.0f, size);
        for (u32 interval = sequence.intervals; interval-- > 0;) {
            u32 start = intervals.start(interval), end = intervals.end(interval);
            // What was left before the group of a token. Only groups that are periods begin before their interval.
            auto left = [&](u32 t) -> const float* {
                if (!call.frozen) return states + (t - start) * size;
                u32 group = t / call.frozen * call.frozen;
                return group >= start ? states + (group - start) * size : sequence.kept + intervals.group(t) * size;
            };
            // Where the gradient of a token is taken, and the state before it; `comes` says whether its group was not at hand.
            auto point = [&](u32 t, bool comes) -> const float* {
                if (renorming && comes) renorm(call, sequence.head, left(t), begun);
                return renorming ? begun : left(t);
            };
            auto before = [&](u32 t) -> const float* {
                return begins(t) ? begun : states + (t - start) * size;
            };
            // Forward again through the interval, from its checkpoint.
            copy(states, sequence.kept + interval * size, size);
            for (u32 t = start; t < end; t++) {
                u64 i = t - start;
                rows.load(call, sequence.row(call, t));
                const float *at = lead(call, point(t, t == start || begins(t)), led), *old = before(t);
                if (anchored) go_back(call, rows, sequence.head, old, found);
                cell.forward(rows.token(), anchored ? found : old, at, states + (i + 1) * size,
                             records + i * call.record, scratch, dout);
            }
            // And back, token by token.
            for (u32 t = end; t-- > start;) {
                u64 i = t - start, row = sequence.row(call, t);
                EACH(j, call.value) dout[j] = load(call.dout, row * call.value + j);
                grads.clear(call);
                rows.load(call, row);
                const float *at = lead(call, point(t, t + 1 == end || begins(t + 1)), led), *old = before(t);
                Decay decay = anchored ? go_back(call, rows, sequence.head, old, found) : Decay(0.0f);
                States around = {anchored ? found : old, at, states + (i + 1) * size};
                cell.backward(rows.token(), around, records + i * call.record, dout, {dstate, dpoint}, scratch, grads.grads());
                if (anchored) {
                    // The cell was told that nothing is forgotten: its gradient of the gate says nothing.
                    float da = go_back_vjp(call, sequence, decay, old, dstate, danchor);
                    if (threadIdx.x == 0) grads.gates[0] = da;
                    __syncthreads();
                }
                grads.store(call, row);
                // The gradient of the point joins that of the state where the group begins.
                if (apart && (!call.frozen || t % call.frozen == 0)) take_point(call, dstate, dpoint);
                if (begins(t)) renorm_vjp(call, sequence.head, states + i * size, dstate, danchor);
            }
        }
        store_state(call, call.dinitial, index, dstate);
        if (anchored) store_slots(call, call.danchor, call.anchor_slots, index, danchor);
    }
}
