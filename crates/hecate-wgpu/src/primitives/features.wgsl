// Polynomial features of rows; a workgroup for each row of `x [rows, width]`.

// Defined in `features.rs`.
@group(0) @binding(0) var<uniform> args: FeaturesArgs;
@group(0) @binding(1) var<storage, read> x: array<f32>;

const ROOT2 = 1.4142135;

// Pairs `(i, j)`, `j >= i`, stand one row of the triangle after another: the first of row `i`.
// Rows before `i` have width, width - 1, … pairs.
fn row_start(i: u32) -> u32 {
    return i * args.width - i * (i - 1u) / 2u;
}
