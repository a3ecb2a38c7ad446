// One token backward.

// φ and `u` again; (77), (78); (73), (74); what is left of (77) to (79).
const PHI: u32 = 0u;
const UNREAD_VALUES: u32 = 4u;
const QUERY_SUMS: u32 = 5u;
const QUERY_PULLED: u32 = 6u;
const UNREAD_KEYS: u32 = 7u;
const GATES: u32 = 8u;
const BEND_E: u32 = 9u;
const BEND_W: u32 = 10u;
const BEND_N: u32 = 11u;
const BEND_NW: u32 = 12u;
const BENT: u32 = 13u;
const CODE: u32 = 14u;
const QUERY: u32 = 15u;
const UNWRITE_KEYS: u32 = 16u;
const UNWRITE_VALUES: u32 = 17u;
const BACKWARD_END: u32 = 18u;

fn shape_of(phase: u32) -> vec3<u32> {
    let m = args.cell.slots;
    let key = args.call.key;
    let value = args.call.value;
    let curved = args.cell.phi != IDENTITY;
    switch phase {
        case UNREAD_VALUES: {
            return vec3(ROWS, m, value);
        }
        case QUERY_SUMS: {
            return shape_if(curved, EACH | TOTAL, 1u, m);
        }
        case QUERY_PULLED: {
            return shape_if(curved, EACH, 1u, m);
        }
        case UNREAD_KEYS: {
            return vec3(ROWS, m, key);
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
        case CODE: {
            return each_of(m, false);
        }
        case QUERY: {
            return vec3(TIMES, m, key);
        }
        case UNWRITE_KEYS: {
            return vec3(COLUMNS, m, key);
        }
        case UNWRITE_VALUES: {
            return vec3(COLUMNS, m, value);
        }
        default: {
            return phi_shape(phase, 3u);
        }
    }
}

fn job_at(phase: u32) -> Job {
    return job(grads.q, rows().dz + 2u * args.cell.slots, next);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let p = places();
    let r = rows();
    switch phase {
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
            if (phase < UNREAD_VALUES) {
                return phi_element(phase, 3u, record, i);
            }
            return bend(phase, i, i / m);
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
        case QUERY_SUMS: {
            know(p.sums, of_pairs);
        }
        default: {
            phi_totalled(phase, sums);
        }
    }
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let own = rows();
    switch phase {
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
