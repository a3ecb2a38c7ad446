// What all kernels share.
//
// Shading languages promise nothing about NaN and infinities: comparisons, `min`, `max` and the functions of the
// language may swallow them. What must see or make them looks at bits.

// Number of the workgroup, where the host may have folded one dimension into two.
// A dimension has 65,535 workgroups at most; `folded` in `launch.rs` moves what is over into the second one.
fn group_index(group: vec3<u32>) -> u32 {
    return group.x + 65535u * group.y;
}

// The exponent is all ones and the fraction is not zero.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// Neither infinite nor NaN.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
}

// A NaN; variables, because a constant that is none is refused.
fn not_a_number() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

// A variable again: a constant expression that overflows is refused too.
fn infinity() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

// The larger of two; NaN where either is.
// The built-in `max` may return either argument where one is a NaN.
fn larger(a: f32, b: f32) -> f32 {
    if is_nan(a) {
        return a;
    }
    if is_nan(b) {
        return b;
    }
    return select(b, a, a > b);
}

// 2ⁿ for n in −126 ..= 127.
// The biased exponent is written straight into the bits of a float.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

// eˣ within 2 units in the last place, whatever the driver's own is; 0 where it would be subnormal, ∞ where it is too
// large, NaN for NaN. The polynomial is (eʳ − 1 − r) / r² for |r| ≤ ½ ln 2 (Moshier, Cephes, `expf`).
fn exponential(x: f32) -> f32 {
    if is_nan(x) {
        return x;
    }
    if x < -87.3 {
        return 0.0;
    }
    if x > 88.8 {
        return infinity();
    }
    // x = n log 2 + r: log 2 is taken off in two parts, the first of them exact, so that r keeps its digits.
    let n = i32(round(x * 1.4426950408889634));
    let r = (x - f32(n) * 0.693359375) - f32(n) * -2.12194440e-4;
    var tail = ((1.9875691e-4 * r + 1.3981999e-3) * r + 8.333452e-3) * r + 4.1665796e-2;
    tail = (tail * r + 1.6666665e-1) * r + 0.5;
    let power = (tail * (r * r) + r) + 1.0;
    // In two factors, each of them a finite normal number.
    let half = n >> 1u;
    return power * power_of_two(half) * power_of_two(n - half);
}

// log(1 + u) for u in [0, 1], relative to a small u too: 2 artanh(u / (2 + u)).
// The series has 8 terms; |s| is 1/3 at most, so that what is left out is below the last place.
fn log_1p(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let square = s * s;
    var series = ((0.06666667 * square + 0.07692308) * square + 0.09090909) * square + 0.11111111;
    series = ((series * square + 0.14285715) * square + 0.2) * square + 0.33333334;
    return 2.0 * (s + s * (square * series));
}

// log x for a positive normal number, relative to itself near 1 too: 2 artanh((m − 1) / (m + 1)) + n log 2 with
// x = 2ⁿ m, m about 1.
fn logarithm(x: f32) -> f32 {
    if !is_finite(x) {
        return x;
    }
    let bits = bitcast<u32>(x);
    // Counted from √½.
    let n = (i32(bits) - 0x3f3504f3) >> 23u;
    let m = bitcast<f32>(bits - (u32(n) << 23u));
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    var series = (0.11111111 * square + 0.14285715) * square + 0.2;
    series = (series * square + 0.33333334) * square;
    let near = 2.0 * (s + s * series);
    return f32(n) * 0.693359375 + (f32(n) * -2.12194440e-4 + near);
}

// (σ(x), σ(−x)), each relative to itself.
// The exponential is of a number that is not positive, so nothing overflows.
fn sigmoids(x: f32) -> vec2<f32> {
    let e = exponential(-abs(x));
    let large = 1.0 / (1.0 + e);
    let small = e * large;
    return select(vec2<f32>(large, small), vec2<f32>(small, large), x < 0.0);
}

// log(1 + eˣ).
// The larger of x and 0 is taken out, so that the exponential never overflows.
fn softplus(x: f32) -> f32 {
    return select(0.0, x, x > 0.0) + log_1p(exponential(-abs(x)));
}
