// Slots for keys and for values, trained to give the same code: equations (70) to (79).
//
// The state is `S_K [m,K]`, then `S_V [m,V]`. A token leaves `R_K kᵀ`, `R_V vᵀ`, `S_K qᵀ`, each `[m]`. Where there are two
// or three of something, it is of keys, values, query: its sides.
// `args.cell` is `Cell` of `trellis.rs`.

// Rows for one token after the places, `[m]` each: `u`, `dz`, parts of `da`, what both memories ask of the code. Then `e`,
// `g`, `w`, `N w`, `f̄` of (73), of two sides each. Then scalars: those of the places, and the token's `a`, `θ`. `rows`
// cuts what follows the places in `scratch`.
struct Rows {
    u: u32,
    dz: u32,
    da: u32,
    dcode: u32,
    e: u32,
    g: u32,
    w: u32,
    nw: u32,
    df: u32,
    a: u32,
    theta: u32,
}

// 28 rows of length m in all; scalars come after them.
fn rows() -> Rows {
    let m = args.cell.slots;
    let first = scratch + 9u * m;
    let e = first + 9u * m;
    return Rows(
        first, first + 2u * m, first + 5u * m, first + 7u * m,
        e, e + 2u * m, e + 4u * m, e + 6u * m, e + 8u * m,
        scratch + 28u * m + 20u, scratch + 28u * m + 21u,
    );
}

// Where `S_V` begins after `S_K`.
// Elements of S_K [m,K].
fn keys() -> u32 {
    return args.cell.slots * args.call.key;
}

// φ of so many sides in three phases, and the inner gradient `u` of (72) in a fourth.
const PHI_SUMS: u32 = 0u;
const PHI_SQUARES: u32 = 1u;
const PHI_ITSELF: u32 = 2u;
const PHI_INNER_GRAD: u32 = 3u;

// φ needs two sums over the slots of each side: one for the mean, one for n.
fn phi_shape(at: u32, sides: u32) -> vec3<u32> {
    let count = sides * args.cell.slots;
    switch at {
        // The first pass also stores silu and its derivatives.
        case PHI_SUMS: {
            return each_of(count, true);
        }
        // The identity has no norm.
        case PHI_SQUARES: {
            return shape_if(args.cell.phi != IDENTITY, EACH | TOTAL, 1u, count);
        }
        // Keys and values have an error e; the query has none.
        case PHI_ITSELF: {
            return each_of(count, sides > 1u);
        }
        default: {
            return each_of(2u * args.cell.slots, false);
        }
    }
}

// `predictions` is the row of the first side's; a side alone is the query's.
// Element `i` counts slots of all sides, one side after another.
fn phi_element(at: u32, sides: u32, predictions: u32, i: u32) -> vec4<f32> {
    let side = i / args.cell.slots;
    let p = places();
    let r = rows();
    switch at {
        // The first element also stores the token's gates.
        case PHI_SUMS: {
            if (i == 0u) {
                put(r.a, exponential(gate(0u)));
                put(r.theta, gate(1u));
            }
            return of_side(side, silu_at(i, row(predictions + i)));
        }
        case PHI_SQUARES: {
            return of_side(side, centred_at(i, side));
        }
        case PHI_ITSELF: {
            // (72), but for the slope
            let f = phi_at(i, side);
            if (side > 1u || sides == 1u) {
                return vec4(0.0);
            }
            let e = f - gate(2u + i % args.cell.slots);
            put(r.u + i, e);
            return pair(side, e, f * e);
        }
        default: {
            if (args.cell.phi != IDENTITY) {
                put(r.u + i, row(p.slope + i) * times_jacobian(i, side, side, p.sums, row(r.u + i)));
            }
            return vec4(0.0);
        }
    }
}

// Sums become what C takes off, then n, then the means that N needs.
fn phi_totalled(at: u32, sums: vec4<f32>) {
    let p = places();
    switch at {
        case PHI_SUMS: {
            put_four(p.middle, centre(sums));
        }
        case PHI_SQUARES: {
            put_four(p.n, sqrt(share() * sums + args.cell.epsilon));
        }
        default: {
            put_four(p.sums, vec4(centre(sums).xy, sums.zw));
        }
    }
}
