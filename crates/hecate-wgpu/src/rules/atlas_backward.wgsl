// One token backward: equations (85) to (87).

// The window goes back; Newton-Schulz again, with all its steps; (85); Newton-Schulz backward; (86); (87); gates.
const BEGIN: u32 = 0u;
const HAND_KEYS: u32 = 1u;
const HAND_VALUES: u32 = 2u;
const NORM: u32 = 3u;
const START: u32 = 4u;
const STEPS: u32 = 5u;
const TAKE_BACK: u32 = 35u;
const START_BACK: u32 = 36u;
const STEPS_BACK: u32 = 37u;
const ACROSS: u32 = 97u;
const PROJECT: u32 = 98u;
const PULLED: u32 = 99u;
const WEIGHTS: u32 = 100u;
const KEYS: u32 = 101u;
const LEAVE: u32 = 102u;
const GATES: u32 = 103u;
const BACKWARD_END: u32 = 104u;

// (82): behind a forward that kept all steps where there are any.
fn taken() -> u32 {
    return select(next + count(), x_at(args.cell.steps, args.cell.steps), args.cell.steps != 0u);
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
    let stepping = args.cell.steps != 0u;
    switch phase {
        case BEGIN: {
            return each_of(1u, false);
        }
        case PULLED: {
            return vec3(COLUMNS, key, window * value);
        }
        case NORM, ACROSS: {
            return shape_if(stepping, EACH | TOTAL, 1u, count());
        }
        case START, START_BACK, PROJECT: {
            return shape_if(stepping, EACH, 1u, count());
        }
        case HAND_KEYS: {
            return each_of(key, false);
        }
        case HAND_VALUES: {
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
        case TAKE_BACK, LEAVE: {
            return vec3(ROWS, key, value);
        }
        default: {
            if (phase < TAKE_BACK) {
                return step_shape(phase - STEPS);
            }
            return step_back_shape(phase - STEPS_BACK);
        }
    }
}

fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

fn product_of(phase: u32) -> Product {
    if (phase < TAKE_BACK) {
        return step_product(phase - STEPS, args.cell.steps);
    }
    return step_back_product(phase - STEPS_BACK);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let key = args.call.key;
    var sums = vec4(0.0);
    switch phase {
        case BEGIN: {
            begin_token();
        }
        case NORM: {
            return norm_element(i);
        }
        case START: {
            start(i);
        }
        case HAND_KEYS: {
            hand_back(keys_of(dstate), grads.k, key, i);
        }
        case HAND_VALUES: {
            hand_back(values_of(dstate), grads.v, args.call.value, i);
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
        case NORM: {
            norm_totalled(sums.x);
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

// The first of (86).
fn down(phase: u32, r: u32, at: u32) -> f32 {
    let i = count() + r * args.call.value + at % args.call.value;
    return window_key(at / args.call.value, r) * room[dstate + i];
}

fn landed(phase: u32, at: u32, sum: f32) {
    put(scratch + at, sum);
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let v = args.call.value;
    switch phase {
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
