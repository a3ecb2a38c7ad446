//! The exponential and what is made of it, without branches and library calls, so that loops over it vectorise.

/// Adding and taking off `1.5 · 2²³` rounds to an integer, which is left in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` in two parts; products of the first with integers up to 2¹⁵ are exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `ln` of a number a little over the smallest normal one.
const LOWEST: f32 = -87.3;

/// `eˣ` within 2 units in the last place, NaN for NaN. Where the result would be subnormal it is 0: processors take a
/// hundred times as long over such numbers, and every masked score would be one.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let power = exp_normal(x.clamp(LOWEST, 89.0));
    if x < LOWEST { 0.0 } else { power }
}

/// `eˣ` for `x` in `[LOWEST, 89]`; the upper end is infinite. NaN for NaN.
#[inline(always)]
fn exp_normal(x: f32) -> f32 {
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2[0]) - n * LN2[1];
    // (eʳ − 1 − r) / r² for |r| ≤ ½ ln 2 (Moshier, Cephes, `expf`). A loop here would keep loops outside from
    // vectorising.
    let tail = ((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2;
    let tail = (tail * r + 1.666_666_5e-1) * r + 0.5;
    let power = (tail * (r * r) + r) + 1.0;
    // 2ⁿ in two factors, each of them a finite normal number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    power * power_of_two(n >> 1) * power_of_two(n.wrapping_sub(n >> 1))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `log(1 + u)` for `u` in `[0, 1]`, relative to a small `u` too: `2 artanh(u / (2 + u))`.
#[inline(always)]
pub(super) fn log_1p(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let square = s * s;
    let series = ((1.0 / 15.0 * square + 1.0 / 13.0) * square + 1.0 / 11.0) * square + 1.0 / 9.0;
    let series = ((series * square + 1.0 / 7.0) * square + 1.0 / 5.0) * square + 1.0 / 3.0;
    2.0 * (s + s * (square * series))
}

/// `(σ(x), σ(−x))`, each relative to itself.
#[inline(always)]
pub(crate) fn sigmoids(x: f32) -> (f32, f32) {
    let e = exp(-x.abs());
    let large = 1.0 / (1.0 + e);
    let small = e * large;
    if x < 0.0 { (small, large) } else { (large, small) }
}

/// `log(1 + eˣ)`.
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
