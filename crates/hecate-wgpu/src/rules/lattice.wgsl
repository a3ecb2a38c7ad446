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

// A slot whose norm is not 1 makes its sequence and head NaN, since the host does not look.
const NORMS: u32 = 0u;
const REFUSE: u32 = 1u;
const OPENED: u32 = 2u;
const BEGIN: u32 = 2u;
const PREDICT: u32 = 3u;
const ERROR: u32 = 4u;
const READ_BEFORE: u32 = 5u;
const ASK: u32 = 6u;
const WRITE: u32 = 7u;
const NORMALISE: u32 = 8u;
const READ_AFTER: u32 = 9u;
const FORWARD_END: u32 = 10u;
const BEGIN_BACK: u32 = 10u;
const UNREAD: u32 = 11u;
const PROJECT: u32 = 12u;
const VALUES: u32 = 13u;
const GATES: u32 = 14u;
const PULL: u32 = 15u;
const BACKWARD_END: u32 = 16u;

fn shape_of(phase: u32) -> vec3<u32> {
    let key = args.call.key;
    let value = args.call.value;
    let after = args.cell.after != 0u;
    switch phase {
        case NORMS, WRITE, UNREAD, PROJECT, PULL: {
            return vec3(ROWS, key, value);
        }
        case REFUSE, NORMALISE: {
            return vec3(SWEEP, key, value);
        }
        case BEGIN, BEGIN_BACK: {
            return each_of(1u, false);
        }
        case PREDICT: {
            return shape_if(args.cell.variant == DECODE, TIMES, key, value);
        }
        case ERROR: {
            return each_of(value, false);
        }
        case READ_BEFORE: {
            return shape_if(!after, TIMES, key, value);
        }
        case ASK: {
            return vec3(TRANSPOSED, key, value);
        }
        case READ_AFTER: {
            return shape_if(after, TIMES, key, value);
        }
        case VALUES: {
            return vec3(COLUMNS, key, value);
        }
        default: {
            return each_of(key, true);
        }
    }
}

fn job_at(phase: u32) -> Job {
    switch phase {
        case PREDICT: {
            // (60)
            return job(record, token.k, point);
        }
        case ASK: {
            // (61)
            return job(row_b(), record, point);
        }
        default: {
            // (64)
            return job(out, token.q, select(old, next, phase == READ_AFTER));
        }
    }
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    switch phase {
        case BEGIN, BEGIN_BACK: {
            put(number_a(), retention());
            put(number_theta(), gate(1u));
            return vec4(0.0);
        }
        case ERROR: {
            // (60)
            put(record + i, row(token.v + i) - select(0.0, row(record + i), args.cell.variant == DECODE));
            return vec4(0.0);
        }
        default: {
            return vec4(row(row_gained() + i), 0.0, 0.0, 0.0);
        }
    }
}

fn totalled(phase: u32, sums: vec4<f32>) {
    let a = row(number_a());
    let forgets = is_nan(a) || a > args.cell.lowest;
    put(grads.gates, select(0.0, -row(number_theta()) * sums.x, forgets));
    put(grads.gates + 1u, sums.x);
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    let a = row(number_a());
    let theta = row(number_theta());
    switch phase {
        case NORMS: {
            return vec4(room[old + i] * room[old + i], 0.0, 0.0, 0.0);
        }
        case REFUSE: {
            if (abs(row(scratch + r) - 1.0) > args.cell.tolerance) {
                room[old + i] = not_a_number();
            }
            return vec4(0.0);
        }
        case NORMALISE: {
            room[next + i] /= row(row_n() + r);
            return vec4(0.0);
        }
        case WRITE: {
            // (61), (62), (63)
            let b = row(row_b() + r);
            let g = row(token.k + r) - select(0.0, b, args.cell.variant == ENCODE);
            let x = a * room[old + i] + theta * g * (row(record + c) - b * room[point + i]);
            room[next + i] = x;
            return vec4(x * x, 0.0, 0.0, 0.0);
        }
        case UNREAD: {
            // (65), and the projection of (66)
            var d = room[dstate + i];
            var dq = 0.0;
            if (args.cell.after != 0u) {
                d += row(token.q + r) * row(out + c);
                dq = row(out + c) * room[next + i];
                room[dstate + i] = d;
            }
            return vec4(room[next + i] * d, dq, 0.0, 0.0);
        }
        case PROJECT: {
            // (66) to (68), but for what they add up to
            let d = (room[dstate + i] - row(scratch + r) * room[next + i]) / row(row_n() + r);
            room[dstate + i] = d;
            let s = room[point + i];
            return vec4((row(record + c) - row(row_b() + r) * s) * d, d * s, 0.0, 0.0);
        }
        default: {
            let ds = room[dstate + i];
            var pulled = row(row_db() + r) * row(record + c) - row(row_b() + r) * row(row_du() + r) * ds;
            var sums = vec4(0.0);
            // (69)
            if (args.cell.variant == DECODE) {
                sums.x = room[point + i] * row(row_dh() + c);
                pulled -= row(token.k + r) * row(row_dh() + c);
            }
            var d = a * ds;
            if (args.cell.after == 0u) {
                d += row(token.q + r) * row(out + c);
                sums.y = row(out + c) * room[old + i];
            }
            // Both may be the same number.
            room[dstate + i] = d;
            room[dpoint + i] += pulled;
            return sums;
        }
    }
}

fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let theta = row(number_theta());
    switch phase {
        case NORMS: {
            put(scratch + r, sqrt(sums.x));
        }
        case WRITE: {
            let b = row(row_b() + r);
            put(row_g() + r, row(token.k + r) - select(0.0, b, args.cell.variant == ENCODE));
            put(row_n() + r, sqrt(sums.x));
        }
        case UNREAD: {
            put(scratch + r, sums.x);
            if (args.cell.after != 0u) {
                put(grads.q + r, sums.y);
            }
        }
        case PROJECT: {
            let g = row(row_g() + r);
            put(grads.k + r, theta * sums.x);
            put(row_du() + r, theta * g);
            put(row_db() + r, -theta * g * sums.y - select(0.0, theta * sums.x, args.cell.variant == ENCODE));
            put(row_gained() + r, g * sums.x);
        }
        default: {
            if (args.cell.variant == DECODE) {
                put(grads.k + r, row(grads.k + r) - sums.x);
            }
            if (args.cell.after == 0u) {
                put(grads.q + r, sums.y);
            }
        }
    }
}

fn down(phase: u32, r: u32, c: u32) -> f32 {
    let i = r * args.call.value + c;
    return row(row_du() + r) * room[dstate + i] + row(row_db() + r) * room[point + i];
}

fn landed(phase: u32, c: u32, sum: f32) {
    put(row_dh() + c, sum);
    put(grads.v + c, sum);
}
