//! Memories composed with attention: every composition with every rule.

mod causality;
mod decoding;
mod reading;
mod refusals;
mod training;

use crate::column::sample;
use hecate_models::{
    AttentionConfig, ComposedConfig, Config, LayerConfig, MacConfig, MemoryConfig, MixerConfig, RuleConfig,
};

/// Tokens of a segment, and of a frozen group.
const SEGMENT: usize = 6;
const GROUP: usize = 3;
const TOKENS: u32 = 11;

/// A memory with this rule: two heads, keys and values of different width.
fn memory(rule: RuleConfig) -> MemoryConfig {
    MemoryConfig { rule, heads: 2, key_dim: Some(3), value_dim: Some(5), conv: 3, ..MemoryConfig::default() }
}

/// Attention with grouped heads and a window that texts outgrow.
fn attention() -> AttentionConfig {
    AttentionConfig { heads: 4, kv_heads: Some(2), head_dim: Some(4), window: 4, rope_base: 100.0, conv: 2 }
}

/// A model of one block.
fn model(mixer: MixerConfig) -> Config {
    Config {
        vocabulary_size: TOKENS as usize,
        hidden_size: 8,
        intermediate_size: Some(10),
        initializer_range: 0.4,
        layers: vec![LayerConfig { mixer }],
        ..Config::default()
    }
}

/// Every composition of a memory, with as many persistent tokens.
fn composed(memory: &MemoryConfig, persistent: usize) -> [(&'static str, Config); 3] {
    let (memory, attention) = (memory.clone(), attention());
    let both = ComposedConfig { memory: memory.clone(), attention: attention.clone(), persistent };
    let mac = MacConfig { memory, attention, persistent, segment: SEGMENT };
    [
        ("mag", model(MixerConfig::Mag(both.clone()))),
        ("mal", model(MixerConfig::Mal(both))),
        ("mac", model(MixerConfig::Mac(mac))),
    ]
}

/// Every composition with every rule, and frozen rules, by name; of a GPU, a sample.
fn all() -> Vec<(String, Config)> {
    let exact = RuleConfig::NAMES.map(|name| RuleConfig::named(name).expect(name));
    let rules = exact.into_iter().flat_map(|rule| [Some(rule), frozen(rule)].into_iter().flatten());
    let compositions = rules.flat_map(|rule| {
        let named = |(name, config)| (format!("{name} of {rule:?}"), config);
        let both = composed(&memory(rule), 2).into_iter().chain(composed(&memory(rule), 0));
        // Neurons cannot be read without a write, as mac does.
        let fits = |(name, _): &(&str, Config)| *name != "mac" || !matches!(rule, RuleConfig::Lif(_));
        both.filter(fits).map(named).collect::<Vec<_>>()
    });
    sample(compositions.collect(), 6)
}

/// The rule in groups of [`GROUP`] tokens, where it can be frozen.
fn frozen(rule: RuleConfig) -> Option<RuleConfig> {
    let json = serde_json::json!({ "name": rule.name(), "frozen": GROUP });
    serde_json::from_value(json).ok()
}

/// `count` tokens without a pattern.
fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = hecate_conformance::Random::new(seed);
    (0..count).map(|_| random.below(TOKENS as usize) as u32).collect()
}
