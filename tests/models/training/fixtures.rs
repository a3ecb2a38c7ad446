//! A tiny model, a tiny text, and a run that takes milliseconds.

use crate::column::{Column, device};
use hecate_core::Backend;
use hecate_models::{
    Config, LanguageModel, Precision, Vocabulary,
    text::{Corpus, Identity},
};
use hecate_train::{FirstStates, RunPlan, Settings, Trainer, optimizer::Constants, schedule::Schedule};
use std::path::Path;

pub(crate) fn text() -> String {
    (0..400).map(|i| format!("{} plus {i} is {}\n", i % 7, i + i % 7)).collect()
}

pub(crate) fn corpus() -> Corpus {
    Corpus::new(Path::new("a text"), &text(), &Vocabulary::Bytes, 0.1, 16).unwrap()
}

pub(crate) fn config(mixer: &str) -> Config {
    Config::uniform(mixer, 2, 16, 2).unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        batch: 2,
        tokens: 16,
        accumulate: 1,
        carry: 1,
        first_states: FirstStates::default(),
        schedule: Schedule { peak: 0.01, floor: 0.001, warmup: 3, steps: 9 },
        optimizer: Constants::default(),
        seed: 5,
        precision: Precision::F32,
    }
}

pub(crate) fn plan() -> RunPlan {
    let identity = Identity::of(&text());
    let (text, json_lines) = (Vec::new(), None);
    RunPlan { text, json_lines, identity, held_out: 0.1, evaluate_every: 4, save_every: 4, keep: RunPlan::KEEP }
}

pub(crate) fn trainer(mixer: &str, settings: Settings) -> Trainer<Column> {
    Trainer::new(&device(), &config(mixer), settings, plan(), None).unwrap()
}

pub(crate) fn model(mixer: &str) -> LanguageModel<Column> {
    LanguageModel::new(&device(), &config(mixer), 3).unwrap()
}

/// Steps until that many are done.
pub(crate) fn train_to(trainer: &mut Trainer<Column>, steps: u64) {
    let corpus = corpus();
    while trainer.steps() < steps {
        trainer.step(&corpus.train.tokens).unwrap();
    }
}

/// Names and bits of all weights.
pub(crate) fn bits<B: Backend>(model: &LanguageModel<B>) -> Vec<(String, Vec<u32>)> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    model.parameters().iter().map(|p| (p.name.clone(), bits(p.value.to_f32().unwrap()))).collect()
}
