//! `eˣ`, which PTX has no exact instruction for.
//!
//! `eˣ = 2ⁿ eʳ` with `n` the nearest whole number to `x / ln 2`, so `|r| ≤ ½ ln 2`. `n ln 2` is subtracted in two parts, of which the
//! first has so few bits that its product with `n` is exact. `eʳ` is its Taylor polynomial. `2ⁿ` is two factors, since its
//! exponent may be too large or too small for one while `eˣ` is still a number.

use super::Real;
use crate::{
    types::Reg,
    writer::{Comparison, Scope},
};

/// Numbers of the method for one type.
pub(super) trait Exp: Sized {
    /// `ln 2` is the sum of both.
    const LN_2: [Self; 2];
    /// Degree of the polynomial: the next term is under half a unit of the last place.
    const DEGREE: u32;
    /// Below the first `eˣ` is 0, above the second it is infinite.
    const RANGE: [Self; 2];
    /// `1 / ln 2`.
    const LOG2_E: Self;

    /// `1 / n!`, rounded once.
    fn reciprocal_factorial(n: u32) -> Self;
}

impl Exp for f32 {
    const LN_2: [Self; 2] = [0.693_359_4, -2.121_944_4e-4];
    const DEGREE: u32 = 7;
    const RANGE: [Self; 2] = [-104.0, 89.0];
    const LOG2_E: Self = std::f32::consts::LOG2_E;

    fn reciprocal_factorial(n: u32) -> Self {
        reciprocal_factorial(n) as Self
    }
}

impl Exp for f64 {
    const LN_2: [Self; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    const DEGREE: u32 = 13;
    const RANGE: [Self; 2] = [-746.0, 710.0];
    const LOG2_E: Self = std::f64::consts::LOG2_E;

    fn reciprocal_factorial(n: u32) -> Self {
        reciprocal_factorial(n)
    }
}

/// `eˣ`; NaN of NaN.
pub(super) fn exp<F, T: Real>(k: &mut Scope<'_, F>, x: Reg<T>) -> Reg<T> {
    let above = k.max(x, T::RANGE[0]);
    let clamped = k.min(above, T::RANGE[1]);
    k.comment("n = round(x / ln 2), r = x - n ln 2");
    let quotient = k.mul(clamped, T::LOG2_E);
    let n = k.round(quotient);
    let minus_n = k.neg(n);
    let most = k.mul_add(minus_n, T::LN_2[0], clamped);
    let r = k.mul_add(minus_n, T::LN_2[1], most);
    k.comment("e^r = 1 + r + r^2 / 2! + ..., from the highest term inwards");
    let mut sum = k.variable(T::reciprocal_factorial(T::DEGREE));
    for i in (0..T::DEGREE).rev() {
        sum = k.mul_add(sum, r, T::reciprocal_factorial(i));
    }
    k.comment("times 2^n, as two factors");
    let half = k.mul(n, T::from(0.5));
    let first = k.floor(half);
    let second = k.sub(n, first);
    let (first, second) = (k.power_of_two(first), k.power_of_two(second));
    let scaled = k.mul(sum, first);
    let result = k.mul(scaled, second);
    k.comment("the clamp drops NaN");
    let is_nan = k.compare(Comparison::Unordered, x, x);
    k.select(is_nan, x, result)
}

/// `1 / n!` of at most 13, whose factorial is a whole number that an `f64` holds.
fn reciprocal_factorial(n: u32) -> f64 {
    1.0 / (1..=u64::from(n)).product::<u64>() as f64
}
