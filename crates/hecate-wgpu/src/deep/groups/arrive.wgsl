// The group's rows of queries, keys and values, beside what a kernel's first workgroup makes of gates.

// k [rows,H,K], v [rows,H,V]; `x` has q [rows,H,K].
@group(0) @binding(6) var<storage, read> given_k: array<f32>;
@group(0) @binding(7) var<storage, read> given_v: array<f32>;

// An element of each; zeros beyond the last token.
fn bring(workgroup: u32) {
    let i = workgroup * THREADS + me;
    let t = i / plan.call.key;
    if (t < plan.call.frozen) {
        // Both loads wait together.
        var own = vec2(0.0);
        if (t < tokens) {
            let from_row = row_of(t) * plan.call.key + i % plan.call.key;
            own = vec2(x[from_row], given_k[from_row]);
        }
        workspace[base + plan.places.q + i] = own.x;
        workspace[base + plan.places.k + i] = own.y;
    }
    let u = i / plan.call.value;
    if (u < plan.call.frozen) {
        var own = 0.0;
        if (u < tokens) {
            own = given_v[row_of(u) * plan.call.value + i % plan.call.value];
        }
        workspace[base + plan.places.v + i] = own;
    }
}
