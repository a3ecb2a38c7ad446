// Functions of one number that drivers compute with few digits, or not at all at the ends of their ranges.

// m^power for m > 0, without logarithms where a root or product does.
// The exponents that rules use most have a shorter way.
fn power(m: f32, exponent: f32) -> f32 {
    if (exponent == 0.0) {
        return 1.0;
    }
    if (exponent == 0.5) {
        return sqrt(m);
    }
    if (exponent == 1.0) {
        return m;
    }
    if (exponent == -0.5) {
        return 1.0 / sqrt(m);
    }
    return general_power(m, exponent);
}

// With m = 2ⁿ f and f about 1, m^e = 2^(e n) f^e.
// A product e log m would err with its size, which is that of e n; what is left of e n beside a whole number is below 1.
fn general_power(m: f32, exponent: f32) -> f32 {
    if (!is_finite(m)) {
        return exponential(exponent * m);
    }
    let bits = bitcast<u32>(m);
    // Counted from √½.
    let n = (i32(bits) - 0x3f3504f3) >> 23u;
    let f = bitcast<f32>(bits - (u32(n) << 23u));
    // Sixteen digits of e times the eight of n are exact.
    let first = bitcast<f32>(bitcast<u32>(exponent) & 0xffffff00u);
    let whole = clamp(round(first * f32(n)), -252.0, 252.0);
    let rest = (first * f32(n) - whole) + (exponent - first) * f32(n);
    // In two factors, each of them a finite normal number.
    let half = i32(whole) >> 1u;
    let scale = power_of_two(half);
    return exponential(rest * 0.6931472 + exponent * logarithm(f)) * scale * power_of_two(i32(whole) - half);
}

// −1, 0 or 1; NaN for NaN.
// Comparisons with NaN are false, so that NaN falls through to `x`.
fn sign_of(x: f32) -> f32 {
    if (x > 0.0) {
        return 1.0;
    }
    return select(x, -1.0, x < 0.0);
}

// Odd, −1 to 1, relative to a small x too.
// Near 0 a polynomial of degree 7; elsewhere an exponential of a number that is not positive.
fn hyperbolic_tangent(x: f32) -> f32 {
    let far_x = abs(x);
    if (far_x < 0.1) {
        let square = x * x;
        return x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))));
    }
    let e = exponential(-2.0 * far_x);
    return sign_of(x) * ((1.0 - e) / (1.0 + e));
}

// 1 - e^x for x up to 0. Near 0 by its series: what is close to 1 and taken from 1 has lost most digits.
fn rest(x: f32) -> f32 {
    if (x < -0.5) {
        return 1.0 - exponential(x);
    }
    var sum = 1.0;
    for (var n = 9.0; n > 1.0; n -= 1.0) {
        sum = 1.0 + x / n * sum;
    }
    return -x * sum;
}
