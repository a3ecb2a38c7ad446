//! Normalised rows.
//!
//! Rows are `[…,d]`, weights `[d]`; `r`, one number a row or group, is kept in 32 bits for the backward and has no gradient.

use super::{CaseResult, Output, PrimitiveCase, Slot, elementwise::equation};
use crate::{Array, Random, oracle::Var};
use hecate_core::{
    Tensor,
    primitives::{
        self, AddedLayerNorm, AddedNorm, GateFunction, GatePlace, LayerNormBackward, LayerNormInputs, LayerNormed,
        Normed, Primitives, RmsNormBackward, RmsNormInputs, RmsNormOptions,
    },
};

/// `x r w`, `r = 1/√(mean x² + ε)`, and the same in groups and with weights that are what they add to one.
pub fn rms_norm<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let plain = RmsNormOptions::new;
    // Weights that are stored as what they add to one.
    let of_one = |epsilon, groups| RmsNormOptions { groups, one_plus: true, ..plain(epsilon) };
    // Rows of one element, of five, and of more than four warps; groups that begin anywhere and that fill runs.
    let cases: [(&[usize], RmsNormOptions); 7] = [
        (&[2, 3, 5], plain(1e-5)),
        (&[1, 1], plain(1e-2)),
        (&[9, 130], plain(1e-6)),
        // Of one group, and of two that no run divides.
        (&[3, 5], of_one(1e-5, 1)),
        (&[2, 3, 10], of_one(1e-5, 2)),
        // Of three, which is no power of two.
        (&[5, 96], RmsNormOptions { groups: 3, ..plain(1e-5) }),
        // As wide as those of large models: a block a row.
        (&[3, 2048], of_one(1e-6, 1)),
    ];
    cases.into_iter().map(|(shape, options)| rms_case("rms_norm", shape, options, false)).collect()
}

/// `x r w act(g)`, or `x act(g)` instead of `x`.
pub fn rms_norm_gated<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let plain = RmsNormOptions::new;
    // The other place and the other function.
    let (place, function) = (GatePlace::Before, GateFunction::Sigmoid);
    let cases: [(&[usize], RmsNormOptions); 15] = [
        (&[2, 3, 5], plain(1e-5)),
        (&[1, 1], plain(1e-2)),
        (&[9, 130], plain(1e-6)),
        (&[5, 2, 64], plain(1e-5)),
        // One option after another, then several together.
        (&[5, 64], RmsNormOptions { function, ..plain(1e-5) }),
        (&[3, 10], RmsNormOptions { function, groups: 2, one_plus: true, ..plain(1e-5) }),
        // As Mamba-2 has it.
        (&[5, 64], RmsNormOptions { place, groups: 4, ..plain(1e-5) }),
        (&[2, 3, 5], RmsNormOptions { place, function, one_plus: true, ..plain(1e-5) }),
        // A block a row.
        (&[3, 1056], RmsNormOptions { function, ..plain(1e-5) }),
        (&[3, 1056], RmsNormOptions { place, ..plain(1e-5) }),
        // A warp a row with several runs a lane, and groups that have a block each, of either place.
        (&[40, 264], RmsNormOptions { place, ..plain(1e-5) }),
        (&[3, 2080], RmsNormOptions { place, function, groups: 2, one_plus: true, ..plain(1e-5) }),
        (&[9, 96], RmsNormOptions { groups: 3, ..plain(1e-5) }),
        (&[3, 2080], RmsNormOptions { function, groups: 2, ..plain(1e-5) }),
        // More rows than get a block each.
        (&[70, 24], RmsNormOptions { place, function, ..plain(1e-5) }),
    ];
    cases.into_iter().map(|(shape, options)| rms_case("rms_norm_gated", shape, options, true)).collect()
}

/// One shape with these options, and a gate or none.
fn rms_case<B: Primitives>(
    name: &'static str,
    shape: &[usize],
    options: RmsNormOptions,
    gated: bool,
) -> PrimitiveCase<B> {
    // All are drawn, so that a case without a gate has the same rows as one with it.
    let random = &mut Random::new(11);
    let (x, g, dy) = (random.normals(shape), random.normals(shape), random.normals(shape));
    let (width, rows) = (x.shape.last(), x.shape.rows());
    let weight = random.uniforms([width], 0.5, 1.5);
    // A group is a matrix of its own.
    let tile = (1, width / options.groups);
    let inverse = Output::wide("inverse", Array::full([rows * options.groups], 0.0));
    // Options in full: a failure names the one that matters.
    let described = format!("{} {options:?}", x.shape);
    // In the order of the gradients.
    let mut slots = vec![Slot::tiles("x", x, tile), Slot::tiles("weight", weight, tile)];
    slots.extend(gated.then(|| Slot::tiles("g", g, tile)));
    PrimitiveCase {
        name,
        options: described,
        slots,
        outputs: vec![Output::new("y", dy), inverse],
        forward: Box::new(move |x: &[Vec<Var>]| rms_equation(options, &x[0], &x[1], x.get(2).map(Vec::as_slice))),
        device: Box::new(move |x: &[_], dy: &[_]| {
            rms_answer(RmsNormInputs { x: &x[0], weight: &x[1], g: x.get(2) }, options, &dy[0])
        }),
    }
}

/// Groups of rows, those of the weight, and the gate's: results, and `r`.
fn rms_equation(options: RmsNormOptions, x: &[Var], weight: &[Var], g: Option<&[Var]>) -> Vec<Vec<Var>> {
    // What the gate makes of its argument, and rows times that; rows as they are without a gate.
    let act = |g: &Var| equation(options.function.map(), g);
    let gate = |x: &[Var]| g.map_or_else(|| x.to_vec(), |g| x.iter().zip(g).map(|(x, g)| x * act(g)).collect());
    // A mean is over a group, which is a matrix here.
    let scale = 1.0 / x[0].shape().1 as f64;
    let x = if options.place == GatePlace::Before { gate(x) } else { x.to_vec() };
    let mut results = normalise(&x, scale, f64::from(options.epsilon), None);
    // The weight of a row, group after group, comes again for each row.
    let offset = f64::from(u8::from(options.one_plus));
    results[0].iter_mut().zip(weight.iter().cycle()).for_each(|(y, w)| *y = &*y * w.shift(offset));
    // Else it acted before.
    if options.place == GatePlace::After {
        results[0] = gate(&results[0]);
    }
    results
}

/// Results and gradients; there is one of the gate where there is a gate.
fn rms_answer<B: Primitives>(
    inputs: RmsNormInputs<&Tensor<B>>,
    options: RmsNormOptions,
    dy: &Tensor<B>,
) -> hecate_core::Result<CaseResult<B>> {
    let Normed { y, inverse } = primitives::rms_norm(&inputs, options)?;
    let grads = primitives::rms_norm_backward(&RmsNormBackward { options, inputs, inverse: &inverse, dy })?;
    assert_eq!(grads.g.is_some(), inputs.g.is_some(), "a gradient of the gate");
    let of_gate = grads.g.into_iter().map(Some);
    Ok(CaseResult {
        outputs: vec![y, inverse],
        grads: [Some(grads.x), Some(grads.weight)].into_iter().chain(of_gate).collect(),
    })
}

/// `s = x + residual`, and the norm of `s`; `s` has a gradient of its own.
pub fn add_rms_norm<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(shape, options): (&[usize], RmsNormOptions)| {
        let random = &mut Random::new(15);
        let (x, residual) = (random.normals(shape), random.normals(shape));
        let (dsum, dy) = (random.normals(shape), random.normals(shape));
        let (width, rows) = (x.shape.last(), x.shape.rows());
        let (weight, tile) = (random.uniforms([width], 0.5, 1.5), (1, width / options.groups));
        PrimitiveCase {
            name: "add_rms_norm",
            options: format!("{} {options:?}", x.shape),
            slots: vec![
                Slot::tiles("x", x, tile),
                Slot::tiles("weight", weight, tile),
                Slot::tiles("residual", residual, tile),
            ],
            outputs: vec![
                Output::new("sum", dsum),
                Output::new("y", dy),
                Output::wide("inverse", Array::full([rows * options.groups], 0.0)),
            ],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // The sum is a result too, in front of the others.
                let sums: Vec<Var> = x[0].iter().zip(&x[2]).map(|(x, residual)| x + residual).collect();
                let mut results = rms_equation(options, &sums, &x[1], None);
                results.insert(0, sums);
                results
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let inputs = RmsNormInputs { x: &x[0], weight: &x[1], g: None };
                let AddedNorm { sum, normed } = primitives::add_rms_norm(&x[2], &inputs, options)?;
                // The backward begins at the sum, as the forward left it.
                let inputs = RmsNormInputs { x: &sum, ..inputs };
                let call = RmsNormBackward { options, inputs, inverse: &normed.inverse, dy: &dy[1] };
                let grads = primitives::add_rms_norm_backward(&call, &dy[0])?;
                // Both summands have one gradient.
                let (dx, dweight) = (grads.x, grads.weight);
                let outputs = vec![sum, normed.y, normed.inverse];
                Ok(CaseResult { outputs, grads: vec![Some(dx.clone()), Some(dweight), Some(dx)] })
            }),
        }
    };
    let plain = RmsNormOptions::new;
    // Rows of part of a warp, of a warp, of a block, and rows that are read twice. Sums of 16 bits are rounded once more than
    // arguments are; over many rows that makes a fifth of the error that rounding these makes.
    [
        (&[9, 7, 5][..], plain(1e-5)),
        (&[40, 64], RmsNormOptions { one_plus: true, ..plain(1e-5) }),
        (&[40, 264], plain(1e-5)),
        (&[40, 1032], plain(1e-6)),
        (&[40, 96], RmsNormOptions { groups: 3, ..plain(1e-5) }),
    ]
    .map(case)
    .into()
}

/// `(x − m) r w + b`, `m` the mean, `r = 1/√(variance + ε)`.
pub fn layer_norm<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(shape, epsilon): (&[usize], f32)| {
        let random = &mut Random::new(14);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let (width, rows) = (x.shape.last(), x.shape.rows());
        let (weight, bias) = (random.uniforms([width], 0.5, 1.5), random.normals([width]));
        let kept = |name| Output::wide(name, Array::full([rows], 0.0));
        PrimitiveCase {
            name: "layer_norm",
            options: format!("{} ε {epsilon:e}", x.shape),
            slots: vec![Slot::rows("x", x), Slot::rows("weight", weight), Slot::rows("bias", bias)],
            outputs: vec![Output::new("y", dy), kept("mean"), kept("inverse")],
            forward: Box::new(move |x: &[Vec<Var>]| layer_equation(f64::from(epsilon), &x[0], [&x[1][0], &x[2][0]])),
            device: Box::new(move |x: &[_], dy: &[_]| {
                // In the order of the slots.
                let inputs = LayerNormInputs { x: &x[0], weight: &x[1], bias: &x[2] };
                let LayerNormed { y, mean, inverse } = primitives::layer_norm(&inputs, epsilon)?;
                let call = LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy[0] };
                let LayerNormInputs { x, weight, bias } = primitives::layer_norm_backward(&call)?;
                Ok(CaseResult { outputs: vec![y, mean, inverse], grads: vec![Some(x), Some(weight), Some(bias)] })
            }),
        }
    };
    // A row of one element is its bias. Rows of all ways to be spread over threads.
    let small = [(&[2, 3, 5][..], 1e-5), (&[1, 1], 1e-2), (&[9, 130], 1e-6), (&[5, 2, 64], 1e-5)];
    let large = [(&[3, 513][..], 1e-5), (&[3, 1024], 1e-5), (&[2, 4096], 1e-5), (&[2, 5000], 1e-5)];
    small.into_iter().chain(large).map(case).collect()
}

/// Rows, their means and their factors.
fn layer_equation(epsilon: f64, rows: &[Var], [weight, bias]: [&Var; 2]) -> Vec<Vec<Var>> {
    // A row is a matrix of one row here.
    let share = 1.0 / rows[0].shape().1 as f64;
    // Means first: they are a result as well.
    let means: Vec<Var> = rows.iter().map(|x| x.sum().scale(share)).collect();
    let centred: Vec<Var> = rows.iter().zip(&means).map(|(x, m)| x - m).collect();
    let mut results = normalise(&centred, share, epsilon, Some(weight));
    // The bias comes last, and results in the order of the primitive's.
    results[0].iter_mut().for_each(|y| *y = &*y + bias);
    results.insert(1, means);
    results
}

/// `s = x + residual`, and the layer norm of `s`; `s` has a gradient of its own.
pub fn add_layer_norm<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |shape: &[usize]| {
        let (random, epsilon) = (&mut Random::new(16), 1e-5);
        // Summands of one size: their sum is rounded as each of them is.
        let (x, residual) = (random.normals(shape), random.normals(shape));
        let (dsum, dy) = (random.normals(shape), random.normals(shape));
        let (width, rows) = (x.shape.last(), x.shape.rows());
        // Near one, so that no column hides.
        let (weight, bias) = (random.uniforms([width], 0.5, 1.5), random.normals([width]));
        // Kept for the backward, and of no gradient.
        let kept = |name| Output::wide(name, Array::full([rows], 0.0));
        PrimitiveCase {
            name: "add_layer_norm",
            options: x.shape.to_string(),
            slots: vec![
                Slot::rows("x", x),
                Slot::rows("weight", weight),
                Slot::rows("bias", bias),
                Slot::rows("residual", residual),
            ],
            outputs: vec![Output::new("sum", dsum), Output::new("y", dy), kept("mean"), kept("inverse")],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // What others go on with, in front of what the norm makes of it.
                let sums: Vec<Var> = x[0].iter().zip(&x[3]).map(|(x, residual)| x + residual).collect();
                let mut results = layer_equation(f64::from(epsilon), &sums, [&x[1][0], &x[2][0]]);
                results.insert(0, sums);
                results
            }),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let inputs = LayerNormInputs { x: &x[0], weight: &x[1], bias: &x[2] };
                let AddedLayerNorm { sum, normed } = primitives::add_layer_norm(&x[3], &inputs, epsilon)?;
                // From the sum as the forward left it, which may have 16 bits.
                let (inputs, LayerNormed { y, mean, inverse }) = (LayerNormInputs { x: &sum, ..inputs }, normed);
                let call = LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy[1] };
                let LayerNormInputs { x, weight, bias } = primitives::add_layer_norm_backward(&call, &dy[0])?;
                // Both summands have one gradient.
                let grads = vec![Some(x.clone()), Some(weight), Some(bias), Some(x)];
                Ok(CaseResult { outputs: vec![sum, y, mean, inverse], grads })
            }),
        }
    };
    // Rows of part of a warp, of a warp, of blocks with two runs a thread and with four, and rows that are read twice.
    [&[9, 7, 5][..], &[40, 64], &[40, 264], &[40, 1032], &[40, 4104]].map(case).into()
}

/// `x r`, `r = 1/√(|x|² + ε²)`.
pub fn l2_norm<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(shape, epsilon): (&[usize], f32)| {
        let random = &mut Random::new(13);
        let (x, dy) = (random.normals(shape), random.normals(shape));
        let rows = x.shape.rows();
        // `ε` itself joins the length, so its square joins the sum of squares.
        let squared = f64::from(epsilon) * f64::from(epsilon);
        PrimitiveCase {
            name: "l2_norm",
            options: format!("{} ε {epsilon:e}", x.shape),
            slots: vec![Slot::rows("x", x)],
            outputs: vec![Output::new("y", dy), Output::wide("inverse", Array::full([rows], 0.0))],
            forward: Box::new(move |x: &[Vec<Var>]| normalise(&x[0], 1.0, squared, None)),
            device: Box::new(move |x: &[_], dy: &[_]| {
                let Normed { y, inverse } = primitives::l2_norm(&x[0], epsilon)?;
                let dx = primitives::l2_norm_backward(&x[0], &inverse, &dy[0])?;
                Ok(CaseResult { outputs: vec![y, inverse], grads: vec![Some(dx)] })
            }),
        }
    };
    // An `ε` as large as the rows shows whether it is squared.
    [(&[2, 3, 5][..], 1e-6), (&[3, 4], 0.5), (&[9, 130], 1e-6)].map(case).into()
}

/// Rows times `r = 1/√(scale Σ x² + shift)` and `weight`, and the `r`.
fn normalise(rows: &[Var], scale: f64, shift: f64, weight: Option<&Var>) -> Vec<Vec<Var>> {
    let inverse = |x: &Var| x.square().sum().scale(scale).shift(shift).sqrt().recip();
    let inverses: Vec<Var> = rows.iter().map(inverse).collect();
    let weighted = |y: Var| weight.map_or_else(|| y.clone(), |w| &y * w);
    let y = rows.iter().zip(&inverses).map(|(x, r)| weighted(x * r)).collect();
    vec![y, inverses]
}
