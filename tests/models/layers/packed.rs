//! Texts packed into one row give what each gives by itself.

use super::{BACKWARD, FORWARD, HIDDEN, stir};
use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_conformance::{Array, Random, error};
use hecate_core::{DType, Sequences, Tensor};
use hecate_models::{
    Builder, LayerCache, Parameter, Parameters, Result, Tape, Var,
    layers::{Context, Mixer, ShortConv, mixer},
};

const LENGTHS: [usize; 3] = [4, 1, 6];

/// A layer on one call.
type Forward<'a> = &'a dyn Fn(&Tape<'_, Column>, &Var<Column>, &mut Context<'_, Column>) -> Result<Var<Column>>;

/// What a layer makes of `x [1,T,HIDDEN]`, without and with a record; the gradients of `x` and of all parameters; and
/// what is remembered.
fn run(
    parameters: &mut Parameters<Column>,
    forward: Forward<'_>,
    (x, upstream): (&Array, &Array),
    (sequences, mut cache): (Sequences, LayerCache<Column>),
) -> (Vec<Array>, Vec<Array>, Vec<Array>) {
    let device = device();
    let upload = |array: &Array| array.upload(&device, DType::F32).expect("an array");
    let download = |tensor: &Tensor<Column>| Array::download(tensor).expect("an array");
    let input = parameters.add("x", upload(x), false);
    let context = |cache| Context::at(sequences.clone(), 0, cache);
    let inert = Tape::inert(parameters);
    let x = inert.parameter(input).expect("an input");
    let without = forward(&inert, &x, &mut context(Some(&mut cache))).expect("a result");
    let tape = Tape::recording(parameters);
    let y = forward(&tape, &tape.parameter(input).expect("an input"), &mut context(None)).expect("a result");
    let results = vec![download(without.value()), download(y.value())];
    let gradients = tape.backward_seeded([(y, upload(upstream))]).expect("gradients");
    // Of a text that is too short for them, some parameters have none.
    let gradient = |(parameter, gradient): (&Parameter<Column>, &Option<Tensor<Column>>)| match gradient {
        Some(gradient) => download(gradient),
        None => Array::full(parameter.value.shape().clone(), 0.0),
    };
    let mut gradients: Vec<Array> = parameters.iter().zip(gradients.iter()).map(gradient).collect();
    gradients.rotate_right(1);
    (results, gradients, cache.iter().map(|(_, array)| download(array)).collect())
}

fn check(
    what: &str,
    make: impl Fn(
        &mut Parameters<Column>,
    ) -> Box<dyn Fn(&Tape<'_, Column>, &Var<Column>, &mut Context<'_, Column>) -> Result<Var<Column>>>,
    cache: impl Fn(usize) -> LayerCache<Column>,
) {
    let random = &mut Random::new(41);
    let rows = LENGTHS.iter().sum();
    let (x, upstream) = (random.normals([1, rows, HIDDEN]), random.normals([1, rows, HIDDEN]));
    let one = |x: &Array, upstream: &Array, lengths: &[usize]| {
        let mut parameters = Parameters::new();
        let forward = make(&mut parameters);
        stir(&mut parameters);
        let texts = (Sequences::packed(lengths), cache(lengths.len()));
        run(&mut parameters, &*forward, (x, upstream), texts)
    };
    let (results, gradients, remembered) = one(&x, &upstream, &LENGTHS);
    let mut start = 0;
    let parts = LENGTHS.map(|length| {
        let rows = start..start + length;
        start += length;
        one(&x.cut(1, rows.clone()), &upstream.cut(1, rows), &[length])
    });
    let close = |part: &str, packed: &Array, separate: &[f64], limit: f64| {
        let off = error(separate, &packed.values);
        assert!(off <= limit, "{what}: {part} is off by {off:.1e}");
    };
    let joined = |pick: &dyn Fn(usize) -> Array| (0..3).flat_map(|n| pick(n).values).collect::<Vec<f64>>();
    close("inference", &results[0], &joined(&|n| parts[n].0[0].clone()), FORWARD);
    close("forward", &results[1], &joined(&|n| parts[n].0[1].clone()), FORWARD);
    close("the gradient of x", &gradients[0], &joined(&|n| parts[n].1[0].clone()), BACKWARD);
    for (i, packed) in gradients.iter().enumerate().skip(1) {
        let sum: Vec<f64> =
            (0..packed.values.len()).map(|at| parts.iter().map(|part| part.1[i].values[at]).sum()).collect();
        close("the gradient of a parameter", packed, &sum, BACKWARD);
    }
    for (i, packed) in remembered.iter().enumerate() {
        close("what is remembered", packed, &joined(&|n| parts[n].2[i].clone()), FORWARD);
    }
}

fn build<L>(parameters: &mut Parameters<Column>, make: impl FnOnce(&mut Builder<'_, Column>) -> Result<L>) -> L {
    let (device, mut random) = (device(), hecate_models::Random::new(3));
    make(&mut Builder::new(&device, parameters, &mut random, 0.4, 1)).expect("a layer")
}

#[test]
fn convolution() {
    if is_missing() {
        return;
    }
    let conv =
        |parameters: &mut Parameters<Column>| build(parameters, |build| ShortConv::new(build, "q_conv1d", HIDDEN, 4));
    check(
        "short_conv",
        |parameters| {
            let layer = conv(parameters);
            Box::new(move |tape, x, context| layer.forward(tape, x, context))
        },
        |texts| LayerCache::new(vec![conv(&mut Parameters::new()).cache(&device(), texts).expect("a cache")]),
    );
}

#[test]
fn mixers() {
    if is_missing() {
        return;
    }
    for (name, config) in [configs::exact(), configs::frozen(3)].concat() {
        let layer = |parameters: &mut Parameters<Column>| -> Box<dyn Mixer<Column>> {
            build(parameters, |build| mixer(build, &config.layers[0].mixer, HIDDEN, 1e-5))
        };
        check(
            name,
            |parameters| {
                let layer = layer(parameters);
                Box::new(move |tape, x, context| layer.forward(tape, x, context))
            },
            |texts| {
                let parameters = &mut Parameters::new();
                let layer = layer(parameters);
                layer.cache(&device(), parameters, texts).expect("a cache")
            },
        );
    }
}
