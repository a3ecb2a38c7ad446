//! Normalised rows.

use super::{Answer, Output, Problem, Slot, elementwise::equation};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::{self, Map, Primitives};

/// `x r w`, `r = 1/√(mean x² + ε)`.
pub fn rms_norm<B: Primitives>() -> Vec<Problem<B>> {
    let problem = |(shape, epsilon): (&[usize], f32)| {
        let random = &mut Random::new(11);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let (width, rows) = (x.shape.last(), x.shape.rows());
        let weight = random.uniforms([width], 0.5, 1.5);
        let scale = 1.0 / width as f64;
        let inverse = Output::wide("inverse", Array::full([rows], 0.0));
        Problem {
            name: "rms_norm",
            options: format!("{} ε {epsilon:e}", x.shape),
            slots: vec![Slot::rows("x", x), Slot::rows("weight", weight)],
            outputs: vec![Output::new("y", dy), inverse],
            forward: Box::new(move |x: &[Vec<Var>]| normalise(&x[0], scale, f64::from(epsilon), Some(&x[1][0]))),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let (y, inverse) = primitives::rms_norm(&x[0], &x[1], epsilon)?;
                let (dx, dw) = primitives::rms_norm_backward(&x[0], &x[1], &inverse, &dy[0])?;
                Ok(Answer { outputs: vec![y, inverse], grads: vec![Some(dx), Some(dw)] })
            }),
        }
    };
    [(&[2, 3, 5][..], 1e-5), (&[1, 1], 1e-2), (&[9, 130], 1e-6)].map(problem).into()
}

/// `x r w silu(g)`.
pub fn rms_norm_gated<B: Primitives>() -> Vec<Problem<B>> {
    let problem = |(shape, epsilon): (&[usize], f32)| {
        let random = &mut Random::new(12);
        let (x, g, dy) = (random.normals(shape), random.normals(shape), random.normals(shape));
        let (width, rows) = (x.shape.last(), x.shape.rows());
        let weight = random.uniforms([width], 0.5, 1.5);
        let scale = 1.0 / width as f64;
        let inverse = Output::wide("inverse", Array::full([rows], 0.0));
        Problem {
            name: "rms_norm_gated",
            options: format!("{} ε {epsilon:e}", x.shape),
            slots: vec![Slot::rows("x", x), Slot::rows("weight", weight), Slot::rows("g", g)],
            outputs: vec![Output::new("y", dy), inverse],
            forward: Box::new(move |x: &[Vec<Var>]| {
                let mut results = normalise(&x[0], scale, f64::from(epsilon), Some(&x[1][0]));
                results[0].iter_mut().zip(&x[2]).for_each(|(y, g)| *y = &*y * equation(Map::Silu, g));
                results
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let (y, inverse) = primitives::rms_norm_gated(&x[0], &x[1], &x[2], epsilon)?;
                let (dx, dw, dg) = primitives::rms_norm_gated_backward(&x[0], &x[1], &x[2], &inverse, &dy[0])?;
                Ok(Answer { outputs: vec![y, inverse], grads: vec![Some(dx), Some(dw), Some(dg)] })
            }),
        }
    };
    [(&[2, 3, 5][..], 1e-5), (&[1, 1], 1e-2), (&[9, 130], 1e-6), (&[5, 2, 64], 1e-5)].map(problem).into()
}

/// `x r`, `r = 1/√(|x|² + ε²)`.
pub fn l2_norm<B: Primitives>() -> Vec<Problem<B>> {
    let problem = |(shape, epsilon): (&[usize], f32)| {
        let random = &mut Random::new(13);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let rows = x.shape.rows();
        let squared = f64::from(epsilon) * f64::from(epsilon);
        Problem {
            name: "l2_norm",
            options: format!("{} ε {epsilon:e}", x.shape),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", dy), Output::wide("inverse", Array::full([rows], 0.0))],
            forward: Box::new(move |x: &[Vec<Var>]| normalise(&x[0], 1.0, squared, None)),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let (y, inverse) = primitives::l2_norm(&x[0], epsilon)?;
                let dx = primitives::l2_norm_backward(&x[0], &inverse, &dy[0])?;
                Ok(Answer { outputs: vec![y, inverse], grads: vec![Some(dx)] })
            }),
        }
    };
    [(&[2, 3, 5][..], 1e-6), (&[3, 4], 0.5), (&[9, 130], 1e-6)].map(problem).into()
}

/// Rows times `r = 1/√(scale Σ x² + shift)` and `weight`, and the `r`.
fn normalise(rows: &[Var], scale: f64, shift: f64, weight: Option<&Var>) -> Vec<Vec<Var>> {
    let inverse = |x: &Var| x.square().sum().scale(scale).shift(shift).sqrt().recip();
    let inverses: Vec<Var> = rows.iter().map(inverse).collect();
    let weighted = |y: Var| weight.map_or_else(|| y.clone(), |w| &y * w);
    let y = rows.iter().zip(&inverses).map(|(x, r)| weighted(x * r)).collect();
    vec![y, inverses]
}
