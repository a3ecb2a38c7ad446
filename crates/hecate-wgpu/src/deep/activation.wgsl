// The functions inside MLP memories, with their first and second derivatives. In the order of `Activation`.
const SILU: u32 = 0u;
const GELU: u32 = 2u;

// With t = tanh u, 1 − t² = 4 σ(2u) σ(−2u).
// ½ x (1 + tanh u) with u = c (x + 0.044715 x³); u1 and u2 are its derivatives.
// x Φ(x): Φ from erfc, the density as its slope.
fn gelu_tanh(x: f32) -> Curve {
    let cubic = 0.044715;
    let c = 0.7978845608028654;
    let u = c * (x + cubic * x * x * x);
    let u1 = c * (1.0 + 3.0 * cubic * x * x);
    let u2 = 6.0 * c * cubic * x;
    let s = sigmoids(2.0 * u);
    let t = s.x - s.y;
    let h = 4.0 * s.x * s.y;
    return Curve(x * s.x, s.x + 0.5 * x * h * u1, h * u1 + 0.5 * x * (h * u2 - 2.0 * t * h * u1 * u1));
}

// The complementary error function, within 1.2·10⁻⁷ of itself wherever it is: a Chebyshev series in 2/(2 + |x|) of the
// logarithm of what `exp(−x²)` leaves (Press et al., "Numerical Recipes", 6.2).
// erfc, of which GELU's Φ is made.
fn complementary_error(x: f32) -> f32 {
    let z = abs(x);
    let t = 1.0 / (1.0 + 0.5 * z);
    var series = t * (-0.82215223 + t * 0.17087277);
    series = t * (-1.13520398 + t * (1.48851587 + series));
    series = t * (-0.18628806 + t * (0.27886807 + series));
    series = t * (0.37409196 + t * (0.09678418 + series));
    series = t * (1.00002368 + series);
    let tail = t * exponential(-z * z - 1.26551223 + series);
    return select(tail, 2.0 - tail, x < 0.0);
}

// The complementary error function keeps its digits where the other one would be lost in 1.
fn gelu(x: f32) -> Curve {
    let below = 0.5 * complementary_error(-0.7071067811865476 * x);
    let density = 0.3989422804014327 * exponential(-0.5 * x * x);
    return Curve(x * below, below + x * density, density * (2.0 - x * x));
}

// The kind is uniform over the workgroup.
fn activation(x: f32) -> Curve {
    if (args.cell.activation == SILU) {
        return silu(x);
    }
    // Beyond it the functions are x or 0 to the last bit.
    if (x > 14.0) {
        return Curve(x, 1.0, 0.0);
    }
    if (x < -14.0) {
        return Curve(0.0, 0.0, 0.0);
    }
    if (args.cell.activation == GELU) {
        return gelu(x);
    }
    return gelu_tanh(x);
}
