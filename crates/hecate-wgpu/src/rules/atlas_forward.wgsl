// One token forward: equations (80) to (84).

const OPENED: u32 = 0u;
// Errors; the read, before or after; the write, Newton-Schulz and the memory that takes it; the window moves on.
// STEPS to ADD_TO_MEMORY hold ten steps of three products; the rule's own number leaves the rest empty.
const BEGIN: u32 = 0u;
// e_i = v_i − k_i M [c,V].
const ERRORS: u32 = 1u;
// y = q M of the old memory [V].
const READ_BEFORE: u32 = 2u;
// S = η S + Σ γ_i k_iᵀ e_i [K,V].
const WRITE: u32 = 3u;
// 1/ν of S.
const NORM: u32 = 4u;
// X₀ = S / ν [K,V].
const START: u32 = 5u;
// Newton-Schulz: A, B and X of each step.
const STEPS: u32 = 6u;
// M = a M + θ X [K,V].
const ADD_TO_MEMORY: u32 = 36u;
// y = q M of the new memory [V].
const READ_AFTER: u32 = 37u;
// The window of the next token: keys.
const MOVE_KEYS: u32 = 38u;
// The same of values.
const MOVE_VALUES: u32 = 39u;
const FORWARD_END: u32 = 40u;

// Element `j` of the next window's buffer, which may lie where this one's does; `own` is the token's row.
// Rows move one place to the front: each is read before its place is written.
fn move_on(fresh: u32, buffer: u32, own: u32, width: u32, j: u32) {
    let last = args.cell.window - 1u;
    for (var i = 0u; i < last; i++) {
        var x = row(own + j);
        if (i + 1u < last) {
            x = workspace[buffer + (i + 1u) * width + j];
        }
        workspace[fresh + i * width + j] = x;
    }
}

// ERRORS goes down the keys for every value of every row of the window.
fn shape_of(phase: u32) -> vec3<u32> {
    let key = args.call.key;
    let value = args.call.value;
    let after = args.cell.after != 0u;
    let stepping = args.cell.steps != 0u;
    switch phase {
        case BEGIN: {
            return each_of(1u, false);
        }
        case ERRORS: {
            return vec3(COLUMNS, key, args.cell.window * value);
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
        case NORM: {
            return shape_if(stepping, EACH | TOTAL, 1u, count());
        }
        case START, ADD_TO_MEMORY: {
            return shape_if(stepping, EACH, 1u, count());
        }
        case MOVE_KEYS: {
            return each_of(key, false);
        }
        case MOVE_VALUES: {
            return each_of(value, false);
        }
        default: {
            return step_shape(phase - STEPS);
        }
    }
}

// The read: y = q M, before or after the write.
fn job_at(phase: u32) -> Job {
    // (84)
    return job(out, token.q, select(old, next, phase == READ_AFTER));
}

// A forward without a backward keeps one step.
fn product_of(phase: u32) -> Product {
    return step_product(phase - STEPS, 1u);
}

// Elements of S and M count row by row.
fn element(phase: u32, i: u32) -> vec4<f32> {
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
        case ADD_TO_MEMORY: {
            // (83)
            workspace[next + i] = row(number(A)) * workspace[old + i] + row(number(THETA)) * workspace[x_at(args.cell.steps, 1u) + i];
        }
        case MOVE_KEYS: {
            move_on(keys_of(next), keys_of(old), token.k, args.call.key, i);
        }
        default: {
            move_on(values_of(next), values_of(old), token.v, args.call.value, i);
        }
    }
    return vec4(0.0);
}

// NORM is the only phase with a sum over all.
fn totalled(phase: u32, sums: vec4<f32>) {
    norm_totalled(sums.x);
}

// (80)
// k_i M of window row `at / V`, column `at % V`: what the memory predicts.
fn down(phase: u32, r: u32, at: u32) -> f32 {
    return window_key(at / args.call.value, r) * workspace[point + r * args.call.value + at % args.call.value];
}

// e_i = v_i - k_i M.
fn landed(phase: u32, at: u32, sum: f32) {
    put(record + at, window_value(at / args.call.value, at % args.call.value) - sum);
}

// (81), and (83) where the memory takes the momentum as it is.
// S = η S + Σ γ_i k_iᵀ e_i at element (r, c).
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let v = args.call.value;
    let at = r * v + c;
    var sum = row(number(ETA)) * workspace[old + count() + at];
    for (var i = 0u; i < args.cell.window; i++) {
        sum += weight(i) * window_key(i, r) * row(record + i * v + c);
    }
    workspace[next + count() + at] = sum;
    if (args.cell.steps == 0u) {
        workspace[next + at] = row(number(A)) * workspace[old + at] + row(number(THETA)) * sum;
    }
    return vec4(0.0);
}

// No phase has sums of rows.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {}
