//! Arrays of two devices: on a tape, in the optimiser, in what a model remembers. Each is refused, and nothing changes.

use crate::{
    column::{Column, another, device, is_missing},
    configs,
};
use hecate_core::{
    Device, Inputs, Sequences, Tensor,
    primitives::{Map, Transpose},
    rules::{Delta, Matrix, WriteGates},
};
use hecate_models::{Config, Error, Gradients, LanguageModel, Parameters, Result, Tape, Var};
use hecate_train::optimizer::{Constants, Moments, norm_squared};

/// The result is the error that names both devices.
#[track_caller]
fn refused<T>(what: &str, result: Result<T>) {
    match result.map(|_| ()) {
        Err(Error::Core(hecate_core::Error::OtherDevice { expected, found, .. })) => assert_ne!(expected, found),
        other => panic!("{what}: {other:?}"),
    }
}

fn array(device: &Column, axes: &[usize], first: f32) -> Tensor<Column> {
    let values = (0..axes.iter().product::<usize>()).map(|i| first + i as f32 / 8.0).collect();
    Tensor::from_f32(device, axes, values).expect("an array")
}

/// Parameters `a [2,3]`, which decays, and `b [3,3]`, which does not.
fn parameters(device: &Column) -> Parameters<Column> {
    let mut parameters = Parameters::new();
    parameters.add("a", array(device, &[2, 3], 1.0), true);
    parameters.add("b", array(device, &[3, 3], -1.0), false);
    parameters
}

#[test]
fn a_tape_refuses_values_of_another_device() {
    if is_missing() {
        return;
    }
    let (parameters, there) = (parameters(&device()), another());
    let tape = Tape::recording(&parameters);
    let mut ids = parameters.ids();
    let [a, b] = [(); 2].map(|()| tape.parameter(ids.next().expect("a place")).expect("a parameter"));
    let foreign = |axes: &[usize]| Var::constant(array(&there, axes, 0.5));
    refused("add", tape.add(&a, &foreign(&[2, 3])));
    refused("mul", tape.mul(&foreign(&[2, 3]), &a));
    refused("gated", tape.gated(Map::Silu, &a, &foreign(&[2, 3])));
    refused("matmul", tape.matmul(&a, &foreign(&[3, 3]), Transpose::default()));
    refused("rms_norm", tape.rms_norm(&a, &foreign(&[3]), 1e-6));
    refused("concat", tape.concat(&[&a, &foreign(&[2, 3])], 0));
    refused("embedding", tape.embedding(&a, &Tensor::from_u32(&there, [1, 2], vec![0, 1]).expect("ids")));
    // What was refused left nothing on the tape.
    let y = tape.matmul(&a, &b, Transpose::default()).expect("a product");
    let seed = array(&device(), &[2, 3], 1.0);
    tape.backward_seeded([(y, seed)]).expect("gradients");
    let tape = Tape::recording(&parameters);
    let y = tape.scale(2.0, &a).expect("a product");
    refused("a seed", tape.backward_seeded([(y, array(&there, &[2, 3], 1.0))]));
}

/// Every argument of a rule in turn, on a tape that records and on one that does not.
#[test]
fn a_memory_refuses_arguments_of_another_device() {
    if is_missing() {
        return;
    }
    let (here, there, parameters) = (device(), another(), Parameters::new());
    let slots = ["q", "k", "v", "log_a", "theta", "m"];
    for (astray, tape) in (0..slots.len())
        .flat_map(|astray| [Tape::recording(&parameters), Tape::inert(&parameters)].map(|tape| (astray, tape)))
    {
        let at =
            |slot: usize, axes: &[usize]| Var::constant(array(if slot == astray { &there } else { &here }, axes, 0.0));
        let inputs = Inputs {
            q: at(0, &[1, 2, 1, 2]),
            k: at(1, &[1, 2, 1, 2]),
            v: at(2, &[1, 2, 1, 3]),
            gates: WriteGates { log_a: at(3, &[1, 2, 1]), theta: at(4, &[1, 2, 1]) },
            state: Matrix { m: at(5, &[1, 1, 2, 3]) },
            anchor: None,
        };
        refused(slots[astray], tape.memory(Delta::default(), &Sequences::batch(1, 2), inputs));
    }
}

/// Values, first and second moments, in their order.
fn elements(parameters: &Parameters<Column>, moments: &Moments<Column>) -> Vec<Vec<f32>> {
    let values = parameters.iter().map(|parameter| &parameter.value);
    let all = values.chain(&moments.means).chain(&moments.squares);
    all.map(|x| x.to_f32().expect("elements")).collect()
}

/// Moments, gradients and their norm, each of another device, leave weights and moments as they were.
#[test]
fn the_optimiser_refuses_arrays_of_another_device() {
    if is_missing() {
        return;
    }
    let (here, there) = (device(), another());
    let mut parameters = parameters(&here);
    let gradients =
        |device: &Column| Gradients::new(vec![Some(array(device, &[2, 3], 0.25)), Some(array(device, &[3, 3], 0.5))]);
    let (near, far) = (gradients(&here), gradients(&there));
    let [norm, far_norm] = [(&here, &near), (&there, &far)].map(|(device, x)| norm_squared(device, x).expect("a norm"));
    let (constants, step) = (Constants::default(), (1, 0.1));
    let mut moments = Moments::new(&here, &parameters).expect("moments");
    moments.update(&mut parameters, &near, &norm, &constants, step).expect("a step");
    let before = elements(&parameters, &moments);
    refused("gradients", moments.update(&mut parameters, &far, &norm, &constants, step));
    refused("norm", moments.update(&mut parameters, &near, &far_norm, &constants, step));
    // Weights that decay are taken out first, so they would be lost where the others' moments are refused too late.
    let mut astray = Moments::new(&there, &parameters).expect("moments").means;
    for (place, astray) in astray.iter_mut().enumerate() {
        std::mem::swap(&mut moments.means[place], astray);
        refused("means", moments.update(&mut parameters, &near, &norm, &constants, step));
        std::mem::swap(&mut moments.means[place], astray);
        std::mem::swap(&mut moments.squares[place], astray);
        refused("squares", moments.update(&mut parameters, &near, &norm, &constants, step));
        std::mem::swap(&mut moments.squares[place], astray);
    }
    assert_eq!(before, elements(&parameters, &moments), "a refused step changed something");
    moments.update(&mut parameters, &near, &norm, &constants, (2, 0.1)).expect("a step");
}

fn model(device: &Column, config: &Config) -> LanguageModel<Column> {
    LanguageModel::new(device, config, 11).expect("a model")
}

/// What a model of another device remembers, of every kind of layer: one token, several, and with gradients.
#[test]
fn a_cache_of_another_device_is_refused() {
    if is_missing() {
        return;
    }
    let (here, there) = (device(), another());
    let tokens = configs::tokens(5, 3);
    for (name, config) in configs::exact() {
        let model = model(&here, &config);
        let mut cache = self::model(&there, &config).cache(1).expect("a cache");
        refused(name, model.infer(&tokens[..1], 1, &mut cache));
        refused(name, model.infer(&tokens[..4], 1, &mut cache));
        refused(name, model.loss_and_gradients_with_cache(&tokens[..4], &tokens[1..], &mut cache));
        assert_eq!(cache.position(), 0, "{name}: a refused call moved the cache");
        let foreign =
            cache.layers().iter().flat_map(|layer| layer.iter()).filter(|(_, x)| x.device().id() != there.id());
        assert_eq!(foreign.count(), 0, "{name}: a refused call changed the cache");
    }
}
