// Gradients of the rows and of the state.

// [D, W]
@group(0) @binding(2) var<storage, read> weight: array<f32>;
// [rows, D]
@group(0) @binding(3) var<storage, read> dy: array<f32>;
// [N, W-1, D]; anything where there is none
@group(0) @binding(4) var<storage, read> dfinal: array<f32>;
// [rows, D], or [N, W-1, D]
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// Gradient by row `i` of a sequence: sum over j of weight[d, j] dy[i - j], and what came through the final state.
fn input_grad(range: Range, i: u32, channel: u32) -> f32 {
    let kept = args.width - 1u;
    // Tap j of token i - j saw this row: j is such that i - j is a token of the sequence.
    let first = select(i + 1u - range.length, 0u, i < range.length);
    let end = select(args.width, i + 1u, i < kept);
    var grad = 0.0;
    for (var j = first; j < end; j += 1u) {
        grad += weight[channel * args.width + j] * dy[(range.start + i - j) * args.channels + channel];
    }
    if args.dfinal == 1u && i >= range.length {
        grad += dfinal[(range.n * kept + i - range.length) * args.channels + channel];
    }
    return grad;
}

// A channel of a run of rows.
@compute @workgroup_size(64)
fn conv_dx(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    var own = own_rows(i);
    for (var row = own.first; row < own.end; row += 1u) {
        own.range = advance(own.range, row);
        let place = args.width - 1u + row - own.range.start;
        out[row * args.channels + own.channel] = input_grad(own.range, place, own.channel);
    }
}

// A number of the state.
@compute @workgroup_size(64)
fn conv_dstate(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    let kept = args.width - 1u;
    let row = i / args.channels;
    out[i] = input_grad(sequence(row / kept), row % kept, i % args.channels);
}
