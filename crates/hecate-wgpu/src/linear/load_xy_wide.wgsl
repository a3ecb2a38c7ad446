// Rows of a multiple of four elements, four at once.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;  // [rows,H,width]
@group(0) @binding(3) var<storage, read> y: array<vec4<f32>>;  // [rows,H,width] or [kept,H,M and S,K,V]

// Elements `c` to `c + 3` of the row of x that begins at `at`, in one read: `at` is a multiple of four.
fn x_four(at: u32, c: u32) -> vec4<f32> {
    return x[at / 4u + c / 4u];
}

// The same of y.
fn y_four(at: u32, c: u32) -> vec4<f32> {
    return y[at / 4u + c / 4u];
}
