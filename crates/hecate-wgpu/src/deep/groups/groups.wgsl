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

// Defined in `pass.rs`.
@group(0) @binding(0) var<uniform> args: GroupArgs;
// Defined in `places.rs`.
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

// Finds the workgroup's sequence and head, and its group of tokens.
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
// Returns the scalar `which` of token t.
fn number(which: u32, t: u32) -> f32 {
    return workspace[place_of(which, t)];
}
// Stores the scalar `which` of token t.
fn put(which: u32, t: u32, value: f32) {
    workspace[place_of(which, t)] = value;
}

// The row of token t among rows [rows,H].
fn row_of(t: u32) -> u32 {
    return row + t * plan.call.heads;
}

// Waits for the whole workgroup; what it stored before is seen afterwards.
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
// True if momentum looks ahead.
fn looks_ahead() -> bool {
    return plan.call.ahead != 0u;
}
