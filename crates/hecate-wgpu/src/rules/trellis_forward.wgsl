// One token forward.

const OPENED: u32 = 0u;
// Both memories' predictions; φ of them, and `u`; the writes; φ of the query's prediction; the read.
// A token asks S_K with its key and S_V with its value, learns from both, then asks S_K with its query.
const ASK_KEYS: u32 = 0u;
// S_V v [m].
const ASK_VALUES: u32 = 1u;
const PHI: u32 = 2u;
// S_K = a S_K − θ u kᵀ, and S_K q [m].
const WRITE_KEYS: u32 = 6u;
// S_V = a S_V − θ u vᵀ.
const WRITE_VALUES: u32 = 7u;
// φ of the query's prediction, without an error.
const PHI_QUERY: u32 = 8u;
// y = fᵀ S_V [V].
const QUERY_PREDICTION: u32 = 11u;
const FORWARD_END: u32 = 12u;

// Which phase of φ that is, if it is one, and of how many sides.
// Phases of φ stand twice in the list.
fn phi_phase(phase: u32) -> u32 {
    return phase - select(PHI, PHI_QUERY, phase >= PHI_QUERY);
}
// Two sides before the write, the query alone after it.
fn sides(phase: u32) -> u32 {
    return select(2u, 1u, phase >= PHI_QUERY);
}

// ASK phases are products of a memory and a row; WRITE phases touch every element of it.
fn shape_of(phase: u32) -> vec3<u32> {
    let m = args.cell.slots;
    switch phase {
        case ASK_KEYS: {
            return vec3(TRANSPOSED, m, args.call.key);
        }
        case ASK_VALUES: {
            return vec3(TRANSPOSED, m, args.call.value);
        }
        case WRITE_KEYS: {
            return vec3(ROWS, m, args.call.key);
        }
        case WRITE_VALUES: {
            return vec3(SWEEP, m, args.call.value);
        }
        case QUERY_PREDICTION: {
            return vec3(TIMES, m, args.call.value);
        }
        default: {
            return phi_shape(phi_phase(phase), sides(phase));
        }
    }
}

// y, x and the matrix of each product.
fn job_at(phase: u32) -> Job {
    switch phase {
        case ASK_KEYS: {
            return job(record, token.k, point);
        }
        case ASK_VALUES: {
            return job(record + args.cell.slots, token.v, point + keys());
        }
        default: {
            return job(out, places().f, next + keys());
        }
    }
}

// `predictions` are `S_K k`, `S_V v`, then `S_K q` in the record.
fn element(phase: u32, i: u32) -> vec4<f32> {
    let predictions = record + select(0u, 2u * args.cell.slots, phase >= PHI_QUERY);
    return phi_element(phi_phase(phase), sides(phase), predictions, i);
}

// All sums are those of φ.
fn totalled(phase: u32, sums: vec4<f32>) {
    phi_totalled(phi_phase(phase), sums);
}

// (75), (76)
// S = a S - θ u xᵀ for slot `r`; for keys also the query's prediction, S_K q.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let of_values = phase == WRITE_VALUES;
    let own = rows();
    let i = select(r * args.call.key, keys() + r * args.call.value, of_values) + c;
    let u = row(own.u + r + select(0u, args.cell.slots, of_values));
    let s = row(own.a) * workspace[old + i] - row(own.theta) * u * row(select(token.k, token.v, of_values) + c);
    workspace[next + i] = s;
    if (of_values) {
        return vec4(0.0);
    }
    return vec4(s * row(token.q + c), 0.0, 0.0, 0.0);
}

// The query's prediction by slot `r`.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    put(record + 2u * args.cell.slots + r, sums.x);
}

// No phase goes down columns.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    return 0.0;
}
// Never called: no phase goes down columns.
fn landed(phase: u32, c: u32, sum: f32) {}
