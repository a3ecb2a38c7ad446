//! What a language model begins and ends with: rows of a table, the loss, the step of the optimiser.

use super::{CaseResult, Output, PrimitiveCase, Slot, each, pick};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::{
    Result, Tensor,
    primitives::{self, AdamW, Clip, DeviceStep, LossBackward, LossInputs, Losses, PlacedUpdate, Update},
};

/// Ids that repeat, and rows that none names.
pub fn embedding<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let case = |(vocabulary, width, shape): (usize, usize, &[usize])| {
        let random = &mut Random::new(41);
        let table = random.normals([vocabulary, width]);
        // Six ids at the most, so rows of the table's gradient add up several tokens each.
        let ids: Vec<u32> = (0..shape.iter().product()).map(|_| random.below(vocabulary.min(6)) as u32).collect();
        // `[…ids, width]`.
        let out: Vec<usize> = shape.iter().copied().chain([width]).collect();
        let (host, shape) = (ids.clone(), shape.to_vec());
        PrimitiveCase {
            name: "embedding",
            options: format!("{} ids {shape:?}", table.shape),
            slots: vec![Slot::rows("table", table)],
            outputs: vec![Output::new("y", random.normals(out))],
            forward: Box::new(move |x: &[Vec<Var>]| vec![host.iter().map(|&id| x[0][id as usize].clone()).collect()]),
            device: Box::new(move |x: &[Tensor<B>], dy: &[Tensor<B>]| {
                let ids = Tensor::from_u32(x[0].device(), &shape[..], ids.clone())?;
                let dtable = primitives::embedding_backward(vocabulary, &ids, &dy[0])?;
                Ok(CaseResult { outputs: vec![primitives::embedding(&x[0], &ids)?], grads: vec![Some(dtable)] })
            }),
        }
    };
    // Rows wider than a warp, and a table of which most rows are not named.
    [(11, 5, &[2, 7][..]), (1, 3, &[4]), (300, 33, &[90])].map(case).into()
}

/// How losses and their gradient are made.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    /// One after the other.
    Apart,
    /// At once, of logits that somebody else holds.
    Held,
    /// At once, and the gradient may take the logits' place.
    Own,
}

/// Losses, then the gradient.
pub fn cross_entropy<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    losses(Pass::Apart)
}

/// Both at once.
pub fn cross_entropy_and_gradient<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    [losses(Pass::Held), losses(Pass::Own)].into_iter().flatten().collect()
}

/// Rows of logits near and far from each other, and longer than there are classes.
fn losses<B: Primitives>(pass: Pass) -> Vec<PrimitiveCase<B>> {
    let case = |(shape, spread, after): (&[usize], f64, usize)| {
        let random = &mut Random::new(43);
        let mut logits = random.normals(shape);
        // At a spread of 30 a softmax without its maximum taken off would overflow 32 bits.
        logits.values.iter_mut().for_each(|x| *x *= spread);
        let logits = logits.rounded(hecate_core::DType::F32);
        let (rows, width) = (shape[..shape.len() - 1].to_vec(), logits.shape.last());
        // Columns after the classes pad the rows: they take no part, and their gradient is 0.
        let classes = width - after;
        let targets: Vec<u32> = (0..logits.shape.rows()).map(|_| random.below(classes) as u32).collect();
        // The gradient of every loss: `cross_entropy_backward` takes one number for all rows.
        let (host, factor) = (targets.clone(), 0.25);
        // `lse` is kept for the backward and has no gradient.
        let upstream = |value| Array::full(&rows[..], value);
        let apart = pass == Pass::Apart;
        let mut outputs = vec![Output::wide("losses", upstream(factor)), Output::wide("lse", upstream(0.0))];
        outputs.truncate(if apart { 2 } else { 1 });
        PrimitiveCase {
            name: if apart { "cross_entropy" } else { "cross_entropy_and_gradient" },
            options: format!(
                "{} spread {spread} classes {classes}{}",
                logits.shape,
                if pass == Pass::Own { " in place" } else { "" }
            ),
            outputs,
            slots: vec![Slot::rows("logits", logits)],
            forward: Box::new(move |x: &[Vec<Var>]| {
                // A product with ones and zeros leaves the padding out of the sum.
                let looked_at = [vec![1.0; classes], vec![0.0; after]].concat();
                let lse = each(&x[0], |x| x.exp().dot(&x.constant(width, 1, looked_at.clone())).ln());
                let target = |x: &Var, i: usize| x.dot(&pick(x, width, host[i] as usize));
                // `lse − x_target`.
                let losses = lse.iter().zip(&x[0]).enumerate().map(|(i, (lse, x))| lse - target(x, i));
                let losses = losses.collect();
                if apart { vec![losses, lse] } else { vec![losses] }
            }),
            device: Box::new(move |x: &[Tensor<B>], _: &[Tensor<B>]| {
                let targets = Tensor::from_u32(x[0].device(), &rows[..], targets.clone())?;
                if !apart {
                    // A product with 1 is an array that nobody else holds.
                    let logits = if pass == Pass::Own { primitives::scale(1.0, &x[0])? } else { x[0].clone() };
                    let inputs = LossInputs { classes, logits, targets };
                    let found = primitives::cross_entropy_and_gradient(factor as f32, inputs)?;
                    return Ok(CaseResult { outputs: vec![found.losses], grads: vec![Some(found.dlogits)] });
                }
                let inputs = LossInputs { classes, logits: &x[0], targets: &targets };
                let Losses { losses, lse } = primitives::cross_entropy(&inputs)?;
                // `factor (softmax(x) − 1_target)`.
                let call = LossBackward { inputs, lse: &lse, factor: factor as f32 };
                let dlogits = primitives::cross_entropy_backward(&call)?;
                Ok(CaseResult { outputs: vec![losses, lse], grads: vec![Some(dlogits)] })
            }),
        }
    };
    [(&[2, 3, 7][..], 1.0, 0), (&[5, 260], 3.0, 0), (&[4, 5], 30.0, 0), (&[3, 264], 3.0, 9), (&[4, 6], 1.0, 4)]
        .map(case)
        .into()
}

/// First and later steps, with and without decay and clipping.
pub fn adamw<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let constants =
        |step, weight_decay| AdamW { learning_rate: 1e-2, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay, step };
    vec![
        // At the first step the corrections of the means are largest; at the thousandth they are nearly 1.
        update(constants(1, 0.0), None, Way::Call),
        update(constants(7, 0.1), None, Way::Call),
        update(constants(1000, 0.1), Some(1.0), Way::Call),
        // This limit is over the gradient's norm: clipping is asked for and changes nothing.
        update(constants(3, 0.1), Some(1e6), Way::Call),
    ]
}

/// Later steps by numbers of the device: of arrays that keep their place, that somebody holds, and where a number is not finite.
pub fn adamw_placed<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let constants =
        |step, weight_decay| AdamW { learning_rate: 1e-2, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay, step };
    vec![
        update(constants(7, 0.1), None, Way::Placed),
        update(constants(1000, 0.1), Some(1.0), Way::Placed),
        update(constants(3, 0.1), Some(1.0), Way::Held),
        update(constants(3, 0.1), Some(1.0), Way::NotFinite(f32::NAN)),
        update(constants(3, 0.1), None, Way::NotFinite(f32::NEG_INFINITY)),
    ]
}

/// How a device is asked for a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// By numbers of the host.
    Call,
    /// By numbers of the device, where the arrays lie.
    Placed,
    /// So, of arrays that somebody else holds.
    Held,
    /// So, where a number is this one: nothing moves.
    NotFinite(f32),
}

/// One step of a parameter `[7,11]`, which core takes as one of three.
fn update<B: Primitives>(constants: AdamW, max_norm: Option<f32>, way: Way) -> PrimitiveCase<B> {
    let random = &mut Random::new(47);
    let shape = [7, 11];
    let (value, mean, grad) = (random.normals(shape), random.normals(shape), random.normals(shape));
    // Second moments are positive.
    let square = random.uniforms(shape, 0.1, 2.0);
    // `[1]` on the device, where `norm_squared` has left it in training.
    let norm_squared = grad.values.iter().map(|g| g * g).sum::<f64>() as f32;
    // Gradients are scaled down to the norm, never up.
    let shrink = max_norm.map_or(1.0, |max| (f64::from(max) / f64::from(norm_squared).sqrt()).min(1.0));
    let slots = [("value", value), ("mean", mean), ("square", square), ("grad", grad)];
    let wide = |(name, array)| Slot { wide: true, ..Slot::rows(name, array) };
    PrimitiveCase {
        name: if way == Way::Call { "adamw" } else { "adamw_placed" },
        options: format!("step {} decay {} clip {max_norm:?} {way:?}", constants.step, constants.weight_decay),
        slots: slots.map(wide).into(),
        outputs: ["value", "mean", "square"].map(|name| Output::wide(name, Array::full(shape, 1.0))).into(),
        forward: Box::new(move |x| {
            if let Way::NotFinite(_) = way {
                return x[..3].to_vec();
            }
            let rows = (0..x[0].len()).map(|i| step(&constants, shrink, [0, 1, 2, 3].map(|slot| &x[slot][i])));
            let mut columns = vec![Vec::new(); 3];
            rows.for_each(|row| columns.iter_mut().zip(row).for_each(|(column, x)| column.push(x)));
            columns
        }),
        device: Box::new(move |x, _| {
            let norm_squared = Tensor::from_f32(x[0].device(), [1], vec![norm_squared])?;
            let clip = max_norm.map(|max_norm| Clip { max_norm, norm_squared: &norm_squared });
            // All other ways are of the other function.
            if way != Way::Call {
                return placed(&constants, clip.as_ref(), x, way);
            }
            let slot = primitives::Slot { value: x[0].clone(), mean: x[1].clone(), square: x[2].clone() };
            let primitives::Slot { value, mean, square } =
                among(&constants, clip.as_ref(), Update { slot, grad: &x[3] })?;
            Ok(CaseResult { outputs: vec![value, mean, square], grads: vec![] })
        }),
    }
}

/// The update of value, mean and square by the gradient, in this order, with learning rate and step of the device alone.
fn placed<B: Primitives>(
    constants: &AdamW,
    clip: Option<&Clip<'_, B>>,
    x: &[Tensor<B>],
    way: Way,
) -> Result<CaseResult<B>> {
    let device = x[0].device();
    let copy = |x: &Tensor<B>| Tensor::from_f32(device, x.shape().clone(), x.to_f32()?);
    let mut arrays = x[..3].iter().map(copy).collect::<Result<Vec<_>>>()?;
    // Whoever holds arrays makes the step write elsewhere.
    let held = if way == Way::Held { arrays.clone() } else { Vec::new() };
    let last = if let Way::NotFinite(x) = way { x } else { 1.0 };
    // What a graph's host writes before a replay.
    let rates = Tensor::from_f32(device, [3], constants.rates().to_vec())?;
    let finite = Tensor::from_f32(device, [3], vec![-2.0, f32::MAX, last])?;
    let [value, mean, square] = &mut arrays[..] else { unreachable!("three arrays") };
    // A second parameter, longer than a block.
    let other = || Tensor::from_f32(device, [20_011], vec![0.5; 20_011]);
    let (grad, mut others) = (other()?, [other()?, other()?, other()?]);
    let [a, b, c] = &mut others;
    let updates = vec![
        PlacedUpdate { slot: primitives::Slot { value, mean, square }, grad: &x[3] },
        PlacedUpdate { slot: primitives::Slot { value: a, mean: b, square: c }, grad: &grad },
    ];
    let given = DeviceStep { rates: &rates, finite: &finite };
    // Whoever took these would be far off.
    primitives::adamw_placed(&AdamW { learning_rate: 7.0, step: 1, ..*constants }, clip, &given, updates)?;
    for (held, x) in held.iter().zip(x) {
        assert_eq!(held.to_f32()?, x.to_f32()?, "what somebody holds stays as it is");
    }
    // The other one tells whether anything moved, in blocks beside the first.
    let moved = others[0].to_f32()?;
    assert!(moved.iter().all(|x| x.to_bits() == moved[0].to_bits()), "all elements went the same way");
    assert_eq!(moved[0] != 0.5, !matches!(way, Way::NotFinite(_)), "{way:?}");
    Ok(CaseResult { outputs: arrays, grads: vec![] })
}

/// The update among those of a long and of a short parameter.
///
/// One call updates parameters of all lengths, so an update must not depend on where among them it stands.
fn among<B: Primitives>(
    constants: &AdamW,
    clip: Option<&Clip<'_, B>>,
    update: Update<'_, B>,
) -> Result<primitives::Slot<Tensor<B>>> {
    let device = update.grad.device();
    // More elements than several blocks have, and a single one.
    let other = |count| Tensor::from_f32(device, [count], vec![0.5; count]);
    let (long, short) = (other(20_011)?, other(1)?);
    let slot = |x: &Tensor<B>| primitives::Slot { value: x.clone(), mean: x.clone(), square: x.clone() };
    let of = |grad| Update { slot: slot(grad), grad };
    let updates = vec![of(&long), update, of(&short)];
    let mut updated = primitives::adamw_all(constants, clip, updates)?;
    assert_eq!(updated.len(), 3, "as many as were given");
    // All elements of the others went the same way.
    let (last, first) = (updated.remove(2), updated.remove(0));
    let one = last.value.to_f32()?[0];
    assert!(first.value.to_f32()?.iter().all(|x| x.to_bits() == one.to_bits()), "{one} and others");
    Ok(updated.remove(0))
}

/// Squared norm of gradients of different sizes.
pub fn norm_squared<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let random = &mut Random::new(53);
    // Uniform numbers of mean ½: squares that cancel nothing, over one to many blocks.
    let slots = [vec![1], vec![7, 11], vec![3, 5003], vec![2]]
        .map(|shape| Slot::rows("grad", random.uniforms(shape, -1.0, 2.0)))
        .into();
    let forward = |x: &[Vec<Var>]| {
        let squares: Vec<_> = x.iter().flatten().map(|row| row.square().sum()).collect();
        vec![vec![Var::total(squares)]]
    };
    let device = |x: &[Tensor<B>], _: &[Tensor<B>]| {
        let norm = primitives::norm_squared(x[0].device(), &x.iter().collect::<Vec<_>>())?;
        Ok(CaseResult { outputs: vec![norm], grads: vec![] })
    };
    vec![PrimitiveCase {
        name: "norm_squared",
        options: "four arrays".into(),
        slots,
        outputs: vec![Output::wide("y", Array::full([1], 1.0))],
        forward: Box::new(forward),
        device: Box::new(device),
    }]
}

/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2; all operands are rows of one shape.
fn step(constants: &AdamW, shrink: f64, [value, mean, square, grad]: [&Var; 4]) -> [Var; 3] {
    let [rate, beta1, beta2, epsilon, decay] =
        [constants.learning_rate, constants.beta1, constants.beta2, constants.epsilon, constants.weight_decay]
            .map(f64::from);
    let grad = grad.scale(shrink);
    let mean = mean.scale(beta1) + grad.scale(1.0 - beta1);
    let square = square.scale(beta2) + grad.square().scale(1.0 - beta2);
    // The means start at zero, so early ones are too small by `1 − βᵗ`.
    let unbiased = |x: &Var, beta: f64| x.scale(1.0 / (1.0 - beta.powf(f64::from(constants.step))));
    let direction = unbiased(&mean, beta1) * unbiased(&square, beta2).sqrt().shift(epsilon).recip();
    // Decay acts on the parameter itself and not through the gradient.
    [value - (direction + value.scale(decay)).scale(rate), mean, square]
}
