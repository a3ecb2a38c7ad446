// Cross-entropy of rows of `logits [rows, width]`, of which the first columns are classes.

struct LossArgs {
    // Rows of logits.
    rows: u32,
    // Columns of a row.
    width: u32,
    // Of the backward.
    factor: f32,
    // Columns that count.
    classes: u32,
}

@group(0) @binding(0) var<uniform> args: LossArgs;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
// [rows]
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
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

// dlogits = factor (e^{x − lse} − [target]), zero after the classes
@compute @workgroup_size(256)
// An invocation makes one element.
fn cross_entropy_backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i >= args.rows * args.width {
        return;
    }
    let row = i / args.width;
    let goal = targets[row];
    var slope = args.factor * exponential(logits[i] - sums[row]);
    let column = i % args.width;
    if column == goal {
        slope -= args.factor;
    }
    if goal >= args.classes {
        slope = not_a_number();
    }
    if column >= args.classes {
        slope = 0.0;
    }
    dlogits[i] = slope;
}
