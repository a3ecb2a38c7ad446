// One token of Atlas: equations (80) to (87).
//
// The state is `M [K,V]`, `S [K,V]`, keys `[c−1,K]`, values `[c−1,V]`. A token leaves the errors of its window `[c,V]`, and
// has as many rows for itself: the `g_j` of (86).
// `args.cell` is `Cell` of `atlas.rs`.

// Rows after `g`: parts of the gradients of `a`, `θ` and `η` `[K]`; scalars: `a`, `η`, `θ`, 1/ν, `⟨D, X₀⟩`.
// Rows [K] each, after the rows of the window.
fn gate_rows() -> u32 {
    return scratch + args.cell.window * args.call.value;
}
// Scalar `i` of the token, after the gate rows.
fn number(i: u32) -> u32 {
    return gate_rows() + 3u * args.call.key + i;
}
const A: u32 = 0u;
const ETA: u32 = 1u;
const THETA: u32 = 2u;
const INVERSE: u32 = 3u;
const ALONG: u32 = 4u;

// The token's factors, once for all phases.
fn begin_token() {
    put(number(A), exponential(gate(0u)));
    put(number(ETA), exponential(gate(1u)));
    put(number(THETA), gate(2u));
}

// Where the last keys and values are in a state.
// M and S come first: 2 K V elements.
fn keys_of(state: u32) -> u32 {
    return state + 2u * count();
}
// Keys of c - 1 earlier tokens come before the values.
fn values_of(state: u32) -> u32 {
    return keys_of(state) + (args.cell.window - 1u) * args.call.key;
}

// Element `r` of key `i` of the window, oldest first: those of the state, then the token's own; the same of values.
// Row c - 1 is the token itself.
fn window_key(i: u32, r: u32) -> f32 {
    if (i + 1u < args.cell.window) {
        return workspace[keys_of(old) + i * args.call.key + r];
    }
    return row(token.k + r);
}
// The same of values.
fn window_value(i: u32, c: u32) -> f32 {
    if (i + 1u < args.cell.window) {
        return workspace[values_of(old) + i * args.call.value + c];
    }
    return row(token.v + c);
}

// Weight of row `i` of the window.
// Gates count from the newest token: γ_0 weighs the last row of the window.
fn weight(i: u32) -> f32 {
    return gate(3u + args.cell.window - 1u - i);
}

// 1/ν of (88), of the squares of S.
// Sums of squares, one element an invocation.
fn norm_element(i: u32) -> vec4<f32> {
    let s = workspace[next + count() + i];
    return vec4(s * s, 0.0, 0.0, 0.0);
}
// ε² keeps the root from zero.
fn norm_totalled(sum: f32) {
    put(number(INVERSE), 1.0 / sqrt(sum + args.cell.epsilon));
}

// (88)
// X₀ = S / ν has a norm of at most 1, from which the iteration converges.
fn start(i: u32) {
    workspace[matrices + i] = workspace[next + count() + i] * row(number(INVERSE));
}
