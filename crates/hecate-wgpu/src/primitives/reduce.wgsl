// Sums in stages, in an order that sizes alone decide.

// Defined in `reduce.rs`.
@group(0) @binding(0) var<uniform> args: ReduceArgs;
// Sums: one a workgroup for `total`, [parts, width] for `columns`.
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
// [count], or [count, width] rows.
@group(0) @binding(2) var<storage, read> x: array<f32>;
// As x; read where TERMS asks for it.
@group(0) @binding(3) var<storage, read> y: array<f32>;
// [count, width / shared_columns]: a factor for some columns of a row; read where TERMS asks for it.
@group(0) @binding(4) var<storage, read> factor: array<f32>;

// Elements of a workgroup: `BLOCK` in the host's part.
const BLOCK: u32 = 4096u;

// sums[start + group] = Σ x, or Σ x² with SQUARES, over the group's block
@compute @workgroup_size(256)
// A workgroup adds up BLOCK elements: each invocation 16 of them, 256 apart.
fn total(own: Member) {
    let local = own.local;
    let number = group_index(own.group);
    let start = BLOCK * number;
    var sum = 0.0;
    for (var i = local; i < BLOCK; i += 256u) {
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

// Values of TERMS, in the order of the host's `Terms`: x, x y, and x factor y.
const TERMS_VALUES: u32 = 0u;
const TERMS_PRODUCTS: u32 = 1u;

// The term at element `i`.
fn term(i: u32) -> f32 {
    switch TERMS {
        case TERMS_VALUES: { return x[i]; }
        case TERMS_PRODUCTS: { return x[i] * y[i]; }
        default: { return x[i] * factor[i / args.shared_columns] * y[i]; }
    }
}

// sums[part, column] = Σ over the part's rows, an invocation for each
@compute @workgroup_size(64)
// Neighbours have neighbouring columns, so that rows are read in whole cache lines.
fn columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 64u * group_index(group) + local;
    if i < arrayLength(&sums) {
        let column = i % args.width;
        let first = i / args.width * args.height;
        let end = min(first + args.height, args.count);
        var sum = 0.0;
        for (var row = first; row < end; row++) {
            sum += term(row * args.width + column);
        }
        sums[i] = sum;
    }
}
