// The gradient that a sum has besides that of its norm, like x.
@group(0) @binding(ADDED) var<storage, read> dsum: array<f32>;

fn beside(i: u32) -> f32 {
    return dsum[i];
}
