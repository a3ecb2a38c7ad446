//! Gates.
//!
//! The gates of layers, formed from projections `[B,T,H]`; `a_log` and `dt_bias` are `[H]`.

use super::{CaseResult, Output, PrimitiveCase, Slot, elementwise::equation};
use crate::{Random, oracle::Var};
use hecate_core::primitives::{self, Map, Primitives, RetentionBackward, RetentionInputs};

/// `−exp(a_log) softplus(x + dt_bias)`, in 32 bits whatever `x` has.
pub fn retention<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |shape: &[usize]| {
        let random = &mut Random::new(29);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let width = x.shape.last();
        let (a_log, dt_bias) = (random.normals([width]), random.normals([width]));
        let wide = |name, array| Slot { wide: true, ..Slot::rows(name, array) };
        PrimitiveCase {
            name: "retention",
            options: x.shape.to_string(),
            slots: vec![Slot::rows("x", x), wide("a_log", a_log), wide("dt_bias", dt_bias)],
            outputs: vec![Output::wide("log_a", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // The logarithm of retention: never over 0, so retention never over 1.
                let factor = x[1][0].exp().scale(-1.0);
                vec![x[0].iter().map(|row| equation(Map::Softplus, &(row + &x[2][0])) * &factor).collect()]
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let inputs = RetentionInputs { x: &x[0], a_log: &x[1], dt_bias: &x[2] };
                let grads = primitives::retention_backward(&RetentionBackward { inputs, dy: &dy[0] })?;
                let y = primitives::retention(&inputs)?;
                Ok(CaseResult { outputs: vec![y], grads: [grads.x, grads.a_log, grads.dt_bias].map(Some).into() })
            }),
        }
    };
    // One head, more rows than 128, more heads than a warp.
    [&[2, 3, 5][..], &[1, 1], &[130, 12], &[9, 40]].map(case).into()
}
