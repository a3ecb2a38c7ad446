//! Compositions that are plain memories.

use super::{configs, is_missing, model, read};
use hecate_conformance::error;
use hecate_core::{Read, rules::Titans};
use hecate_models::{CmsConfig, ConductorConfig, Config, LayerConfig, MemoryConfig, MixerConfig, RuleConfig, Wiring};

/// Both models have the same weights: they draw the same numbers in the same order.
fn same(what: &str, a: MixerConfig, b: MixerConfig) {
    let tokens = configs::tokens(19, 21);
    let scores = |mixer| {
        let base = configs::levels::levels().remove(0).1;
        let config = Config { layers: vec![LayerConfig { mixer }], ..base };
        read(&model(&config), &tokens, &[tokens.len()]).values
    };
    let off = error(&scores(a), &scores(b));
    assert!(off <= 1e-5, "{what}: off by {off:.1e}");
}

fn titans(read: Read) -> MemoryConfig {
    configs::memory(RuleConfig::Titans(Titans { read, frozen: None, ..Titans::default() }))
}

#[test]
fn a_level_that_is_constant_for_one_token_reads_before_it_writes() {
    if is_missing() {
        return;
    }
    for read in [Read::After, Read::Before] {
        let cms = CmsConfig { memory: titans(read), periods: vec![1], wiring: Wiring::Chained };
        same("cms", MixerConfig::Cms(cms), MixerConfig::Memory(titans(Read::Before)));
    }
}

#[test]
fn a_level_that_fires_at_every_token_is_a_memory() {
    if is_missing() {
        return;
    }
    for read in [Read::After, Read::Before] {
        let conductor = ConductorConfig { memory: titans(read), periods: vec![1], wiring: Wiring::Independent };
        same("conductor", MixerConfig::Conductor(conductor), MixerConfig::Memory(titans(read)));
    }
}
