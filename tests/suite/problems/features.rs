//! Polynomial features.

use super::{Answer, Output, Problem, Slot, each, pick};
use crate::{Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::primitives::{self, POLY2};

/// `√c₀`, `√c₁ x_i`, and `√c₂ x_i x_j` once for `i = j`, `√2` times for `i < j`.
pub fn poly2<B: Primitives>() -> Vec<Problem<B>> {
    let problem = |(axes, coefficients): (&[usize], [f32; 3])| {
        let random = &mut Random::new(17);
        let x = random.normals(axes);
        let mut wide = axes.to_vec();
        if let Some(last) = wide.last_mut() {
            *last = primitives::poly2_width(*last);
        }
        Problem {
            name: "poly2",
            options: format!("{} {coefficients:?}", x.shape),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", random.normals(wide))],
            forward: Box::new(move |x: &[Vec<Var>]| vec![each(&x[0], |x| features(x, coefficients.map(f64::from)))]),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let y = primitives::poly2(&x[0], coefficients)?;
                let dx = primitives::poly2_backward(&x[0], coefficients, &dy[0])?;
                Ok(Answer { outputs: vec![y], grads: vec![Some(dx)] })
            }),
        }
    };
    [(&[2, 3, 5][..], POLY2), (&[4, 1], [0.3, 2.0, 0.7]), (&[33, 21], [0.4, 0.4, 0.2])].map(problem).into()
}

fn features(x: &Var, coefficients: [f64; 3]) -> Var {
    let (_, width) = x.shape();
    let count = primitives::poly2_width(width);
    let [zeroth, first, second] = coefficients.map(f64::sqrt);
    let place = |at: usize| pick(x, count, at).t();
    let number = |i: usize| x.dot(&pick(x, width, i));
    let mut terms = vec![place(0).scale(zeroth)];
    terms.extend((0..width).map(|i| (number(i) * place(1 + i)).scale(first)));
    let pairs = (0..width).flat_map(|i| (i..width).map(move |j| (i, j)));
    terms.extend(pairs.enumerate().map(|(at, (i, j))| {
        let weight = if i == j { second } else { second * 2f64.sqrt() };
        (number(i) * number(j) * place(1 + width + at)).scale(weight)
    }));
    Var::total(terms)
}
