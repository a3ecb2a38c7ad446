//! The exponential and what is made of it.
//!
//! There are no branches and no library calls, so that loops over these functions vectorise.
//! `x = n ln 2 + r` splits the argument: a polynomial gives `eʳ`, and `2ⁿ` is put into the exponent bits.

use pulp::Simd;

/// Adding and taking off `1.5 · 2²³` rounds to an integer, which is left in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` in two parts; products of the first with integers up to 2¹⁵ are exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `ln` of a number a little over the smallest normal one.
const LOWEST: f32 = -87.3;

/// Polynomial for `eʳ`, `|r| ≤ ½ ln 2`, from the highest power on (Moshier, Cephes, `expf`).
const POWERS: [f32; 8] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0];

/// `eˣ` within 2 units in the last place, NaN for NaN.
///
/// Where the result would be subnormal it is 0.
/// Processors take a hundred times as long over such floats, and every masked score would be one.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 89 is the first whole number whose power is infinite.
    let power = exp_normal(x.clamp(LOWEST, 89.0));
    if x < LOWEST { 0.0 } else { power }
}

/// `eˣ` for `x` in `[LOWEST, 89]`; the upper end is infinite. NaN for NaN.
#[inline(always)]
fn exp_normal(x: f32) -> f32 {
    // The nearest whole number of halvings, as a float `n` and in the low bits of `shifted`.
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2[0]) - n * LN2[1];
    // A loop here would keep loops outside from vectorising.
    let tail = ((POWERS[0] * r + POWERS[1]) * r + POWERS[2]) * r + POWERS[3];
    let tail = (tail * r + POWERS[4]) * r + POWERS[5];
    let power = (tail * (r * r) + r) + 1.0;
    // 2ⁿ in two factors, each of them a finite normal number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    power * power_of_two(n >> 1) * power_of_two(n.wrapping_sub(n >> 1))
}

/// `eˣ` for `x` of at most 88, a vector at a time. What is above that gives any number.
///
/// It is [`exp`] but for the last bits: products are added without rounding where the processor can.
/// Results smaller than normal floats are 0, NaN is NaN.
#[inline(always)]
pub(crate) fn exp_vector<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |x: f32| simd.splat_f32s(x);
    let shifted = simd.mul_add_e_f32s(x, splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = simd.sub_f32s(shifted, splat(ROUND));
    let r = simd.mul_add_e_f32s(n, splat(-LN2[0]), x);
    let r = simd.mul_add_e_f32s(n, splat(-LN2[1]), r);
    // Horner's rule; with fused multiply-adds each step rounds once.
    let mut power = splat(POWERS[0]);
    for factor in &POWERS[1..] {
        power = simd.mul_add_e_f32s(power, r, splat(*factor));
    }
    // The low bits of `shifted` are `n`; those above them leave at the top.
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let scale = simd.add_u32s(exponent, simd.splat_u32s(127 << 23));
    let power = simd.mul_f32s(power, simd.transmute_f32s_u32s(scale));
    simd.select_f32s(simd.less_than_f32s(x, splat(LOWEST)), splat(0.0), power)
}

/// `ln x` for normal `x > 0`; infinity and NaN become NaN. Below 1 the error is that of a number of size 1.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // The exponent's bits are the whole part of the logarithm, the mantissa lies in [1, 2).
    let bits = x.to_bits();
    let n = ((bits >> 23) as i32 - 127) as f32;
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | (127 << 23));
    n * LN2[0] + (n * LN2[1] + log_1p(mantissa - 1.0)) + 0.0 * x
}

/// `xᵖ` for `x ≥ 0`, a vector at a time: `e^(p ln x)`. The relative error is some units of the size of `p ln x`.
///
/// Numbers smaller than normal floats count as 0. Infinite results are infinite, and of an infinite `x` NaN.
#[inline(always)]
pub(crate) fn power_vector<S: Simd>(simd: S, x: S::f32s, p: f32) -> S::f32s {
    let splat = |x: f32| simd.splat_f32s(x);
    // One rounding of the logarithm is multiplied by `p`.
    let exponent = simd.mul_f32s(splat(p), ln_vector(simd, x));
    let power =
        simd.select_f32s(simd.less_than_f32s(splat(88.0), exponent), splat(f32::INFINITY), exp_vector(simd, exponent));
    let zero = splat(if p > 0.0 { 0.0 } else { f32::INFINITY });
    simd.select_f32s(simd.less_than_f32s(x, splat(f32::MIN_POSITIVE)), zero, power)
}

/// [`ln`], a vector at a time.
#[inline(always)]
fn ln_vector<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |x: f32| simd.splat_f32s(x);
    let bits = simd.transmute_u32s_f32s(x);
    // The exponent in the low bits of `2²³` is a whole number of that size.
    let exponent = simd.wrapping_dyn_shr_u32s(bits, simd.splat_u32s(23));
    let shifted = simd.transmute_f32s_u32s(simd.or_u32s(exponent, simd.splat_u32s(0x4b00_0000)));
    let n = simd.sub_f32s(shifted, splat(8_388_608.0 + 127.0));
    let mantissa = simd.and_u32s(bits, simd.splat_u32s(0x007f_ffff));
    let mantissa = simd.transmute_f32s_u32s(simd.or_u32s(mantissa, simd.splat_u32s(127 << 23)));
    // Of `2 artanh s`, as [`log_1p`] has it.
    let u = simd.sub_f32s(mantissa, splat(1.0));
    let s = simd.div_f32s(u, simd.add_f32s(u, splat(2.0)));
    let square = simd.mul_f32s(s, s);
    let mut series = splat(ARTANH[0]);
    for factor in &ARTANH[1..] {
        series = simd.mul_add_e_f32s(series, square, splat(*factor));
    }
    let s = simd.add_f32s(s, s);
    let log = simd.mul_add_e_f32s(s, simd.mul_f32s(square, series), s);
    let low = simd.mul_add_e_f32s(n, splat(LN2[1]), log);
    // Infinity and NaN become NaN.
    simd.mul_add_e_f32s(x, splat(0.0), simd.mul_add_e_f32s(n, splat(LN2[0]), low))
}

/// `2ⁿ` for exponents of normal floats: bits, no arithmetic.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Factors of the odd powers of `s` in `artanh s`, from the fifteenth down to the third.
const ARTANH: [f32; 7] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0];

/// `log(1 + u)` for `u` in `[0, 1]`, exact relative to a small `u` too: `2 artanh(u / (2 + u))` as a series.
#[inline(always)]
pub(super) fn log_1p(u: f32) -> f32 {
    // Odd powers of `s ≤ 1/3`: fifteen is enough for 32 bits.
    let s = u / (2.0 + u);
    let square = s * s;
    let series = ((ARTANH[0] * square + ARTANH[1]) * square + ARTANH[2]) * square + ARTANH[3];
    let series = ((series * square + ARTANH[4]) * square + ARTANH[5]) * square + ARTANH[6];
    2.0 * (s + s * (square * series))
}

/// `(σ(x), σ(−x))`, each exact relative to itself: neither is one minus the other.
#[inline(always)]
pub(crate) fn sigmoids(x: f32) -> (f32, f32) {
    // Of a negative argument only: it never overflows.
    let e = exp(-x.abs());
    let large = 1.0 / (1.0 + e);
    let small = e * large;
    if x < 0.0 { (small, large) } else { (large, small) }
}

/// `log(1 + eˣ)`, without overflow for large `x` and exact relative to small results.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + log_1p(exp(-x.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance from the true value in units of the last place of a float of that size.
    fn ulps(found: f32, truth: f64) -> f64 {
        let size = (truth as f32).abs();
        let unit = if size < f32::MIN_POSITIVE { f32::from_bits(1) } else { size.next_up() - size };
        (f64::from(found) - truth).abs() / f64::from(unit)
    }

    #[test]
    fn exp_is_within_two_ulps() {
        let mut worst = (0.0, 0.0);
        // Every argument with a normal result, in steps of 1e-4.
        for i in -873_000..=887_000 {
            let x = i as f32 * 1e-4;
            let error = ulps(exp(x), f64::from(x).exp());
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= 2.0, "{} ulp at {}", worst.0, worst.1);
        for x in [0.0, -0.0, 1e-30, -1e-30] {
            assert_eq!(exp(x), 1.0);
        }
    }

    /// [`exp_vector`] of every number.
    struct Exponentials<'a>(&'a mut [f32]);

    impl pulp::WithSimd for Exponentials<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            for x in self.0.chunks_mut(S::F32_LANES) {
                let power = exp_vector(simd, simd.partial_load_f32s(x));
                simd.partial_store_f32s(x, power);
            }
        }
    }

    #[test]
    fn vectors_of_exp_are_within_two_ulps() {
        let arguments: Vec<f32> = (-873_000..=880_000).map(|i| i as f32 * 1e-4).collect();
        for scalar in [false, true] {
            let run = |x: &mut [f32]| match scalar {
                true => pulp::Arch::Scalar.dispatch(Exponentials(x)),
                false => crate::simd::dispatch(Exponentials(x)),
            };
            let mut found = arguments.clone();
            run(&mut found);
            for (x, found) in arguments.iter().zip(&found) {
                let error = ulps(*found, f64::from(*x).exp());
                assert!(error <= 2.0, "{error} ulp at {x}");
            }
            // Both sides of the smallest normal result, infinities and NaN.
            let mut ends = [0.0, -0.0, -1e-30, -87.31, -1e4, f32::MIN, f32::NEG_INFINITY, f32::NAN];
            run(&mut ends);
            assert_eq!(ends[..7], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
            assert!(ends[7].is_nan());
        }
    }

    /// Powers of every number.
    struct Powers<'a>(&'a mut [f32], f32);

    impl pulp::WithSimd for Powers<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            for x in self.0.chunks_mut(S::F32_LANES) {
                let power = power_vector(simd, simd.partial_load_f32s(x), self.1);
                simd.partial_store_f32s(x, power);
            }
        }
    }

    // Roots, powers above and below 1, and one as large as a retention's.
    #[test]
    fn vectors_of_powers() {
        for p in [0.5, 1.5, -0.25, -1.5, 6.0] {
            let arguments: Vec<f32> = (0..400_000).map(|i| f32::from_bits((20 << 23) + i * 4_500)).collect();
            let mut found = arguments.clone();
            crate::simd::dispatch(Powers(&mut found, p));
            for (x, found) in arguments.iter().zip(&found) {
                let exponent = f64::from(p) * f64::from(*x).ln();
                // Outside are the ends of normal floats.
                if exponent.abs() < 87.0 {
                    let error = (f64::from(*found) / exponent.exp() - 1.0).abs();
                    // Two units of the exponential; of the logarithm four, or one of a number of size 1.
                    let bound = 2.5e-7 + 1.2e-7 * f64::from(p.abs()) + 5e-7 * exponent.abs();
                    assert!(error <= bound, "{x} to {p} is {found}");
                }
            }
            // Zero has a power of either sign, and NaN stays NaN.
            let mut ends = [0.0, f32::NAN, 1.0];
            crate::simd::dispatch(Powers(&mut ends, p));
            assert_eq!((ends[0], ends[2]), (0.0_f32.powf(p), 1.0));
            assert!(ends[1].is_nan());
        }
    }

    #[test]
    fn ln_of_normal_numbers() {
        for i in 0..3_000_000_u32 {
            let x = f32::from_bits(1.0_f32.to_bits() + i * 300);
            assert!(ulps(ln(x), f64::from(x).ln()) <= 4.0, "ln({x}) is {}", ln(x));
            // Sums of powers below 1, down to the smallest of a column without a shift.
            let x = f32::from_bits(1.0_f32.to_bits() - i * 160);
            let error = (f64::from(ln(x)) - f64::from(x).ln()).abs();
            assert!(error <= 1.2e-7 * f64::from(x).ln().abs().max(1.0), "ln({x}) is {}", ln(x));
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(f32::NAN).is_nan() && ln(f32::INFINITY).is_nan());
    }

    #[test]
    fn exp_at_its_ends() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
        assert_eq!(exp(-87.31), 0.0);
    }

    #[test]
    fn what_is_made_of_it() {
        // Both tails, where one of the results is tiny.
        for i in -80_000..=80_000 {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let (up, down) = sigmoids(x);
            assert!(ulps(up, 1.0 / (1.0 + (-wide).exp())) <= 4.0, "sigmoid({x})");
            assert!(ulps(down, 1.0 / (1.0 + wide.exp())) <= 4.0, "sigmoid(-{x})");
            assert!(ulps(softplus(x), wide.max(0.0) + (-wide.abs()).exp().ln_1p()) <= 4.0, "softplus({x})");
        }
        assert_eq!(sigmoids(f32::INFINITY), (1.0, 0.0));
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert!(softplus(f32::NAN).is_nan() && sigmoids(f32::NAN).0.is_nan());
    }
}
