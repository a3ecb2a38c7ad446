// One token backward: equations (85) to (87).

// The window goes back; Newton-Schulz again, with all its steps; (85); Newton-Schulz backward; (86); (87); gates.
// STEPS and STEPS_VJP hold ten steps, of three products and of six phases.
const BEGIN: u32 = 0u;
// Gradients of the window's keys move back one row.
const RETURN_KEYS: u32 = 1u;
// The same of values.
const RETURN_VALUES: u32 = 2u;
// 1/ν of S once more.
const NORM: u32 = 3u;
// X₀ = S / ν.
const START: u32 = 4u;
// The forward's steps, all of them kept.
const STEPS: u32 = 5u;
// (85): dM, dq, and parts of da and dθ.
const MEMORY_VJP: u32 = 35u;
// The gradient of the last X.
const START_VJP: u32 = 36u;
// The steps from the last to the first.
const STEPS_VJP: u32 = 37u;
// ⟨D, X₀⟩.
const ACROSS: u32 = 97u;
// dS += (D − X₀ ⟨D, X₀⟩) / ν.
const PROJECT: u32 = 98u;
// g_i = k_i dS for every row of the window [c,V].
const WRITE_VJP: u32 = 99u;
// dγ, and gradients of the window's values.
const WEIGHTS: u32 = 100u;
// Gradients of the window's keys.
const KEYS: u32 = 101u;
// dM = a dM, dS = η dS, and the point's gradient.
const LEAVE: u32 = 102u;
// Sums of the parts over [K].
const GATES: u32 = 103u;
const BACKWARD_END: u32 = 104u;

// (82): after a forward that kept all steps where there are any.
// What θ multiplied: the last X, or S itself without Newton-Schulz.
fn written_matrix() -> u32 {
    return select(next + count(), x_at(args.cell.steps, args.cell.steps), args.cell.steps != 0u);
}

// Gradients of the rows after a token, `[c−1,width]`, as those of the rows before it and of the token's own, which were
// rows `0 … c−2` and `c−1` of its window: element `j` of each.
// Rows move one place back; the newest was the token's own.
fn return_window(buffer: u32, own: u32, width: u32, j: u32) {
    var after = 0.0;
    for (var i = 0u; i + 1u < args.cell.window; i++) {
        let fresh = workspace[buffer + i * width + j];
        workspace[buffer + i * width + j] = after;
        after = fresh;
    }
    put(own + j, after);
}

// Sizes follow the forward's phases.
fn shape_of(phase: u32) -> vec3<u32> {
    let key = args.call.key;
    let value = args.call.value;
    let window = args.cell.window;
    let stepping = args.cell.steps != 0u;
    switch phase {
        case BEGIN: {
            return each_of(1u, false);
        }
        case WRITE_VJP: {
            return vec3(COLUMNS, key, window * value);
        }
        case NORM, ACROSS: {
            return shape_if(stepping, EACH | TOTAL, 1u, count());
        }
        case START, START_VJP, PROJECT: {
            return shape_if(stepping, EACH, 1u, count());
        }
        case RETURN_KEYS: {
            return each_of(key, false);
        }
        case RETURN_VALUES: {
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
        case MEMORY_VJP, LEAVE: {
            return vec3(ROWS, key, value);
        }
        default: {
            if (phase < MEMORY_VJP) {
                return step_shape(phase - STEPS);
            }
            return step_vjp_shape(phase - STEPS_VJP);
        }
    }
}

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// All steps of the forward are kept, so that the way back finds each X, A and B.
fn product_of(phase: u32) -> Product {
    if (phase < MEMORY_VJP) {
        return step_product(phase - STEPS, args.cell.steps);
    }
    return step_vjp_product(phase - STEPS_VJP);
}

// Elements count row by row over [K,V], or over a row.
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
        case RETURN_KEYS: {
            return_window(keys_of(dstate), grads.k, key, i);
        }
        case RETURN_VALUES: {
            return_window(values_of(dstate), grads.v, args.call.value, i);
        }
        // D of the last X: θ dM.
        case START_VJP: {
            workspace[d_at(0u) + i] = row(number(THETA)) * workspace[dstate + i];
        }
        // ⟨D, X₀⟩: the norm's share of the gradient.
        case ACROSS: {
            sums.x = workspace[d_at(args.cell.steps) + i] * workspace[matrices + i];
        }
        case PROJECT: {
            // (92) with X₀ = S/ν: dS = (D − X₀ ⟨D, X₀⟩)/ν
            let d = workspace[d_at(args.cell.steps) + i] - row(number(ALONG)) * workspace[matrices + i];
            workspace[dstate + count() + i] += row(number(INVERSE)) * d;
        }
        // Sums over rows: parts of the gradients of a, θ and η.
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

// Gradients of log a, log η and θ.
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
// g_i = k_i dS of window row `at / V`, column `at % V`.
fn down(phase: u32, r: u32, at: u32) -> f32 {
    let i = count() + r * args.call.value + at % args.call.value;
    return window_key(at / args.call.value, r) * workspace[dstate + i];
}

// One row of V elements for each row of the window.
fn landed(phase: u32, at: u32, sum: f32) {
    put(scratch + at, sum);
}

// What an element (r, c) means is said phase by phase.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let v = args.call.value;
    switch phase {
        // The read joins dM; sums of the row give dq and parts of da and dθ.
        case MEMORY_VJP: {
            // (85)
            let i = r * v + c;
            var d = workspace[dstate + i];
            var dq = 0.0;
            if (args.cell.after != 0u) {
                d += row(token.q + r) * row(out + c);
                dq = workspace[next + i] * row(out + c);
                workspace[dstate + i] = d;
            }
            // U = S of (82), so θ dM is its gradient.
            if (args.cell.steps == 0u) {
                workspace[dstate + count() + i] += row(number(THETA)) * d;
            }
            // Sums of the row: dq, ⟨dM, M⟩ for da, ⟨dM, U⟩ for dθ.
            return vec4(dq, d * workspace[old + i], d * workspace[written_matrix() + i], 0.0);
        }
        case WEIGHTS: {
            // (86): row `r` of the window
            let g = row(scratch + r * v + c);
            if (r + 1u < args.cell.window) {
                workspace[values_of(dstate) + r * v + c] += weight(r) * g;
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
            return vec4(e * workspace[dstate + count() + at] - g * workspace[point + at], 0.0, 0.0, 0.0);
        }
        default: {
            // (87)
            let at = r * v + c;
            // What the errors of all rows of the window give to the point.
            var pullback = 0.0;
            for (var i = 0u; i < args.cell.window; i++) {
                pullback += weight(i) * window_key(i, r) * row(scratch + i * v + c);
            }
            var d = row(number(A)) * workspace[dstate + at];
            let ds = workspace[dstate + count() + at];
            workspace[dstate + count() + at] = row(number(ETA)) * ds;
            var dq = 0.0;
            if (args.cell.after == 0u) {
                d += row(token.q + r) * row(out + c);
                dq = workspace[old + at] * row(out + c);
            }
            // Both may be the same number.
            workspace[dstate + at] = d;
            workspace[dpoint + at] -= pullback;
            return vec4(dq, ds * workspace[old + count() + at], 0.0, 0.0);
        }
    }
}

// Sums of row `r` go where the phase says.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let key = args.call.key;
    switch phase {
        case MEMORY_VJP: {
            if (args.cell.after != 0u) {
                put(grads.q + r, sums.x);
            }
            put(gate_rows() + r, sums.y);
            put(gate_rows() + key + r, sums.z);
        }
        // dγ of the row: gates count from the newest.
        case WEIGHTS: {
            put(grads.gates + 3u + args.cell.window - 1u - r, sums.x);
        }
        // dk of element `r / c` of window row `r % c`: into the state's buffer, or to the token's own key.
        case KEYS: {
            let i = r % args.cell.window;
            let at = r / args.cell.window;
            // e dSᵀ − g Mᵀ of (86), times the row's weight.
            let own = weight(i) * sums.x;
            if (i + 1u < args.cell.window) {
                workspace[keys_of(dstate) + i * key + at] += own;
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
