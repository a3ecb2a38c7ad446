// Normalising rows `x [rows, width]`. A row belongs to LANES invocations, a power of two, of a workgroup of INVOCATIONS.
//
// Constants: LANES, INVOCATIONS, and KIND. KIND is 0 for r = 1/√(mean x² + ε) and y = x r w, GATED for a function of g as one
// more factor. It is L2 for r = 1/√(|x|² + ε²) and y = x r.
//
// A group of a row is a row here; `groups` of them share a weight [groups width].
const L2 = 1u;
const GATED = 2u;

// Defined in `norm.rs`.
@group(0) @binding(0) var<uniform> args: NormArgs;
@group(0) @binding(1) var<storage, read> x: array<f32>;
// [groups width]; not read for L2
@group(0) @binding(2) var<storage, read> weight: array<f32>;

// The weight of element `i`, which is in row `row`.
fn factor(row: u32, i: u32) -> f32 {
    return weight[(row % args.groups) * args.width + i - row * args.width] + args.offset;
}

// Partial sums of the rows of a workgroup.
var<workgroup> sums: array<f32, INVOCATIONS>;

// The sum over the invocations of a row; all of a workgroup call it.
// A tree: each step halves the invocations of a row that add.
fn row_sum(lane: u32, own: f32) -> f32 {
    sums[lane] = own;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % LANES < step { sums[lane] += sums[lane + step]; }
    }
    workgroupBarrier();
    return sums[lane - lane % LANES];
}
