// One token backward: equations (115) to (118).
//
// Rows and columns take turns: gradients of keys are sums along rows, those of values and of what was erased down columns. The gradient
// of the memory is changed in place, twice: by what the query read, and by the decay with what the erase read.

const BEGIN: u32 = 0u;
// (115) in place; sums along rows for dq, dk, db and dθ.
const WRITTEN: u32 = 1u;
// dw and dp down the columns.
const VALUES: u32 = 2u;
const ERASED: u32 = 3u;
// (117) and (118); sums along rows for de and da.
const DECAY: u32 = 4u;
// From keys' gradients to those of arguments.
const CLOSE: u32 = 5u;
const BACKWARD_END: u32 = 6u;

// Returns the kind of a phase and its rows and columns.
fn shape_of(phase: u32) -> vec3<u32> {
    switch phase {
        case BEGIN: {
            return each_of(max(args.call.key, args.call.value), false);
        }
        // Along the rows, with sums a row.
        case WRITTEN, DECAY: {
            return vec3(ROWS, args.call.key, args.call.value);
        }
        // Down the columns; without an erase nothing has a p.
        case VALUES, ERASED: {
            return shape_if(phase == VALUES || erases(), COLUMNS, args.call.key, args.call.value);
        }
        default: {
            return each_of(max(args.call.key, args.call.value), true);
        }
    }
}

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// BEGIN; CLOSE returns terms of gates that are one number a head: θ, log a, that of the erase.
fn element(phase: u32, i: u32) -> vec4<f32> {
    if (phase == BEGIN) {
        begin_token(i);
        return vec4(0.0);
    }
    var sums = vec4(0.0);
    if (i < args.call.key) {
        sums = vec4(row(row_dtheta() + i), row(row_da() + i), keys_vjp(i), 0.0);
        if (args.cell.by_channel != 0u) {
            put(grads.gates + i, row(row_da() + i));
        }
    }
    if (i < args.call.value) {
        let dw = row(row_dw() + i);
        if (args.cell.factors_at == NONE) {
            put(grads.v + i, dw);
        } else {
            put(grads.v + i, own_gate(args.cell.factors_at, i) * dw);
            put(grads.gates + args.cell.factors_at + i, row(token.v + i) * dw);
        }
    }
    return sums;
}

// From the gradients of b[i] and e[i] to those of k[i] and of gates of [K]; returns the term of a gate of one number.
fn keys_vjp(i: u32) -> f32 {
    let k = row(token.k + i);
    let db = row(row_db() + i);
    var dk = row(row_dk() + i);
    // Without an erase the key is written by alone.
    if (!erases()) {
        put(grads.k + i, dk);
        return 0.0;
    }
    var de = row(row_de() + i);
    switch args.cell.rewrite {
        // b = -k
        case REWRITE_KEY: {
            dk -= db;
        }
        // b = -g * e: the erase key has a part in it.
        case REWRITE_ERASED: {
            put(grads.gates + args.cell.rewrite_at + i, -row(row_e() + i) * db);
            de -= own_gate(args.cell.rewrite_at, i) * db;
        }
        // b = g
        default: {
            put(grads.gates + args.cell.rewrite_at + i, db);
        }
    }
    var term = 0.0;
    switch args.cell.erase {
        // e = k: the key is read and written by.
        case ERASE_KEY: {
            dk += de;
        }
        // e = g k: the gate's gradient is a sum over channels.
        case ERASE_SCALED: {
            term = k * de;
            dk += gate(args.cell.erase_at) * de;
        }
        // e = g * k
        case ERASE_GATED: {
            put(grads.gates + args.cell.erase_at + i, k * de);
            dk += own_gate(args.cell.erase_at, i) * de;
        }
        // e = g
        default: {
            put(grads.gates + args.cell.erase_at + i, de);
        }
    }
    put(grads.k + i, dk);
    return term;
}

// Gates of one number a head.
fn totalled(phase: u32, sums: vec4<f32>) {
    if (args.cell.theta_at != NONE) {
        put(grads.gates + args.cell.theta_at, sums.x);
    }
    if (args.cell.by_channel == 0u) {
        put(grads.gates, sums.y);
    }
    if (args.cell.erase == ERASE_SCALED) {
        put(grads.gates + args.cell.erase_at, sums.z);
    }
}

// Element (r, c) of `dstate`, and its parts of sums along row r.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    if (phase == WRITTEN) {
        let d = workspace[dstate + i] + row(token.q + r) * row(out + c);
        workspace[dstate + i] = d;
        var erased = 0.0;
        if (erases()) {
            erased = d * row(record + c);
        }
        return vec4(workspace[next + i] * row(out + c), d * row(row_w() + c), erased, 0.0);
    }
    // The rest is of DECAY: `old` is the memory that the token found.
    let before = workspace[old + i];
    let d = workspace[dstate + i];
    var back = row(row_a() + r) * d;
    var read = 0.0;
    if (erases()) {
        let dp = row(row_dp() + c);
        read = dp * before;
        back += reads(r) * dp;
    }
    workspace[dstate + i] = back;
    return vec4(d * before, read, 0.0, 0.0);
}

// A row's sums.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    if (phase == WRITTEN) {
        put(grads.q + r, sums.x);
        put(row_dk() + r, size_of_step() * sums.y);
        put(row_db() + r, size_of_step() * sums.z);
        put(row_dtheta() + r, row(token.k + r) * sums.y + row(row_b() + r) * sums.z);
        return;
    }
    // A gate's gradient is by the logarithm, and so has the factor a: of a = 0 it is zero.
    let a = row(row_a() + r);
    let undecayed = args.cell.undecayed != 0u;
    put(row_de() + r, select(a, 1.0, undecayed) * sums.y);
    put(row_da() + r, a * (sums.x + select(row(row_e() + r), 0.0, undecayed) * sums.y));
}

// Parts of k dM, and of b dM.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    return row(select(token.k, row_b(), phase == ERASED) + r) * workspace[dstate + r * args.call.value + c];
}

// dw = θ k dM, dp = θ b dM.
fn landed(phase: u32, c: u32, sum: f32) {
    put(select(row_dw(), row_dp(), phase == ERASED) + c, size_of_step() * sum);
}
