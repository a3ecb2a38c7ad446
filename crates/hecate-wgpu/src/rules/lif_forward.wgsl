// One token forward: equations (100) to (103).

// Every initial potential is one of the rule's.
const OPENED: u32 = 0u;
const BEGIN: u32 = 0u;
// Charge, fire and reset, and what the query adds up of each column of spikes.
const SPIKE: u32 = 1u;
const FORWARD_END: u32 = 2u;

// A column's neurons go one after another, and their spikes are never written.
fn shape_of(phase: u32) -> vec3<u32> {
    if (phase == BEGIN) {
        return each_of(1u, false);
    }
    return vec3(COLUMNS, args.call.key, args.call.value);
}

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// BEGIN has one element.
fn element(phase: u32, i: u32) -> vec4<f32> {
    begin_token();
    return vec4(0.0);
}

// No phase has sums over all elements, or goes along rows.
fn totalled(phase: u32, sums: vec4<f32>) {}
// Never asked: no phase goes along rows.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    return vec4(0.0);
}
// Never called: no phase goes along rows.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {}

// Each neuron is read once before it is written: `next` may be `old`.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let i = r * args.call.value + c;
    let h = charge(r, c, i);
    let s = fire(h);
    workspace[next + i] = reset(h, s);
    return row(token.q + r) * s;
}

// out[c] = sum, the read of column c: equation (103).
fn landed(phase: u32, c: u32, sum: f32) {
    put(out + c, sum);
}
