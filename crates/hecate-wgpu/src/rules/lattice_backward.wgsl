//
// An invocation of the workgroup has some elements of each phase; a barrier stands between two phases.
// One token backward: equations (65) to (69).

const BEGIN: u32 = 0u;
// dS += q dyᵀ where reads come after; sums s′·dX and dq.
const READ_VJP: u32 = 1u;
// dX = (dS − s′ (s′·dS)) / n; sums for g, b and θ.
const PROJECT: u32 = 2u;
// dh and dv down the columns [V].
const VALUES: u32 = 3u;
// Gradients of log a and θ.
const GATES: u32 = 4u;
// dS = a dX and the point's gradient; what is left of dk and dq.
const PULLBACK: u32 = 5u;
const BACKWARD_END: u32 = 6u;

// ROWS go along slots, COLUMNS down values.
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

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// BEGIN restores the gates; GATES adds up θ's gradient over the slots.
fn element(phase: u32, i: u32) -> vec4<f32> {
    if (phase == BEGIN) {
        begin_token();
        return vec4(0.0);
    }
    return vec4(row(row_gained() + i), 0.0, 0.0, 0.0);
}

// dlog a = 0 where the floor held a; dθ is the sum itself.
fn totalled(phase: u32, sums: vec4<f32>) {
    let a = row(number_a());
    // NaN must not become 0, which would hide it.
    let forgets = is_nan(a) || a > args.cell.lowest;
    put(grads.gates, select(0.0, -row(number_theta()) * sums.x, forgets));
    put(grads.gates + 1u, sums.x);
}

// Element (r, c) is column `c` of slot `r`.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    switch phase {
        case READ_VJP: {
            // (65), and the projection of (66)
            var d = workspace[dstate + i];
            var dq = 0.0;
            if (args.cell.after != 0u) {
                d += row(token.q + r) * row(out + c);
                dq = row(out + c) * workspace[next + i];
                workspace[dstate + i] = d;
            }
            return vec4(workspace[next + i] * d, dq, 0.0, 0.0);
        }
        case PROJECT: {
            // (66) to (68), but for what they add up to
            let d = (workspace[dstate + i] - row(scratch + r) * workspace[next + i]) / row(row_n() + r);
            workspace[dstate + i] = d;
            // b s and its gradient are about the point; the norm is about the slot after the write.
            let s = workspace[point + i];
            return vec4((row(record + c) - row(row_b() + r) * s) * d, d * s, 0.0, 0.0);
        }
        default: {
            let ds = workspace[dstate + i];
            var pullback = row(row_db() + r) * row(record + c) - row(row_b() + r) * row(row_du() + r) * ds;
            var sums = vec4(0.0);
            // (69)
            if (args.cell.variant == DECODE) {
                sums.x = workspace[point + i] * row(row_dh() + c);
                pullback -= row(token.k + r) * row(row_dh() + c);
            }
            var d = row(number_a()) * ds;
            if (args.cell.after == 0u) {
                d += row(token.q + r) * row(out + c);
                sums.y = row(out + c) * workspace[old + i];
            }
            // Both may be the same number.
            workspace[dstate + i] = d;
            workspace[dpoint + i] += pullback;
            return sums;
        }
    }
}

// What the sums of slot `r` are: parts of dq, dk and of the gradients of b and g.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    let theta = row(number_theta());
    switch phase {
        // Sums: s′·dX for the projection, and dq.
        case READ_VJP: {
            put(scratch + r, sums.x);
            if (args.cell.after != 0u) {
                put(grads.q + r, sums.y);
            }
        }
        // Sums: h-(b s)·dX, and dX·s.
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

// dh = Σ over slots of θ g dX + db s: down column `c`.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let i = r * args.call.value + c;
    return row(row_du() + r) * workspace[dstate + i] + row(row_db() + r) * workspace[point + i];
}

// dh is the gradient of the error, and so of the value.
fn landed(phase: u32, c: u32, sum: f32) {
    put(row_dh() + c, sum);
    put(grads.v + c, sum);
}
