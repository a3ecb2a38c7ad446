//! Operations on complex numbers, of which each has two neighbouring elements.

use super::{Arrays, Operation, Real};
use crate::{
    types::Reg,
    writer::{Comparison, Flow, Scope},
};

/// Real and imaginary part.
type Complex<T> = [Reg<T>; 2];

/// One complex element.
pub(super) fn element<F: Flow, T: Real>(k: &mut Scope<'_, F>, arrays: Arrays<T>, i: Reg<u64>) {
    let part = k.shl(i, 1u32);
    let mut load = |array| {
        let address = k.at_wide(array, part);
        k.load_vector::<2, T, _>(address)
    };
    let x = load(arrays.x);
    let y = if arrays.operation.is_binary() { load(arrays.y) } else { x };
    let result = match arrays.operation {
        Operation::Add => [k.add(x[0], y[0]), k.add(x[1], y[1])],
        Operation::Sub => [k.sub(x[0], y[0]), k.sub(x[1], y[1])],
        Operation::Mul => product(k, x, y),
        Operation::Div => quotient(k, x, y),
        Operation::Neg => [k.neg(x[0]), k.neg(x[1])],
        Operation::Abs => {
            // The absolute value is real: it has one element in `out`.
            let result = absolute(k, x);
            let to = k.at_wide(arrays.out, i);
            return k.store(to, result);
        }
        // `is_defined` has no other operation.
        _ => [x[0], k.neg(x[1])],
    };
    let to = k.at_wide(arrays.out, part);
    k.store_vector(to, result);
}

/// `(a + bi)(c + di) = (ac − bd) + (ad + bc) i`.
fn product<F, T: Real>(k: &mut Scope<'_, F>, [a, b]: Complex<T>, [c, d]: Complex<T>) -> Complex<T> {
    let (ac, bd) = (k.mul(a, c), k.mul(b, d));
    let (ad, bc) = (k.mul(a, d), k.mul(b, c));
    [k.sub(ac, bd), k.add(ad, bc)]
}

/// `(a + bi) / (c + di)` by Smith's method. With `r = d / c` and `s = c + d r`, it is `(a + b r) / s + (b − a r) / s i` where
/// `|c| ≥ |d|`; elsewhere `r = c / d`, `s = c r + d`, and it is `(a r + b) / s + (b r − a) / s i`.
fn quotient<F, T: Real>(k: &mut Scope<'_, F>, [a, b]: Complex<T>, [c, d]: Complex<T>) -> Complex<T> {
    k.comment("Smith's division: the larger part of y divides the smaller one, so no square overflows");
    let (size_c, size_d) = (k.abs(c), k.abs(d));
    let real_is_larger = k.compare(Comparison::GreaterOrEqual, size_c, size_d);
    let (large, small) = (k.select(real_is_larger, c, d), k.select(real_is_larger, d, c));
    let ratio = k.div(small, large);
    let scaled = k.mul(small, ratio);
    let divisor = k.add(large, scaled);
    let (a_ratio, b_ratio) = (k.mul(a, ratio), k.mul(b, ratio));
    let (re_if, re_else) = (k.add(a, b_ratio), k.add(a_ratio, b));
    let (im_if, im_else) = (k.sub(b, a_ratio), k.sub(b_ratio, a));
    let (re, im) = (k.select(real_is_larger, re_if, re_else), k.select(real_is_larger, im_if, im_else));
    [k.div(re, divisor), k.div(im, divisor)]
}

/// `√(a² + b²)`, as the larger part times `√(1 + r²)` with the ratio `r` of the smaller to it. Infinity goes before NaN, and
/// NaN before numbers.
fn absolute<F, T: Real>(k: &mut Scope<'_, F>, [a, b]: Complex<T>) -> Reg<T> {
    let constant = |value: f32| T::from(value);
    let (size_a, size_b) = (k.abs(a), k.abs(b));
    let (large, small) = (k.max(size_a, size_b), k.min(size_a, size_b));
    let ratio = k.div(small, large);
    let square = k.mul(ratio, ratio);
    let sum = k.add(square, constant(1.0));
    let root = k.sqrt(sum);
    let scaled = k.mul(large, root);
    k.comment("0 has no ratio; a maximum drops NaN, which the sum of both parts keeps");
    let is_zero = k.compare(Comparison::Equal, large, constant(0.0));
    let or_zero = k.select(is_zero, large, scaled);
    let is_nan = k.compare(Comparison::Unordered, a, b);
    let either = k.add(size_a, size_b);
    let or_nan = k.select(is_nan, either, or_zero);
    let is_infinite = k.compare(Comparison::Equal, large, constant(f32::INFINITY));
    k.select(is_infinite, large, or_nan)
}
