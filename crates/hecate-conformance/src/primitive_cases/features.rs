//! Polynomial features.

use super::{CaseResult, Output, PrimitiveCase, Slot, each, pick};
use crate::{Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::primitives::{self, POLY2};

/// `√c₀`, `√c₁ x_i`, and `√c₂ x_i x_j` once for `i = j`, `√2` times for `i < j`.
pub fn poly2<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(axes, coefficients): (&[usize], [f32; 3])| {
        let random = &mut Random::new(17);
        let x = random.normals(axes);
        let mut wide = axes.to_vec();
        if let Some(last) = wide.last_mut() {
            *last = primitives::poly2_width(*last);
        }
        PrimitiveCase {
            name: "poly2",
            options: format!("{} {coefficients:?}", x.shape),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", random.normals(wide))],
            forward: Box::new(move |x: &[Vec<Var>]| vec![each(&x[0], |x| features(x, coefficients.map(f64::from)))]),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let y = primitives::poly2(&x[0], coefficients)?;
                let dx = primitives::poly2_backward(&x[0], coefficients, &dy[0])?;
                Ok(CaseResult { outputs: vec![y], grads: vec![Some(dx)] })
            }),
        }
    };
    // The usual coefficients, rows of one element, and rows of 21 with 253 features each.
    [(&[2, 3, 5][..], POLY2), (&[4, 1], [0.3, 2.0, 0.7]), (&[33, 21], [0.4, 0.4, 0.2])].map(case).into()
}

/// A row `[1,d]` as `[1, 1 + d + d(d+1)/2]`: constant, linear and quadratic terms in this order.
fn features(x: &Var, coefficients: [f64; 3]) -> Var {
    let (_, width) = x.shape();
    let count = primitives::poly2_width(width);
    // Roots, so that the product of two rows of features is the polynomial `c₀ + c₁ x·y + c₂ (x·y)²`.
    let [zeroth, first, second] = coefficients.map(f64::sqrt);
    // A row with 1 at `at`: times a number, that number in its place.
    let place = |at: usize| pick(x, count, at).t();
    let number = |i: usize| x.dot(&pick(x, width, i));
    let mut terms = vec![place(0).scale(zeroth)];
    terms.extend((0..width).map(|i| (number(i) * place(1 + i)).scale(first)));
    // Row by row of the upper triangle.
    let pairs = (0..width).flat_map(|i| (i..width).map(move |j| (i, j)));
    terms.extend(pairs.enumerate().map(|(at, (i, j))| {
        // `x_i x_j` stands for `x_j x_i` as well.
        let weight = if i == j { second } else { second * 2f64.sqrt() };
        (number(i) * number(j) * place(1 + width + at)).scale(weight)
    }));
    Var::total(terms)
}
