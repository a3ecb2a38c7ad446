// Sizes and options of a rule of this family.
struct Cell {
    // D; 0 for a matrix.
    hidden: u32,
    // In the order of `Activation`.
    activation: u32,
    // Whether inputs are added to outputs, outputs pass a layer norm, and tokens read after their own write.
    residual: u32,
    norm: u32,
    read_after: u32,
    // Of Huber's errors in the order of `Huber`; of powers of one, whether its sign is a hyperbolic tangent.
    error: u32,
    // Whether weights are the paper's image of the dual variable.
    literal: u32,
    // Bias (48), (49) and retention (54), (55).
    p: f32,
    epsilon: f32,
    q: f32,
    scale: f32,
    // 1 / c of (94), 0 where nothing is clipped.
    per_clip: f32,
}
