// Rules whose step is not linear in the memory: token by token, a workgroup a sequence and head.
//
// A rule is sizes and options, `struct Cell`, and phases (see `phases.wgsl`) that begin with everything visible. Those of
// its forward are from 0:
//
//     // For a rule that is not defined for every initial state, what it makes of such a one, `old`.
//     const OPENED: u32
//
//     // Then: `out [V]` and the state `next` from the state `old`. They write every element of `next`, `record`, `out`, and
//     // have read `old` and `point` to the end before they write `next`, element by element: all may be the same.
//     const FORWARD_END: u32
//
// and those of its backward, another kernel, from 0 again:
//
//     // Gradients of a token's arguments, `grads`, which are zero before, and of the state before it. `dstate` is given
//     // as that of the state after the token. It becomes that of the state before it, without the point's.
//     // What the point takes is added to `dpoint`. That may be `dstate`: it is added after the last read of `dstate`.
//     const BACKWARD_END: u32
//
// A state is all its slots one after another, each row-major.

// A workgroup owns one sequence and head; nothing is shared between workgroups.
// Tokens between kept states.
const CHECKPOINT_INTERVAL: u32 = 64u;

// Defined in `plan.rs`.
@group(0) @binding(0) var<uniform> args: RecurrentArgs;
// [rows,H,K] twice, and [rows,H,V].
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
// Tables, and bits of gates and states.
@group(0) @binding(4) var<storage, read> given: array<u32>;
// [kept states, H, state], a head's one after another.
@group(0) @binding(5) var<storage, read_write> kept: array<f32>;
// Results one after another.
@group(0) @binding(6) var<storage, read_write> made: array<f32>;
// What does not fit into workgroup memory, each workgroup's after that of another.
@group(0) @binding(7) var<storage, read_write> workspace: array<f32>;

// Rows of one token, or of its gradients.
struct Token {
    q: u32,
    k: u32,
    v: u32,
    gates: u32,
}

var<private> token: Token;
var<private> grads: Token;
// Rows: what a token reads, or the gradient of that; what it leaves for its backward; for one token.
var<private> out: u32;
var<private> record: u32;
var<private> scratch: u32;
// In `workspace`: states before the token, where its gradient is taken, after it; their gradients; matrices for one token.
var<private> old: u32;
var<private> point: u32;
var<private> next: u32;
var<private> dstate: u32;
var<private> dpoint: u32;
var<private> matrices: u32;
// There too: states of a segment, or the only one; a frozen group's first state; what the tokens of a segment leave.
var<private> states: u32;
var<private> spare: u32;
var<private> records: u32;
// Where there is an anchor: what a token finds of a state, and the anchor's gradient.
var<private> found: u32;
var<private> danchor: u32;
// Where momentum looks ahead: the weights that it leads to.
var<private> led: u32;

// Where the rows and matrices of a workgroup are. A forward that is not for a backward has one state and no gradients.
// `group` is the workgroup among those of this dispatch.
fn lay_out(group: u32, backs: bool) {
    let size = args.call.state;
    let tokens = select(0u, min(args.call.unit, CHECKPOINT_INTERVAL), backs);
    let anchored = args.call.anchor_slots != 0u;
    // The gradient point is another state than what a token finds.
    let apart = select(0u, size, args.call.frozen != 0u || anchored || args.call.ahead != 0u);
    // The states of a segment come first: one before each token and one after the last.
    states = group * (args.call.workspace + args.call.rows);
    far = states + args.call.workspace;
    spare = states + (tokens + 1u) * size;
    dstate = spare + apart;
    dpoint = dstate + apart;
    found = select(dstate, dpoint + size, backs);
    danchor = found + select(0u, size, anchored);
    led = danchor + select(0u, size, anchored && backs);
    records = led + args.call.ahead;
    matrices = records + tokens * args.call.record;
    // Rows: the token, its gradients in a backward, what it reads, intermediate rows, its record.
    token = token_at(0u);
    grads = token_at(token_rows());
    out = select(1u, 2u, backs) * token_rows();
    scratch = out + args.call.value;
    record = scratch + args.call.scratch;
}

// q [K], k [K], v [V], gates: one after another from `first` on.
fn token_at(first: u32) -> Token {
    let call = args.call;
    return Token(first, first + call.key, first + 2u * call.key, first + 2u * call.key + call.value);
}

// Elements of the rows of one token.
fn token_rows() -> u32 {
    return 2u * args.call.key + args.call.value + args.call.all_gates;
}

// In `given`: the anchor of a head and of a slot that begins at `at` of a state.
fn anchor_at(at: u32, size: u32, head: u32) -> u32 {
    return args.call.initial.x + args.call.sequence_heads * args.call.state + args.call.heads * at + head * size;
}

// Where gradients are taken: at the state `origin`, or where its momentum leads.
fn lead(origin: u32) -> u32 {
    if (args.call.ahead == 0u) {
        return origin;
    }
    for (var i = me; i < args.call.ahead; i += THREADS) {
        workspace[led + i] = workspace[origin + i] + workspace[origin + args.call.ahead + i];
    }
    sync();
    return led;
}

// What a token finds of the state at `origin`, where memories go back to an anchor B as they forget: X' = B + a (X - B). The
// token is told that nothing is forgotten, and its gradient point stays X. Momentum that looks ahead forgets too, to zero. The
// first gate is log a; returns a and 1 - a.
fn go_back(origin: u32, head: u32) -> vec2<f32> {
    let log_a = gate(0u);
    let a = exponential(log_a);
    // Everybody has it before it becomes 0.
    sync();
    if (me == 0u) {
        put(token.gates, 0.0);
    }
    var at = 0u;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = anchor_at(at, size, head);
        for (var i = me; i < size; i += THREADS) {
            var x = workspace[origin + at + i];
            if (slot < args.call.anchor_slots) {
                let b = bitcast<f32>(given[begin + i]);
                x = b + a * (x - b);
            } else if (args.call.ahead != 0u) {
                x = a * x;
            }
            workspace[found + at + i] = x;
        }
        at += size;
    }
    sync();
    return vec2(a, rest(log_a));
}

// A gate of the token.
fn gate(slot: u32) -> f32 {
    return row(token.gates + slot);
}

// Where states are kept: every CHECKPOINT_INTERVAL tokens of each unit of `unit` tokens, from the unit's start. A unit is one group
// of frozen tokens, or as many groups as fit into CHECKPOINT_INTERVAL tokens; without groups it is CHECKPOINT_INTERVAL tokens.
fn segment_start(segment: u32) -> u32 {
    let each = (args.call.unit + CHECKPOINT_INTERVAL - 1u) / CHECKPOINT_INTERVAL;
    return segment / each * args.call.unit + segment % each * CHECKPOINT_INTERVAL;
}

// A segment ends after CHECKPOINT_INTERVAL tokens, at the end of its unit, or with the sequence.
fn segment_end(segment: u32, tokens: u32) -> u32 {
    let each = (args.call.unit + CHECKPOINT_INTERVAL - 1u) / CHECKPOINT_INTERVAL;
    return min(tokens, min(segment_start(segment) + CHECKPOINT_INTERVAL, (segment / each + 1u) * args.call.unit));
}

// The first segment of the unit of `token`.
fn segment_of_unit(token: u32) -> u32 {
    return token / args.call.unit * ((args.call.unit + CHECKPOINT_INTERVAL - 1u) / CHECKPOINT_INTERVAL);
}

// Where token `t` stands among kept states.
fn segment_of(t: u32) -> u32 {
    return segment_of_unit(t) + t % args.call.unit / CHECKPOINT_INTERVAL;
}

// A sequence and head.
struct SequenceHead {
    // Number of its first row among rows [rows,H].
    first: u32,
    tokens: u32,
    // Its kept states [segments, state].
    kept: u32,
    segments: u32,
}

// The segment of a sequence and head that this dispatch is about.
struct Segment {
    index: u32,
    first: u32,
    tokens: u32,
}

// Backwards count segments from the last; shorter sequences have none left early.
fn segment_at(sequence_head: SequenceHead) -> Segment {
    let index = sequence_head.segments - min(args.call.segment + 1u, sequence_head.segments);
    let first = segment_start(index);
    return Segment(index, first, select(0u, segment_end(index, sequence_head.tokens) - first, args.call.segment < sequence_head.segments));
}

// `given` begins with the first rows of the sequences.
fn sequence_head_at(index: u32) -> SequenceHead {
    let sequence = index / args.call.heads;
    let head = index % args.call.heads;
    let begin = given[sequence];
    let before = given[args.call.kept_starts + sequence];
    let segments = given[args.call.kept_starts + sequence + 1u] - before;
    let first = begin * args.call.heads + head;
    return SequenceHead(first, given[sequence + 1u] - begin, (before * args.call.heads + head * segments) * args.call.state, segments);
}

// Row `at` of q, k and v [rows,H,..], and of every gate.
fn load_rows(at: u32) {
    let call = args.call;
    for (var i = me; i < call.key; i += THREADS) {
        put(token.q + i, q[at * call.key + i]);
        put(token.k + i, k[at * call.key + i]);
    }
    for (var i = me; i < call.value; i += THREADS) {
        put(token.v + i, v[at * call.value + i]);
    }
    // Gates lie one after another in the order of their slots.
    var to = token.gates;
    for (var slot = 0u; slot < call.gate_slots; slot++) {
        let width = args.call.widths[slot];
        for (var i = me; i < width; i += THREADS) {
            put(to + i, bitcast<f32>(given[args.call.gates[slot] + at * width + i]));
        }
        to += width;
    }
}

// A sequence and head's state out of `given`, where `slots` begin.
// Slots of all sequences and heads lie apart in `given`, and together in `workspace`.
fn load_state(to: u32, slots: vec4<u32>, sequence_head: u32) {
    var at = to;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = slots[slot] + sequence_head * size;
        for (var i = me; i < size; i += THREADS) {
            workspace[at + i] = bitcast<f32>(given[begin + i]);
        }
        at += size;
    }
}

// A sequence and head's state, or the gradient of one, to `made`.
// Where `load_state` reads from `given`, this writes to `made`.
fn store_state(origin: u32, sequence_head: u32) {
    var at = origin;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = args.call.last[slot] + sequence_head * size;
        for (var i = me; i < size; i += THREADS) {
            made[begin + i] = workspace[at + i];
        }
        at += size;
    }
}
