//! Small models of every kind, on purpose of odd sizes.

pub(super) mod levels;
pub(super) mod to_start;

use hecate_core::{Read, rules::*};
use hecate_models::{
    AttentionConfig, ComposedConfig, Config, Features, LayerConfig, MacConfig, MemoryConfig, MixerConfig, Retain,
    RuleConfig,
};

/// A memory: two heads, keys and values of different width.
pub(super) fn memory(rule: RuleConfig) -> MemoryConfig {
    MemoryConfig { rule, heads: 2, key_dim: Some(3), value_dim: Some(5), conv: 3, ..MemoryConfig::default() }
}

/// Attention: grouped heads, and a window that texts outgrow.
pub(super) fn attention() -> AttentionConfig {
    AttentionConfig { heads: 4, kv_heads: Some(2), head_dim: Some(4), window: 4, rope_base: 100.0, conv: 0 }
}

/// A small model with these mixers.
pub(super) fn config(mixers: impl IntoIterator<Item = MixerConfig>) -> Config {
    Config {
        vocabulary_size: 11,
        hidden_size: 8,
        intermediate_size: Some(10),
        initializer_range: 0.4,
        layers: mixers.into_iter().map(|mixer| LayerConfig { mixer }).collect(),
        ..Config::default()
    }
}

/// Every rule with its options, exact, by name.
pub(super) fn exact() -> Vec<(&'static str, Config)> {
    let delta = Delta::default();
    let rules = [
        ("hebbian", RuleConfig::Hebbian(Hebbian::default())),
        ("hebbian, read before", RuleConfig::Hebbian(Hebbian { read: Read::Before })),
        ("delta", RuleConfig::Delta(delta)),
        ("delta, decayed", RuleConfig::Delta(Delta { erase: Erase::Decayed, ..delta })),
        ("titans", RuleConfig::Titans(Titans::default())),
        ("titans, read before", RuleConfig::Titans(Titans { read: Read::Before, ..Titans::default() })),
        ("dgd", RuleConfig::Dgd(Dgd::default())),
        ("lightning", RuleConfig::Lightning(Lightning::default())),
        ("gla", RuleConfig::Gla(Gla::default())),
        ("kda", RuleConfig::Kda(Kda::default())),
        ("gdn2", RuleConfig::Gdn2(Gdn2::default())),
        ("comba", RuleConfig::Comba(Comba::default())),
        ("dplr", RuleConfig::Dplr(Dplr::default())),
        ("rwkv7", RuleConfig::Rwkv7(Rwkv7::default())),
        ("atlas", RuleConfig::Atlas(Atlas::default())),
        ("atlas, one token", RuleConfig::Atlas(Atlas { window: 1, read: Read::Before, ..Atlas::default() })),
        ("atlas, Newton-Schulz", RuleConfig::Atlas(Atlas { window: 2, newton_schulz: 3, ..Atlas::default() })),
        ("dgd, dot", RuleConfig::Dgd(Dgd { objective: Objective::Dot, ..Dgd::default() })),
        ("lattice", RuleConfig::Lattice(Lattice::default())),
        ("lattice, encode", RuleConfig::Lattice(Lattice { variant: Variant::Encode, ..Lattice::default() })),
        ("trellis", RuleConfig::Trellis(Trellis { slots: 4, ..Trellis::default() })),
        ("trellis, layer norm", RuleConfig::Trellis(Trellis { phi: Phi::LnSilu, slots: 5, frozen: None })),
        ("trellis, no norm", RuleConfig::Trellis(Trellis { phi: Phi::Identity, slots: 2, frozen: None })),
    ];
    let mut models: Vec<_> =
        rules.map(|(name, rule)| (name, config([MixerConfig::Memory(memory(rule))]))).into_iter().collect();
    let plain = MemoryConfig { conv: 0, gate: false, ..memory(RuleConfig::Delta(delta)) };
    models.push(("delta, bare", Config { tie_word_embeddings: false, ..config([MixerConfig::Memory(plain)]) }));
    let long = MemoryConfig { step: 1.75, decay: false, ..memory(RuleConfig::Delta(delta)) };
    models.push(("delta, long steps, no decay", config([MixerConfig::Memory(long)])));
    let keeping = MemoryConfig { decay: false, ..memory(RuleConfig::Titans(Titans::default())) };
    let squares = MemoryConfig { features: Features::Poly2, ..memory(RuleConfig::Atlas(Atlas::default())) };
    models.push(("atlas, polynomial features", config([MixerConfig::Memory(squares)])));
    models.push(("titans, no decay", config([MixerConfig::Memory(keeping)])));
    for (name, rule) in [
        ("titans, bounded momentum", RuleConfig::Titans(Titans::default())),
        ("titans_mlp, bounded momentum", RuleConfig::named("titans_mlp").expect("titans_mlp")),
        ("yaad_momentum, bounded momentum", RuleConfig::named("yaad_momentum").expect("yaad_momentum")),
    ] {
        models.push((name, config([MixerConfig::Memory(MemoryConfig { momentum: 0.75, ..memory(rule) })])));
    }
    models.extend(several_writes());
    models.extend(looking_ahead());
    models.extend(clipped());
    models.extend(to_zero());
    models.push(("attention", config([MixerConfig::Attention(attention())])));
    let convolved = AttentionConfig { conv: 2, kv_heads: None, head_dim: None, ..attention() };
    models.push(("attention, convolved", config([MixerConfig::Attention(convolved)])));
    let titans = RuleConfig::Titans(Titans::default());
    let [mag, mal, mac] = composed(titans, 3, 3);
    models.extend([("mag", mag), ("mal", mal), ("mac", mac)]);
    let named = |name| RuleConfig::named(name).expect(name);
    let deep =
        ["titans_mlp", "moneta", "moneta_matrix", "yaad", "yaad_matrix", "yaad_momentum", "memora", "memora_matrix"];
    models.extend(deep.map(|name| (name, config([MixerConfig::Memory(memory(named(name)))]))));
    let [mag, _, _] = composed(named("lattice"), 2, 3);
    let [_, mal, _] = composed(named("yaad_momentum"), 0, 3);
    models.extend([("mag, lattice", mag), ("mal, yaad_momentum", mal)]);
    let [mag, _, _] = composed(named("moneta_matrix"), 0, 3);
    let [_, mal, _] = composed(named("memora_matrix"), 2, 3);
    let [_, _, mac] = composed(named("atlas"), 1, 3);
    models.extend([("mag, moneta_matrix", mag), ("mal, memora_matrix", mal), ("mac, atlas", mac)]);
    let functions = [
        ("mac, titans_mlp", "titans_mlp"),
        ("mac, memora", "memora"),
        ("mac, lattice", "lattice"),
        ("mac, lightning", "lightning"),
        ("mac, gdn2", "gdn2"),
    ];
    models.extend(functions.map(|(name, rule)| {
        let [_, _, mac] = composed(named(rule), 1, 3);
        (name, mac)
    }));
    let before = RuleConfig::Dgd(Dgd { read: Read::Before, ..Dgd::default() });
    let [mag, mal, mac] = composed(before, 0, 4);
    models.extend([("mag, dgd, bare", mag), ("mal, dgd, bare", mal), ("mac, dgd, bare", mac)]);
    models.push(("mixed", mixed()));
    let [mag, _, _] = composed(RuleConfig::Delta(delta), 2, 3);
    let upon = [RuleConfig::Delta(delta), RuleConfig::Hebbian(Hebbian::default())];
    models.extend([("mag, delta", mag), ("delta and hebbian", config(upon.map(memory).map(MixerConfig::Memory)))]);
    models.extend(levels::levels());
    models.extend(to_start::linear());
    models
}

/// Tokens that write several times: rules of each family, and with what a layer does around a rule.
fn several_writes() -> Vec<(&'static str, Config)> {
    let of = |name, writes_per_token| {
        let rule = RuleConfig::named(name).expect(name);
        MemoryConfig { writes_per_token, ..memory(rule) }
    };
    let product = MemoryConfig { step: 2.0, decay: false, conv: 0, ..of("delta", 2) };
    let memories = [
        ("delta, three writes", of("delta", 3)),
        ("delta, a product", product),
        ("delta, two writes, to its start", MemoryConfig { retain: Some(Retain::Initial), ..of("delta", 2) }),
        ("titans, two writes", of("titans", 2)),
        ("yaad, two writes", of("yaad", 2)),
        ("lattice, two writes", of("lattice", 2)),
        ("kda, two writes", of("kda", 2)),
        ("memora_matrix, two writes", of("memora_matrix", 2)),
    ];
    memories.map(|(name, memory)| (name, config([MixerConfig::Memory(memory)]))).into_iter().collect()
}

/// Momentum that looks ahead, of every rule that has it.
fn looking_ahead() -> Vec<(&'static str, Config)> {
    let momentum = MomentumForm::LookAhead;
    let titans = Titans { momentum, ..Titans::default() };
    let network = RuleConfig::TitansMlp(TitansMlp { momentum, ..TitansMlp::default() });
    let bounded = RuleConfig::YaadMomentum(YaadMomentum { momentum, ..YaadMomentum::default() });
    let [mag, _, _] = composed(titans.into(), 2, 3);
    let memories = [
        ("titans, looking ahead", memory(titans.into())),
        ("titans, looking ahead, read before", memory(Titans { read: Read::Before, ..titans }.into())),
        ("titans, looking ahead, to its start", to_start::to_start(titans)),
        ("titans, looking ahead, bounded", MemoryConfig { momentum: 0.75, ..memory(titans.into()) }),
        ("titans_mlp, looking ahead", memory(network)),
        ("titans_mlp, looking ahead, to zero", MemoryConfig { retain: Some(Retain::Zero), ..memory(network) }),
        ("yaad_momentum, looking ahead", memory(bounded)),
    ];
    let memories = memories.map(|(name, memory)| (name, config([MixerConfig::Memory(memory)])));
    memories.into_iter().chain([("mag, titans, looking ahead", mag)]).collect()
}

/// Networks that are taught errors of a bounded length, of which most are longer.
fn clipped() -> Vec<(&'static str, Config)> {
    let clip = Some(0.5);
    let bounded: RuleConfig = YaadMomentum { clip, ..YaadMomentum::default() }.into();
    let power = Moneta::<MlpMemory> { clip, ..Moneta::default() }.into();
    let [mag, _, _] = composed(bounded, 2, 3);
    let memories = [
        ("titans_mlp, clipped", memory(TitansMlp { clip, ..TitansMlp::default() }.into())),
        // Its steps are short: what they and shorter errors do to a start is lost in its last digits, but not at zero.
        ("moneta, clipped, to zero", MemoryConfig { retain: Some(Retain::Zero), ..memory(power) }),
        ("yaad_matrix, clipped", memory(YaadMatrix { clip, ..YaadMatrix::default() }.into())),
        ("memora, clipped", memory(Memora::<MlpMemory> { clip, ..Memora::default() }.into())),
    ];
    let memories = memories.map(|(name, memory)| (name, config([MixerConfig::Memory(memory)])));
    memories.into_iter().chain([("mag, yaad_momentum, clipped", mag)]).collect()
}

/// Memories that could go back to their start and go to zero, as quickly as their gates say and more slowly.
fn to_zero() -> Vec<(&'static str, Config)> {
    let named = |name| memory(RuleConfig::named(name).expect(name));
    let retain = Some(Retain::Zero);
    let slow = |name| MemoryConfig { retain, forgetting: 1.0 / 1024.0, ..named(name) };
    let trellis = RuleConfig::Trellis(Trellis { slots: 4, ..Trellis::default() });
    [
        ("yaad, to zero", MemoryConfig { retain, ..named("yaad") }),
        ("lattice, to zero", MemoryConfig { retain, ..named("lattice") }),
        ("moneta_matrix, to zero", MemoryConfig { retain, ..named("moneta_matrix") }),
        ("titans_mlp, slowly to zero", slow("titans_mlp")),
        ("trellis, slowly to zero", MemoryConfig { rule: trellis, ..slow("trellis") }),
        ("delta, slowly to zero", slow("delta")),
        ("yaad, half as fast to its start", MemoryConfig { forgetting: 0.5, ..named("yaad") }),
        ("yaad, no decay", MemoryConfig { decay: false, ..named("yaad") }),
    ]
    .map(|(name, memory)| (name, config([MixerConfig::Memory(memory)])))
    .into()
}

/// Compositions with as many persistent tokens, and tokens of a segment.
pub(super) fn composed(rule: RuleConfig, persistent: usize, segment: usize) -> [Config; 3] {
    let (memory, attention) = (memory(rule), AttentionConfig { conv: 2, window: 3, ..attention() });
    let both = ComposedConfig { memory: memory.clone(), attention: attention.clone(), persistent };
    let mac = MacConfig { memory, attention: AttentionConfig { window: 2, ..attention }, persistent, segment };
    [MixerConfig::Mag(both.clone()), MixerConfig::Mal(both), MixerConfig::Mac(mac)].map(|mixer| config([mixer]))
}

/// Three blocks of three kinds.
pub(super) fn mixed() -> Config {
    config([
        MixerConfig::Memory(memory(RuleConfig::Titans(Titans::default()))),
        MixerConfig::Attention(attention()),
        MixerConfig::Memory(memory(RuleConfig::Delta(Delta::default()))),
    ])
}

/// Every rule that can be frozen, in groups of `group` tokens.
pub(super) fn frozen(group: u32) -> Vec<(&'static str, Config)> {
    let frozen = Some(group);
    [
        ("delta, frozen", RuleConfig::Delta(Delta { frozen, ..Delta::default() })),
        ("titans, frozen", RuleConfig::Titans(Titans { frozen, ..Titans::default() })),
        ("atlas, frozen", RuleConfig::Atlas(Atlas { frozen, ..Atlas::default() })),
        ("dgd, frozen", RuleConfig::Dgd(Dgd { frozen, ..Dgd::default() })),
        ("lattice, frozen", RuleConfig::Lattice(Lattice { frozen, ..Lattice::default() })),
        ("trellis, frozen", RuleConfig::Trellis(Trellis { frozen, slots: 4, ..Trellis::default() })),
    ]
    .map(|(name, rule)| (name, config([MixerConfig::Memory(memory(rule))])))
    .into_iter()
    .chain(["mag, frozen", "mal, frozen", "mac, frozen"].into_iter().zip(frozen_compositions(group)))
    .chain(to_start::frozen(group))
    .chain(averaged(group))
    .chain(renormed(group))
    .collect()
}

/// Groups that start with columns as long as those of the memory's start.
fn renormed(group: u32) -> Vec<(&'static str, Config)> {
    let (frozen, renorm) = (Some(group), true);
    let network: RuleConfig = TitansMlp { frozen, renorm, ..TitansMlp::default() }.into();
    let bounded: RuleConfig = Yaad::<MlpMemory> { frozen, renorm, ..Yaad::default() }.into();
    let matrix = YaadMatrix { frozen, renorm, ..YaadMatrix::default() }.into();
    let momentum = YaadMomentum { frozen, renorm, ..YaadMomentum::default() }.into();
    let [mag, ..] = composed(bounded, group as usize, group as usize);
    let memories = [
        ("titans_mlp, frozen, renorm", network),
        ("yaad, frozen, renorm", bounded),
        ("yaad_matrix, frozen, renorm", matrix),
        ("yaad_momentum, frozen, renorm", momentum),
    ];
    let memories = memories.map(|(name, rule)| (name, config([MixerConfig::Memory(memory(rule))])));
    memories.into_iter().chain([("mag, yaad, frozen, renorm", mag)]).collect()
}

/// Groups that take steps as long as one token's.
fn averaged(group: u32) -> Vec<(&'static str, Config)> {
    let frozen = Some(group);
    let network: RuleConfig = TitansMlp { frozen, ..TitansMlp::default() }.into();
    let bounded: RuleConfig = Yaad::<MlpMemory> { frozen, clip: Some(2.0), ..Yaad::default() }.into();
    [
        ("delta, frozen, averaged", Delta { frozen, ..Delta::default() }.into()),
        ("atlas, frozen, averaged", Atlas { frozen, ..Atlas::default() }.into()),
        ("titans_mlp, frozen, averaged", network),
        ("yaad, frozen, averaged, clipped", bounded),
    ]
    .map(|(name, rule)| (name, config([MixerConfig::Memory(MemoryConfig { mean: true, ..memory(rule) })])))
    .into()
}

/// Compositions whose persistent tokens and segments are whole groups.
fn frozen_compositions(group: u32) -> [Config; 3] {
    let rule = RuleConfig::Titans(Titans { frozen: Some(group), ..Titans::default() });
    composed(rule, group as usize, group as usize)
}

/// `count` tokens under 11, without a pattern.
pub(super) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = hecate_conformance::Random::new(seed);
    (0..count).map(|_| random.below(11) as u32).collect()
}
