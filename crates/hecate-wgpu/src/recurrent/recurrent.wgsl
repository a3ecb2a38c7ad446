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
//     // Gradients of a token's arguments, `grads`, which are zero before, and of the state before it. `dstate` is that
//     // of the state after the token when given, before it when handed back, the point not counted; what the point takes
//     // is added to `dpoint`, which may be `dstate`: only after the last time that that is read.
//     const BACKWARD_END: u32
//
// A state is all its slots one behind another, each row-major.

// Tokens between kept states.
const KEPT_EVERY: u32 = 64u;

// A call; `recurrent::Call` is its twin. By slot: where each begins, and how many numbers it has a row, or a sequence and
// head.
struct Call {
    // In `given`.
    gates: vec4<u32>,
    initial: vec4<u32>,
    dlast: vec4<u32>,
    // In `made`: of final states, or of gradients of gates and initial states.
    last: vec4<u32>,
    dgates: vec4<u32>,
    widths: vec4<u32>,
    sizes: vec4<u32>,
    gate_slots: u32,
    state_slots: u32,
    lanes: u32,
    heads: u32,
    key: u32,
    value: u32,
    // Numbers of a token's gates, a state, what a token leaves for its backward, rows for one token.
    all_gates: u32,
    state: u32,
    record: u32,
    scratch: u32,
    // Numbers of a workgroup's part of `room`, rows behind.
    room: u32,
    // Rows of one workgroup that lie in `room`.
    rows: u32,
    // Tokens that share a gradient point, 0 for none; tokens from which kept states are counted.
    frozen: u32,
    unit: u32,
    // Whether states are kept; whether a forward goes through a span once more, for the backward behind it.
    keep: u32,
    again: u32,
    // In `given`: where the first kept state of each sequence stands. First rows of sequences are the first there.
    kept_starts: u32,
    // In `made`.
    dk: u32,
    dv: u32,
    // What this dispatch does: lanes from here, so many as there are workgroups; ticks `begin … end` of what there is to do
    // for each, and for a backward of which span, counted from the last.
    lane: u32,
    begin: u32,
    end: u32,
    span: u32,
    unused: u32,
}

struct Args {
    call: Call,
    cell: Cell,
}

@group(0) @binding(0) var<uniform> args: Args;
// [rows,H,K] twice, and [rows,H,V].
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
// Tables, and bits of gates and states.
@group(0) @binding(4) var<storage, read> given: array<u32>;
// [kept states, H, state], a head's one behind another.
@group(0) @binding(5) var<storage, read_write> kept: array<f32>;
// Results one behind another.
@group(0) @binding(6) var<storage, read_write> made: array<f32>;
// What does not fit into workgroup memory, each workgroup's behind that of another.
@group(0) @binding(7) var<storage, read_write> room: array<f32>;

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
// In `room`: states before the token, where its gradient is taken, after it; their gradients; matrices for one token.
var<private> old: u32;
var<private> point: u32;
var<private> next: u32;
var<private> dstate: u32;
var<private> dpoint: u32;
var<private> matrices: u32;
// There too: states of a span, or the only one; a frozen group's first state; what the tokens of a span leave.
var<private> states: u32;
var<private> spare: u32;
var<private> records: u32;

// Where the rows and matrices of a workgroup are. A forward that is not for a backward has one state and no gradients.
fn lay_out(group: u32, backs: bool) {
    let size = args.call.state;
    let tokens = select(0u, min(args.call.unit, KEPT_EVERY), backs);
    let apart = select(0u, size, args.call.frozen != 0u);
    states = group * (args.call.room + args.call.rows);
    far = states + args.call.room;
    spare = states + (tokens + 1u) * size;
    dstate = spare + apart;
    dpoint = dstate + apart;
    records = select(dstate, dpoint + size, backs);
    matrices = records + tokens * args.call.record;
    token = token_at(0u);
    grads = token_at(token_rows());
    out = select(1u, 2u, backs) * token_rows();
    scratch = out + args.call.value;
    record = scratch + args.call.scratch;
}

fn token_at(first: u32) -> Token {
    let call = args.call;
    return Token(first, first + call.key, first + 2u * call.key, first + 2u * call.key + call.value);
}

fn token_rows() -> u32 {
    return 2u * args.call.key + args.call.value + args.call.all_gates;
}

// A gate of the token.
fn gate(slot: u32) -> f32 {
    return row(token.gates + slot);
}

// Where states are kept: every KEPT_EVERY tokens of each unit of `unit` tokens, from the unit's start. A unit is one group
// of frozen tokens, or as many groups as fit into KEPT_EVERY tokens; without groups it is KEPT_EVERY tokens.
fn span_start(span: u32) -> u32 {
    let each = (args.call.unit + KEPT_EVERY - 1u) / KEPT_EVERY;
    return span / each * args.call.unit + span % each * KEPT_EVERY;
}

fn span_end(span: u32, tokens: u32) -> u32 {
    let each = (args.call.unit + KEPT_EVERY - 1u) / KEPT_EVERY;
    return min(tokens, min(span_start(span) + KEPT_EVERY, (span / each + 1u) * args.call.unit));
}

// The first span of the unit of `token`.
fn span_of_unit(token: u32) -> u32 {
    return token / args.call.unit * ((args.call.unit + KEPT_EVERY - 1u) / KEPT_EVERY);
}

// Where token `t` stands among kept states.
fn span_of(t: u32) -> u32 {
    return span_of_unit(t) + t % args.call.unit / KEPT_EVERY;
}

// A sequence and head.
struct Lane {
    // Number of its first row among rows [rows,H].
    first: u32,
    tokens: u32,
    // Its kept states [spans, state].
    kept: u32,
    spans: u32,
}

// The span of a lane that this dispatch is about.
struct Span {
    index: u32,
    first: u32,
    tokens: u32,
}

fn span_at(lane: Lane) -> Span {
    let index = lane.spans - min(args.call.span + 1u, lane.spans);
    let first = span_start(index);
    return Span(index, first, select(0u, span_end(index, lane.tokens) - first, args.call.span < lane.spans));
}

fn lane_at(index: u32) -> Lane {
    let sequence = index / args.call.heads;
    let head = index % args.call.heads;
    let begin = given[sequence];
    let before = given[args.call.kept_starts + sequence];
    let spans = given[args.call.kept_starts + sequence + 1u] - before;
    let first = begin * args.call.heads + head;
    return Lane(first, given[sequence + 1u] - begin, (before * args.call.heads + head * spans) * args.call.state, spans);
}

fn load_rows(at: u32) {
    let call = args.call;
    for (var i = me; i < call.key; i += THREADS) {
        put(token.q + i, q[at * call.key + i]);
        put(token.k + i, k[at * call.key + i]);
    }
    for (var i = me; i < call.value; i += THREADS) {
        put(token.v + i, v[at * call.value + i]);
    }
    var to = token.gates;
    for (var slot = 0u; slot < call.gate_slots; slot++) {
        let width = args.call.widths[slot];
        for (var i = me; i < width; i += THREADS) {
            put(to + i, bitcast<f32>(given[args.call.gates[slot] + at * width + i]));
        }
        to += width;
    }
}

// A lane's state out of `given`, where `slots` begin.
fn load_state(to: u32, slots: vec4<u32>, lane: u32) {
    var at = to;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = slots[slot] + lane * size;
        for (var i = me; i < size; i += THREADS) {
            room[at + i] = bitcast<f32>(given[begin + i]);
        }
        at += size;
    }
}

// A lane's state, or the gradient of one, to `made`.
fn store_state(origin: u32, lane: u32) {
    var at = origin;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        let begin = args.call.last[slot] + lane * size;
        for (var i = me; i < size; i += THREADS) {
            made[begin + i] = room[at + i];
        }
        at += size;
    }
}
