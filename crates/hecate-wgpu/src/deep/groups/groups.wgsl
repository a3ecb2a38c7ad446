// Frozen groups of deep memories: what lies between products (`product.wgsl`), of all memories at once.
//
// All inner gradients of a group are taken at the weights it starts with. Where memories decay, weights X and momentum S are then one linear recurrence
// of two numbers a token, of the writes Z. What token t reads of the write of token j is a mask c[t,j].
// Of the first state it reads A[t] X + B[t] S. So a layer reads ρ as A ∘ (ρ X) + B ∘ (ρ S) + (c ∘ ρ κᵀ) z.
// Here κ are the keys and z the values of the layer. An anchor takes the place of zero: X forgets to it, and
// (1 - A) ∘ (ρ anchor) is read beside.
//
// Workgroups are counted by memory in the second dimension. A memory whose sequence has ended takes part with no token, and stays
// as it is.

// Where panels are in a memory's part of `workspace`, row-major; `places.rs` has its twin.
struct Places {
    // Kinds of numbers by token (`numbers.wgsl`).
    numbers: u32,
    // W₀ [K,D], W₁ [D,V], or one matrix [K,V], and as many again of momentum; anchors of all matrices.
    state: u32,
    anchor: u32,
    // [G,K] twice; values, then errors, and what is taught [G,V].
    k: u32,
    q: u32,
    v: u32,
    u: u32,
    // Predictions, and what the second layer is written with [G,V].
    prediction: u32,
    z1: u32,
    // Masks, and how much of each write momentum has [G,G].
    c: u32,
    e: u32,
    // Gradients of masks, then of a by token and write; those of η take the place of `e`.
    dc: u32,
    // [G,D]: pre-activations at keys, b = u W₁ᵀ, its gradient, that of the hidden layer.
    pre: u32,
    back: u32,
    dback: u32,
    dh: u32,
    // [G,V]: gradients of z1 and of u.
    dz1: u32,
    du: u32,
    // Gradients of the state and of anchors; partial sums of those of A, B and E [2, rows of a matrix, 4].
    dstate: u32,
    danchor: u32,
    sums: u32,
    // Rows of the longer matrix.
    tall: u32,
    // With a layer norm x̂ of predictions, and ψ before its Jacobian; without one the same as `u` [G,V].
    normed: u32,
    taught: u32,
}

// Where one layer's panels are, of memories whose weights are an image of the state (`mapped.wgsl`); `mapped.rs` has its twin.
struct LayerPlaces {
    // Of its matrices.
    rows: u32,
    wide: u32,
    // Keys and queries [G,rows], what is written and what is read [G,wide].
    key: u32,
    query: u32,
    value: u32,
    out: u32,
    // [rows,wide]: X, weights at the group's start, gradients of these and of X, the anchor and its gradient.
    state: u32,
    weights: u32,
    dweights: u32,
    dstate: u32,
    anchor: u32,
    danchor: u32,
    // Gradients of what is read, of queries, keys and what is written.
    dout: u32,
    dquery: u32,
    dkey: u32,
    dvalue: u32,
    // Logarithms of columns' sums [G + 1,wide]; sums of powers [8 blocks,G].
    logs: u32,
    norms: u32,
    // States before chunks, and those of one chunk, as invocations have them.
    starts: u32,
    trail: u32,
    // Gradients of queries and keys by workgroup [blocks,G,2,rows], and of a [8 blocks,G].
    parts: u32,
    da: u32,
    // Four lists by slabs of rows.
    by_slab: u32,
    // Workgroups of a sweep.
    blocks: u32,
}

struct Plan {
    call: RecurrentCall,
    places: Places,
    layers: array<LayerPlaces, 2>,
}

// The launch hands this over; `mod.rs` has its twin.
struct GroupArgs {
    cell: Cell,
    // The sequence and head of the first workgroups, and the first token of the group.
    sequence_head: u32,
    start: u32,
    // What is moved: places in a memory's part of `workspace`, or in results, and elements of a row or of all.
    origin: u32,
    to: u32,
    width: u32,
    // A panel that joins, or NOTHING.
    plus: u32,
    unused_0: u32,
    unused_1: u32,
}

@group(0) @binding(0) var<uniform> args: GroupArgs;
@group(0) @binding(1) var<storage, read> plan: Plan;
// Tables, and bits of gates, states and anchors.
@group(0) @binding(2) var<storage, read> given: array<u32>;
// q or the gradient of outputs [rows,H,..].
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> workspace: array<f32>;
// Results one after another, or kept states.
@group(0) @binding(5) var<storage, read_write> results: array<f32>;

const THREADS: u32 = 64u;
const NOTHING: u32 = 0u;

var<workgroup> partial: array<vec4<f32>, THREADS>;

// This invocation, and where the memory's part of `workspace` begins.
var<private> me: u32;
var<private> base: u32;
// The memory's sequence and head, the row of the group's first token, and how many tokens the group has.
var<private> sequence_head: u32;
var<private> row: u32;
var<private> tokens: u32;
// Where its kept states begin.
var<private> kept: u32;

fn begin(group: vec3<u32>, index: u32) {
    me = index;
    base = group.y * plan.call.workspace;
    sequence_head = args.sequence_head + group.y;
    let sequence = sequence_head / plan.call.heads;
    let head = sequence_head % plan.call.heads;
    let first = given[sequence];
    let all = given[sequence + 1u] - first;
    row = (first + args.start) * plan.call.heads + head;
    tokens = min(all - min(args.start, all), plan.call.frozen);
    let before = given[plan.call.kept_starts + sequence];
    let segments = given[plan.call.kept_starts + sequence + 1u] - before;
    kept = (before * plan.call.heads + head * segments) * plan.call.state;
}

// Element `i` of the panel at `place`.
fn at(place: u32, i: u32) -> f32 {
    return workspace[base + place + i];
}

// Number `which` of token t.
fn place_of(which: u32, t: u32) -> u32 {
    return base + plan.places.numbers + which * plan.call.frozen + t;
}
fn number(which: u32, t: u32) -> f32 {
    return workspace[place_of(which, t)];
}
fn put(which: u32, t: u32, value: f32) {
    workspace[place_of(which, t)] = value;
}

// The row of token t among rows [rows,H].
fn row_of(t: u32) -> u32 {
    return row + t * plan.call.heads;
}

fn sync() {
    workgroupBarrier();
    storageBarrier();
}

// Four sums over the workgroup, in an order of their own.
fn together(own: vec4<f32>) -> vec4<f32> {
    partial[me] = own;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (me < half) {
            partial[me] += partial[me + half];
        }
        workgroupBarrier();
    }
    let sum = partial[0];
    // Everybody has it before the next sum begins.
    workgroupBarrier();
    return sum;
}

// A matrix is one slot, the layers of an MLP are two; momentum has as many.
fn has_momentum() -> bool {
    return plan.call.state_slots == select(4u, 2u, args.cell.hidden == 0u);
}
// Elements of weights in a state.
fn all_weights() -> u32 {
    return select(plan.call.state, plan.call.state / 2u, has_momentum());
}
fn looks_ahead() -> bool {
    return plan.call.ahead != 0u;
}
