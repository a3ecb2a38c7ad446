//! A trainer's steps: those of the scalar CPU but for rounding, and on one device the same bits again.

use crate::{
    column::{device, is_missing},
    configs,
    training::fixtures::*,
};
use hecate_core::{Backend, rules::*};
use hecate_cpu::{Algorithm, Cpu};
use hecate_models::{Config, LanguageModel, MixerConfig, RuleConfig, Wiring};
use hecate_train::{Trainer, schedule::Schedule};

const STEPS: u64 = 50;

/// Compositions of few rules: gated with attention, before attention, two levels in a chain, one layer upon another.
fn models() -> [(&'static str, Config); 4] {
    let (hebbian, delta) = (RuleConfig::Hebbian(Hebbian::default()), RuleConfig::Delta(Delta::default()));
    let titans = RuleConfig::Titans(Titans::default());
    let memory = |rule| MixerConfig::Memory(configs::memory(rule));
    let [mag, _, _] = configs::composed(delta, 2, 3);
    let [_, mal, _] = configs::composed(titans, 2, 3);
    let cms = configs::config([configs::levels::cms(delta, &[1, 2], Wiring::Chained)]);
    let mixed = configs::config([memory(delta), memory(hebbian)]);
    [("mag of delta", mag), ("mal of titans", mal), ("cms of delta", cms), ("delta and hebbian", mixed)]
}

/// Losses of [`STEPS`] steps of a small model on bytes.
fn losses<B: Backend>(device: &B, config: &Config) -> Vec<f64> {
    let config = Config { vocabulary_size: 256, initializer_range: 0.02, ..config.clone() };
    // At 0.01 the model of two levels is chaotic: from step 28 on, what rounding made of its losses grows a hundredfold.
    let schedule = Schedule { peak: 0.006, floor: 0.003, warmup: 2, steps: STEPS };
    let settings = hecate_train::Settings { schedule, ..settings() };
    let mut trainer = Trainer::new(device, &config, settings, plan(), None).expect("a trainer");
    let text = corpus().train.tokens.to_vec().unwrap();
    (0..STEPS).map(|_| trainer.step(&text).expect("a step").loss).collect()
}

/// The first losses differ by the rounding of a pass; later ones by what fifty updates make of it, which AdamW scales up
/// where gradients are small: to 1e-4 on WebGPU, of which a device of another rounding may have twenty times as much.
#[test]
fn fifty_steps_are_those_of_the_scalar_cpu() {
    if is_missing() {
        return;
    }
    for (name, config) in models() {
        let (found, truth) =
            (losses(&device(), &config), losses(&Cpu::new().with_algorithm(Algorithm::Scan).expect("a form"), &config));
        for (step, (found, truth)) in found.iter().zip(&truth).enumerate() {
            let limit = if step == 0 { 1e-5 } else { 2e-3 };
            assert!((found - truth).abs() <= limit * truth, "{name}: loss {found} in step {step}, on the CPU {truth}");
        }
        assert!(found[STEPS as usize - 1] < 0.8 * found[0], "{name}: {found:.2?}");
    }
}

#[test]
fn a_device_repeats_its_steps() {
    if is_missing() {
        return;
    }
    let run = || {
        let mut trainer = trainer("titans", settings());
        train_to(&mut trainer, 4);
        bits(trainer.model())
    };
    assert_eq!(run(), run());
}

#[test]
fn fresh_weights_are_the_same_everywhere() {
    if is_missing() {
        return;
    }
    let cpu = LanguageModel::new(&Cpu::new(), &config("titans"), 3).expect("a model");
    assert_eq!(bits(&model("titans")), bits(&cpu));
}
