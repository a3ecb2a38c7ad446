//! Memories that are written at different times, with every rule: nothing reaches back, calls may be cut anywhere, the
//! loss falls, and what is a plain memory in disguise is one.

mod identities;
mod refusals;

use crate::column::{Column, device, is_missing, sample};
use crate::{configs, training::fixtures};
use hecate_conformance::{Array, error};
use hecate_models::{Config, LanguageModel, RuleConfig, Wiring};
use hecate_train::{Trainer, schedule::Schedule};

/// One of each kind with this rule.
fn with(rule: RuleConfig) -> [(&'static str, Config); 3] {
    use configs::levels::{cms, conductor, tnt};
    let mixers = [
        ("cms", cms(rule, &[2, 5], Wiring::Chained)),
        ("conductor", conductor(rule, &[1, 3], Wiring::Independent)),
        ("tnt", tnt(rule, (3, &[2], 4))),
    ];
    mixers.map(|(name, mixer)| (name, configs::config([mixer])))
}

/// Each composition with each rule, by name; of a GPU, a sample.
fn all() -> Vec<(String, Config)> {
    // Neurons cannot be read without a write, as all of these do.
    let rules = RuleConfig::NAMES
        .iter()
        .filter(|name| **name != "lif")
        .map(|name| (name, RuleConfig::named(name).expect("a rule")));
    let of_rule =
        |(name, rule): (&&str, RuleConfig)| with(rule).map(|(kind, config)| (format!("{kind} of {name}"), config));
    let mut all: Vec<_> = sample(rules.flat_map(of_rule).collect(), 3);
    let hope = configs::levels::levels().into_iter().filter(|(name, _)| name.starts_with("hope"));
    all.extend(hope.map(|(name, config)| (name.to_owned(), config)));
    all
}

fn model(config: &Config) -> LanguageModel<Column> {
    LanguageModel::new(&device(), config, 11).expect("a model")
}

/// Scores `[1, T, V]`, read in calls that end at `ends`.
fn read(model: &LanguageModel<Column>, tokens: &[u32], ends: &[usize]) -> Array {
    let mut cache = model.cache(1).expect("a cache");
    let bytes = cache.bytes();
    let part = |&end: &usize| {
        let logits = model.infer(&tokens[cache.position()..end], 1, &mut cache).expect("scores");
        assert_eq!(cache.bytes(), bytes, "the cache grew");
        Array::download(&logits).expect("scores")
    };
    Array::join(&ends.iter().map(part).collect::<Vec<_>>(), 1)
}

#[test]
fn later_tokens_do_not_reach_back() {
    if is_missing() {
        return;
    }
    let length = 20;
    for (name, config) in all() {
        let (model, mut tokens) = (model(&config), configs::tokens(length, 9));
        let before = read(&model, &tokens, &[length]);
        for at in [4, 12] {
            let old = tokens[at];
            tokens[at] = (old + 1) % 11;
            let after = read(&model, &tokens, &[length]);
            tokens[at] = old;
            assert_eq!(before.cut(1, 0..at), after.cut(1, 0..at), "{name}: token {at} changed an earlier score");
            let off = error(&before.cut(1, at + 1..length).values, &after.cut(1, at + 1..length).values);
            assert!(off > 1e-6, "{name}: token {at} was forgotten");
        }
    }
}

#[test]
fn texts_may_be_cut_anywhere() {
    if is_missing() {
        return;
    }
    let length = 23;
    let tokens = configs::tokens(length, 3);
    let one_by_one: Vec<usize> = (1..=length).collect();
    for (name, config) in all() {
        let model = model(&config);
        assert_eq!(model.group(), 1, "{name}");
        let whole = read(&model, &tokens, &[length]);
        for ends in [&one_by_one[..], &[1, 6, 7, 20, length], &[8, length]] {
            let off = error(&whole.values, &read(&model, &tokens, ends).values);
            assert!(off <= 1e-4, "{name}: scores differ by {off:.1e} in calls that end at {ends:?}");
        }
    }
}

#[test]
fn the_loss_falls() {
    if is_missing() {
        return;
    }
    let corpus = fixtures::corpus();
    let schedule = Schedule { peak: 0.02, floor: 0.01, warmup: 2, steps: 20 };
    let settings = hecate_train::Settings { schedule, ..fixtures::settings() };
    for (name, config) in all() {
        let config = Config { vocabulary_size: 256, initializer_range: 0.02, ..config };
        let mut trainer = Trainer::new(&device(), &config, settings, fixtures::plan(), None).expect("a trainer");
        let mut step = || trainer.step(&corpus.train.tokens).expect("a step").loss;
        let losses: Vec<f64> = (0..20).map(|_| step()).collect();
        let last = losses[15..].iter().sum::<f64>() / 5.0;
        assert!(last < 0.8 * losses[0], "{name}: {losses:.2?}");
    }
}
