//! Dropout: what falls away and what is left, and the gradients of what is left.

use super::{HIDDEN, MASKS, ROWS, check, reference};
use crate::column::{Column, device, is_missing};
use hecate_conformance::oracle::Var as Exact;
use hecate_core::{DType, Tensor};
use hecate_models::{
    Builder, Dropout, Masks, Parameters, Random, Tape, Var,
    layers::{Linear, Mlp},
};

/// The mask of the first use on a tape.
fn mask(masks: Masks, share: f32, axes: &[usize]) -> Vec<f32> {
    let parameters = Parameters::new();
    let tape = Tape::recording(&parameters).with_dropout(masks);
    let ones = Tensor::from_f32(&device(), axes, vec![1.0; axes.iter().product()]).expect("ones");
    tape.dropout(share, &Var::constant(ones)).unwrap().value().to_f32().unwrap()
}

#[test]
fn the_forward_and_the_gradient_meet_one_mask() {
    if is_missing() {
        return;
    }
    let values = |seed: usize| -> Vec<f32> { (0..60).map(|i| ((i + seed) as f32 * 0.618).fract() - 0.5).collect() };
    let tensor = |seed| Tensor::from_f32(&device(), [3, 20], values(seed)).expect("an array");
    let mut parameters = Parameters::new();
    let x = parameters.add("x", tensor(1), false);
    let mask = mask(MASKS, 0.25, &[3, 20]);
    let dropped = mask.iter().filter(|&&x| x == 0.0).count();
    assert!((5..=25).contains(&dropped), "{dropped} of 60 with a share of a quarter");
    let tape = Tape::recording(&parameters).with_dropout(MASKS);
    let first = tape.dropout(0.25, &tape.parameter(x).unwrap()).unwrap();
    let second = tape.dropout(0.25, &tape.parameter(x).unwrap()).unwrap();
    let times = |values: Vec<f32>| -> Vec<f32> { values.iter().zip(&mask).map(|(x, mask)| x * mask).collect() };
    assert_eq!(first.value().to_f32().unwrap(), times(values(1)));
    assert_ne!(first.value().to_f32().unwrap(), second.value().to_f32().unwrap());
    let gradients = tape.backward_seeded([(first, tensor(2))]).unwrap();
    assert_eq!(gradients.get(x).expect("a gradient").to_f32().unwrap(), times(values(2)));
}

#[test]
fn only_tapes_of_training_drop() {
    if is_missing() {
        return;
    }
    let mut parameters = Parameters::new();
    let x = parameters.add("x", Tensor::zeros(&device(), [4], DType::F32).unwrap(), false);
    let buffer = |x: &Var<Column>| std::ptr::from_ref(x.value().buffer());
    let (plain, inert) = (Tape::recording(&parameters), Tape::inert(&parameters).with_dropout(MASKS));
    let dropping = Tape::recording(&parameters).with_dropout(MASKS);
    for (tape, share, same) in
        [(&plain, 0.5, true), (&inert, 0.5, true), (&dropping, 0.0, true), (&dropping, 0.5, false)]
    {
        let x = tape.parameter(x).unwrap();
        assert_eq!(buffer(&tape.dropout(share, &x).unwrap()) == buffer(&x), same, "{share} on {tape:?}");
    }
    for share in [1.0, -0.5, f32::NAN] {
        let told = inert.dropout(share, &inert.parameter(x).unwrap()).unwrap_err().to_string();
        assert!(told.contains("`dropout`") && told.contains("under 1"), "{told}");
    }
}

#[test]
fn an_mlp_with_dropout() {
    if is_missing() {
        return;
    }
    const INNER: usize = 12;
    let mask = mask(MASKS, 0.5, &[ROWS.batch, ROWS.tokens, INNER]);
    let dropout = Dropout { activation: 0.5, ..Dropout::default() };
    check(
        "mlp with dropout",
        |build| Mlp::new(&mut build.within("mlp").with_dropout(dropout)?, HIDDEN, INNER),
        |layer, tape, x| layer.forward(tape, x),
        |weights, x| {
            let weights = &weights.within("mlp");
            let row = |(x, mask): (&Exact, &[f32])| {
                let mask = x.constant(1, INNER, mask.iter().map(|&x| x.into()).collect());
                let inner = reference::silu(&reference::linear(weights, "gate_proj", x))
                    * reference::linear(weights, "up_proj", x);
                reference::linear(weights, "down_proj", &(inner * mask))
            };
            x.iter().zip(mask.chunks(INNER)).map(row).collect()
        },
    );
}

#[test]
fn shares_outside_their_range_are_refused() {
    if is_missing() {
        return;
    }
    let (device, mut parameters, mut random) = (device(), Parameters::new(), Random::new(1));
    let build = Builder::new(&device, &mut parameters, &mut random, 0.1, 1);
    let told = build.with_dropout(Dropout { hidden: 1.5, ..Dropout::default() }).unwrap_err().to_string();
    assert!(told.contains("`hidden_dropout` is 1.5"), "{told}");
    let mut build = Builder::new(&device, &mut parameters, &mut random, 0.1, 1);
    Linear::new(&mut build, "l", 2, 2, hecate_models::Init::Normal).expect("a layer");
    assert_eq!(build.dropout(), Dropout::default());
}
