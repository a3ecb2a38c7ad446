// One token of Atlas: equations (80) to (87).
//
// The state is `M [K,V]`, `S [K,V]`, keys `[c−1,K]`, values `[c−1,V]`. A token leaves the errors of its window `[c,V]`, and
// has as many rows for itself: the `g_j` of (86).

struct Cell {
    window: u32,
    after: u32,
    steps: u32,
    // (α, β, κ) and ε² of Newton-Schulz.
    alpha: f32,
    beta: f32,
    kappa: f32,
    epsilon: f32,
    unused: u32,
}

const OPENED: u32 = 0u;
// Errors; the read, before or after; the write, Newton-Schulz and the memory that takes it; the window moves on.
const BEGIN: u32 = 0u;
const ERRORS: u32 = 1u;
const READ_BEFORE: u32 = 2u;
const WRITE: u32 = 3u;
const NORM: u32 = 4u;
const START: u32 = 5u;
const STEPS: u32 = 6u;
const TAKE: u32 = 36u;
const READ_AFTER: u32 = 37u;
const MOVE_KEYS: u32 = 38u;
const MOVE_VALUES: u32 = 39u;
const FORWARD_END: u32 = 40u;
// The window goes back; Newton-Schulz again, with all its steps; (85); Newton-Schulz backward; (86); (87); gates.
const BEGIN_BACK: u32 = 40u;
const HAND_KEYS: u32 = 41u;
const HAND_VALUES: u32 = 42u;
const NORM_AGAIN: u32 = 43u;
const START_AGAIN: u32 = 44u;
const STEPS_AGAIN: u32 = 45u;
const TAKE_BACK: u32 = 75u;
const START_BACK: u32 = 76u;
const STEPS_BACK: u32 = 77u;
const ACROSS: u32 = 137u;
const PROJECT: u32 = 138u;
const PULLED: u32 = 139u;
const WEIGHTS: u32 = 140u;
const KEYS: u32 = 141u;
const LEAVE: u32 = 142u;
const GATES: u32 = 143u;
const BACKWARD_END: u32 = 144u;

// Rows behind `g`: parts of the gradients of `a`, `θ` and `η` `[K]`; numbers: `a`, `η`, `θ`, 1/ν, `⟨D, X₀⟩`.
fn gate_rows() -> u32 {
    return scratch + args.cell.window * args.call.value;
}
fn number(i: u32) -> u32 {
    return gate_rows() + 3u * args.call.key + i;
}
const A: u32 = 0u;
const ETA: u32 = 1u;
const THETA: u32 = 2u;
const INVERSE: u32 = 3u;
const ALONG: u32 = 4u;

// (82): behind a forward that kept all steps where there are any.
fn taken() -> u32 {
    return select(next + count(), x_at(args.cell.steps, args.cell.steps), args.cell.steps != 0u);
}

fn begin_token() {
    put(number(A), exponential(gate(0u)));
    put(number(ETA), exponential(gate(1u)));
    put(number(THETA), gate(2u));
}

// Where the last keys and values are in a state.
fn keys_of(state: u32) -> u32 {
    return state + 2u * count();
}
fn values_of(state: u32) -> u32 {
    return keys_of(state) + (args.cell.window - 1u) * args.call.key;
}

// Element `r` of key `i` of the window, oldest first: those of the state, then the token's own; the same of values.
fn window_key(i: u32, r: u32) -> f32 {
    if (i + 1u < args.cell.window) {
        return room[keys_of(old) + i * args.call.key + r];
    }
    return row(token.k + r);
}
fn window_value(i: u32, c: u32) -> f32 {
    if (i + 1u < args.cell.window) {
        return room[values_of(old) + i * args.call.value + c];
    }
    return row(token.v + c);
}

// Weight of row `i` of the window.
fn weight(i: u32) -> f32 {
    return gate(3u + args.cell.window - 1u - i);
}

// Element `j` of the next window's buffer, which may lie where this one's does; `own` is the token's row.
fn move_on(fresh: u32, buffer: u32, own: u32, width: u32, j: u32) {
    let last = args.cell.window - 1u;
    for (var i = 0u; i < last; i++) {
        var x = row(own + j);
        if (i + 1u < last) {
            x = room[buffer + (i + 1u) * width + j];
        }
        room[fresh + i * width + j] = x;
    }
}

// Gradients of the rows behind a token, `[c−1,width]`, as those of the rows before it and of the token's own, which were
// rows `0 … c−2` and `c−1` of its window: element `j` of each.
fn hand_back(buffer: u32, own: u32, width: u32, j: u32) {
    var behind = 0.0;
    for (var i = 0u; i + 1u < args.cell.window; i++) {
        let fresh = room[buffer + i * width + j];
        room[buffer + i * width + j] = behind;
        behind = fresh;
    }
    put(own + j, behind);
}

fn shape_of(phase: u32) -> vec3<u32> {
    let key = args.call.key;
    let value = args.call.value;
    let window = args.cell.window;
    let after = args.cell.after != 0u;
    let stepping = args.cell.steps != 0u;
    if (phase >= STEPS && phase < TAKE) {
        return step_shape(phase - STEPS);
    }
    if (phase >= STEPS_AGAIN && phase < TAKE_BACK) {
        return step_shape(phase - STEPS_AGAIN);
    }
    if (phase >= STEPS_BACK && phase < ACROSS) {
        return step_back_shape(phase - STEPS_BACK);
    }
    switch phase {
        case BEGIN, BEGIN_BACK: {
            return each_of(1u, false);
        }
        case ERRORS, PULLED: {
            return vec3(COLUMNS, key, window * value);
        }
        case READ_BEFORE: {
            return shape_if(!after, TIMES, key, value);
        }
        case READ_AFTER: {
            return shape_if(after, TIMES, key, value);
        }
        case WRITE: {
            return vec3(SWEEP, key, value);
        }
        case NORM, NORM_AGAIN, ACROSS: {
            return shape_if(stepping, EACH | TOTAL, 1u, count());
        }
        case START, START_AGAIN, TAKE, START_BACK, PROJECT: {
            return shape_if(stepping, EACH, 1u, count());
        }
        case MOVE_KEYS, HAND_KEYS: {
            return each_of(key, false);
        }
        case MOVE_VALUES, HAND_VALUES: {
            return each_of(value, false);
        }
        case WEIGHTS: {
            return vec3(ROWS, window, value);
        }
        case KEYS: {
            return vec3(ROWS, key * window, value);
        }
        case GATES: {
            return each_of(key, true);
        }
        default: {
            return vec3(ROWS, key, value);
        }
    }
}

fn job_at(phase: u32) -> Job {
    // (84)
    return job(out, token.q, select(old, next, phase == READ_AFTER));
}

fn product_of(phase: u32) -> Product {
    if (phase < TAKE) {
        return step_product(phase - STEPS, 1u);
    }
    if (phase < TAKE_BACK) {
        return step_product(phase - STEPS_AGAIN, args.cell.steps);
    }
    return step_back_product(phase - STEPS_BACK);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let key = args.call.key;
    let value = args.call.value;
    var sums = vec4(0.0);
    switch phase {
        case BEGIN, BEGIN_BACK: {
            begin_token();
        }
        case NORM, NORM_AGAIN: {
            sums.x = room[next + count() + i] * room[next + count() + i];
        }
        case START, START_AGAIN: {
            // (88)
            room[matrices + i] = room[next + count() + i] * row(number(INVERSE));
        }
        case TAKE: {
            // (83)
            room[next + i] = row(number(A)) * room[old + i] + row(number(THETA)) * room[x_at(args.cell.steps, 1u) + i];
        }
        case MOVE_KEYS: {
            move_on(keys_of(next), keys_of(old), token.k, key, i);
        }
        case MOVE_VALUES: {
            move_on(values_of(next), values_of(old), token.v, value, i);
        }
        case HAND_KEYS: {
            hand_back(keys_of(dstate), grads.k, key, i);
        }
        case HAND_VALUES: {
            hand_back(values_of(dstate), grads.v, value, i);
        }
        case START_BACK: {
            room[d_at(0u) + i] = row(number(THETA)) * room[dstate + i];
        }
        case ACROSS: {
            sums.x = room[d_at(args.cell.steps) + i] * room[matrices + i];
        }
        case PROJECT: {
            // (92) with X₀ = S/ν: dS = (D − X₀ ⟨D, X₀⟩)/ν
            let d = room[d_at(args.cell.steps) + i] - row(number(ALONG)) * room[matrices + i];
            room[dstate + count() + i] += row(number(INVERSE)) * d;
        }
        case GATES: {
            let at = gate_rows() + i;
            sums = vec4(row(at), row(at + key), row(at + 2u * key), 0.0);
        }
        default: {
            symmetrise(i);
        }
    }
    return sums;
}

fn totalled(phase: u32, sums: vec4<f32>) {
    switch phase {
        case NORM, NORM_AGAIN: {
            put(number(INVERSE), 1.0 / sqrt(sums.x + args.cell.epsilon));
        }
        case ACROSS: {
            put(number(ALONG), sums.x);
        }
        default: {
            put(grads.gates, row(number(A)) * sums.x);
            put(grads.gates + 1u, row(number(ETA)) * sums.z);
            put(grads.gates + 2u, sums.y);
        }
    }
}

// (80), and the first of (86).
fn down(phase: u32, r: u32, at: u32) -> f32 {
    let m = select(dstate + count(), point, phase == ERRORS);
    return window_key(at / args.call.value, r) * room[m + r * args.call.value + at % args.call.value];
}

fn landed(phase: u32, at: u32, sum: f32) {
    if (phase == ERRORS) {
        put(record + at, window_value(at / args.call.value, at % args.call.value) - sum);
    } else {
        put(scratch + at, sum);
    }
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let v = args.call.value;
    switch phase {
        case WRITE: {
            // (81), and (83) where the memory takes the momentum as it is
            let at = r * v + c;
            var sum = row(number(ETA)) * room[old + count() + at];
            for (var i = 0u; i < args.cell.window; i++) {
                sum += weight(i) * window_key(i, r) * row(record + i * v + c);
            }
            room[next + count() + at] = sum;
            if (args.cell.steps == 0u) {
                room[next + at] = row(number(A)) * room[old + at] + row(number(THETA)) * sum;
            }
            return vec4(0.0);
        }
        case TAKE_BACK: {
            // (85)
            let i = r * v + c;
            var d = room[dstate + i];
            var dq = 0.0;
            if (args.cell.after != 0u) {
                d += row(token.q + r) * row(out + c);
                dq = room[next + i] * row(out + c);
                room[dstate + i] = d;
            }
            if (args.cell.steps == 0u) {
                room[dstate + count() + i] += row(number(THETA)) * d;
            }
            return vec4(dq, d * room[old + i], d * room[taken() + i], 0.0);
        }
        case WEIGHTS: {
            // (86): row `r` of the window
            let g = row(scratch + r * v + c);
            if (r + 1u < args.cell.window) {
                room[values_of(dstate) + r * v + c] += weight(r) * g;
            } else {
                put_more(grads.v + c, weight(r) * g);
            }
            return vec4(g * row(record + r * v + c), 0.0, 0.0, 0.0);
        }
        case KEYS: {
            // (86): element `r / c` of the key of row `r % c` of the window
            let i = r % args.cell.window;
            let at = r / args.cell.window * v + c;
            let e = row(record + i * v + c);
            let g = row(scratch + i * v + c);
            return vec4(e * room[dstate + count() + at] - g * room[point + at], 0.0, 0.0, 0.0);
        }
        default: {
            // (87)
            let at = r * v + c;
            var pulled = 0.0;
            for (var i = 0u; i < args.cell.window; i++) {
                pulled += weight(i) * window_key(i, r) * row(scratch + i * v + c);
            }
            var d = row(number(A)) * room[dstate + at];
            let ds = room[dstate + count() + at];
            room[dstate + count() + at] = row(number(ETA)) * ds;
            var dq = 0.0;
            if (args.cell.after == 0u) {
                d += row(token.q + r) * row(out + c);
                dq = room[old + at] * row(out + c);
            }
            // Both may be the same number.
            room[dstate + at] = d;
            room[dpoint + at] -= pulled;
            return vec4(dq, ds * room[old + count() + at], 0.0, 0.0);
        }
    }
}

fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let key = args.call.key;
    switch phase {
        case TAKE_BACK: {
            if (args.cell.after != 0u) {
                put(grads.q + r, sums.x);
            }
            put(gate_rows() + r, sums.y);
            put(gate_rows() + key + r, sums.z);
        }
        case WEIGHTS: {
            put(grads.gates + 3u + args.cell.window - 1u - r, sums.x);
        }
        case KEYS: {
            let i = r % args.cell.window;
            let at = r / args.cell.window;
            let own = weight(i) * sums.x;
            if (i + 1u < args.cell.window) {
                room[keys_of(dstate) + i * key + at] += own;
            } else {
                put_more(grads.k + at, own);
            }
        }
        default: {
            if (args.cell.after == 0u) {
                put(grads.q + r, sums.x);
            }
            put(gate_rows() + 2u * key + r, sums.y);
        }
    }
}
