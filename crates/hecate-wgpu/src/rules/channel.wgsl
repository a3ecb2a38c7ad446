// Linear memories that forget by key channel: equations (110) to (118).
//
// The state is K rows of V elements. A token leaves what it erased, p [V], in `record`. `args.cell` is `Cell` of `channel.rs`.

// Erase keys; the last is a gate's.
const ERASE_NOTHING: u32 = 0u;
const ERASE_KEY: u32 = 1u;
const ERASE_SCALED: u32 = 2u;
const ERASE_GATED: u32 = 3u;
const ERASE_OWN: u32 = 4u;
// Rewrite keys.
const REWRITE_KEY: u32 = 0u;
const REWRITE_ERASED: u32 = 1u;
const REWRITE_OWN: u32 = 2u;
// Where a gate begins that is not there.
const NONE: u32 = 0xffffffffu;

// Rows of K: a, e, b. A channel's retention is a factor in [0, 1], never a logarithm from here on.
// Returns where a [K] of the token lies.
fn row_a() -> u32 {
    return scratch;
}
// Returns where the erase key e [K] lies.
fn row_e() -> u32 {
    return scratch + args.call.key;
}
// Returns where the rewrite key b [K] lies.
fn row_b() -> u32 {
    return scratch + 2u * args.call.key;
}

// Returns where the gradient of e [K] lies.
fn row_de() -> u32 {
    return scratch + 3u * args.call.key;
}
// Returns where the gradient of b [K] lies.
fn row_db() -> u32 {
    return scratch + 4u * args.call.key;
}
// Returns where the gradient of k [K] by the write lies.
fn row_dk() -> u32 {
    return scratch + 5u * args.call.key;
}
// Returns where the gradient of log a [K] lies.
fn row_da() -> u32 {
    return scratch + 6u * args.call.key;
}
// Returns where the terms [K] of the gradient of θ lie.
fn row_dtheta() -> u32 {
    return scratch + 7u * args.call.key;
}

// Returns where w [V] lies.
fn row_w() -> u32 {
    return scratch + 8u * args.call.key;
}
// Returns where the gradient of w [V] lies.
fn row_dw() -> u32 {
    return row_w() + args.call.value;
}
// Returns where the gradient of p [V] lies.
fn row_dp() -> u32 {
    return row_w() + 2u * args.call.value;
}

// Whether something is erased.
fn erases() -> bool {
    return args.cell.erase != ERASE_NOTHING;
}

// Element `i` of the gate that begins at `at`.
fn own_gate(at: u32, i: u32) -> f32 {
    return gate(at + i);
}

// θ; 1 where there is none.
fn size_of_step() -> f32 {
    if (args.cell.theta_at == NONE) {
        return 1.0;
    }
    return gate(args.cell.theta_at);
}

// e[i], of k [K] and its gate.
fn erase_key(i: u32) -> f32 {
    let k = row(token.k + i);
    switch args.cell.erase {
        // Linear attention: nothing is looked up.
        case ERASE_NOTHING: {
            return 0.0;
        }
        // The delta rule: what the key held makes room.
        case ERASE_KEY: {
            return k;
        }
        // A share of that, one number a head.
        case ERASE_SCALED: {
            return gate(args.cell.erase_at) * k;
        }
        // A share of each channel.
        case ERASE_GATED: {
            return own_gate(args.cell.erase_at, i) * k;
        }
        // A direction that has nothing to do with the key.
        default: {
            return own_gate(args.cell.erase_at, i);
        }
    }
}

// b[i], of k [K], e [K] and its gate. Its sign is that of what joins the memory, so an erase has a minus.
// With the key's own b, values and what they replace are written as one.
fn rewrite_key(e: f32, i: u32) -> f32 {
    if (args.cell.rewrite == REWRITE_KEY) {
        return -row(token.k + i);
    }
    let own = own_gate(args.cell.rewrite_at, i);
    return select(own, -own * e, args.cell.rewrite == REWRITE_ERASED);
}

// What the token's arguments mean, once for all phases; an invocation has whole elements, so no barrier is needed between.
// Element i of a = exp(log_a), e, b [K] and of w = omega * v [V].
fn begin_token(i: u32) {
    if (i < args.call.key) {
        let e = erase_key(i);
        put(row_a() + i, exponential(gate(select(0u, i, args.cell.by_channel != 0u))));
        put(row_e() + i, e);
        put(row_b() + i, rewrite_key(e, i));
    }
    // Keys may be wider than values, or the other way round.
    if (i < args.call.value) {
        var w = row(token.v + i);
        if (args.cell.factors_at != NONE) {
            w *= own_gate(args.cell.factors_at, i);
        }
        put(row_w() + i, w);
    }
}

// What row r of the memory is multiplied by as the erase reads it.
// The decay is multiplied in here, so that the decayed memory is never written.
fn reads(r: u32) -> f32 {
    return row(row_e() + r) * select(row(row_a() + r), 1.0, args.cell.undecayed != 0u);
}
