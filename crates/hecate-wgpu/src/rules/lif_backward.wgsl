// One token backward: equations (104) to (107).

const BEGIN: u32 = 0u;
// dh in the place of the potentials' gradient; sums along rows.
const CHARGE: u32 = 1u;
// dv down the columns, and the gradient of the potentials before the token.
const CURRENTS: u32 = 2u;
// Gradients of log a and θ.
const GATES: u32 = 3u;
const BACKWARD_END: u32 = 4u;

// ROWS go along a row of neurons, COLUMNS down the rows.
fn shape_of(phase: u32) -> vec3<u32> {
    switch phase {
        case BEGIN: {
            return each_of(1u, false);
        }
        case CHARGE: {
            return vec3(ROWS, args.call.key, args.call.value);
        }
        case CURRENTS: {
            return vec3(COLUMNS, args.call.key, args.call.value);
        }
        default: {
            return each_of(args.call.key, true);
        }
    }
}

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// BEGIN restores the gates; GATES adds up what rows found.
fn element(phase: u32, i: u32) -> vec4<f32> {
    if (phase == BEGIN) {
        begin_token();
        return vec4(0.0);
    }
    return vec4(row(row_kept() + i), row(row_written() + i), 0.0, 0.0);
}

// (107): the logarithm's gradient has the factor a.
fn totalled(phase: u32, sums: vec4<f32>) {
    put(grads.gates, row(number_a()) * sums.x);
    put(grads.gates + 1u, sums.y);
}

// The surrogate's derivative of the spike by h, a curve around the threshold: equation (104).
fn derivative(h: f32) -> f32 {
    let slope = args.cell.slope;
    let x = h - args.cell.threshold;
    if (args.cell.surrogate == ARCTAN) {
        let steep = 1.5707964 * slope * x;
        return 0.5 * slope / (1.0 + steep * steep);
    }
    if (args.cell.surrogate == FAST_SIGMOID) {
        let low = 1.0 / (1.0 + slope * abs(x));
        return low * low;
    }
    let height = slope - slope * slope * abs(x);
    // NaN is not lost in the comparison.
    return select(height, 0.0, height < 0.0 && !is_nan(height));
}

// (105) and (106) of neuron (r, c); parts of dk and dθ, of da, and of dq.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    let i = r * args.call.value + c;
    let h = charge(r, c, i);
    let s = fire(h);
    let slope = derivative(h);
    let subtracts = args.cell.subtracts != 0u;
    var keep = select(1.0 - s, 1.0, subtracts);
    if (args.cell.detached == 0u) {
        keep -= slope * select(h, args.cell.taken, subtracts);
    }
    let dh = keep * workspace[dstate + i] + slope * row(token.q + r) * row(out + c);
    workspace[dstate + i] = dh;
    return vec4(dh * row(token.v + c), dh * workspace[old + i], s * row(out + c), 0.0);
}

// A row's sums.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {
    put(grads.k + r, row(number_theta()) * sums.x);
    put(row_written() + r, row(token.k + r) * sums.x);
    put(row_kept() + r, sums.y);
    put(grads.q + r, sums.z);
}

// Each element is one invocation's: its gradient moves on to the token before.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let i = dstate + r * args.call.value + c;
    let dh = workspace[i];
    workspace[i] = row(number_a()) * dh;
    return row(token.k + r) * dh;
}

// dv = θ k dh.
fn landed(phase: u32, c: u32, sum: f32) {
    put(grads.v + c, row(number_theta()) * sum);
}
