// Rules whose step is not linear in the memory: token by token, forward and backward, a block a sequence and head.
//
// A rule is a structure `Cell`: sizes and options as the launch gives them, and what the block does for one token. Its
// functions begin with everything visible to the block and end so.
//
//     struct Cell {
//         // Whether `backward` adds to the gradient of the point only after the last time that it reads the gradient of
//         // the state, and has handed that back whole. Then both are one array where the point is the state.
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
//         // Optional. Where a rule is not defined for every initial state: what it makes of one that it is not defined for.
//         __device__ void open(float* state) const;
//     };
//
// A state is all its slots one behind another, each row-major.
#pragma once
#include "block.cuh"

// Tokens between kept states.
#define KEPT_EVERY 64
// Gates, and matrices of a state, at most.
#define MOST_SLOTS 4

// A call; `recurrent::Call` is its twin.
struct Call {
    // [rows,H,K] and [rows,H,V].
    Array q, k, v, out, dout, dq, dk, dv;
    // By slot: [rows,H,width] and [N,H,size].
    const float* gates[MOST_SLOTS];
    float* dgates[MOST_SLOTS];
    const float* initial[MOST_SLOTS];
    float* last[MOST_SLOTS];
    const float* dlast[MOST_SLOTS];
    float* dinitial[MOST_SLOTS];
    // First row of every sequence and behind them the number of rows; the same of kept states.
    const u32 *starts, *kept_starts;
    // [kept states, H, state], a head's one behind another; null where none are kept.
    float* kept;
    // [blocks, room]: what does not fit into shared memory.
    float* room;
    u64 room_each;
    u32 widths[MOST_SLOTS], sizes[MOST_SLOTS];
    u32 gate_slots, state_slots;
    u32 sequences, heads, key, value;
    // Numbers of a token's gates, a state, what a token leaves for its backward, and scratch.
    u32 all_gates, state, record, scratch;
    // Tokens that share a gradient point, 0 for none; tokens from which kept states are counted: see `Spans`.
    u32 frozen, unit;
    // Numbers in shared memory.
    u32 near;
};

// One token's arguments.
struct Token {
    const float *q, *k, *v, *gates;
};

struct TokenGrads {
    float *q, *k, *v, *gates;
};

// States around one token: before it, where the gradient is taken, after it.
struct States {
    const float *old, *point, *next;
};

// Gradients of states: of that after the token when given, before it when handed back, the point not counted; and of
// the point, to be added to.
struct Adjoint {
    float *state, *point;
};

// Room for arrays of a block: shared memory as long as the next one fits, else its own part of the global room.
// `recurrent::near` counts the same.
struct Arena {
    float *near, *far;
    u64 left;

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

// Where states are kept: every KEPT_EVERY tokens of each unit of `unit` tokens, from the unit's start. A unit is one
// group of frozen tokens, or as many groups as fit into KEPT_EVERY tokens; without groups it is KEPT_EVERY tokens.
struct Spans {
    u32 tokens, unit, each;

    __device__ Spans(const Call& call, u32 tokens)
        : tokens(tokens), unit(call.unit), each((call.unit + KEPT_EVERY - 1) / KEPT_EVERY) {}

    __device__ u32 start(u32 span) const { return span / each * unit + span % each * KEPT_EVERY; }
    __device__ u32 end(u32 span) const {
        u32 end = start(span) + KEPT_EVERY, behind = (span / each + 1) * unit;
        end = end < behind ? end : behind;
        return end < tokens ? end : tokens;
    }
    // Of the span that starts where the group of `token` does; only for groups that are units.
    __device__ u32 group(u32 token) const { return token / unit * each; }
};

// A sequence and head.
struct Lane {
    u32 first, tokens, head;
    u64 index;
    // Kept states [spans, state].
    float* kept;
    u32 spans;

    __device__ Lane(const Call& call, u64 index) : index(index) {
        u32 sequence = (u32)(index / call.heads);
        head = (u32)(index % call.heads);
        first = call.starts[sequence];
        tokens = call.starts[sequence + 1] - first;
        u64 before = call.kept_starts[sequence];
        spans = call.kept_starts[sequence + 1] - (u32)before;
        kept = call.kept + (before * call.heads + (u64)head * spans) * call.state;
    }

    // Number of its row `t` among rows [rows,H].
    __device__ u64 row(const Call& call, u32 t) const { return (u64)(first + t) * call.heads + head; }
};

// Rows of one token.
struct Rows {
    float *q, *k, *v, *gates;

    __device__ Rows(const Call& call, Arena& arena)
        : q(arena.take(call.key)), k(arena.take(call.key)), v(arena.take(call.value)), gates(arena.take(call.all_gates)) {}

    __device__ Token token() const { return {q, k, v, gates}; }
    __device__ TokenGrads grads() const { return {q, k, v, gates}; }

    __device__ void load(const Call& call, u64 row) const {
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

    __device__ void clear(const Call& call) const {
        EACH(i, call.key) q[i] = k[i] = 0.0f;
        EACH(i, call.value) v[i] = 0.0f;
        EACH(i, call.all_gates) gates[i] = 0.0f;
    }

    // Those of gradients, to where they belong.
    __device__ void store(const Call& call, u64 row) const {
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
template <class Cell> __device__ constexpr bool overwrites(...) { return false; }

// A lane's state out of the slots' arrays, and back.
__device__ inline void load_state(const Call& call, const float* const* slots, u64 lane, float* state) {
    for (u32 slot = 0; slot < call.state_slots; slot++) {
        u64 size = call.sizes[slot];
        copy(state, slots[slot] + lane * size, size);
        state += size;
    }
}

__device__ inline void store_state(const Call& call, float* const* slots, u64 lane, const float* state) {
    for (u32 slot = 0; slot < call.state_slots; slot++) {
        u64 size = call.sizes[slot];
        copy(slots[slot] + lane * size, state, size);
        state += size;
    }
}

__device__ inline Arena arena_of(const Call& call, float* near) {
    return {near, call.room + blockIdx.x * call.room_each, call.near};
}

template <class Cell> __device__ auto opened(const Cell& cell, float* state, int) -> decltype(cell.open(state)) {
    cell.open(state);
}
template <class Cell> __device__ void opened(const Cell&, float*, long) {}

// All lanes forward; kept states are written where there is room for them.
template <class Cell> __device__ void run_forward(const Cell& cell, const Call& call, float* near) {
    Arena arena = arena_of(call, near);
    Rows rows(call, arena);
    float* out = arena.take(call.value);
    float* scratch = arena.take(call.scratch);
    float* record = arena.take(call.record);
    float* state = arena.take(call.state);
    float* next = overwrites<Cell>(0) ? state : arena.take(call.state);
    float* point = call.frozen ? arena.take(call.state) : nullptr;
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        Lane lane(call, index);
        Spans spans(call, lane.tokens);
        load_state(call, call.initial, index, state);
        opened(cell, state, 0);
        u32 span = 0;
        for (u32 t = 0; t < lane.tokens; t++) {
            if (call.frozen && t % call.frozen == 0) copy(point, state, call.state);
            if (call.kept && t == spans.start(span)) copy(lane.kept + (u64)span++ * call.state, state, call.state);
            u64 row = lane.row(call, t);
            rows.load(call, row);
            cell.forward(rows.token(), state, call.frozen ? point : state, next, record, scratch, out);
            EACH(i, call.value) store(call.out, row * call.value + i, out[i]);
            __syncthreads();
            float* old = state;
            state = next;
            next = old;
        }
        store_state(call, call.last, index, state);
    }
}

// All lanes backward: span by span from the last, the states inside computed again.
template <class Cell> __device__ void run_backward(const Cell& cell, const Call& call, float* near) {
    Arena arena = arena_of(call, near);
    Rows rows(call, arena), grads(call, arena);
    float* dout = arena.take(call.value);
    float* scratch = arena.take(call.scratch);
    float* dstate = arena.take(call.state);
    bool apart = call.frozen || !Cell::IN_PLACE;
    float* dpoint = apart ? arena.take(call.state) : dstate;
    u64 longest = call.unit < KEPT_EVERY ? call.unit : KEPT_EVERY;
    float* records = arena.take(longest * call.record);
    float* states = arena.take((longest + 1) * call.state);
    u64 size = call.state;
    for (u64 index = blockIdx.x; index < (u64)call.sequences * call.heads; index += gridDim.x) {
        Lane lane(call, index);
        Spans spans(call, lane.tokens);
        load_state(call, call.dlast, index, dstate);
        if (apart) fill(dpoint, 0.0f, size);
        for (u32 span = lane.spans; span-- > 0;) {
            u32 start = spans.start(span), end = spans.end(span);
            // Where the gradient of a token is taken. Only groups that are units begin before their span.
            auto point = [&](u32 t) -> const float* {
                if (!call.frozen) return states + (t - start) * size;
                u32 group = t / call.frozen * call.frozen;
                return group >= start ? states + (group - start) * size : lane.kept + spans.group(t) * size;
            };
            copy(states, lane.kept + span * size, size);
            for (u32 t = start; t < end; t++) {
                u64 i = t - start;
                rows.load(call, lane.row(call, t));
                cell.forward(rows.token(), states + i * size, point(t), states + (i + 1) * size, records + i * call.record,
                             scratch, dout);
            }
            for (u32 t = end; t-- > start;) {
                u64 i = t - start, row = lane.row(call, t);
                EACH(j, call.value) dout[j] = load(call.dout, row * call.value + j);
                grads.clear(call);
                rows.load(call, row);
                States around = {states + i * size, point(t), states + (i + 1) * size};
                cell.backward(rows.token(), around, records + i * call.record, dout, {dstate, dpoint}, scratch, grads.grads());
                grads.store(call, row);
                if (apart && (!call.frozen || t % call.frozen == 0)) {
                    for (u64 j = threadIdx.x; j < size; j += blockDim.x) {
                        dstate[j] += dpoint[j];
                        dpoint[j] = 0.0f;
                    }
                    __syncthreads();
                }
            }
        }
        store_state(call, call.dinitial, index, dstate);
    }
}
