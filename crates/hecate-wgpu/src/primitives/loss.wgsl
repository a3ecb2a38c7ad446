// Cross-entropy of rows of `logits [rows, width]`, of which the first columns are classes.

// Defined in `loss.rs`.
@group(0) @binding(0) var<uniform> args: LossArgs;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
// [rows]
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
// Logits that become their gradient.
@group(0) @binding(1) var<storage, read_write> scores: array<f32>;
// The backward's.
// [rows]: lse of the forward.
@group(0) @binding(3) var<storage, read> sums: array<f32>;
@group(0) @binding(4) var<storage, read_write> dlogits: array<f32>;

// lse = top + log Σ e^{x − top}, loss = lse − x[target], a workgroup a row; a target that is no class gives NaN.
@compute @workgroup_size(64)
fn cross_entropy(own: Member) {
    let local = own.local;
    // Workgroups after the last row do its work again, for nothing: all take part in what follows.
    let number = group_index(own.group);
    let row = min(number, args.rows - 1u);
    let start = row * args.width;
    // Two passes over the row: the maximum, then the sum of exponentials.
    var top = -3.4028234e38;
    for (var i = local; i < args.classes; i += 64u) {
        top = larger(top, logits[start + i]);
    }
    top = workgroup_max(own, 64u, top);
    var sum = 0.0;
    for (var i = local; i < args.classes; i += 64u) {
        sum += exponential(logits[start + i] - top);
    }
    sum = workgroup_sum(own, 64u, sum);
    if local == 0u && number < args.rows {
        let goal = targets[row];
        let log_sum = logarithm(sum);
        lse[row] = top + log_sum;
        // The difference of neighbours first: rounding `lse` would cost a small loss its digits.
        loss[row] = not_a_number();
        if goal < args.classes {
            loss[row] = log_sum + (top - logits[start + goal]);
        }
    }
}

// Loss and gradient of a row by a workgroup, which writes the gradient where the logits were.
@compute @workgroup_size(256)
fn cross_entropy_and_gradient(own: Member) {
    let number = group_index(own.group);
    let row = min(number, args.rows - 1u);
    let start = row * args.width;
    // Workgroups after the last row have no columns, and reach the barriers all the same.
    let classes = select(0u, args.classes, number < args.rows);
    let goal = targets[row];
    // Read before anybody writes.
    var aim = 0.0;
    if goal < classes {
        aim = scores[start + goal];
    }
    // Three passes over a row, of which the last two find it in the cache.
    var top = -3.4028234e38;
    for (var i = own.local; i < classes; i += 256u) {
        top = larger(top, scores[start + i]);
    }
    top = workgroup_max(own, 256u, top);
    var sum = 0.0;
    for (var i = own.local; i < classes; i += 256u) {
        sum += exponential(scores[start + i] - top);
    }
    let log_sum = logarithm(workgroup_sum(own, 256u, sum));
    // The difference of neighbours first, as in the loss alone.
    if own.local == 0u && number < args.rows {
        loss[row] = not_a_number();
        if goal < args.classes {
            loss[row] = log_sum + (top - aim);
        }
    }
    // Columns after the classes become zero.
    let end = select(0u, args.width, number < args.rows);
    for (var i = own.local; i < end; i += 256u) {
        scores[start + i] = slope_of(scores[start + i], top + log_sum, i, goal);
    }
}

// dlogits = factor (e^{x − lse} − [target]), zero after the classes
@compute @workgroup_size(256)
// An invocation makes one element.
fn cross_entropy_backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i >= args.rows * args.width {
        return;
    }
    let row = i / args.width;
    dlogits[i] = slope_of(logits[i], sums[row], i % args.width, targets[row]);
}

// The gradient by x, which stands in `column`; NaN where the target is no class.
fn slope_of(x: f32, lse: f32, column: u32, goal: u32) -> f32 {
    if column >= args.classes {
        return 0.0;
    }
    if goal >= args.classes {
        return not_a_number();
    }
    return args.factor * exponential(x - lse) - select(0.0, args.factor, column == goal);
}
