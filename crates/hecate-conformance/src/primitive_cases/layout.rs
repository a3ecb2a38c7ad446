//! Moving elements about, and adding them up.

use super::{CaseResult, Output, PrimitiveCase, Slot, each};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::{Result, Tensor, primitives};

/// Ranges of each axis.
/// Two of three rows, a whole axis, its last index, and the middle of the innermost axis.
pub fn narrow<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let range = |(axis, start, count): (usize, usize, usize)| {
        let random = &mut Random::new(23);
        let x = random.normals([3, 4, 5]);
        let shape = x.shape.clone();
        let (mut axes, length) = (shape.axes().to_vec(), shape.axes()[axis]);
        // Elements from one index of the axis to the next.
        let inner: usize = axes[axis + 1..].iter().product();
        axes[axis] = count;
        PrimitiveCase {
            name: "narrow",
            options: format!("{shape} axis {axis} from {start} count {count}"),
            slots: vec![Slot::elements("x", x)],
            outputs: vec![Output::new("y", random.normals(axes))],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // The index along the axis, of element `i` of the whole.
                let inside = |i: &usize| (start..start + count).contains(&(i / inner % length));
                vec![(0..x[0].len()).filter(inside).map(|i| x[0][i].clone()).collect()]
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let dx = primitives::narrow_backward(&shape, axis, start, count, &dy[0])?;
                Ok(CaseResult { outputs: vec![primitives::narrow(&x[0], axis, start, count)?], grads: vec![Some(dx)] })
            }),
        }
    };
    [(0, 1, 2), (1, 0, 4), (1, 3, 1), (2, 1, 3)].map(range).into()
}

/// Three arrays of different length along each axis; gradients are ranges of the gradient.
pub fn concat<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let joined = |axis: usize| {
        let random = &mut Random::new(29);
        // Unequal, so that a part in the wrong place shows.
        let lengths = [2, 1, 4];
        let shape = move |length: usize| {
            let mut axes = [3, 2, 5];
            axes[axis] = length;
            axes
        };
        let parts = lengths.map(|length| random.normals(shape(length)));
        // Runs of each part lie side by side, once for each index of the leading axes.
        let outer: usize = shape(1)[..axis].iter().product();
        let names = ["first", "second", "third"];
        PrimitiveCase {
            name: "concat",
            options: format!("axis {axis}"),
            slots: names.into_iter().zip(parts).map(|(name, part)| Slot::elements(name, part)).collect(),
            outputs: vec![Output::new("y", random.normals(shape(7)))],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // What part `part` gives for leading index `i`.
                let run = |part: &Vec<Var>, i: usize| part[i * part.len() / outer..][..part.len() / outer].to_vec();
                vec![(0..outer).flat_map(|i| x.iter().flat_map(move |part| run(part, i))).collect()]
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let mut start = 0;
                // The gradient of a part is that range of the gradient.
                let mut part = |length| {
                    start += length;
                    primitives::narrow(&dy[0], axis, start - length, length).map(Some)
                };
                let grads = lengths.into_iter().map(&mut part).collect::<Result<_, _>>()?;
                integers(dy[0].device(), axis, lengths)?;
                Ok(CaseResult { outputs: vec![primitives::concat(&[&x[0], &x[1], &x[2]], axis)?], grads })
            }),
        }
    };
    (0..3).map(joined).collect()
}

/// Integers are cut and joined as floats are, and stay integers: two parts of a range of them are that range again.
fn integers<B: Primitives>(device: &B, axis: usize, [one, other, _]: [usize; 3]) -> Result<()> {
    let mut axes = [3, 2, 5];
    axes[axis] = one + other;
    // Large ones, which no float of 32 bits holds.
    let ids = (0..axes.iter().product::<usize>() as u32).map(|i| u32::MAX - i).collect::<Vec<_>>();
    let whole = Tensor::from_u32(device, axes, ids)?;
    let parts = [(0, one), (one, other)].map(|(start, count)| primitives::narrow(&whole, axis, start, count));
    let [first, second] = parts;
    let joined = primitives::concat(&[&first?, &second?], axis)?;
    assert_eq!(joined.download()?, whole.download()?, "integers along axis {axis}");
    Ok(())
}

/// Sum of all elements.
pub fn sum<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    total("sum", Var::sum, primitives::sum)
}

/// Sum of all squares.
pub fn sum_squares<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    total("sum_squares", |x| x.square().sum(), primitives::sum_squares)
}

/// Sums `[1]` in 32 bits. Numbers have mean ½, so nothing cancels and the error is that of the order of summing.
fn total<B: Primitives>(
    name: &'static str,
    equation: fn(&Var) -> Var,
    device: fn(&Tensor<B>) -> Result<Tensor<B>>,
) -> Vec<PrimitiveCase<B>> {
    let case = |shape: &[usize]| PrimitiveCase {
        name,
        options: format!("{shape:?}"),
        slots: vec![Slot::rows("x", Random::new(31).uniforms(shape, -1.0, 2.0))],
        outputs: vec![Output::wide("y", Array::full([1], 1.0))],
        forward: Box::new(move |x: &[Vec<Var>]| vec![vec![Var::total(each(&x[0], equation))]]),
        device: Box::new(move |x: &[_], _: &[_]| Ok(CaseResult { outputs: vec![device(&x[0])?], grads: vec![] })),
    };
    // The last takes several blocks of threads.
    vec![case(&[1]), case(&[7, 5]), case(&[3, 5003])]
}

/// Rows added up.
/// `[…, width]` becomes `[width]`, as the gradient of a bias does.
pub fn sum_rows<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(shape, width): ([usize; 3], usize)| {
        let random = &mut Random::new(37);
        PrimitiveCase {
            name: "sum_rows",
            options: format!("{shape:?} width {width}"),
            slots: vec![Slot::tiles("x", random.normals(shape), (1, width))],
            outputs: vec![Output::new("y", random.normals([width]))],
            forward: Box::new(move |x: &[Vec<Var>]| vec![vec![Var::total(each(&x[0], Var::clone))]]),
            device: Box::new(move |x: &[_], _: &[_]| {
                Ok(CaseResult { outputs: vec![primitives::sum_rows(&x[0], width)?], grads: vec![] })
            }),
        }
    };
    // Rows of one axis, of two together, and 350 rows of 9.
    [([2, 3, 5], 5), ([2, 3, 5], 15), ([5, 70, 9], 9)].map(case).into()
}
