// One token forward: equations (80) to (84).

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
        case START, TAKE: {
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

fn job_at(phase: u32) -> Job {
    // (84)
    return job(out, token.q, select(old, next, phase == READ_AFTER));
}

fn product_of(phase: u32) -> Product {
    return step_product(phase - STEPS, 1u);
}

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
        case TAKE: {
            // (83)
            room[next + i] = row(number(A)) * room[old + i] + row(number(THETA)) * room[x_at(args.cell.steps, 1u) + i];
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

fn totalled(phase: u32, sums: vec4<f32>) {
    norm_totalled(sums.x);
}

// (80)
fn down(phase: u32, r: u32, at: u32) -> f32 {
    return window_key(at / args.call.value, r) * room[point + r * args.call.value + at % args.call.value];
}

fn landed(phase: u32, at: u32, sum: f32) {
    put(record + at, window_value(at / args.call.value, at % args.call.value) - sum);
}

// (81), and (83) where the memory takes the momentum as it is.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let v = args.call.value;
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

// No phase has sums of rows.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {}
