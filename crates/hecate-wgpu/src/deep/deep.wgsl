// Memories that are functions with weights: equations (33) to (59), one step for every structure, bias and retention.
//
// The kinds of bias and retention, and whether there is momentum, are the constants BIAS, RETENTION and MOMENTUM. The state
// is `W₀ [K,D]` and `W₁ [D,V]`, or the one matrix `[K,V]`, then as many again where there is momentum.

// Added to the variance in the norm.
const NORM_EPSILON: f32 = 1e-6;

// Rows that a token leaves for its backward.
// Row numbers, as `record_rows` cuts them.
struct Record {
    // At the key, [D] each: pre-activation, activation, slope, b = W₁ u_o, δ.
    pre: u32,
    h: u32,
    slope: u32,
    back: u32,
    delta: u32,
    // At the query, [D] each.
    read_h: u32,
    read_slope: u32,
    // [V] each: error, ψ, u_o; with a norm what it made, at the key and at the query.
    error: u32,
    u: u32,
    u_o: u32,
    normed: u32,
    read_normed: u32,
    // Deviations of the two norms.
    deviation: u32,
    read_deviation: u32,
    // s of (94).
    shrink: u32,
}

// Rows for one token.
// Row numbers, as `scratch_rows` cuts them.
struct Scratch {
    // [D] each.
    dh: u32,
    ddelta: u32,
    dpre: u32,
    dback: u32,
    // [V] each.
    du_o: u32,
    du: u32,
    do_: u32,
    de: u32,
    dread: u32,
    spare: u32,
    // [K]
    key: u32,
    // A number a column of the widest matrix.
    columns: u32,
    // Scalars of the token, in the order below.
    known: u32,
}

// Scalars of the token: gates, what some sums are, ν of both matrices of the state whose weights were made last.
const A: u32 = 0u;
const ETA: u32 = 1u;
const THETA: u32 = 2u;
const DELTA: u32 = 3u;
const MEAN: u32 = 4u;
const SUMS: u32 = 5u;
const SIZE: u32 = 9u;
const NORMS: u32 = 10u;
const ALONG: u32 = 12u;
// With a write W, P = carry S + W; of it S gets `keep`, X `gain`. Heavy ball: η, 1, 1. Looking ahead: a, η, 1 - η.
const CARRY: u32 = 14u;
const KEEP: u32 = 15u;
const GAIN: u32 = 16u;
// u·ū, which (94) goes back with.
const CLIPPED_ALONG: u32 = 17u;
// Scalar `i` of the token.
fn known(i: u32) -> f32 {
    return row(scratch_rows().known + i);
}

// Written by one invocation, in a phase of its own.
fn know(i: u32, x: f32) {
    put(scratch_rows().known + i, x);
}

// Four sums of the phase that ended.
fn know_sums(sums: vec4<f32>) {
    know(SUMS, sums.x);
    know(SUMS + 1u, sums.y);
    know(SUMS + 2u, sums.z);
    know(SUMS + 3u, sums.w);
}

// And back.
fn sums_known() -> vec4<f32> {
    return vec4(known(SUMS), known(SUMS + 1u), known(SUMS + 2u), known(SUMS + 3u));
}

// Whether gradients are taken where momentum leads.
fn looks_ahead() -> bool {
    return args.call.ahead != 0u;
}

// Gates come in the order log_a, [log_eta], theta, [delta].
// Retention and momentum cross as logarithms.
fn begin_token() {
    know(A, exponential(gate(0u)));
    know(THETA, gate(1u + MOMENTUM));
    if (MOMENTUM == 1u) {
        let eta = exponential(gate(1u));
        know(ETA, eta);
        know(CARRY, select(eta, known(A), looks_ahead()));
        know(KEEP, select(1.0, eta, looks_ahead()));
        // 1 - η, where η may be near 1.
        know(GAIN, select(1.0, rest(gate(1u)), looks_ahead()));
    }
    if (BIAS == HUBER) {
        know(DELTA, gate(2u + MOMENTUM));
    }
}

// 7 D + 3 V rows, 2 V more with a norm, then two deviations and s of (94).
fn record_rows() -> Record {
    let d = args.cell.hidden;
    let v = args.call.value;
    let n = select(0u, v, args.cell.norm != 0u);
    let error = record + 7u * d;
    let normed = error + 3u * v;
    return Record(
        record, record + d, record + 2u * d, record + 3u * d, record + 4u * d, record + 5u * d, record + 6u * d,
        error, error + v, error + 2u * v, normed, normed + n, normed + 2u * n, normed + 2u * n + 1u,
        normed + 2u * n + 2u,
    );
}

// 4 D + 6 V + K + max(D, V) rows, then the scalars.
fn scratch_rows() -> Scratch {
    let d = args.cell.hidden;
    let v = args.call.value;
    let wide = scratch + 4u * d;
    let columns = wide + 6u * v + args.call.key;
    return Scratch(
        scratch, scratch + d, scratch + 2u * d, scratch + 3u * d,
        wide, wide + v, wide + 2u * v, wide + 3u * v, wide + 4u * v, wide + 5u * v,
        wide + 6u * v, columns, columns + max(d, v),
    );
}

// Elements of the first weight matrix, and of all; width of what a key meets first.
// D for an MLP, V for a matrix.
fn inner() -> u32 {
    return select(args.call.value, args.cell.hidden, args.cell.hidden != 0u);
}
// W₀ [K,D], or the one matrix [K,V].
fn first_weights() -> u32 {
    return args.call.key * inner();
}
// W₁ [D,V] comes after it.
fn all_weights() -> u32 {
    return first_weights() + args.cell.hidden * args.call.value;
}

// A matrix memory has no hidden layer.
fn is_mlp() -> bool {
    return args.cell.hidden != 0u;
}
// A layer norm after the last matrix.
fn has_norm() -> bool {
    return args.cell.norm != 0u;
}
// The input is added to the output: K = V then.
fn is_residual() -> bool {
    return args.cell.residual != 0u;
}

// Where the weights of a state are: there, or made of it in the first matrices of the token's. Gradients of weights are
// added up with those of the state, or in the second matrices.
// With DECAY the state is the weights.
fn weights_of(state: u32) -> u32 {
    return select(matrices, state, RETENTION == DECAY);
}
// With DECAY gradients of weights are gradients of the state.
fn goal_of(gradient: u32) -> u32 {
    return select(matrices + all_weights(), gradient, RETENTION == DECAY);
}

// Of matrix 0 or 1: rows, columns, and where it begins in a state or its weights.
// Layer 0 has K rows, layer 1 has D.
fn rows_of(layer: u32) -> u32 {
    return select(args.call.key, args.cell.hidden, layer == 1u);
}
// Layer 1 is V wide.
fn width_of_layer(layer: u32) -> u32 {
    return select(inner(), args.call.value, layer == 1u);
}
// Layer 1 follows layer 0.
fn begin_of(layer: u32) -> u32 {
    return layer * first_weights();
}
// A matrix memory has layer 0 alone.
fn has_layer(layer: u32) -> bool {
    return layer == 0u || is_mlp();
}
// Returns the elements of a layer's weights.
fn count_of(layer: u32) -> u32 {
    return rows_of(layer) * width_of_layer(layer);
}

// No phase has sums of rows.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {}

// A state's weights, in three phases a matrix: the largest, ν, weights. Those of DECAY are the state: what the constants
// leave no use for, drivers need not compile.
const TO_WEIGHTS_PHASES: u32 = 6u;

// Only L_q needs a norm; KL needs the last of the three phases.
fn to_weights_shape(at: u32) -> vec3<u32> {
    let layer = at / 3u;
    let last = at % 3u == 2u;
    let wanted = RETENTION == LQ || (RETENTION == KL && last);
    let kind = select(EACH | TOTAL | select(0u, TOP, at % 3u == 0u), EACH, last);
    return shape_if(wanted && has_layer(layer), kind, 1u, count_of(layer));
}

// Phase 0 looks for the largest, phase 1 adds up powers, phase 2 writes weights.
fn to_weights_element(at: u32, state: u32, i: u32) -> vec4<f32> {
    if (RETENTION == DECAY) {
        return vec4(0.0);
    }
    let layer = at / 3u;
    let x = workspace[state + begin_of(layer) + i];
    if (at % 3u == 2u) {
        workspace[matrices + begin_of(layer) + i] = to_weight(x, known(NORMS + layer));
        return vec4(0.0);
    }
    return vec4(select(to_the_q(abs(x) / known(SIZE)), abs(x), at % 3u == 0u), 0.0, 0.0, 0.0);
}

// The largest becomes the unit, the sum of powers the norm.
fn to_weights_totalled(at: u32, sum: f32) {
    if (RETENTION != LQ) {
        return;
    }
    if (at % 3u == 0u) {
        know(SIZE, lq_size(sum));
    } else {
        know(NORMS + at / 3u, lq_norm(known(SIZE), sum));
    }
}

// An element of J e, given means of e and of x̂ ∘ e: equation (43).
// x̂ is the normalised row; J is symmetric.
fn jacobian(normed: f32, e: f32, means: vec2<f32>, deviation: f32) -> f32 {
    return (e - means.x - normed * means.y) / deviation;
}
