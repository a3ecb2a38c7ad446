// The layer norm behind the last matrix, x̂ = (o − mean o)/s, and its Jacobian: a workgroup a row.

// Added to the variance.
const NORM_EPSILON: f32 = 1e-6;

// Rules that have none go through the same kernels.
fn has_norm() -> bool {
    return args.cell.norm != 0u;
}

// x̂ of the row of `width` at `o` goes to `to`, which may be the same; its s. Each invocation reads what it wrote itself.
fn normalise(o: u32, to: u32, width: u32) -> f32 {
    // The mean comes first: a sum of squares alone would lose what rows have in common.
    var sum = 0.0;
    for (var i = me; i < width; i += THREADS) {
        sum += at(o, i);
    }
    let mean = together(vec4(sum)).x / f32(width);
    var square = 0.0;
    for (var i = me; i < width; i += THREADS) {
        let x = at(o, i) - mean;
        square += x * x;
    }
    let deviation = sqrt(together(vec4(square)).x / f32(width) + NORM_EPSILON);
    for (var i = me; i < width; i += THREADS) {
        workspace[base + to + i] = (at(o, i) - mean) / deviation;
    }
    // For the Jacobian.
    return deviation;
}

// An element of J e; `means` are those of e and of x̂ ∘ e.
fn jacobian(normed: f32, e: f32, means: vec2<f32>, deviation: f32) -> f32 {
    return (e - means.x - normed * means.y) / deviation;
}

// Back through u_o = J u of token t, (43): from ū_o in `du` to ū there. `dz1` gets what reaches the row before the norm.
// Sums over the row: of ū_o, x̂ ∘ ū_o, u and x̂ ∘ u; `along` are ū_o·u_o and ū_o·u. What comes back is ū·u.
fn jacobian_back(t: u32, first: u32, width: u32, sums: vec4<f32>, along: vec2<f32>) -> f32 {
    let deviation = number(DEVIATION, t);
    let means = sums / f32(width);
    // How much x̄ = −(ū_o (x̂·u) + u (x̂·ū_o))/(s d) has of ū_o, and of u.
    let part = -vec2(means.w, means.y) / deviation;
    // Its mean, and x̄·x̂.
    let mean = part.x * means.x + part.y * means.z;
    let with_normed = part.x * sums.y + part.y * sums.w;
    let by_normed = (along.x + with_normed) / (deviation * f32(width));
    for (var i = me; i < width; i += THREADS) {
        let normed = at(plan.places.normed, first + i);
        let d = at(plan.places.du, first + i);
        let x = part.x * d + part.y * at(plan.places.inner_grad, first + i);
        workspace[base + plan.places.dz1 + first + i] = (x - mean) / deviation - by_normed * normed;
        workspace[base + plan.places.du + first + i] = jacobian(normed, d, means.xy, deviation);
    }
    // J is symmetric: this is ū_o·u_o again, without rounding u_o.
    return (along.y - means.x * sums.z - means.y * sums.w) / deviation;
}

// Back through the prediction of token t, (44): the gradient of its error in `du` goes through J and joins what (43) left in `dz1`.
// `sums` are those of the gradient and of x̂ ∘ it.
fn errors_back(t: u32, first: u32, width: u32, sums: vec2<f32>) {
    let means = sums / f32(width);
    let deviation = number(DEVIATION, t);
    for (var i = me; i < width; i += THREADS) {
        let own = jacobian(at(plan.places.normed, first + i), at(plan.places.du, first + i), means, deviation);
        workspace[base + plan.places.du + first + i] = at(plan.places.dz1, first + i) + own;
    }
}

// Outputs in place of what queries read.
@compute @workgroup_size(THREADS)
fn outputs_of_reads(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let row = args.origin + group.x * args.width;
    _ = normalise(row, row, args.width);
}

// Gradients of what queries read, in `to`, out of those of outputs, in `plus`. What was read is in `origin`, and stays there: sweeps
// need it.
@compute @workgroup_size(THREADS)
fn answer_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    let first = group.x * args.width;
    let row = args.origin + first;
    // x̂ is where its own gradient will be.
    let to = args.to + first;
    let deviation = normalise(row, to, args.width);
    var sums = vec4(0.0);
    for (var i = me; i < args.width; i += THREADS) {
        let d = at(args.plus, first + i);
        sums += vec4(d, d * at(to, i), 0.0, 0.0);
    }
    let means = together(sums).xy / f32(args.width);
    for (var i = me; i < args.width; i += THREADS) {
        let d = at(args.plus, first + i);
        workspace[base + to + i] = jacobian(at(to, i), d, means, deviation);
    }
}
