// One token backward.

// An invocation of the workgroup has some slots, or some columns; a barrier stands between phases.
// φ and `u` again; (77), (78); (73), (74); what is left of (77) to (79).
// In the order of the phases: each reads what those before it left.
const PHI: u32 = 0u;
// dS_V += f dyᵀ; sums along slots: df, dz and da of the values.
const READ_VJP_VALUES: u32 = 4u;
// Sums for N at the query.
const QUERY_SUMS: u32 = 5u;
// dz of the query [m].
const QUERY_PULLBACK: u32 = 6u;
// dS_K += dz qᵀ; sums along slots: dz and da of the keys.
const READ_VJP_KEYS: u32 = 7u;
// Gradients of log a and θ; u and dz take the factor −θ.
const GATES: u32 = 8u;
// e and w [2,m].
const SECOND_E: u32 = 9u;
// Sums over w.
const SECOND_W: u32 = 10u;
// N e, N w and the gradient through N [2,m].
const SECOND_N: u32 = 11u;
// Sums over N w.
const SECOND_NW: u32 = 12u;
// The gradient of both memories' predictions [2,m].
const SECOND_Z: u32 = 13u;
// The gradient of the code [m].
const CODE: u32 = 14u;
// dq = dzᵀ S_K [K].
const QUERY: u32 = 15u;
// dS_K = a dS_K, the point's gradient, and dk [K].
const WRITE_VJP_KEYS: u32 = 16u;
// dS_V = a dS_V, the point's gradient, and dv [V].
const WRITE_VJP_VALUES: u32 = 17u;
const BACKWARD_END: u32 = 18u;

// SECOND phases differentiate the inner gradient once more: φ's second derivative.
fn shape_of(phase: u32) -> vec3<u32> {
    let m = args.cell.slots;
    let key = args.call.key;
    let value = args.call.value;
    let curved = args.cell.phi != IDENTITY;
    switch phase {
        case READ_VJP_VALUES: {
            return vec3(ROWS, m, value);
        }
        case QUERY_SUMS: {
            return shape_if(curved, EACH | TOTAL, 1u, m);
        }
        case QUERY_PULLBACK: {
            return shape_if(curved, EACH, 1u, m);
        }
        case READ_VJP_KEYS: {
            return vec3(ROWS, m, key);
        }
        case GATES: {
            return each_of(2u * m, true);
        }
        case SECOND_E, SECOND_W, SECOND_N, SECOND_NW: {
            return shape_if(curved, EACH | TOTAL, 1u, 2u * m);
        }
        case SECOND_Z: {
            return each_of(2u * m, false);
        }
        case CODE: {
            return each_of(m, false);
        }
        case QUERY: {
            return vec3(TIMES, m, key);
        }
        case WRITE_VJP_KEYS: {
            return vec3(COLUMNS, m, key);
        }
        case WRITE_VJP_VALUES: {
            return vec3(COLUMNS, m, value);
        }
        default: {
            return phi_shape(phase, 3u);
        }
    }
}

// dq = S_Kᵀ dz of the query side.
fn job_at(phase: u32) -> Job {
    return job(grads.q, rows().dz + 2u * args.cell.slots, next);
}

// Elements count slots of keys and values, or of the query alone.
fn element(phase: u32, i: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let p = places();
    let r = rows();
    switch phase {
        // Sums for N at the query.
        case QUERY_SUMS: {
            let e = row(r.dz + 2u * m + i);
            return pair(0u, e, row(p.f + 2u * m + i) * e);
        }
        // dz of the query: slope times N times the gradient of f.
        case QUERY_PULLBACK: {
            let at = 2u * m + i;
            put(r.dz + at, row(p.slope + at) * times_jacobian(at, 2u, 0u, p.sums, row(r.dz + at)));
            return vec4(0.0);
        }
        // The code's gradient comes from both memories.
        case CODE: {
            put(grads.gates + 2u + i, row(r.dcode + i) + row(r.dcode + m + i));
            return vec4(0.0);
        }
        default: {
            if (phase < READ_VJP_VALUES) {
                return phi_element(phase, 3u, record, i);
            }
            return second_derivative(phase, i, i / m);
        }
    }
}

// (78), and of both memories (73), (74): `dz` becomes the gradient of a memory's prediction.
// `i` counts slots of keys, then of values; `side` is which of both.
fn second_derivative(phase: u32, i: u32, side: u32) -> vec4<f32> {
    let p = places();
    let r = rows();
    switch phase {
        // dlog a and dθ: sums over all slots.
        case GATES: {
            let theta = row(r.theta);
            let sums = vec4(row(r.da + i), -row(r.u + i) * row(r.dz + i), 0.0, 0.0);
            put(r.dz + i, -theta * row(r.dz + i));
            put(r.u + i, -theta * row(r.u + i));
            return sums;
        }
        // e and w = slope du, with the sums that N e needs.
        case SECOND_E: {
            let e = row(p.f + i) - gate(2u + i % args.cell.slots);
            put(r.e + i, e);
            put(r.w + i, row(p.slope + i) * row(r.dz + i));
            return pair(side, e, row(p.f + i) * e);
        }
        // The sums that N w needs.
        case SECOND_W: {
            let w = row(r.w + i);
            return pair(side, w, row(p.f + i) * w);
        }
        // g = N e, N w, and the gradient of f through N.
        case SECOND_N: {
            let g = times_jacobian(i, side, side, p.of_e, row(r.e + i));
            let nw = times_jacobian(i, side, side, p.of_w, row(r.w + i));
            // f·e w + f·w e of (73).
            let both = row(p.of_e + 2u + side) * row(r.w + i) + row(p.of_w + 2u + side) * row(r.e + i);
            let df = -share() / row(p.n + side) * both;
            put(r.g + i, g);
            put(r.nw + i, nw);
            put(r.df + i, df);
            // dc = −N w of (74).
            put(r.dcode + i, -nw);
            return pair(side, row(r.w + i) * g + df * row(p.f + i), df);
        }
        // The sums that N N w needs.
        case SECOND_NW: {
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
            // n̄ of (73).
            let dn = -row(p.sums + side) / n;
            let nnw = times_jacobian(i, side, side, p.of_w, row(r.nw + i));
            let s = nnw + (row(r.df + i) - row(p.sums + 2u + side)) / n + share() * dn * row(p.f + i);
            put(r.dz + i, row(p.second_derivative + i) * row(r.g + i) * du + row(p.slope + i) * s);
            return vec4(0.0);
        }
    }
}

// Sums of keys in lanes 0 and 2, of values in lanes 1 and 3.
fn totalled(phase: u32, sums: vec4<f32>) {
    let p = places();
    let of_pairs = vec4(centre(sums).xy, sums.zw);
    switch phase {
        case GATES: {
            put(grads.gates, row(rows().a) * sums.x);
            put(grads.gates + 1u, sums.y);
        }
        case SECOND_E: {
            put_four(p.of_e, of_pairs);
        }
        case SECOND_W, SECOND_NW: {
            put_four(p.of_w, of_pairs);
        }
        case SECOND_N: {
            put_four(p.sums, vec4(sums.xy, centre(sums).zw));
        }
        case QUERY_SUMS: {
            put_four(p.sums, of_pairs);
        }
        default: {
            phi_totalled(phase, sums);
        }
    }
}

// READ_VJP phases: the read's gradient joins dS, and sums along slots give dz and da.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let m = args.cell.slots;
    let own = rows();
    switch phase {
        case READ_VJP_VALUES: {
            // (77), and (78) of the values
            let i = keys() + r * args.call.value + c;
            // `f` of the query is what the values were read by.
            let d = workspace[dstate + i] + row(places().f + 2u * m + r) * row(out + c);
            workspace[dstate + i] = d;
            return vec4(row(out + c) * workspace[next + i], d * row(token.v + c), d * workspace[old + i], 0.0);
        }
        default: {
            let i = r * args.call.key + c;
            let d = workspace[dstate + i] + row(own.dz + 2u * m + r) * row(token.q + c);
            workspace[dstate + i] = d;
            return vec4(d * row(token.k + c), d * workspace[old + i], 0.0, 0.0);
        }
    }
}

// Sums of slot `r`.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let m = args.cell.slots;
    let own = rows();
    switch phase {
        case READ_VJP_VALUES: {
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
// One pass over a memory leaves dS = a dS, the point's gradient, and a column of dk or dv.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let of_values = phase == WRITE_VJP_VALUES;
    let own = rows();
    // Rows of values stand after those of keys.
    let slot = select(0u, args.cell.slots, of_values) + r;
    let i = select(r * args.call.key, keys() + r * args.call.value, of_values) + c;
    let x = row(select(token.k, token.v, of_values) + c);
    let d = workspace[dstate + i];
    workspace[dstate + i] = row(own.a) * d;
    let dz = row(own.dz + slot);
    // dR = dz x of (79).
    workspace[dpoint + i] += dz * x;
    return row(own.u + slot) * d + dz * workspace[point + i];
}

// dk from S_K, dv from S_V.
fn landed(phase: u32, c: u32, sum: f32) {
    put(select(grads.k, grads.v, phase == WRITE_VJP_VALUES) + c, sum);
}
