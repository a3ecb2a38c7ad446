//! Memories that are written at different times.

use super::{config, memory};
use hecate_core::rules::*;
use hecate_models::{
    CmsConfig, ConductorConfig, Config, HopeConfig, MixerConfig, Retain, RuleConfig, TntConfig, Wiring,
};

/// Compositions in time, by name. Texts of seven tokens meet each of their ways.
pub(crate) fn levels() -> Vec<(&'static str, Config)> {
    let (delta, titans) = (RuleConfig::Delta(Delta::default()), RuleConfig::Titans(Titans::default()));
    let [memora, momentum, lattice] =
        ["memora", "titans_mlp", "lattice"].map(|name| RuleConfig::named(name).expect(name));
    let dgd = RuleConfig::Dgd(Dgd::default());
    [
        ("cms, delta", cms(delta, &[1, 2, 5], Wiring::Chained)),
        ("cms, titans", cms(titans, &[2, 3], Wiring::Independent)),
        ("conductor, dgd", conductor(dgd, &[1, 3], Wiring::Independent)),
        ("conductor, titans", conductor(titans, &[1, 2, 5], Wiring::Chained)),
        ("tnt, delta", tnt(delta, (3, &[2], 4))),
        ("tnt, titans", tnt(titans, (2, &[1, 3], 3))),
        ("cms, memora", cms(memora, &[1, 3], Wiring::Chained)),
        ("conductor, lattice", conductor(lattice, &[1, 3], Wiring::Independent)),
        ("conductor, titans_mlp", conductor(momentum, &[2], Wiring::Chained)),
        ("tnt, titans_mlp", tnt(momentum, (2, &[1, 3], 3))),
        ("hope", hope(3, Retain::Initial)),
        ("hope, token by token", hope(1, Retain::Initial)),
        ("hope, to zero", hope(3, Retain::Zero)),
        ("hope, token by token, to zero", hope(1, Retain::Zero)),
    ]
    .map(|(name, mixer)| (name, config([mixer])))
    .into()
}

/// A continuum memory system.
pub(crate) fn cms(rule: RuleConfig, periods: &[usize], wiring: Wiring) -> MixerConfig {
    MixerConfig::Cms(CmsConfig { memory: memory(rule), periods: periods.into(), wiring })
}

/// A conductor.
pub(crate) fn conductor(rule: RuleConfig, periods: &[usize], wiring: Wiring) -> MixerConfig {
    MixerConfig::Conductor(ConductorConfig { memory: memory(rule), periods: periods.into(), wiring })
}

/// A global memory and local ones.
pub(crate) fn tnt(rule: RuleConfig, (chunk, locals, shard): (usize, &[usize], usize)) -> MixerConfig {
    MixerConfig::Tnt(TntConfig { memory: memory(rule), chunk, locals: locals.into(), shard })
}

/// A memory that makes its own keys.
pub(crate) fn hope(chunk: usize, retain: Retain) -> MixerConfig {
    MixerConfig::Hope(HopeConfig { heads: 2, head_dim: Some(3), chunk, conv: 3, gate: true, retain })
}
