//! Layers and whole models against the same in 64 bits, differentiated by dfdx.
//!
//! Every parameter's gradient is compared by itself, so a wrong one cannot hide behind a large one. The 64-bit models
//! are checked against central differences.

mod arithmetic;
mod bounded_retention;
mod composed;
mod dropout;
mod losses;
mod misuse;
mod packed;
pub(crate) mod recurrence;
mod reference;
mod retention;
mod rounding;
mod tape;

use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_conformance::{
    Array, Random, error,
    oracle::{Leaf, Var, differences, differentiate},
};
use hecate_core::{
    Device as _, GateLogit, Shape, Tensor,
    rules::{MomentumLogits, Titans},
};
use hecate_models::{
    Builder, Config, LanguageModel, Masks, MixerConfig, Parameters, Result, Tape, Var as TapeVar,
    layers::{Context, Embedding, GatedRule as _, Limits, Linear, Mlp, RmsNorm, ShortConv, mixer},
};
use reference::{Rows, Weights};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

const ROWS: Rows = Rows { batch: 2, tokens: 7 };
const HIDDEN: usize = 8;
const FORWARD: f64 = 1e-5;
const BACKWARD: f64 = 1e-4;
/// On all tapes of layers here, most of which drop nothing.
const MASKS: Masks = Masks { seed: 3, step: 7, pass: 1 };

/// Moves every parameter a little: fresh norms and biases are ones and zeros, which hide what multiplies them.
fn stir(parameters: &mut Parameters<Column>) {
    let random = &mut Random::new(5);
    for parameter in parameters.iter_mut() {
        let mut values = parameter.value.to_f32().expect("a parameter");
        values.iter_mut().for_each(|x| *x += random.uniform(-0.2, 0.2) as f32);
        parameter.value = Tensor::from_f32(&device(), parameter.value.shape().clone(), values).expect("a parameter");
    }
}

/// Parameters as leaves of the oracle.
fn leaves(parameters: &Parameters<Column>) -> Vec<Leaf> {
    let leaf = |shape: &Shape, array| {
        let axes = shape.axes();
        Leaf { array, tile: if axes.len() < 2 { (1, shape.count()) } else { (axes[0], shape.count() / axes[0]) } }
    };
    parameters.iter().map(|p| leaf(p.value.shape(), Array::download(&p.value).expect("a parameter"))).collect()
}

fn by_name(parameters: &Parameters<Column>, leaves: &[Vec<Var>]) -> BTreeMap<String, Var> {
    parameters.iter().zip(leaves).map(|(p, leaf)| (p.name.clone(), leaf[0].clone())).collect()
}

/// Compares gradients with those of the oracle, one parameter at a time.
fn compare(what: &str, parameters: &Parameters<Column>, found: &hecate_models::Gradients<Column>, truth: &[Vec<f64>]) {
    for ((parameter, found), truth) in parameters.iter().zip(found.iter()).zip(truth) {
        let name = &parameter.name;
        let found = found.as_ref().unwrap_or_else(|| panic!("{what}: no gradient of {name}"));
        assert_eq!(found.shape(), parameter.value.shape(), "{what}: shape of the gradient of {name}");
        let size = truth.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!(size > 1e-9, "{what}: the gradient of {name} is zero, nothing is tested");
        let error = error(truth, &Array::download(found).expect("a gradient").values);
        // It is a sum of X − B, which after seven of moneta's short steps is far smaller than the X that is rounded.
        let rounded = what == "moneta" && ["A_log", "dt_bias", "a_proj"].iter().any(|gate| name.contains(gate));
        let limit = if rounded { 10.0 * BACKWARD } else { BACKWARD };
        assert!(error <= limit, "{what}: gradient of {name} is off by {error:.1e}");
    }
}

/// A layer on `x [B,T,HIDDEN]`: `build` makes it, `forward` runs it, `rows` is the same in 64 bits.
fn check<L>(
    what: &str,
    build: impl Fn(&mut Builder<'_, Column>) -> Result<L>,
    forward: impl Fn(&L, &Tape<'_, Column>, &TapeVar<Column>) -> Result<TapeVar<Column>>,
    rows: impl Fn(&Weights, &[Var]) -> Vec<Var>,
) {
    rounding::first_sound(what, |draw| {
        let (device, mut parameters) = (device(), Parameters::new());
        let mut random = hecate_models::Random::new(3 + draw);
        let layer = build(&mut Builder::new(&device, &mut parameters, &mut random, 0.4, 1)).expect("a layer");
        stir(&mut parameters);
        let random = &mut Random::new(29 + draw);
        let x = random.normals([ROWS.batch, ROWS.tokens, HIDDEN]);
        // The input is a parameter too, so that its gradient is compared.
        let input = parameters.add("x", x.upload(&device, hecate_core::DType::F32).expect("an input"), false);
        let tape = Tape::recording(&parameters).with_dropout(MASKS);
        let y = forward(&layer, &tape, &tape.parameter(input).expect("an input")).expect(what);
        let upstream = [random.normals(y.value().shape().clone())];

        let mut leaves = leaves(&parameters);
        leaves[input.index()] = Leaf { array: x, tile: (1, HIDDEN) };
        let reference = |leaves: &[Vec<Var>]| {
            let all = by_name(&parameters, leaves);
            vec![rows(&Weights::new(&all), &leaves[input.index()])]
        };
        let (results, truth) = differentiate(&leaves, &upstream, &reference);
        rounding::is_sound(&rounding::moved(&leaves, &upstream, &reference, &truth), BACKWARD)?;

        let error = error(&results[0], &Array::download(y.value()).expect("a result").values);
        assert!(error <= FORWARD, "{what}: forward is off by {error:.1e}");
        let seed = upstream[0].upload(&device, hecate_core::DType::F32).expect("a gradient");
        compare(what, &parameters, &tape.backward_seeded([(y, seed)]).expect(what), &truth);
        // The 64-bit layer has the same arguments on every column; it is held to differences on one of them.
        if Column::NAME == "cpu" {
            let off = differences(&leaves, &upstream, &reference, 2);
            assert!(off < 1e-6, "{what}: the reference is off from differences by {off:.1e}");
        }
        Some(())
    });
}

#[test]
fn linear() {
    if is_missing() {
        return;
    }
    let init = hecate_models::Init::Normal;
    check(
        "linear",
        |build| Linear::with_bias(build, "l", HIDDEN, 5, init),
        |layer, tape, x| layer.forward(tape, x),
        |weights, x| x.iter().map(|x| reference::linear(weights, "l", x)).collect(),
    );
}

#[test]
fn rms_norm() {
    if is_missing() {
        return;
    }
    check(
        "rms_norm",
        |build| RmsNorm::new(build, "n", HIDDEN, 1e-2),
        |layer, tape, x| layer.forward(tape, x),
        |weights, x| x.iter().map(|x| reference::rms_norm(weights, "n", x, f64::from(1e-2f32))).collect(),
    );
}

#[test]
fn short_conv() {
    if is_missing() {
        return;
    }
    check(
        "short_conv",
        |build| ShortConv::new(build, "q_conv1d", HIDDEN, 4),
        |layer, tape, x| layer.forward(tape, x, &mut Context::whole(ROWS.batch, ROWS.tokens)),
        |weights, x| reference::short_conv(weights, "q_conv1d", x, ROWS),
    );
}

#[test]
fn mlp() {
    if is_missing() {
        return;
    }
    check(
        "mlp",
        |build| Mlp::new(build, HIDDEN, 12),
        |layer, tape, x| layer.forward(tape, x),
        |weights, x| x.iter().map(|x| reference::mlp(weights, x)).collect(),
    );
}

#[test]
fn tied_embedding() {
    if is_missing() {
        return;
    }
    let ids = configs::tokens(ROWS.batch * ROWS.tokens, 2);
    let device = device();
    let tensor = Tensor::from_u32(&device, [ROWS.batch, ROWS.tokens], ids.clone()).expect("ids");
    check(
        "embedding",
        |build| {
            let table = Embedding::new(build, "e", 11, HIDDEN)?;
            let head = table.head(build, "lm_head", (11, HIDDEN), true)?;
            Ok((table, head))
        },
        |(table, head), tape, x| head.forward(tape, &tape.mul(&table.forward(tape, &tensor)?, x)?),
        |weights, x| {
            let row = |(x, &id): (&Var, &u32)| {
                let one = x.constant(1, 11, (0..11).map(|v| f64::from(u8::from(v == id))).collect());
                let table = weights.matrix("e.weight");
                (one.dot(table) * x).dot(&table.t())
            };
            x.iter().zip(&ids).map(row).collect()
        },
    );
}

#[test]
fn mixers() {
    if is_missing() {
        return;
    }
    on_two_threads(&[configs::exact(), configs::frozen(3)].concat(), |(name, config)| {
        let mixer_config: &MixerConfig = &config.layers[0].mixer;
        check(
            name,
            |build| mixer(build, mixer_config, HIDDEN, 1e-5),
            |layer, tape, x| layer.forward(tape, x, &mut Context::whole(ROWS.batch, ROWS.tokens)),
            |weights, x| reference::mixer(mixer_config, weights, x, ROWS, f64::from(1e-5f32)),
        );
    });
}

/// `work` on each of `all`, on two threads with the name of this one, by which a column finds its device.
fn on_two_threads<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one);
        }
    };
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::scope(|scope| {
        for _ in 0..2 {
            thread::Builder::new().name(name.clone()).spawn_scoped(scope, work).expect("a thread");
        }
    });
}

/// No device has a word for it: its kernel for a whole layer would have other gates.
#[test]
fn a_bounded_momentum_is_not_told_to_devices() {
    let told = |momentum| {
        let signals = MomentumLogits { b_proj: GateLogit { x: (), bias: () }, eta_proj: GateLogit { x: (), bias: () } };
        Titans::default().strengths(signals, Limits { step: 1.0, momentum }).is_some()
    };
    assert!(told(1.0) && !told(0.75));
}

/// Inputs and targets of a whole model.
fn text() -> [Vec<u32>; 2] {
    [1, 2].map(|seed| configs::tokens(ROWS.batch * ROWS.tokens, seed))
}

/// Loss of a whole model in 64 bits, of [`text`].
fn model_loss(model: &LanguageModel<Column>, leaves: &[Vec<Var>]) -> Vec<Vec<Var>> {
    let (all, [inputs, targets]) = (by_name(model.parameters(), leaves), text());
    vec![vec![reference::loss(model.config().expect("blocks"), &Weights::new(&all), &inputs, &targets, ROWS)]]
}

/// Loss and gradients of a whole model.
fn check_model(what: &str, config: &Config) {
    rounding::first_sound(what, |draw| {
        let mut model = LanguageModel::new(&device(), config, 17 + draw).expect(what);
        stir(model.parameters_mut());
        let (leaves, upstream) = (leaves(model.parameters()), [Array::full([1], 1.0)]);
        let forward = |leaves: &[Vec<Var>]| model_loss(&model, leaves);
        let (truth, gradients_truth) = differentiate(&leaves, &upstream, &forward);
        rounding::is_sound(&rounding::moved(&leaves, &upstream, &forward, &gradients_truth), BACKWARD)?;

        let [inputs, targets] = text();
        let (loss, gradients) = model.loss_and_gradients(&inputs, &targets, ROWS.batch).expect(what);
        let without_tape = model.loss(&inputs, &targets, ROWS.batch).expect(what);
        assert!((loss - without_tape).abs() <= FORWARD * loss, "{what}: {loss} on a tape, {without_tape} without");
        assert!((loss - truth[0][0]).abs() <= FORWARD * loss, "{what}: loss {loss}, in 64 bits {}", truth[0][0]);
        compare(what, model.parameters(), &gradients, &gradients_truth);
        Some(())
    });
}

#[test]
fn whole_models() {
    if is_missing() {
        return;
    }
    for (name, config) in [configs::exact(), configs::frozen(3)].concat() {
        check_model(name, &config);
    }
}

/// A column whose products depend on the number of rows rounds a half differently.
#[test]
fn gradients_of_two_halves_add_up() {
    if is_missing() {
        return;
    }
    rounding::first_sound("two halves", |draw| {
        let model = LanguageModel::new(&device(), &configs::mixed(), 1 + draw).expect("a model");
        let (leaves, upstream) = (leaves(model.parameters()), [Array::full([1], 1.0)]);
        let forward = |leaves: &[Vec<Var>]| model_loss(&model, leaves);
        let (_, truth) = differentiate(&leaves, &upstream, &forward);
        rounding::is_sound(&rounding::moved(&leaves, &upstream, &forward, &truth), FORWARD)?;
        halves_add_up(&model);
        Some(())
    });
}

fn halves_add_up(model: &LanguageModel<Column>) {
    let (half, [inputs, targets]) = (ROWS.tokens, text());
    let (_, whole) = model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
    let part = |range: std::ops::Range<usize>| {
        model.loss_and_gradients(&inputs[range.clone()], &targets[range], 1).expect("gradients").1
    };
    let mut sum = part(0..half);
    sum.accumulate(part(half..2 * half)).expect("a sum");
    for ((parameter, sum), whole) in model.parameters().iter().zip(sum.iter()).zip(whole.iter()) {
        let values =
            |x: &Option<Tensor<Column>>| Array::download(x.as_ref().expect("a gradient")).expect("values").values;
        let halved: Vec<f64> = values(sum).iter().map(|x| x / 2.0).collect();
        let error = error(&values(whole), &halved);
        assert!(error <= FORWARD, "{}: {error:.1e}", parameter.name);
    }
}

#[test]
fn same_seed_same_weights() {
    if is_missing() {
        return;
    }
    let weights = |seed| {
        let model = LanguageModel::new(&device(), &configs::mixed(), seed).expect("a model");
        let values =
            |p: &hecate_models::Parameter<Column>| (p.name.clone(), p.decay, p.value.to_f32().expect("values"));
        model.parameters().iter().map(values).collect::<Vec<_>>()
    };
    assert_eq!(weights(3), weights(3));
    assert_ne!(weights(3), weights(4));
    for (name, decay, values) in weights(3) {
        assert!(values.iter().all(|x| x.is_finite()), "{name} is not finite");
        let matrix = name.contains("proj.weight") || name.contains("conv1d");
        assert_eq!(decay, matrix, "weight decay of {name}");
    }
}
