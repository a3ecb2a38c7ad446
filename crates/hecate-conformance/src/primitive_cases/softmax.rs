//! Rows of shares.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Array, Random, oracle::Var};
use hecate_core::{
    Result, Tensor,
    primitives::{self, Primitives},
};

/// `e^x / Σ e^x` of each row.
pub fn softmax<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(shape, level): (&[usize], f64)| {
        let random = &mut Random::new(41);
        let (mut x, dy) = (random.normals(shape), random.normals(shape));
        // A number added to all of a row has no part in its shares.
        x.values.iter_mut().for_each(|x| *x += level);
        PrimitiveCase {
            name: "softmax",
            options: format!("{} about {level}", x.shape),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                let shares = |x: &Var| {
                    // Powers of numbers about zero: those of the level overflow.
                    let powers = x.shift(-level).exp();
                    &powers * &powers.sum().recip()
                };
                // Row by row: rows have nothing to do with each other.
                vec![x[0].iter().map(shares).collect()]
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let y = primitives::softmax(&x[0])?;
                shows_what_is_no_number(&x[0], &y)?;
                let dx = primitives::softmax_backward(&y, &dy[0])?;
                Ok(CaseResult { outputs: vec![y], grads: vec![Some(dx)] })
            }),
        }
    };
    // One element, less than a warp, odd lengths, runs of all sizes, and rows that no block keeps.
    let small = [(&[2, 3, 5][..], 0.0), (&[1, 1], 0.0), (&[4, 31], 0.0), (&[3, 33], 0.0), (&[9, 130], 0.0)];
    let large = [(&[3, 512][..], 0.0), (&[2, 1024], 0.0), (&[2, 4096], 0.0), (&[2, 9001], 0.0), (&[1, 262_144], 0.0)];
    small.into_iter().chain(large).chain([(&[3, 40][..], 64.0)]).map(case).collect()
}

/// A row with a NaN or with `+∞`, or of `−∞` alone, is no number, and changes no other row.
/// Shares that look sound would hide where a training went wrong.
fn shows_what_is_no_number<B: Primitives>(x: &Tensor<B>, y: &Tensor<B>) -> Result<()> {
    let sound = Array::download(y)?.values;
    let width = x.shape().last();
    // Of the last row; those before it have nothing to do with it.
    let last = sound.len() - width;
    for (bad, count) in [(f64::NAN, 1), (f64::INFINITY, 1), (f64::NEG_INFINITY, width)] {
        let mut x_bad = Array::download(x)?;
        // In the middle of the last row, or all of it.
        let first = last + (width - count) / 2;
        x_bad.values[first..first + count].fill(bad);
        let found = Array::download(&primitives::softmax(&x_bad.upload(x.device(), x.dtype())?)?)?.values;
        assert_eq!(found[..last], sound[..last], "rows beside one with {bad}");
        assert!(found[last..].iter().all(|y| y.is_nan()), "a row of {width} with {count} of {bad}");
    }
    Ok(())
}
