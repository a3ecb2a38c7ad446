//! Linear rules whose memories go back to their start, which layers run as differences from it.

use super::{attention, config, memory};
use hecate_core::{Read, rules::*};
use hecate_models::{
    CmsConfig, ComposedConfig, ConductorConfig, Config, Features, MacConfig, MemoryConfig, MixerConfig, Retain,
    RuleConfig, TntConfig, Wiring,
};

/// A memory that goes back to its start.
pub(crate) fn to_start(rule: impl Into<RuleConfig>) -> MemoryConfig {
    MemoryConfig { retain: Some(Retain::Initial), ..memory(rule.into()) }
}

/// Exact ones by name, alone and in every composition.
pub(crate) fn linear() -> Vec<(&'static str, Config)> {
    let read = Read::Before;
    let dot = Dgd { objective: Objective::Dot, ..Dgd::default() };
    let squares = MemoryConfig { features: Features::Poly2, key_dim: Some(2), ..to_start(Delta::default()) };
    let half = MemoryConfig { forgetting: 0.5, conv: 0, gate: false, ..to_start(Titans { read, ..Titans::default() }) };
    let memories = [
        ("hebbian, to its start", to_start(Hebbian::default())),
        ("hebbian, read before, to its start", to_start(Hebbian { read })),
        ("delta, to its start", to_start(Delta::default())),
        ("delta, read before, to its start", to_start(Delta { read, ..Delta::default() })),
        ("delta, decayed, to its start", to_start(Delta { erase: Erase::Decayed, ..Delta::default() })),
        ("delta, polynomial features, to its start", squares),
        ("titans, to its start", to_start(Titans::default())),
        ("titans, read before, half as fast to its start", half),
        ("dgd, to its start", to_start(Dgd::default())),
        ("dgd, dot, read before, to its start", to_start(Dgd { read, ..dot })),
        ("lightning, to its start", to_start(Lightning::default())),
    ];
    let mut models = memories.map(|(name, memory)| (name, MixerConfig::Memory(memory))).to_vec();
    models.extend(composed(dot));
    models.into_iter().map(|(name, mixer)| (name, config([mixer]))).collect()
}

/// Each composition with a rule or two, of which `dot` is one.
fn composed(dot: Dgd) -> Vec<(&'static str, MixerConfig)> {
    let both =
        |rule: RuleConfig, persistent| ComposedConfig { memory: to_start(rule), attention: attention(), persistent };
    let mac = |rule: RuleConfig| {
        let ComposedConfig { memory, attention, persistent } = both(rule, 1);
        MixerConfig::Mac(MacConfig { memory, attention, persistent, segment: 3 })
    };
    let cms = |memory, wiring| MixerConfig::Cms(CmsConfig { memory, periods: vec![2, 3], wiring });
    let conductor = |memory, wiring| MixerConfig::Conductor(ConductorConfig { memory, periods: vec![1, 3], wiring });
    let tnt = |memory| MixerConfig::Tnt(TntConfig { memory, chunk: 3, locals: vec![2], shard: 4 });
    let (delta, titans, dgd) = (Delta::default().into(), Titans::default().into(), Dgd::default().into());
    vec![
        ("mag, delta, to its start", MixerConfig::Mag(both(delta, 2))),
        ("mal, dgd, to its start", MixerConfig::Mal(both(dgd, 0))),
        ("mac, titans, to its start", mac(titans)),
        ("cms, delta, to its start", cms(to_start(delta), Wiring::Chained)),
        ("cms, dgd, dot, to its start", cms(to_start(dot), Wiring::Independent)),
        ("conductor, dgd, to its start", conductor(to_start(dgd), Wiring::Independent)),
        ("conductor, titans, to its start", conductor(to_start(titans), Wiring::Chained)),
        ("tnt, delta, to its start", tnt(to_start(delta))),
        ("tnt, titans, to its start", tnt(to_start(titans))),
    ]
}

/// Those that can be frozen and go back.
pub(crate) fn frozen(group: u32) -> [(&'static str, Config); 2] {
    let frozen = Some(group);
    [
        ("delta, frozen, to its start", to_start(Delta { frozen, ..Delta::default() })),
        ("titans, frozen, to its start", to_start(Titans { frozen, ..Titans::default() })),
    ]
    .map(|(name, memory)| (name, config([MixerConfig::Memory(memory)])))
}
