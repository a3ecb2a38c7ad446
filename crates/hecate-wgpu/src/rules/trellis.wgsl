// Slots for keys and for values, taught to give the same code: equations (70) to (79).
//
// The state is `S_K [m,K]`, then `S_V [m,V]`. A token leaves `R_K kᵀ`, `R_V vᵀ`, `S_K qᵀ`, each `[m]`. Where there are two
// or three of something, it is of keys, values, query: its sides.

struct Cell {
    phi: u32,
    slots: u32,
    epsilon: f32,
    unused: u32,
}

const OPENED: u32 = 0u;
// What both memories answer; φ of that, in three phases; `u`; the writes; φ of what the query is answered; the read.
const ASK_KEYS: u32 = 0u;
const ASK_VALUES: u32 = 1u;
const PHI: u32 = 2u;
const TAUGHT: u32 = 5u;
const WRITE_KEYS: u32 = 6u;
const WRITE_VALUES: u32 = 7u;
const PHI_QUERY: u32 = 8u;
const ANSWER: u32 = 11u;
const FORWARD_END: u32 = 12u;
// φ and `u` again; (77), (78); (73), (74); what is left of (77) to (79).
const PHI_ALL: u32 = 12u;
const TAUGHT_AGAIN: u32 = 15u;
const UNREAD_VALUES: u32 = 16u;
const QUERY_SUMS: u32 = 17u;
const QUERY_PULLED: u32 = 18u;
const UNREAD_KEYS: u32 = 19u;
const GATES: u32 = 20u;
const BEND_E: u32 = 21u;
const BEND_W: u32 = 22u;
const BEND_N: u32 = 23u;
const BEND_NW: u32 = 24u;
const BENT: u32 = 25u;
const CODE: u32 = 26u;
const QUERY: u32 = 27u;
const UNWRITE_KEYS: u32 = 28u;
const UNWRITE_VALUES: u32 = 29u;
const BACKWARD_END: u32 = 30u;

// Rows for one token behind the places, `[m]` each: `u`, `dz`, parts of `da`, what both memories ask of the code; then `e`,
// `g`, `w`, `N w`, `f̄` of (73), of two sides each. Then numbers: those of the places, and the token's `a`, `θ`.
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

// Where `S_V` begins behind `S_K`.
fn keys() -> u32 {
    return args.cell.slots * args.call.key;
}

fn shape_of(phase: u32) -> vec3<u32> {
    let m = args.cell.slots;
    let key = args.call.key;
    let value = args.call.value;
    let curved = args.cell.phi != IDENTITY;
    switch phase {
        case ASK_KEYS: {
            return vec3(TRANSPOSED, m, key);
        }
        case ASK_VALUES: {
            return vec3(TRANSPOSED, m, value);
        }
        case 2u, 4u: {
            return each_of(2u * m, true);
        }
        case 3u: {
            return shape_if(curved, EACH | TOTAL, 1u, 2u * m);
        }
        case TAUGHT, TAUGHT_AGAIN: {
            return each_of(2u * m, false);
        }
        case WRITE_KEYS, UNREAD_KEYS: {
            return vec3(ROWS, m, key);
        }
        case WRITE_VALUES: {
            return vec3(SWEEP, m, value);
        }
        case UNREAD_VALUES: {
            return vec3(ROWS, m, value);
        }
        case 8u: {
            return each_of(m, true);
        }
        case 9u: {
            return shape_if(curved, EACH | TOTAL, 1u, m);
        }
        case 10u, CODE: {
            return each_of(m, false);
        }
        case ANSWER: {
            return vec3(TIMES, m, value);
        }
        case 12u, 14u: {
            return each_of(3u * m, true);
        }
        case 13u: {
            return shape_if(curved, EACH | TOTAL, 1u, 3u * m);
        }
        case QUERY_SUMS: {
            return shape_if(curved, EACH | TOTAL, 1u, m);
        }
        case QUERY_PULLED: {
            return shape_if(curved, EACH, 1u, m);
        }
        case GATES: {
            return each_of(2u * m, true);
        }
        case BEND_E, BEND_W, BEND_N, BEND_NW: {
            return shape_if(curved, EACH | TOTAL, 1u, 2u * m);
        }
        case BENT: {
            return each_of(2u * m, false);
        }
        case QUERY: {
            return vec3(TIMES, m, key);
        }
        case UNWRITE_KEYS: {
            return vec3(COLUMNS, m, key);
        }
        default: {
            return vec3(COLUMNS, m, value);
        }
    }
}

fn job_at(phase: u32) -> Job {
    let m = args.cell.slots;
    switch phase {
        case ASK_KEYS: {
            return job(record, token.k, point);
        }
        case ASK_VALUES: {
            return job(record + m, token.v, point + keys());
        }
        case ANSWER: {
            return job(out, places().f, next + keys());
        }
        default: {
            return job(grads.q, rows().dz + 2u * m, next);
        }
    }
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let side = i / m;
    let p = places();
    let r = rows();
    switch phase {
        case 2u, 12u: {
            if (i == 0u) {
                put(r.a, exponential(gate(0u)));
                put(r.theta, gate(1u));
            }
            return of_side(side, silu_at(i, row(record + i)));
        }
        case 8u: {
            return of_side(0u, silu_at(i, row(record + 2u * m + i)));
        }
        case 3u, 9u, 13u: {
            return of_side(side, centred_at(i, side));
        }
        case 10u: {
            let f = phi_at(i, 0u);
            return vec4(f, 0.0, 0.0, 0.0);
        }
        case 4u, 14u: {
            // (72), but for the slope
            let f = phi_at(i, side);
            if (side > 1u) {
                return vec4(0.0);
            }
            let e = f - gate(2u + i % m);
            put(r.u + i, e);
            return pair(side, e, f * e);
        }
        case TAUGHT, TAUGHT_AGAIN: {
            if (args.cell.phi != IDENTITY) {
                put(r.u + i, row(p.slope + i) * turned(i, side, side, p.sums, row(r.u + i)));
            }
            return vec4(0.0);
        }
        case QUERY_SUMS: {
            let e = row(r.dz + 2u * m + i);
            return pair(0u, e, row(p.f + 2u * m + i) * e);
        }
        case QUERY_PULLED: {
            let at = 2u * m + i;
            put(r.dz + at, row(p.slope + at) * turned(at, 2u, 0u, p.sums, row(r.dz + at)));
            return vec4(0.0);
        }
        case CODE: {
            put(grads.gates + 2u + i, row(r.dcode + i) + row(r.dcode + m + i));
            return vec4(0.0);
        }
        default: {
            return bend(phase, i, side);
        }
    }
}

// (78), and of both memories (73), (74): `dz` becomes the gradient of what a memory answered with.
fn bend(phase: u32, i: u32, side: u32) -> vec4<f32> {
    let p = places();
    let r = rows();
    switch phase {
        case GATES: {
            let theta = row(r.theta);
            let sums = vec4(row(r.da + i), -row(r.u + i) * row(r.dz + i), 0.0, 0.0);
            put(r.dz + i, -theta * row(r.dz + i));
            put(r.u + i, -theta * row(r.u + i));
            return sums;
        }
        case BEND_E: {
            let e = row(p.f + i) - gate(2u + i % args.cell.slots);
            put(r.e + i, e);
            put(r.w + i, row(p.slope + i) * row(r.dz + i));
            return pair(side, e, row(p.f + i) * e);
        }
        case BEND_W: {
            let w = row(r.w + i);
            return pair(side, w, row(p.f + i) * w);
        }
        case BEND_N: {
            let g = turned(i, side, side, p.of_e, row(r.e + i));
            let nw = turned(i, side, side, p.of_w, row(r.w + i));
            let both = row(p.of_e + 2u + side) * row(r.w + i) + row(p.of_w + 2u + side) * row(r.e + i);
            let df = -share() / row(p.n + side) * both;
            put(r.g + i, g);
            put(r.nw + i, nw);
            put(r.df + i, df);
            put(r.dcode + i, -nw);
            return pair(side, row(r.w + i) * g + df * row(p.f + i), df);
        }
        case BEND_NW: {
            let nw = row(r.nw + i);
            return pair(side, nw, row(p.f + i) * nw);
        }
        default: {
            let du = row(r.dz + i);
            if (args.cell.phi == IDENTITY) {
                put(r.dcode + i, -du);
                return vec4(0.0);
            }
            let n = row(p.n + side);
            let dn = -row(p.sums + side) / n;
            let nnw = turned(i, side, side, p.of_w, row(r.nw + i));
            let s = nnw + (row(r.df + i) - row(p.sums + 2u + side)) / n + share() * dn * row(p.f + i);
            put(r.dz + i, row(p.bend + i) * row(r.g + i) * du + row(p.slope + i) * s);
            return vec4(0.0);
        }
    }
}

fn totalled(phase: u32, sums: vec4<f32>) {
    let p = places();
    let of_pairs = vec4(centre(sums).xy, sums.zw);
    switch phase {
        case 2u, 8u, 12u: {
            know(p.middle, centre(sums));
        }
        case 3u, 9u, 13u: {
            know(p.n, sqrt(share() * sums + args.cell.epsilon));
        }
        case GATES: {
            put(grads.gates, row(rows().a) * sums.x);
            put(grads.gates + 1u, sums.y);
        }
        case BEND_E: {
            know(p.of_e, of_pairs);
        }
        case BEND_W, BEND_NW: {
            know(p.of_w, of_pairs);
        }
        case BEND_N: {
            know(p.sums, vec4(sums.xy, centre(sums).zw));
        }
        default: {
            know(p.sums, of_pairs);
        }
    }
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let own = rows();
    let a = row(own.a);
    switch phase {
        case WRITE_KEYS: {
            // (75)
            let i = r * args.call.key + c;
            let s = a * room[old + i] - row(own.theta) * row(own.u + r) * row(token.k + c);
            room[next + i] = s;
            return vec4(s * row(token.q + c), 0.0, 0.0, 0.0);
        }
        case WRITE_VALUES: {
            // (76)
            let i = keys() + r * args.call.value + c;
            room[next + i] = a * room[old + i] - row(own.theta) * row(own.u + m + r) * row(token.v + c);
            return vec4(0.0);
        }
        case UNREAD_VALUES: {
            // (77), and (78) of the values
            let i = keys() + r * args.call.value + c;
            let d = room[dstate + i] + row(places().f + 2u * m + r) * row(out + c);
            room[dstate + i] = d;
            return vec4(row(out + c) * room[next + i], d * row(token.v + c), d * room[old + i], 0.0);
        }
        default: {
            let i = r * args.call.key + c;
            let d = room[dstate + i] + row(own.dz + 2u * m + r) * row(token.q + c);
            room[dstate + i] = d;
            return vec4(d * row(token.k + c), d * room[old + i], 0.0, 0.0);
        }
    }
}

fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let m = args.cell.slots;
    let own = rows();
    switch phase {
        case WRITE_KEYS: {
            put(record + 2u * m + r, sums.x);
        }
        case UNREAD_VALUES: {
            put(own.dz + 2u * m + r, sums.x);
            put(own.dz + m + r, sums.y);
            put(own.da + m + r, sums.z);
        }
        default: {
            put(own.dz + r, sums.x);
            put(own.da + r, sums.y);
        }
    }
}

// What (78), (79) leave in a memory, and in what went through it.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let of_values = phase == UNWRITE_VALUES;
    let own = rows();
    let slot = select(0u, args.cell.slots, of_values) + r;
    let i = select(r * args.call.key, keys() + r * args.call.value, of_values) + c;
    let x = row(select(token.k, token.v, of_values) + c);
    let d = room[dstate + i];
    room[dstate + i] = row(own.a) * d;
    let dz = row(own.dz + slot);
    room[dpoint + i] += dz * x;
    return row(own.u + slot) * d + dz * room[point + i];
}

fn landed(phase: u32, c: u32, sum: f32) {
    put(select(grads.k, grads.v, phase == UNWRITE_VALUES) + c, sum);
}
