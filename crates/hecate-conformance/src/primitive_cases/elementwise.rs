//! Element by element.

use super::{CaseResult, Output, PrimitiveCase, Slot, each};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::{
    DType, Result, Tensor,
    primitives::{self, BiasedBackward, DropMask, GatedBackward, Map, Operands},
};

/// Every map, on numbers of all sizes that matter to it.
pub fn map<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Rows of small, usual and large numbers: slopes near 0, in the bend and where the map is flat.
    let case = |map: Map| {
        let random = &mut Random::new(3);
        let mut x = random.normals([3, 41]);
        // Rows of 41, scaled by 0.1, 1 and 4.
        x.values.iter_mut().enumerate().for_each(|(i, x)| *x *= [0.1, 1.0, 4.0][i / 41]);
        let x = x.rounded(DType::F32);
        let dy = random.normals([3, 41]);
        PrimitiveCase {
            name: "map",
            options: map.name().into(),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| vec![each(&x[0], |x| equation(map, x))]),
            device: Box::new(move |x: &[Tensor<B>], dy: &[Tensor<B>]| {
                let dx = primitives::map_backward(map, &x[0], &dy[0])?;
                Ok(CaseResult { outputs: vec![primitives::map(map, &x[0])?], grads: vec![Some(dx)] })
            }),
        }
    };
    Map::ALL.into_iter().map(case).collect()
}

/// A map in terms of exponentials.
///
/// # Panics
/// At a map that has no equation here.
pub(super) fn equation(map: Map, x: &Var) -> Var {
    // The definition; numbers under test are far from where `e⁻ˣ` overflows 64 bits.
    let sigmoid = |x: &Var| x.scale(-1.0).exp().shift(1.0).recip();
    match map {
        Map::Silu => x * sigmoid(x),
        Map::Sigmoid => sigmoid(x),
        Map::LogSigmoid => sigmoid(x).ln(),
        Map::Softplus => x.exp().shift(1.0).ln(),
        Map::Gelu => {
            // The approximation by a hyperbolic tangent, with Hendrycks' constants.
            let inner = (x + &(x.square() * x).scale(0.044715)).scale((2.0 / std::f64::consts::PI).sqrt());
            x.scale(0.5) * inner.tanh().shift(1.0)
        }
        Map::Exp => x.exp(),
        Map::Relu => above_zero(x),
        Map::ReluSquared => above_zero(x).square(),
        other => panic!("no equation for {}", other.name()),
    }
}

/// `max(x, 0)`: elements that are chosen by value.
/// The choice is a constant of the tape, so that the slope at 0 is 0.
fn above_zero(x: &Var) -> Var {
    let (rows, columns) = x.shape();
    x * x.constant(rows, columns, x.values().into_iter().map(|x| f64::from(u8::from(x > 0.0))).collect())
}

/// Sums, with `b` of the same shape, a row, or several axes less.
pub fn add<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    pairs("add", |a, b| a + b, |a, b, dy| case_result(primitives::add(a, b)?, primitives::add_backward(a, b, dy)?))
}

/// Products, with `b` of the same shape, a row, or several axes less.
pub fn mul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    pairs("mul", |a, b| a * b, |a, b, dy| case_result(primitives::mul(a, b)?, primitives::mul_backward(a, b, dy)?))
}

/// Differences, with `b` of the same shape, a row, or several axes less.
pub fn sub<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    pairs("sub", |a, b| a - b, |a, b, dy| case_result(primitives::sub(a, b)?, primitives::sub_backward(a, b, dy)?))
}

/// Quotients, with `b` of the same shape, a row, or several axes less.
pub fn div<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let quotient = |a: &Var, b: &Var| a * b.recip();
    let mut cases =
        pairs("div", quotient, |a, b, dy| case_result(primitives::div(a, b)?, primitives::div_backward(a, b, dy)?));
    // Numbers of either sign, none so near 0 that its own quotient is all that an error counts.
    let away = |x: &f64| x + x.signum() / 2.0;
    for b in cases.iter_mut().map(|case| &mut case.slots[1].leaf.array) {
        *b = Array::new(b.shape.clone(), b.values.iter().map(away).collect());
    }
    cases
}

/// A result, and the gradients of its two operands.
fn case_result<B: Primitives>(y: Tensor<B>, grads: Operands<Tensor<B>>) -> Result<CaseResult<B>> {
    Ok(CaseResult { outputs: vec![y], grads: vec![Some(grads.a), Some(grads.b)] })
}

/// Cases of `a ∘ b` where `b` serves every repetition of its shape in `a`: its gradient sums over them.
fn pairs<B: Primitives>(
    name: &'static str,
    equation: fn(&Var, &Var) -> Var,
    device: fn(&Tensor<B>, &Tensor<B>, &Tensor<B>) -> Result<CaseResult<B>>,
) -> Vec<PrimitiveCase<B>> {
    // Fewer and more elements than a block of threads; `b` as long as `a`, a part, a row.
    let shapes: [(&[usize], &[usize]); 4] =
        [(&[3, 5], &[3, 5]), (&[2, 3, 5], &[5]), (&[2, 3, 5], &[3, 5]), (&[70, 33], &[33])];
    let case = |(a, b): (&[usize], &[usize])| {
        let random = &mut Random::new(5);
        // `a` is cut into rows as long as all of `b`, so each meets the one matrix of `b`.
        let width: usize = b.iter().product();
        let (a, b, dy) = (random.normals(a), random.normals(b), random.normals(a));
        PrimitiveCase {
            name,
            options: format!("{} and {}", a.shape, b.shape),
            slots: vec![Slot::tiles("a", a, (1, width)), Slot::tiles("b", b, (1, width))],
            outputs: vec![Output::new("y", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| vec![each(&x[0], |a| equation(a, &x[1][0]))]),
            device: Box::new(move |x: &[Tensor<B>], dy: &[Tensor<B>]| device(&x[0], &x[1], &dy[0])),
        }
    };
    shapes.into_iter().map(case).collect()
}

/// What every map of one array lets through of another.
pub fn gated<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |map: Map| {
        let random = &mut Random::new(59);
        let (x, g, dy) = (random.normals([3, 37]), random.normals([3, 37]), random.normals([3, 37]));
        PrimitiveCase {
            name: "gated",
            options: map.name().into(),
            slots: vec![Slot::rows("x", x), Slot::rows("g", g)],
            outputs: vec![Output::new("y", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                vec![x[0].iter().zip(&x[1]).map(|(x, g)| x * equation(map, g)).collect()]
            }),
            device: Box::new(move |x: &[Tensor<B>], dy: &[Tensor<B>]| {
                let y = primitives::gated(map, &x[0], &x[1])?;
                let grads = primitives::gated_backward(map, &GatedBackward { x: &x[0], g: &x[1], dy: &dy[0] })?;
                Ok(CaseResult { outputs: vec![y], grads: vec![Some(grads.x), Some(grads.g)] })
            }),
        }
    };
    Map::ALL.into_iter().map(case).collect()
}

/// A bias and every map behind it; `b` is as long as `x`, a part, a row that runs fill and one that they do not.
pub fn biased<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(map, x, b): (Option<Map>, &[usize], &[usize])| {
        let random = &mut Random::new(61);
        let width: usize = b.iter().product();
        let (x, b, dy) = (random.normals(x), random.normals(b), random.normals(x));
        PrimitiveCase {
            name: "biased",
            options: format!("{} {} and {}", map.map_or("identity", Map::name), x.shape, b.shape),
            slots: vec![Slot::tiles("x", x, (1, width)), Slot::tiles("b", b, (1, width))],
            outputs: vec![Output::new("y", dy)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // Without a map it is a sum.
                let act = |sum: Var| map.map_or_else(|| sum.clone(), |map| equation(map, &sum));
                vec![each(&x[0], |row| act(row + &x[1][0]))]
            }),
            device: Box::new(move |x: &[Tensor<B>], dy: &[Tensor<B>]| {
                let y = primitives::biased(map, &x[0], &x[1])?;
                let call = BiasedBackward { x: &x[0], b: &x[1], dy: &dy[0] };
                case_result(y, primitives::biased_backward(map, &call)?)
            }),
        }
    };
    let shapes: [(Option<Map>, &[usize], &[usize]); 4] = [
        (None, &[70, 33], &[33]),
        (Some(Map::Silu), &[3, 5], &[3, 5]),
        (Some(Map::Gelu), &[2, 3, 5], &[3, 5]),
        (Some(Map::ReluSquared), &[40, 64], &[64]),
    ];
    // Rows of 37, which no run of 16 bytes divides.
    let maps = Map::ALL.map(|map| (Some(map), &[9, 37][..], &[37][..]));
    shapes.into_iter().chain(maps).map(case).collect()
}

/// Multiples.
/// The factor is negative, and exact in binary, so that only the product is rounded.
pub fn scale<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let factor = -0.75;
    vec![single(
        "scale",
        move |x| x.scale(f64::from(factor)),
        move |x, dy| Ok((primitives::scale(factor, x)?, primitives::scale(factor, dy)?)),
    )]
}

/// Masks of several shares, each the same on every device.
pub fn dropout<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |share: f32| {
        let mask = DropMask::new([2, 0xffff_fff0], share);
        let device =
            move |x: &Tensor<B>, dy: &Tensor<B>| Ok((primitives::dropout(mask, x)?, primitives::dropout(mask, dy)?));
        let mut case = single("dropout", |x| x.clone(), device);
        // The mask of the whole array, row by row.
        case.forward = Box::new(move |x: &[Vec<Var>]| {
            let row = |(i, x): (usize, &Var)| {
                let (rows, width) = x.shape();
                let first = i * width;
                x * x.constant(rows, width, (first..first + width).map(|i| f64::from(mask.factor(i as u64))).collect())
            };
            vec![x[0].iter().enumerate().map(row).collect()]
        });
        PrimitiveCase { options: format!("a share of {share}"), ..case }
    };
    // Nothing is dropped, a usual share, and all but a tenth.
    [0.0, 0.25, 0.9].into_iter().map(case).collect()
}

/// To another width and back, with numbers that 8 bits of fraction hold.
pub fn cast<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let there_and_back = |x: &Tensor<B>| {
        let half = primitives::cast(DType::Bf16, x)?;
        primitives::cast(DType::F16, &primitives::cast(x.dtype(), &half)?).and_then(|h| primitives::cast(x.dtype(), &h))
    };
    let mut case = single("cast", |x| x.scale(1.0), move |x, dy| Ok((there_and_back(x)?, there_and_back(dy)?)));
    // Sixteenths of normal numbers take seven bits or so: nothing is rounded on the way.
    for array in [&mut case.slots[0].leaf.array, &mut case.outputs[0].upstream] {
        *array = Array::new(array.shape.clone(), array.values.iter().map(|x| (x * 16.0).round() / 16.0).collect());
    }
    vec![case]
}

/// One array `[3, 37]`: rows that no run of 16 bytes divides.
/// `device` takes x and the gradient of y, and returns y and the gradient of x.
fn single<B: Primitives>(
    name: &'static str,
    equation: impl Fn(&Var) -> Var + 'static,
    device: impl Fn(&Tensor<B>, &Tensor<B>) -> Result<(Tensor<B>, Tensor<B>)> + 'static,
) -> PrimitiveCase<B> {
    let random = &mut Random::new(7);
    let (x, dy) = (random.normals([3, 37]), random.normals([3, 37]));
    PrimitiveCase {
        name,
        options: x.shape.to_string(),
        slots: vec![Slot::rows("x", x)],
        outputs: vec![Output::new("y", dy)],
        forward: Box::new(move |x| vec![each(&x[0], &equation)]),
        device: Box::new(move |x, dy| {
            let (y, dx) = device(&x[0], &dy[0])?;
            Ok(CaseResult { outputs: vec![y], grads: vec![Some(dx)] })
        }),
    }
}
