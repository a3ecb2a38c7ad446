// Leaky integrate-and-fire neurons: equations (100) to (107).
//
// The state is K rows of V potentials. A token leaves nothing: potentials before the reset are computed again.
// `args.cell` is `Cell` of `lif.rs`.

// Surrogates.
const ARCTAN: u32 = 0u;
const FAST_SIGMOID: u32 = 1u;

// Two sums a row: of dh v times the key, and of dh u.
fn row_written() -> u32 {
    return scratch;
}
// Returns where the rows' sums of dh u begin.
fn row_kept() -> u32 {
    return scratch + args.call.key;
}

// Scalars after them: the token's `a` and `θ`.
fn number_a() -> u32 {
    return scratch + 2u * args.call.key;
}
// Returns where the token's θ lies.
fn number_theta() -> u32 {
    return number_a() + 1u;
}

// The token's gates, once for all phases.
fn begin_token() {
    put(number_a(), exponential(gate(0u)));
    put(number_theta(), gate(1u));
}

// (100) of neuron (r, c), element `i` of the potentials `old`.
fn charge(r: u32, c: u32, i: u32) -> f32 {
    return row(number_a()) * workspace[old + i] + row(number_theta()) * row(token.k + r) * row(token.v + c);
}

// (101). NaN is asked for by its bits: drivers may leave it out of comparisons.
fn fire(h: f32) -> f32 {
    if (is_nan(h)) {
        return h;
    }
    return select(0.0, 1.0, h >= args.cell.threshold);
}

// (102). A reset to zero leaves no product of infinity and zero.
fn reset(h: f32, s: f32) -> f32 {
    return select(select(h, 0.0, s == 1.0), h - args.cell.taken * s, args.cell.subtracts != 0u);
}
