// One token backward: equations (65) to (69).

const BEGIN: u32 = 0u;
const UNREAD: u32 = 1u;
const PROJECT: u32 = 2u;
const VALUES: u32 = 3u;
const GATES: u32 = 4u;
const PULL: u32 = 5u;
const BACKWARD_END: u32 = 6u;

fn shape_of(phase: u32) -> vec3<u32> {
    switch phase {
        case BEGIN: {
            return each_of(1u, false);
        }
        case VALUES: {
            return vec3(COLUMNS, args.call.key, args.call.value);
        }
        case GATES: {
            return each_of(args.call.key, true);
        }
        default: {
            return vec3(ROWS, args.call.key, args.call.value);
        }
    }
}

fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    if (phase == BEGIN) {
        begin_token();
        return vec4(0.0);
    }
    return vec4(row(row_gained() + i), 0.0, 0.0, 0.0);
}

fn totalled(phase: u32, sums: vec4<f32>) {
    let a = row(number_a());
    let forgets = is_nan(a) || a > args.cell.lowest;
    put(grads.gates, select(0.0, -row(number_theta()) * sums.x, forgets));
    put(grads.gates + 1u, sums.x);
}

fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    switch phase {
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
            var d = row(number_a()) * ds;
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
