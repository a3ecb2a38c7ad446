//! The tape itself: operations that no layer uses, and seeds that do not fit.

use crate::column::{Column, device, is_missing};
use hecate_core::{DType, Tensor};
use hecate_models::{Gradients, ParameterId, Parameters, Place, Probe, Result, Tape, Var};

pub(super) fn array(axes: &[usize], values: impl IntoIterator<Item = u8>) -> Tensor<Column> {
    let values = values.into_iter().map(f32::from).collect();
    Tensor::from_f32(&device(), axes.to_vec(), values).expect("an array")
}

/// Parameters `a [2,3]` and `b [2,1]`.
pub(super) fn parameters() -> Parameters<Column> {
    let mut parameters = Parameters::new();
    parameters.add("a", array(&[2, 3], 1..=6), false);
    parameters.add("b", array(&[2, 1], 7..=8), false);
    parameters
}

pub(super) fn values(gradients: &Gradients<Column>) -> Vec<Option<Vec<f32>>> {
    gradients.iter().map(|x| x.as_ref().map(|x| x.to_f32().expect("a gradient"))).collect()
}

#[test]
fn parts_and_joins_turn_around() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let [a, b] = [0, 1].map(|index| place(&parameters, index));
    let [a, b] = [a, b].map(|id| move |tape: &Tape<'_, Column>| tape.parameter(id).unwrap());
    let tape = Tape::recording(&parameters);
    // Columns 1 and 2 of a, b, and column 0 of a.
    let (tail, first) = (tape.narrow(&a(&tape), 1, 1, 2).unwrap(), tape.narrow(&a(&tape), 1, 0, 1).unwrap());
    let y = tape.concat(&[&tail, &b(&tape), &first], 1).unwrap();
    assert_eq!(y.value().to_f32().unwrap(), [2.0, 3.0, 7.0, 1.0, 5.0, 6.0, 8.0, 4.0]);
    let gradients = tape.backward_seeded([(y, array(&[2, 4], 1..=8))]).unwrap();
    assert_eq!(values(&gradients), [Some(vec![4.0, 1.0, 2.0, 8.0, 5.0, 6.0]), Some(vec![3.0, 7.0])]);
}

/// Two heads whose rows are 1, 2, 3 and 4, 5, 6, each times a matrix of its own.
#[test]
fn products_of_heads_turn_around() {
    if is_missing() {
        return;
    }
    let mut parameters = parameters();
    parameters.add("heads", array(&[2, 3, 1], [1, 0, 2, 0, 3, 1]), false);
    let tape = Tape::recording(&parameters);
    let [a, m] = [0, 2].map(|index| tape.parameter(place(&parameters, index)).unwrap());
    let out = tape.head_products(&a, &m).unwrap();
    assert_eq!(out.value().to_f32().unwrap(), [7.0, 21.0]);
    let gradients = values(&tape.backward_seeded([(out, array(&[2, 1], [1, 2]))]).unwrap());
    assert_eq!(gradients[0].as_ref().expect("a gradient"), &[1.0, 0.0, 2.0, 0.0, 6.0, 2.0]);
    assert_eq!(gradients[2].as_ref().expect("a gradient"), &[1.0, 2.0, 3.0, 8.0, 10.0, 12.0]);
}

/// Rows of 1, 2, 3 and of 4, 5, 6: their shares are alike, and so are they after a layer norm.
#[test]
fn rows_of_shares_and_of_mean_zero_turn_around() {
    if is_missing() {
        return;
    }
    let mut parameters = parameters();
    parameters.add("weight", array(&[3], [2, 1, 2]), false);
    parameters.add("bias", array(&[3], [0, 1, 3]), false);
    let tape = Tape::recording(&parameters);
    let [a, weight, bias] = [0, 2, 3].map(|index| tape.parameter(place(&parameters, index)).unwrap());
    let (shares, normed) = (tape.softmax(&a).unwrap(), tape.layer_norm(&a, &weight, &bias, 0.0).unwrap());
    let total: f64 = [1.0, 2.0, 3.0].map(f64::exp).iter().sum();
    let share = [1.0, 2.0, 3.0].map(|x: f64| x.exp() / total);
    let close = |found: &[f32], truth: &[f64]| {
        assert_eq!(found.len(), truth.len());
        found.iter().zip(truth).for_each(|(&x, &y)| assert!((f64::from(x) - y).abs() < 1e-5, "{found:?} {truth:?}"));
    };
    close(&shares.value().to_f32().unwrap(), &[share, share].concat());
    // √(3/2) times −1, 0 and 1, before weight and bias.
    let r = 1.5_f64.sqrt();
    close(&normed.value().to_f32().unwrap(), &[-2.0 * r, 1.0, 2.0 * r + 3.0].repeat(2));
    let seeds = [(shares, array(&[2, 3], [1, 0, 0, 0, 0, 0])), (normed, array(&[2, 3], [0, 0, 0, 0, 1, 1]))];
    let gradients = values(&tape.backward_seeded(seeds).unwrap());
    // A row is unmoved by what all its elements share, and by its own length.
    let along = [share[0] * (1.0 - share[0]), -share[0] * share[1], -share[0] * share[2]];
    let (h, n) = ([0.0, 1.0, 2.0], [-r, 0.0, r]);
    let part = (n[0] * h[0] + n[1] * h[1] + n[2] * h[2]) / 3.0;
    let across = [0, 1, 2].map(|i| r * (h[i] - 1.0 - n[i] * part));
    close(gradients[0].as_ref().expect("a gradient"), &[along, across].concat());
    close(gradients[2].as_ref().expect("a gradient"), &[0.0, 0.0, r]);
    close(gradients[3].as_ref().expect("a gradient"), &[0.0, 1.0, 1.0]);
}

/// A sum and its layer norm in one, with gradients of either or both, beside the same in two steps.
#[test]
fn sums_before_a_layer_norm_turn_around() {
    if is_missing() {
        return;
    }
    let mut parameters = parameters();
    parameters.add("residual", array(&[2, 3], [4, 0, 1, 2, 2, 9]), false);
    parameters.add("weight", array(&[3], [2, 1, 2]), false);
    parameters.add("bias", array(&[3], [0, 1, 3]), false);
    let gradients = |fused: bool, seeded: [bool; 2]| {
        let tape = Tape::recording(&parameters);
        let [a, residual, weight, bias] = [0, 2, 3, 4].map(|index| tape.parameter(place(&parameters, index)).unwrap());
        let results = if fused {
            tape.add_layer_norm([&a, &residual], [&weight, &bias], 0.0).unwrap()
        } else {
            let sum = tape.add(&a, &residual).unwrap();
            let normed = tape.layer_norm(&sum, &weight, &bias, 0.0).unwrap();
            [sum, normed]
        };
        let seeds = [array(&[2, 3], [1, 0, 5, 0, 2, 0]), array(&[2, 3], [0, 3, 0, 0, 1, 1])];
        let seeds = results.into_iter().zip(seeds).zip(seeded).filter(|(_, seeded)| *seeded).map(|(seed, _)| seed);
        values(&tape.backward_seeded(seeds).unwrap())
    };
    for seeded in [[true, true], [true, false], [false, true]] {
        let (found, truth) = (gradients(true, seeded), gradients(false, seeded));
        // Of a sum alone there is none for weight and bias.
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, seeded[1], seeded[1]]);
        let [found, truth] = [found, truth].map(|all| all.into_iter().flatten().flatten().collect::<Vec<_>>());
        assert_eq!(found.len(), truth.len());
        for (found, truth) in found.iter().zip(&truth) {
            assert!((found - truth).abs() < 1e-5, "{found} {truth}");
        }
    }
}

#[test]
fn ranges_turn_around() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let tape = Tape::recording(&parameters);
    let a = tape.parameter(place(&parameters, 0)).unwrap();
    let parts = tape.split(&a, 1, &[1, 2]).unwrap();
    assert_eq!(parts[1].value().to_f32().unwrap(), [2.0, 3.0, 5.0, 6.0]);
    // Of the first column nothing is made.
    let gradients = tape.backward_seeded([(parts[1].clone(), array(&[2, 2], 1..=4))]).unwrap();
    assert_eq!(values(&gradients), [Some(vec![0.0, 1.0, 2.0, 0.0, 3.0, 4.0]), None]);
    let inert = Tape::inert(&parameters);
    let message = inert.split(&a, 1, &[1, 1]).expect_err("refused").to_string();
    assert!(message.contains("lengths") && message.contains("[1, 1]"), "{message}");
}

#[test]
fn rounding_turns_around() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let tape = Tape::recording(&parameters);
    let y = tape.cast(DType::Bf16, &tape.parameter(place(&parameters, 1)).unwrap()).unwrap();
    assert_eq!(y.value().dtype(), DType::Bf16);
    let seed = hecate_core::primitives::cast(DType::Bf16, &array(&[2, 1], [3, 5])).unwrap();
    let gradients = tape.backward_seeded([(y, seed)]).unwrap();
    assert_eq!(gradients.iter().nth(1).unwrap().as_ref().unwrap().dtype(), DType::F32);
    assert_eq!(values(&gradients), [None, Some(vec![3.0, 5.0])]);
}

/// 256, 1 and 1 are 256 in 16 bits.
#[test]
fn gradients_of_rounded_weights_add_up_in_32_bits() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let tape = Tape::recording(&parameters).with_activations(DType::Bf16);
    let rounded = |values: [u8; 2]| hecate_core::primitives::cast(DType::Bf16, &array(&[2, 1], values)).unwrap();
    let half = Tensor::from_f32(&device(), [2, 1], vec![0.5, 0.25]).unwrap();
    let uses =
        [[128, 3], [128, 0], [1, 0], [1, 0]].map(|seed| (tape.weight(place(&parameters, 1)).unwrap(), rounded(seed)));
    assert!(uses.iter().all(|(y, _)| y.value().dtype() == DType::Bf16));
    let wide = (tape.parameter(place(&parameters, 1)).unwrap(), half);
    let gradients = tape.backward_seeded(uses.into_iter().chain([wide])).unwrap();
    assert_eq!(values(&gradients), [None, Some(vec![258.5, 3.25])]);
}

#[test]
fn seeds_that_do_not_fit_are_refused() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let refusal = |result: Result<Gradients<Column>>, words: &[&str]| {
        let message = result.expect_err("refused").to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
    };
    let backward = |seed| {
        let tape = Tape::recording(&parameters);
        let y = tape.scale(2.0, &tape.parameter(place(&parameters, 0)).unwrap()).unwrap();
        tape.backward_seeded([(y, seed)])
    };
    backward(array(&[2, 3], 1..=6)).unwrap();
    refusal(backward(array(&[3, 2], 1..=6)), &["seed", "[2, 3]", "[3, 2]"]);
    refusal(backward(Tensor::from_u32(&device(), [2, 3], vec![1; 6]).unwrap()), &["seed", "u32"]);
    let inert = Tape::inert(&parameters);
    let y = inert.parameter(place(&parameters, 0)).unwrap();
    refusal(inert.backward_seeded([(y, array(&[2, 3], 1..=6))]), &["tape", "inert", "recording"]);
    let (tape, other) = (Tape::recording(&parameters), Tape::recording(&parameters));
    let foreign = tape.scale(2.0, &tape.parameter(place(&parameters, 0)).unwrap()).unwrap();
    let y = other.scale(2.0, &foreign).unwrap();
    refusal(tape.backward_seeded([(y.clone(), array(&[2, 3], 1..=6))]), &["another tape"]);
    refusal(other.backward_seeded([(y, array(&[2, 3], 1..=6))]), &["another tape"]);
}

/// The place of a parameter.
pub(super) fn place(parameters: &Parameters<Column>, index: usize) -> ParameterId {
    parameters.ids().nth(index).expect("a parameter")
}

#[test]
fn places_in_other_parameters_are_refused() {
    if is_missing() {
        return;
    }
    let (own, others) = (parameters(), parameters());
    let tape = Tape::recording(&own);
    for foreign in others.ids() {
        for message in [tape.parameter(foreign).unwrap_err(), tape.weight(foreign).unwrap_err()] {
            assert!(message.to_string().contains("`parameter` is number"), "{message}");
        }
    }
    assert!(own.ids().all(|id| tape.parameter(id).is_ok()));
    // Nor have they a gradient among those of the own ones.
    let y = tape.scale(2.0, &tape.parameter(place(&own, 0)).unwrap()).unwrap();
    let gradients = tape.backward_seeded([(y, array(&[2, 3], 1..=6))]).unwrap();
    assert!(gradients.get(place(&own, 0)).is_some() && others.ids().all(|id| gradients.get(id).is_none()));
}

/// Gradients of a rule that are not finite are told of with the head, where what came in was sound.
#[test]
fn a_probe_sees_what_a_memory_sends_back() {
    if is_missing() {
        return;
    }
    use hecate_core::{
        Inputs, Sequences,
        rules::{Delta, Matrix, WriteGates},
    };
    let parameters = parameters();
    let (probe, device) = (Probe::default(), device());
    let tape = Tape::recording(&parameters).watched(&probe);
    tape.enter(Some(4));
    let full = |axes: &[usize], x: f32| {
        let values = vec![x; axes.iter().product()];
        Tensor::from_f32(&device, axes.to_vec(), values).expect("an array")
    };
    let constant = |axes: &[usize], x| Var::constant(full(axes, x));
    // One element of a parameter makes all values, so that gradients are wanted.
    let one =
        tape.reshape(&tape.narrow(&tape.parameter(place(&parameters, 1)).unwrap(), 0, 0, 1).unwrap(), [1]).unwrap();
    let v = tape.mul(&constant(&[1, 2, 3, 1], 1.0), &one).unwrap();
    let inputs = Inputs {
        q: constant(&[1, 2, 3, 2], 30.0),
        k: constant(&[1, 2, 3, 2], 30.0),
        v,
        gates: WriteGates { log_a: constant(&[1, 2, 3], 0.0), theta: constant(&[1, 2, 3], 1.0) },
        state: Matrix { m: constant(&[1, 3, 2, 1], 0.0) },
        anchor: None,
    };
    let outputs = tape.memory(Delta::default(), &Sequences::batch(1, 2), inputs).unwrap();
    let seed = Tensor::from_f32(&device, [1, 2, 3, 1], vec![1.0, 1.0, 3e38, 1.0, 1.0, 3e38]).expect("a seed");
    tape.backward_seeded([(outputs.out, seed)]).unwrap();
    let found = probe.into_non_finite().expect("a finding");
    assert_eq!(found.place, Place { layer: Some(4), head: Some(2) });
    assert!(found.what.starts_with("the gradient of `"), "{found:?}");
}
