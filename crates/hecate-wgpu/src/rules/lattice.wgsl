// Slots of unit norm: equations (60) to (69).
//
// A slot is a row of the state `[K,V]`. A token leaves `h [V]`, `b [K]`, `g [K]`, `n [K]`.

const DECODE: u32 = 0u;
const ENCODE: u32 = 2u;

struct Cell {
    variant: u32,
    after: u32,
    lowest: f32,
    tolerance: f32,
}

// `a` above its floor, compared as bits: NaN stays.
fn retention() -> f32 {
    let a = exponential(gate(0u));
    return select(a, args.cell.lowest, bitcast<u32>(a) <= bitcast<u32>(args.cell.lowest));
}

fn row_b() -> u32 {
    return record + args.call.value;
}
fn row_g() -> u32 {
    return row_b() + args.call.key;
}
fn row_n() -> u32 {
    return row_g() + args.call.key;
}

// Rows for one token: `s′_i·dX_i`, then `θ g_i`, `db_i`, `g_i U_i·dX_i`, each `[K]`, and `dh [V]`.
fn row_du() -> u32 {
    return scratch + args.call.key;
}
fn row_db() -> u32 {
    return scratch + 2u * args.call.key;
}
fn row_gained() -> u32 {
    return scratch + 3u * args.call.key;
}
fn row_dh() -> u32 {
    return scratch + 4u * args.call.key;
}

// Numbers behind them: the token's `a` and `θ`.
fn number_a() -> u32 {
    return row_dh() + args.call.value;
}
fn number_theta() -> u32 {
    return number_a() + 1u;
}

fn begin_token() {
    put(number_a(), retention());
    put(number_theta(), gate(1u));
}
