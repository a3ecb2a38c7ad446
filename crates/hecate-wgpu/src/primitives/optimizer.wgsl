// One step of AdamW on one parameter, in place.

// Defined in `optimizer.rs`.
@group(0) @binding(0) var<uniform> args: AdamWArgs;
// [count], read and written.
@group(0) @binding(1) var<storage, read_write> value: array<f32>;
// [count]: m.
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;
// [count]: s.
@group(0) @binding(3) var<storage, read_write> square: array<f32>;
@group(0) @binding(4) var<storage, read> grad: array<f32>;
// [1], where CLIP says that gradients are clipped
@group(0) @binding(5) var<storage, read> norm_squared: array<f32>;

// m = β1 m + (1 - β1) g, s = β2 s + (1 - β2) g², value -= lr * (m̂ / (sqrt(ŝ) + ε) + decay * value)
@compute @workgroup_size(256)
// An invocation updates one element and both of its moments.
fn adamw(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i >= args.count {
        return;
    }
    var g = grad[i];
    if CLIP == 1u {
        let norm = sqrt(norm_squared[0]);
        // A norm that is no number clips nothing.
        if !is_nan(norm) && (norm > args.max_norm || !is_finite(norm)) {
            g *= args.max_norm / norm;
        }
    }
    let m = args.beta1 * mean[i] + (1.0 - args.beta1) * g;
    let s = args.beta2 * square[i] + (1.0 - args.beta2) * (g * g);
    // m̂ / (√ŝ + ε)
    let direction = args.unbias1 * m / (sqrt(args.unbias2 * s) + args.epsilon);
    let p = value[i];
    mean[i] = m;
    square[i] = s;
    value[i] = p - args.learning_rate * (direction + args.weight_decay * p);
}
