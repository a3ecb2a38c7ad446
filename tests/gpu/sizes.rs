//! Sizes that one block, tile or pass does not hold, against the CPU; and what the host does not look at.

use super::backends;
use hecate_conformance::{Random, error};
use hecate_core::{DType, Device, Host, Result, Sequences, Tensor, primitives::*};
use hecate_cpu::Cpu;

/// What is computed here, by name.
pub(crate) type Results<D> = Result<Vec<(String, Tensor<D>)>>;

/// Runs `work` on the device under test and on the CPU; results agree to what the type of each holds.
macro_rules! agree {
    ($work:ident) => {
        for gpu in backends() {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                compare($work(&gpu, dtype).unwrap(), $work(&Cpu::new(), dtype).unwrap());
            }
        }
    };
}

pub(crate) fn compare<A: Device, B: Device>(found: Vec<(String, Tensor<A>)>, truth: Vec<(String, Tensor<B>)>) {
    for ((name, found), (_, truth)) in found.iter().zip(&truth) {
        assert_eq!((found.shape(), found.dtype()), (truth.shape(), truth.dtype()), "{name}");
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let error = error(&wide(truth.to_f32().unwrap()), &wide(found.to_f32().unwrap()));
        // Two roundings of one number differ by a step of the type at most, and seldom by that.
        let limit = match found.dtype() {
            DType::Bf16 => 2e-3,
            DType::F16 => 3e-4,
            _ => 3e-6,
        };
        assert!(error <= limit, "{name} {} {}: {error:e}", found.dtype(), found.shape());
    }
}

/// Numbers that look like data, the same wherever they are asked for.
fn data<D: Device>(device: &D, dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor<D>> {
    Random::new(seed).uniforms(shape, -1.0, 1.0).upload(device, dtype)
}

/// Small ids often, large ones seldom.
fn ids<D: Device>(device: &D, count: usize, vocabulary: usize) -> Result<Tensor<D>> {
    let mut random = Random::new(9);
    let id = |_| (random.uniform(0.0, 1.0).powi(3) * vocabulary as f64) as u32;
    Tensor::from_u32(device, [count], (0..count).map(id).collect())
}

#[test]
fn rows() {
    agree!(rows_of);
}

fn rows_of<D: LayerNorm + Norm + Reduce + Softmax>(device: &D, dtype: DType) -> Results<D> {
    let mut results = Vec::new();
    let mut keep = |name: &str, x| results.push((name.to_owned(), x));
    // The last two have rows of four runs a thread of a block, with 32 bits and with 16; halves of the last have these too.
    let small = [[5000, 1], [3000, 3], [700, 40], [8300, 128], [4200, 264], [9, 768], [3, 5000], [70, 1026]];
    for shape in small.into_iter().chain([[300, 2048], [300, 4096], [5, 8208]]) {
        let x = data(device, dtype, &shape, 1)?;
        let (b, dy) = (data(device, dtype, &shape[1..], 2)?, data(device, dtype, &shape, 3)?);
        keep("add", add(&x, &b)?);
        keep("sum_rows", sum_rows(&x, shape[1])?);
        // Of one sign: where numbers cancel, what is left is the rounding of the order that they are added in.
        keep("sum", sum(&map(Map::Sigmoid, &x)?)?);
        keep("sum_squares", sum_squares(&x)?);
        let Operands { a, b: db } = mul_backward(&x, &b, &dy)?;
        let shares = softmax(&x)?;
        // That of a single share is zero.
        if shape[1] > 1 {
            keep("dx of softmax", softmax_backward(&shares, &dy)?);
        }
        keep("softmax", shares);
        keep("da of mul", a);
        keep("db of mul", db);
        let g = data(device, dtype, &shape, 4)?;
        let plain = RmsNormOptions::new(1e-5);
        // As many groups as divide all lengths but the odd ones.
        let groups = if shape[1] % 2 == 0 { 2 } else { 1 };
        let other = RmsNormOptions { groups, one_plus: true, function: GateFunction::Sigmoid, ..plain };
        let [before, other_before] =
            [plain, other].map(|options| RmsNormOptions { place: GatePlace::Before, ..options });
        for (name, options, g) in [
            ("rms_norm", plain, None),
            ("rms_norm_gated", plain, Some(&g)),
            ("rms_norm of groups", other, None),
            ("rms_norm_gated of groups", other, Some(&g)),
            ("rms_norm_gated before", before, Some(&g)),
            ("rms_norm_gated of groups before", other_before, Some(&g)),
        ] {
            let inputs = RmsNormInputs { x: &x, weight: &b, g };
            let Normed { y, inverse } = rms_norm(&inputs, options)?;
            let grads = rms_norm_backward(&RmsNormBackward { options, inputs, inverse: &inverse, dy: &dy })?;
            assert_eq!(grads.g.is_some(), g.is_some(), "a gradient of the gate");
            keep(name, y);
            keep(&format!("dx of {name}"), grads.x);
            keep(&format!("dweight of {name}"), grads.weight);
            grads.g.into_iter().for_each(|dg| keep(&format!("dg of {name}"), dg));
        }
        let inputs = RmsNormInputs { x: &x, weight: &b, g: None };
        for options in [plain, other] {
            let AddedNorm { sum, normed: Normed { y, inverse } } = add_rms_norm(&g, &inputs, options)?;
            let inputs = RmsNormInputs { x: &sum, ..inputs };
            let call = RmsNormBackward { options, inputs, inverse: &inverse, dy: &dy };
            let grads = add_rms_norm_backward(&call, &g)?;
            keep("add_rms_norm", y);
            keep("dx of add_rms_norm", grads.x);
            keep("dweight of add_rms_norm", grads.weight);
            keep("sum of add_rms_norm", sum);
        }
        let inputs = LayerNormInputs { x: &x, weight: &b, bias: &b };
        let LayerNormed { y, mean, inverse } = layer_norm(&inputs, 1e-5)?;
        let call = LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy };
        let grads = layer_norm_backward(&call)?;
        let AddedLayerNorm { sum, normed } = add_layer_norm(&g, &inputs, 1e-5)?;
        let added = LayerNormInputs { x: &sum, ..inputs };
        let call = LayerNormBackward { inputs: added, mean: &normed.mean, inverse: &normed.inverse, dy: &dy };
        let added = add_layer_norm_backward(&call, &g)?;
        keep("add_layer_norm", normed.y);
        keep("dx of add_layer_norm", added.x);
        keep("dweight of add_layer_norm", added.weight);
        keep("dbias of add_layer_norm", added.bias);
        keep("sum of add_layer_norm", sum);
        keep("layer_norm", y);
        keep("dx of layer_norm", grads.x);
        keep("dweight of layer_norm", grads.weight);
        keep("dbias of layer_norm", grads.bias);
        let Normed { y, inverse } = l2_norm(&x, 1e-3)?;
        keep("dx of l2_norm", l2_norm_backward(&x, &inverse, &dy)?);
        keep("l2_norm", y);
    }
    Ok(results)
}

#[test]
fn conversions() {
    agree!(conversions_of);
}

/// Arrays that take several blocks, one, and a part of one, in one call.
fn conversions_of<D: Elementwise>(device: &D, dtype: DType) -> Results<D> {
    let arrays = [1, 7, 8192, 40_003, 16].map(|count| data(device, dtype, &[count], count as u64));
    let arrays = arrays.into_iter().collect::<Result<Vec<_>>>()?;
    let mut results = Vec::new();
    for to in [DType::F32, DType::Bf16, DType::F16] {
        let all = cast_all(to, &arrays.iter().collect::<Vec<_>>())?;
        results.extend(all.into_iter().map(|y| (format!("{dtype} as {to}"), y)));
    }
    let mixed = [cast(DType::Bf16, &arrays[3])?, cast(DType::F16, &arrays[1])?, cast(DType::F32, &arrays[0])?];
    let all = cast_all(DType::F32, &mixed.iter().collect::<Vec<_>>())?;
    results.extend(all.into_iter().map(|y| ("several as f32".to_owned(), y)));
    Ok(results)
}

#[test]
fn convolutions() {
    agree!(convolutions_of);
}

/// Sequences shorter than what is kept, and longer than a thread's rows; channels that fill a block's lanes, and do not.
fn convolutions_of<D: Conv + Elementwise + Norm>(device: &D, dtype: DType) -> Results<D> {
    let sequences = Sequences::packed(&[300, 2, 1, 397]);
    let unit = |width, epsilon| Some(L2Norm { width, epsilon });
    let cases = [
        (264, 4, None),
        (264, 4, unit(8, 1e-3)),
        (640, 4, unit(128, 0.0)),
        (32, 4, unit(32, 1e-25)),
        (132, 4, None),
        (33, 4, None),
        (264, 3, None),
    ];
    let mut results = Vec::new();
    for (channels, taps, unit) in cases {
        let options = ConvOptions { silu: true, l2_norm: unit };
        let dims = ConvDims { sequences: sequences.clone(), channels, width: taps, options };
        // What is rounded between two kernels differs by more than what is rounded once.
        let inside = if unit.is_none() || device.has_l2_norm(&dims) { dtype } else { DType::F32 };
        let array = |shape: &[usize], seed| cast(inside, &data(device, dtype, shape, seed)?);
        let (tokens, kept) = ([1, sequences.rows(), channels], [sequences.count(), taps - 1, channels]);
        let (x, dy, before, dfinal) = (array(&tokens, 1)?, array(&tokens, 2)?, array(&kept, 3)?, array(&kept, 4)?);
        let weight = array(&[channels, taps], 5)?;
        let inputs = ConvInputs { x: &x, weight: &weight, state: &before };
        let ConvOutputs { y, state } = conv(options, &sequences, &inputs)?;
        let call = ConvBackward { inputs, dy: &dy, dfinal: Some(&dfinal) };
        let d = conv_backward(options, &sequences, &call)?;
        for (name, array) in [("y", y), ("last", state), ("dx", d.x), ("dweight", d.weight), ("dstate", d.state)] {
            results.push((format!("{name} of a convolution, {channels} channels, {options:?}"), cast(dtype, &array)?));
        }
    }
    Ok(results)
}

#[test]
fn tables() {
    agree!(tables_of);
}

fn tables_of<D: Embedding + Loss>(device: &D, dtype: DType) -> Results<D> {
    let mut results = Vec::new();
    let mut keep = |name: &str, x| results.push((name.to_owned(), x));
    for (vocabulary, count, width) in [(300, 3000, 40), (256, 257, 3), (70_000, 70_000, 1), (5, 9, 130)] {
        let ids = ids(device, count, vocabulary)?;
        keep("embedding", embedding(&data(device, dtype, &[vocabulary, width], 4)?, &ids)?);
        let dy = data(device, dtype, &[count, width], 5)?;
        keep("dtable of embedding", embedding_backward(vocabulary, &ids, &dy)?);
    }
    // A row of 9,000 is more than a block asks for at once.
    for (shape, classes) in [([3, 1500], 1500), ([5, 301], 301), ([4, 304], 291), ([2, 9008], 9000), ([3, 9001], 8999)]
    {
        let (logits, targets) = (data(device, dtype, &shape, 6)?, ids(device, shape[0], classes)?);
        let inputs = LossInputs { classes, logits: &logits, targets: &targets };
        let Losses { losses, lse } = cross_entropy(&inputs)?;
        keep("dlogits", cross_entropy_backward(&LossBackward { inputs, lse: &lse, factor: 0.3 })?);
        keep("losses", losses);
        keep("lse", lse);
        let inputs = LossInputs { classes, logits, targets };
        let LossesAndGradient { losses, dlogits } = cross_entropy_and_gradient(0.3, inputs)?;
        keep("losses, with their gradient", losses);
        keep("dlogits, with losses", dlogits);
    }
    Ok(results)
}

#[test]
fn products() {
    agree!(products_of);
}

/// Products that fill a GPU, even in large tiles.
const MANY: usize = 128;

pub(crate) fn products_of<D: Features + Matmul>(device: &D, dtype: DType) -> Results<D> {
    let mut results = Vec::new();
    let mut keep = |name: String, x| results.push((name, x));
    for [m, k, n, batch] in
        [[1, 300, 200, 1], [65, 17, 129, 3], [200, 1, 1, 2], [1, 1000, 1, 2], [130, 20, 129, MANY], [200, 328, 264, 1]]
    {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let transpose = Transpose { a, b };
            let x = data(device, dtype, &if a { [batch, k, m] } else { [batch, m, k] }, 9)?;
            let y = data(device, dtype, &if b { [batch, n, k] } else { [batch, k, n] }, 10)?;
            keep(format!("{transpose:?}"), matmul(&x, &y, transpose)?);
            if batch < MANY {
                let grads = matmul_backward(&x, &y, transpose, &data(device, dtype, &[batch, m, n], 11)?)?;
                keep(format!("da of {transpose:?}"), grads.a);
                keep(format!("db of {transpose:?}"), grads.b);
            }
        }
    }
    // Several matrices of few rows, and one of more columns than it takes to fill a GPU without dividing sums.
    for (rows, inner, columns) in [(33, 64, &[130, 200, 70][..]), (12, 32, &[17_500])] {
        let x = data(device, dtype, &[rows, inner], 12)?;
        let weights = columns.iter().map(|&columns| data(device, dtype, &[columns, inner], columns as u64));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        for y in matmul_each(&x, &weights.iter().collect::<Vec<_>>())? {
            keep(format!("{rows} rows of several matrices"), y);
        }
    }
    for width in [2, 100, 260] {
        let x = data(device, dtype, &[3, width], 7)?;
        let y = poly2(&x, POLY2)?;
        let dy = data(device, dtype, y.shape().axes(), 8)?;
        keep("dx of poly2".into(), poly2_backward(&x, POLY2, &dy)?);
        keep("poly2".into(), y);
    }
    Ok(results)
}

/// A row times a vocabulary: columns that no number of neighbours divides, and rows longer than a warp reads at once.
#[test]
fn vocabularies() {
    agree!(vocabularies_of);
}

fn vocabularies_of<D: Elementwise + Projection>(device: &D, dtype: DType) -> Results<D> {
    let mut results = Vec::new();
    for (inner, columns) in [(40, 8197), (808, 8194)] {
        // Numbers that the matrix' type has: rows are not rounded again.
        let x = cast(DType::F32, &data(device, dtype, &[1, inner], 14)?)?;
        let (w, norm) = (data(device, dtype, &[columns, inner], 15)?, data(device, DType::F32, &[inner], 16)?);
        let norms = [None, Some((&norm, 0.5))];
        for norm in norms.into_iter().filter(|norm| norm.is_none() || dtype == DType::F32) {
            let y = project(&ProjectionInputs { x: &x, norm, weights: &[&w], end: ProjectionEnd::Each })?;
            results.extend(y.into_iter().map(|y| (format!("{columns} columns, norm {}", norm.is_some()), y)));
        }
    }
    Ok(results)
}

#[test]
fn places() {
    agree!(places_of);
}

fn places_of<D: Elementwise + Layout + Rotary>(device: &D, dtype: DType) -> Results<D> {
    let mut results = Vec::new();
    let mut keep = |name: &str, x| results.push((name.to_owned(), x));
    let x = data(device, dtype, &[16, 24, 32], 12)?;
    for axis in 0..3 {
        for (start, count) in [(0, 8), (4, 12), (3, 5), (2, 2)] {
            let y = narrow(&x, axis, start, count)?;
            keep("dx of narrow", narrow_backward(x.shape(), axis, start, count, &y)?);
            keep("concat", concat(&[&x, &y, &x], axis)?);
            keep("narrow", y);
        }
    }
    let (sequences, offsets) = (Sequences::packed(&[3, 40, 1, 7]), [5, 1_000_000, 0, 70_000]);
    let x = data(device, dtype, &[1, 51, 3, 64], 13)?;
    keep("rotary", rotary(&x, &sequences, &offsets, 10_000.0)?);
    keep("dx of rotary", rotary_backward(&x, &sequences, &offsets, 10_000.0)?);
    let far = [-1e30, -1e20, -200.0, -30.0, -8.0, -1e-3, 0.0, 1e-3, 8.0, 30.0, 80.0];
    let (x, dy) = (Tensor::from_f32(device, [11], far.to_vec())?, Tensor::from_f32(device, [11], vec![1.0; 11])?);
    for curve in Map::ALL {
        keep(curve.name(), map(curve, &x)?);
        keep(curve.name(), map_backward(curve, &x, &dy)?);
    }
    Ok(results)
}

/// Losses, and the gradient of their sum times `factor`: one after the other, and at once.
fn losses_and_gradient<D: Loss>(
    classes: usize,
    logits: &Tensor<D>,
    targets: &Tensor<D>,
    factor: f32,
) -> [(Tensor<D>, Tensor<D>); 2] {
    let inputs = LossInputs { classes, logits, targets };
    let Losses { losses, lse } = cross_entropy(&inputs).unwrap();
    let dlogits = cross_entropy_backward(&LossBackward { inputs, lse: &lse, factor }).unwrap();
    let inputs = LossInputs { classes, logits: logits.clone(), targets: targets.clone() };
    let found = cross_entropy_and_gradient(factor, inputs).unwrap();
    [(losses, dlogits), (found.losses, found.dlogits)]
}

/// Ids and targets that a table does not have: NaN in their rows, no share in the gradient, nothing elsewhere.
#[test]
fn outside_the_vocabulary() {
    for gpu in backends() {
        let nan = |x: &Tensor<_>| x.to_f32().unwrap().into_iter().map(f32::is_nan).collect::<Vec<_>>();
        let table = data(&gpu, DType::F32, &[3, 2], 1).unwrap();
        let ids = Tensor::from_u32(&gpu, [4], vec![0, 3, u32::MAX, 2]).unwrap();
        let y = embedding(&table, &ids).unwrap();
        assert_eq!(nan(&y), [false, false, true, true, true, true, false, false]);
        let dy = Tensor::from_f32(&gpu, [4, 2], vec![1.0, 2.0, 9.0, 9.0, 9.0, 9.0, 3.0, 4.0]).unwrap();
        let dtable = embedding_backward(3, &ids, &dy).unwrap();
        assert_eq!(dtable.download().unwrap(), Host::F32(vec![1.0, 2.0, 0.0, 0.0, 3.0, 4.0]));
        let targets = Tensor::from_u32(&gpu, [3], vec![0, 2, 1]).unwrap();
        for (losses, dlogits) in losses_and_gradient(2, &table, &targets, 1.0) {
            assert_eq!(nan(&losses), [false, true, false]);
            assert_eq!(nan(&dlogits), [false, false, true, true, false, false]);
        }
        // Minus infinity is a class that cannot be, wherever it stands.
        for dtype in [DType::F32, DType::Bf16] {
            let never = |i: usize| if i % 64 < 8 || i % 64 == 56 { f32::NEG_INFINITY } else { 1.0 };
            let logits = (0..128).map(|i| if i % 64 > 56 { f32::NAN } else { never(i) }).collect();
            let logits = cast(dtype, &Tensor::from_f32(&gpu, [2, 64], logits).unwrap()).unwrap();
            let targets = Tensor::from_u32(&gpu, [2], vec![9, 55]).unwrap();
            let slope = |i: usize| match i {
                9 | 119 => -47.0,
                _ if i % 64 < 8 || i % 64 > 55 => 0.0,
                _ => 1.0,
            };
            for (losses, dlogits) in losses_and_gradient(57, &logits, &targets, 48.0) {
                losses.to_f32().unwrap().iter().for_each(|loss| assert!((loss - 48f32.ln()).abs() < 1e-5, "{loss}"));
                let dlogits = dlogits.to_f32().unwrap();
                dlogits.iter().enumerate().for_each(|(i, &x)| assert!((x - slope(i)).abs() < 1e-2, "{i}: {x}"));
            }
        }
        // A column after the classes is none, and nobody looks at what stands there.
        let filled = Tensor::from_f32(&gpu, [2, 3], vec![1.0, 2.0, f32::NAN, 3.0, 4.0, f32::INFINITY]).unwrap();
        let targets = Tensor::from_u32(&gpu, [2], vec![1, 2]).unwrap();
        for (losses, dlogits) in losses_and_gradient(2, &filled, &targets, 1.0) {
            assert_eq!(nan(&losses), [false, true]);
            assert_eq!(nan(&dlogits), [false, false, false, true, true, false]);
        }
    }
}

/// A step in place, and one beside arrays that somebody else holds, which stay.
#[test]
fn steps_in_place() {
    for gpu in backends() {
        let constants =
            AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1, step: 3 };
        let make = |seed| Random::new(seed).uniforms([1000], 0.1, 1.0).upload(&gpu, DType::F32).unwrap();
        let slot = || Slot { value: make(1), mean: make(2), square: make(3) };
        let (kept, grad) = (slot(), make(4));
        let alone = adamw(&constants, None, slot(), &grad).unwrap();
        let beside = adamw(&constants, None, kept.clone(), &grad).unwrap();
        let host = |slot: Slot<Tensor<_>>| [slot.value, slot.mean, slot.square].map(|x| x.download().unwrap());
        assert_eq!(host(alone), host(beside));
        assert_eq!(host(kept), host(slot()));
    }
}
