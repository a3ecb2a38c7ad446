// One token forward: equations (60) to (64).

// A slot whose norm is not 1 makes its sequence and head NaN, since the host does not look.
// NORMS and REFUSE open the initial state; the rest are a token's phases.
const NORMS: u32 = 0u;
const REFUSE: u32 = 1u;
const OPENED: u32 = 2u;
const BEGIN: u32 = 2u;
// h = k S, for the variant DECODE [V].
const PREDICT: u32 = 3u;
// h = v − h, or v [V].
const ERROR: u32 = 4u;
// y = q S of the old state [V].
const READ_BEFORE: u32 = 5u;
// b = S h [K].
const ASK: u32 = 6u;
// X = a S + θ g (h − b S), and |X|² of each slot.
const WRITE: u32 = 7u;
// S = X / |X|.
const NORMALISE: u32 = 8u;
// y = q S of the new state [V].
const READ_AFTER: u32 = 9u;
const FORWARD_END: u32 = 10u;

// Kinds and sizes; a slot is a row of a matrix [K,V].
fn shape_of(phase: u32) -> vec3<u32> {
    let key = args.call.key;
    let value = args.call.value;
    let after = args.cell.after != 0u;
    switch phase {
        case NORMS, WRITE: {
            return vec3(ROWS, key, value);
        }
        case REFUSE, NORMALISE: {
            return vec3(SWEEP, key, value);
        }
        case BEGIN: {
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
        default: {
            return shape_if(after, TIMES, key, value);
        }
    }
}

// Rows and the matrix of the phases TIMES and TRANSPOSED.
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

// BEGIN has one element, ERROR one for each value.
fn element(phase: u32, i: u32) -> vec4<f32> {
    if (phase == BEGIN) {
        begin_token();
    } else {
        // (60)
        put(record + i, row(token.v + i) - select(0.0, row(record + i), args.cell.variant == DECODE));
    }
    return vec4(0.0);
}

// No phase has sums over all elements.
fn totalled(phase: u32, sums: vec4<f32>) {}

// Element (r, c) is column `c` of slot `r`.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    switch phase {
        // The squared norm of every initial slot.
        case NORMS: {
            return vec4(workspace[old + i] * workspace[old + i], 0.0, 0.0, 0.0);
        }
        // NaN in a slot reaches everything its sequence and head reads.
        case REFUSE: {
            if (abs(row(scratch + r) - 1.0) > args.cell.tolerance) {
                workspace[old + i] = not_a_number();
            }
            return vec4(0.0);
        }
        // (63): every slot back to unit norm.
        case NORMALISE: {
            workspace[next + i] /= row(row_n() + r);
            return vec4(0.0);
        }
        default: {
            // (61), (62), (63)
            let b = row(row_b() + r);
            let g = row(token.k + r) - select(0.0, b, args.cell.variant == ENCODE);
            let x = row(number_a()) * workspace[old + i] + row(number_theta()) * g * (row(record + c) - b * workspace[point + i]);
            workspace[next + i] = x;
            return vec4(x * x, 0.0, 0.0, 0.0);
        }
    }
}

// Sums of rows: the norms of the initial slots, or those of the written ones.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    if (phase == NORMS) {
        put(scratch + r, sqrt(sums.x));
        return;
    }
    let b = row(row_b() + r);
    put(row_g() + r, row(token.k + r) - select(0.0, b, args.cell.variant == ENCODE));
    put(row_n() + r, sqrt(sums.x));
}

// No phase goes down columns.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    return 0.0;
}
// Never called: no phase goes down columns.
fn landed(phase: u32, c: u32, sum: f32) {}
