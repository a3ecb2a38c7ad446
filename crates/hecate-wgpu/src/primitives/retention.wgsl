// The forgetting gate: log a = −exp(slope) softplus(x + offset), `slope` and `offset` a number a head.

// Defined in `retention.rs`.
@group(0) @binding(0) var<uniform> args: RetentionArgs;
// [rows, width]
@group(0) @binding(1) var<storage, read> x: array<f32>;
// [width]
@group(0) @binding(2) var<storage, read> slope: array<f32>;
@group(0) @binding(3) var<storage, read> offset: array<f32>;
// [rows, width]; the gradient of x
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> dy: array<f32>;
// [rows, width]: dy log a
@group(0) @binding(6) var<storage, read_write> scaled: array<f32>;

// y = log a = -exp(slope) * softplus(x + offset), of [rows,width] with a slope and an offset a head.
@compute @workgroup_size(256)
// An invocation makes one element.
fn retention(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = 256u * group_index(id) + lane;
    if i >= args.count { return; }
    let head = i % args.width;
    y[i] = -exponential(slope[head]) * softplus(x[i] + offset[head]);
}

// y = dx = dy * -exp(slope) * sigmoid(x + offset), and scaled = dy * log a, whose sum over rows is dslope.
@compute @workgroup_size(256)
// An invocation makes one element of both results; the host sums them over rows.
fn retention_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = 256u * group_index(id) + lane;
    if i >= args.count { return; }
    let head = i % args.width;
    let step = x[i] + offset[head];
    let factor = -exponential(slope[head]);
    y[i] = factor * (sigmoids(step).x * dy[i]);
    // Zero where dy is, though log a may be −∞; unless exp(slope) is infinite itself.
    scaled[i] = factor * (softplus(step) * dy[i]);
}
