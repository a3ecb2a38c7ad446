// Results, what their gradient is in front of SiLU, and the gradient of the weights: all look at the rows.

// [rows, D]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [D, W]; the gradient of u [rows, D] where that of the weights is asked for
@group(0) @binding(3) var<storage, read> other: array<f32>;
// [N, W-1, D]
@group(0) @binding(4) var<storage, read> state: array<f32>;
// [rows, D]; parts of the sum [parts, D, W]
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
// [rows, D]
@group(0) @binding(6) var<storage, read> dy: array<f32>;

// Row `i` of a sequence with the state in front.
fn input(range: Range, i: u32, channel: u32) -> f32 {
    let kept = args.width - 1u;
    if i < kept { return state[(range.n * kept + i) * args.channels + channel]; }
    return x[(range.start + i - kept) * args.channels + channel];
}

// u of a row of a sequence.
// u[t,d] = Σ_j weight[d,j] row[t + j, d].
fn sum_of(range: Range, row: u32, channel: u32) -> f32 {
    var u = 0.0;
    for (var j = 0u; j < args.width; j += 1u) {
        u += other[channel * args.width + j] * input(range, row - range.start + j, channel);
    }
    return u;
}

// A channel of a run of rows.
@compute @workgroup_size(64)
// Rows of one invocation overlap in W - 1 inputs, which the cache holds.
fn conv_forward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    var own = own_rows(i);
    for (var row = own.first; row < own.end; row += 1u) {
        own.range = advance(own.range, row);
        let u = sum_of(own.range, row, own.channel);
        var y = u;
        if args.silu == 1u { y = u * sigmoids(u).x; }
        out[row * args.channels + own.channel] = y;
    }
}

// The gradient of u, likewise.
@compute @workgroup_size(64)
fn conv_through(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    var own = own_rows(i);
    for (var row = own.first; row < own.end; row += 1u) {
        own.range = advance(own.range, row);
        let u = sum_of(own.range, row, own.channel);
        let s = sigmoids(u);
        let at = row * args.channels + own.channel;
        out[at] = s.x * (1.0 + u * s.y) * dy[at];
    }
}

// A tap of a channel over a run of rows: neighbours have neighbouring channels.
@compute @workgroup_size(64)
// Each part of the sum has one owner; the host adds the parts in order.
fn conv_dweight(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    let channel = i % args.channels;
    let j = i / args.channels % args.width;
    let part = i / args.channels / args.width;
    let end = min((part + 1u) * args.part_rows, args.rows);
    var range = owner(part * args.part_rows);
    // Short sums, and their sum: rounding grows with the length of the longer of both.
    var total = 0.0;
    for (var short = part * args.part_rows; short < end; short += 32u) {
        var terms = 0.0;
        for (var row = short; row < min(short + 32u, end); row += 1u) {
            range = advance(range, row);
            terms += other[row * args.channels + channel] * input(range, row - range.start + j, channel);
        }
        total += terms;
    }
    out[(part * args.channels + channel) * args.width + j] = total;
}
