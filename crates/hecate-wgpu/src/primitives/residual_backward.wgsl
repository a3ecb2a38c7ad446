// The gradient that a sum has besides that of its norm, like x.
@group(0) @binding(ADDED) var<storage, read> dsum: array<f32>;

// Returns the gradient of element i's sum that does not come through the norm.
fn beside(i: u32) -> f32 {
    return dsum[i];
}
