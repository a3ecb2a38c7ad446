// Rows of x + residual, which are kept for others as they are normalised. The kernel's last two bindings, from ADDED on.
@group(0) @binding(ADDED) var<storage, read> residual: array<f32>;
@group(0) @binding(ADDED + 1) var<storage, read_write> added: array<f32>;

// An invocation reads what it wrote itself.
fn first_of(i: u32) -> f32 {
    let sum = x[i] + residual[i];
    added[i] = sum;
    return sum;
}

// Returns the sum that `first_of` stored.
fn kept(i: u32) -> f32 {
    return added[i];
}
