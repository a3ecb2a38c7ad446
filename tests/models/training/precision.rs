//! Training with 16-bit activations: the same model, a little rougher.

use super::fixtures::*;
use crate::configs;
use hecate_conformance::{Array, error};
use hecate_core::{DType, Tensor};
use hecate_cpu::Cpu;
use hecate_models::{Config, Gradients, LanguageModel, Precision, trained::load_model};
use hecate_train::{Settings, schedule::Schedule};

/// Of the cost of rounding every weight once, what a pass may cost that rounds some thirty arrays on its way, each by as
/// much and none like the other: `√30`, and a little more.
const ROUNDINGS: f64 = 6.0;

/// What rounding to bf16 costs any number: half of `2⁻⁷`, at most.
const ROUNDING: f64 = 1.0 / 256.0;

fn bf16() -> Settings {
    Settings { precision: Precision::Bf16, ..settings() }
}

/// Gradients of one pass over fixed tokens.
fn gradients(model: &LanguageModel<Cpu>) -> Gradients<Cpu> {
    let text = configs::tokens(43, 9);
    model.loss_and_gradients(&text[..42], &text[1..], 3).unwrap().1
}

fn values(gradients: &Gradients<Cpu>) -> Vec<f64> {
    gradients.iter().flatten().flat_map(|g| Array::download(g).unwrap().values).collect()
}

fn fresh(config: &Config) -> LanguageModel<Cpu> {
    LanguageModel::new(&Cpu::new(), config, 7).unwrap()
}

/// The model with weights that bf16 holds.
fn rounded(config: &Config) -> LanguageModel<Cpu> {
    let mut model = fresh(config);
    for parameter in model.parameters_mut().iter_mut() {
        let values = Array::download(&parameter.value).unwrap().rounded(DType::Bf16);
        parameter.value = values.upload(parameter.value.device(), DType::F32).unwrap();
    }
    model
}

#[test]
fn gradients_are_those_of_32_bits_but_for_rounding() {
    for (name, config) in configs::exact().into_iter().chain(configs::frozen(3)) {
        // Large weights make large gates, and gradients that the last bits decide.
        let config = Config { initializer_range: 0.1, ..config };
        let exact = values(&gradients(&fresh(&config)));
        let cost = error(&exact, &values(&gradients(&rounded(&config))));
        let found = gradients(&fresh(&config).with_precision(Precision::Bf16));
        assert!(found.iter().flatten().all(|g: &Tensor<Cpu>| g.dtype() == DType::F32), "{name}: gradients of 16 bits");
        let found = error(&exact, &values(&found));
        println!("{name}: {found:.1e}, where rounding the weights costs {cost:.1e}");
        assert!(found <= ROUNDINGS * cost.max(ROUNDING), "{name}: {found:.1e}, rounding the weights costs {cost:.1e}");
        assert!(found > 0.0, "{name}: nothing was rounded");
    }
}

#[test]
fn the_loss_falls_as_with_32_bits() {
    let schedule = Schedule { peak: 0.02, floor: 0.002, warmup: 3, steps: 60 };
    let [wide, narrow] = [Precision::F32, Precision::Bf16].map(|precision| {
        let mut trainer = trainer("titans", Settings { schedule, batch: 4, precision, ..settings() });
        let text = corpus().train.tokens.to_vec().unwrap();
        (0..60).map(|_| trainer.step(&text).unwrap().loss).collect::<Vec<_>>()
    });
    assert!(narrow[59] < 1.3, "{narrow:?}");
    // Before the paths part, rounding alone is between them; afterwards the same text is learned as well.
    for (a, b) in wide.iter().zip(&narrow).take(10) {
        assert!((a - b).abs() < 0.05, "{wide:.3?}\n{narrow:.3?}");
    }
    let mean = |losses: &[f64]| losses[40..].iter().sum::<f64>() / 20.0;
    assert!((mean(&wide) - mean(&narrow)).abs() < 0.05 * mean(&wide), "{wide:.3?}\n{narrow:.3?}");
}

#[test]
fn weights_stay_in_32_bits_on_disk_and_off() {
    let folder = tempfile::tempdir().unwrap();
    let run = hecate_train::checkpoint::Run::new(folder.path());
    let mut trainer = trainer("delta", bf16());
    train_to(&mut trainer, 3);
    trainer.save(&run).unwrap();
    let saved = load_model(&Cpu::new(), run.folder()).unwrap();
    assert_eq!(bits(&saved), bits(trainer.model()));
    let (weights, parts) = (saved.parameters().elements(), |word: &u32| word & 0xffff != 0);
    let finer = bits(&saved).iter().flat_map(|(_, bits)| bits).filter(|word| parts(word)).count();
    assert!(finer > weights / 2, "{finer} of {weights} weights are more than bf16 holds");
}

#[test]
fn settings_of_older_runs_mean_32_bits() {
    let mut json = serde_json::to_value(bf16()).unwrap();
    assert_eq!(json["precision"], "bf16");
    json.as_object_mut().unwrap().remove("precision");
    assert_eq!(serde_json::from_value::<Settings>(json).unwrap(), settings());
    assert!(Precision::named("f16").unwrap_err().to_string().contains("f32, bf16"));
}
