// A function's value, slope and curvature.
struct Curve {
    value: f32,
    slope: f32,
    second_derivative: f32,
}

// x σ(x), σ (1 + x σ(-x)), σ σ(-x) (2 + x (σ(-x) - σ)).
fn silu(x: f32) -> Curve {
    let s = sigmoids(x);
    // The slope tends to 0 or 1 faster than any power of x grows; NaN is in the sigmoids.
    let near_x = clamp(x, -80.0, 80.0);
    return Curve(x * s.x, s.x * (1.0 + near_x * s.y), s.x * s.y * (2.0 + near_x * (s.y - s.x)));
}
