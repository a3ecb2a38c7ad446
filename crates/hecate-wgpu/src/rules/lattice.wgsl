// Slots of unit norm: equations (60) to (69).
//
// A slot is a row of the state `[K,V]`. A token leaves `h [V]`, `b [K]`, `g [K]`, `n [K]`.
// `args.cell` is `Cell` of `lattice.rs`.

const DECODE: u32 = 0u;
const ENCODE: u32 = 2u;

// `a` above its floor, compared as bits: NaN stays.
// NaN compares above every number as bits, so that it is never replaced.
fn retention() -> f32 {
    let a = exponential(gate(0u));
    return select(a, args.cell.lowest, bitcast<u32>(a) <= bitcast<u32>(args.cell.lowest));
}

// b = S h, the prediction of each slot [K].
fn row_b() -> u32 {
    return record + args.call.value;
}
// g: the key, less b for the variant ENCODE [K].
fn row_g() -> u32 {
    return row_b() + args.call.key;
}
// n: the norm of each slot before it is normalised [K].
fn row_n() -> u32 {
    return row_g() + args.call.key;
}

// Rows for one token: `s′_i·dX_i`, then `θ g_i`, `db_i`, `g_i U_i·dX_i`, each `[K]`, and `dh [V]`.
fn row_du() -> u32 {
    return scratch + args.call.key;
}
// The gradient of b [K].
fn row_db() -> u32 {
    return scratch + 2u * args.call.key;
}
// g_i U_i·dX_i, of which θ's gradient is the sum [K].
fn row_gained() -> u32 {
    return scratch + 3u * args.call.key;
}
// The gradient of h [V].
fn row_dh() -> u32 {
    return scratch + 4u * args.call.key;
}

// Scalars after them: the token's `a` and `θ`.
fn number_a() -> u32 {
    return row_dh() + args.call.value;
}
// θ follows a.
fn number_theta() -> u32 {
    return number_a() + 1u;
}

// The token's gates, once for all phases.
fn begin_token() {
    put(number_a(), retention());
    put(number_theta(), gate(1u));
}
