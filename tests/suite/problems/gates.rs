//! Gates.

use super::{Answer, Output, Problem, Slot, elementwise::equation};
use crate::{Random, oracle::Var};
use hecate_core::primitives::{self, Map, Primitives};

/// `−exp(slope) softplus(x + offset)`, in 32 bits whatever `x` has.
pub fn retention<B: Primitives>() -> Vec<Problem<B>> {
    let problem = |shape: &[usize]| {
        let random = &mut Random::new(29);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let width = x.shape.last();
        let (slope, offset) = (random.normals([width]), random.normals([width]));
        let wide = |name, array| Slot { wide: true, ..Slot::rows(name, array) };
        Problem {
            name: "retention",
            options: x.shape.to_string(),
            slots: vec![Slot::rows("x", x), wide("slope", slope), wide("offset", offset)],
            outputs: vec![Output::wide("log_a", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                let factor = x[1][0].exp().scale(-1.0);
                vec![x[0].iter().map(|row| equation(Map::Softplus, &(row + &x[2][0])) * &factor).collect()]
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let (dx, dslope, doffset) = primitives::retention_backward(&x[0], &x[1], &x[2], &dy[0])?;
                let y = primitives::retention(&x[0], &x[1], &x[2])?;
                Ok(Answer { outputs: vec![y], grads: vec![Some(dx), Some(dslope), Some(doffset)] })
            }),
        }
    };
    [&[2, 3, 5][..], &[1, 1], &[130, 12], &[9, 40]].map(problem).into()
}
