// Sums in stages, in an order that sizes alone decide.

struct Args {
    // Elements, or rows.
    count: u32,
    // Elements of a row, or number of sums.
    width: u32,
    // Rows that an invocation adds up.
    height: u32,
    // Where the sums begin.
    start: u32,
}

@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> y: array<f32>;
@group(0) @binding(4) var<storage, read> factor: array<f32>;

// Elements of a workgroup: `SPAN` in the host's part.
const SPAN: u32 = 4096u;

// sums[start + group] = Σ x, or Σ x² with SQUARES, over the group's span
@compute @workgroup_size(256)
fn total(own: Member) {
    let local = own.local;
    let number = group_index(own.group);
    let start = SPAN * number;
    var sum = 0.0;
    for (var i = local; i < SPAN; i += 256u) {
        if start + i < args.count {
            let value = x[start + i];
            sum += select(value, value * value, SQUARES == 1u);
        }
    }
    sum = workgroup_sum(own, 256u, sum);
    if local == 0u && number < args.width {
        sums[args.start + number] = sum;
    }
}

fn term(row: u32, i: u32) -> f32 {
    switch TERMS {
        case 0u: { return x[i]; }
        case 1u: { return x[i] * y[i]; }
        default: { return x[i] * factor[row] * y[i]; }
    }
}

// sums[part, column] = Σ over the part's rows, an invocation for each
@compute @workgroup_size(64)
fn columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 64u * group_index(group) + local;
    if i < arrayLength(&sums) {
        let column = i % args.width;
        let first = i / args.width * args.height;
        let end = min(first + args.height, args.count);
        var sum = 0.0;
        for (var row = first; row < end; row++) {
            sum += term(row, row * args.width + column);
        }
        sums[i] = sum;
    }
}
