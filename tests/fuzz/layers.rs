//! Layers built by hand, and what a tape is told.

use crate::{
    device, hold,
    sizes::{size, sizes},
    sound,
};
use hecate_core::{DType, Sequences, Tensor, primitives::GatePlace, rules::*};
use hecate_cpu::Cpu;
use hecate_models::{
    AttentionConfig, Builder, CmsConfig, ComposedConfig, ConductorConfig, Config, HopeConfig, Init, LayerCache,
    MacConfig, MemoryConfig, MixerConfig, Parameters, Random, Result, Retain, RuleConfig, Tape, TntConfig, Var,
    layers::{
        Context, Embedding, GatedConv, Linear, Mamba2, Mamba2Config, Memory, Mlp, Persistent, RmsNorm, ShortConv, mixer,
    },
};
use proptest::{collection::vec, prelude::*};
use std::cell::Cell;

/// Builds with parameters of its own; how many elements there are then.
pub(crate) fn build<T>(
    layers: usize,
    make: impl FnOnce(&mut Builder<'_, Cpu>) -> Result<T>,
) -> Result<(T, Parameters<Cpu>)> {
    let (device, mut parameters, mut random) = (device(), Parameters::new(), Random::new(1));
    let made = make(&mut Builder::new(&device, &mut parameters, &mut random, 0.02, layers))?;
    Ok((made, parameters))
}

#[test]
fn layers_are_built_or_refused() {
    hold(300, &sizes(), |[a, b, c, d, layers, _]| {
        let taken = |result: Result<Parameters<Cpu>>| {
            if let Ok(parameters) = result {
                assert!(layers > 0 || parameters.is_empty(), "a model of no block");
                assert!(parameters.iter().all(|p| p.value.to_f32().is_ok_and(|x| x.iter().all(|x| x.is_finite()))));
            }
        };
        let of = |made: Result<(Linear, Parameters<Cpu>)>| taken(made.map(|(_, parameters)| parameters));
        sound("Linear", || of(build(layers, |x| Linear::with_bias(x, "a", a, b, Init::Residual))))?;
        sound("Mlp", || taken(build(layers, |x| Mlp::new(x, a, b)).map(|x| x.1)))?;
        sound("Embedding", || taken(build(layers, |x| Embedding::new(x, "a", a, b)).map(|x| x.1)))?;
        sound("RmsNorm", || taken(build(layers, |x| RmsNorm::new(x, "a", a, 1e-6)).map(|x| x.1)))?;
        sound("ShortConv", || taken(build(layers, |x| ShortConv::new(x, "a", a, c)).map(|x| x.1)))?;
        sound("ShortConv::with_bias", || taken(build(layers, |x| ShortConv::with_bias(x, "a", a, c)).map(|x| x.1)))?;
        sound("ShortConv::linear", || taken(build(layers, |x| ShortConv::linear(x, "a", a, c)).map(|x| x.1)))?;
        sound("GatedConv", || taken(build(layers, |x| GatedConv::new(x, a, c)).map(|x| x.1)))?;
        sound("Persistent", || taken(build(layers, |x| Persistent::new(x, a, b).map(|_| ())).map(|x| x.1)))?;
        let mamba2 = Mamba2Config {
            hidden: a,
            heads: b,
            value: c,
            key: d,
            groups: b / 2,
            taps: c,
            conv_bias: d % 2 == 0,
            norm: [None, Some(GatePlace::Before), Some(GatePlace::After)][a % 3],
            factors: [[1.0; 5], [f32::NAN; 5]][c % 2],
            norm_eps: 1e-6,
        };
        sound("Mamba2", || taken(build(layers, |x| Mamba2::new(x, mamba2)).map(|x| x.1)))?;
        let init =
            [Init::Normal, Init::Unit, Init::Taps(d), Init::LogSlope, Init::Horizon, Init::Horizons([d as f32, 9.0])]
                [d % 6];
        let _ = sound("Builder", || build(layers, |x| x.parameter("a", [a, b, c], init)).map(|_| ()))?;
        let (device, mut parameters) = (device(), Parameters::new());
        let _ = sound("Builder::blank", || {
            Builder::blank(&device, &mut parameters).parameter("a", [a, b, c], init).map(|_| ())
        })?;
        Ok(())
    });
}

/// Configurations that need not make sense.
pub(crate) fn mixers() -> impl Strategy<Value = MixerConfig> {
    let whole = prop::array::uniform6(prop_oneof![3 => 1..5usize, 1 => size()]);
    let step = prop::sample::select(vec![1.0, 0.5, 7.0, f32::NAN]);
    let rule = prop::sample::select(vec!["delta", "titans", "dgd", "yaad", "lattice", "moneta_matrix", "trellis"]);
    let retain = prop::sample::select(vec![None, Some(Retain::Initial), Some(Retain::Zero)]);
    let forgetting = prop::sample::select(vec![1.0, 0.5, 0.0, f32::NAN]);
    let lengths = vec(prop_oneof![3 => 1..9usize, 1 => size()], 0..4);
    (0..9usize, whole, step, lengths, (rule, retain, forgetting)).prop_map(
        |(kind, sizes, step, list, (rule, retain, forgetting))| {
            let [heads, width, taps, window, persistent, chunk] = sizes;
            let memory = MemoryConfig {
                retain,
                forgetting,
                heads,
                key_dim: Some(width),
                value_dim: (window % 2 == 0).then_some(window),
                conv: taps,
                step,
                ..MemoryConfig::of(RuleConfig::named(rule).expect("a known rule"))
            };
            let attention =
                AttentionConfig { heads, head_dim: Some(width), window, conv: taps, ..AttentionConfig::default() };
            let composed = ComposedConfig { memory: memory.clone(), attention: attention.clone(), persistent };
            match kind {
                0 => MixerConfig::Memory(memory),
                1 => MixerConfig::Attention(attention),
                2 => MixerConfig::Mag(composed),
                3 => MixerConfig::Mal(composed),
                4 => MixerConfig::Mac(MacConfig { memory, attention, persistent, segment: chunk }),
                5 => MixerConfig::Cms(CmsConfig { memory, periods: list, ..CmsConfig::default() }),
                6 => MixerConfig::Conductor(ConductorConfig { memory, periods: list, ..ConductorConfig::default() }),
                7 => MixerConfig::Tnt(TntConfig { memory, chunk, locals: list, shard: window }),
                _ => MixerConfig::Hope(HopeConfig {
                    heads,
                    head_dim: Some(width),
                    chunk,
                    conv: taps,
                    gate: true,
                    retain: retain.unwrap_or(Retain::Initial),
                }),
            }
        },
    )
}

/// A mixer that was built runs at any position, with any cache, and says what its caches are.
#[test]
fn mixers_are_built_and_run_or_refused() {
    let draws = (mixers(), size(), sizes(), vec(size(), 0..3));
    let done = Cell::new(0);
    hold(200, &draws, |(config, hidden, [batch, tokens, position, cached, ..], lengths)| {
        let built = sound("mixer", || build(1, |x| mixer(x, &config, hidden, 1e-6)))?;
        let Ok((mixer, parameters)) = built else { return Ok(()) };
        let tape = Tape::inert(&parameters);
        let x = Tensor::zeros(&device(), [batch.min(3), tokens.min(5), hidden], DType::F32).expect("a small array");
        let mut cache = sound("Mixer::cache", || mixer.cache(&device(), &parameters, cached))?
            .unwrap_or_else(|_| LayerCache::new(Vec::new()));
        let x = Var::constant(x);
        for sequences in [Sequences::batch(batch.min(3), tokens.min(5)), Sequences::packed(&lengths)] {
            let mut context = Context::at(sequences.clone(), position, Some(&mut cache));
            let _ = sound("Mixer::forward", || mixer.forward(&tape, &x, &mut context).map(|_| ()))?;
            let mut context = Context::at(sequences, position, None);
            if let Ok(y) = sound("Mixer::forward", || mixer.forward(&tape, &x, &mut context))? {
                prop_assert_eq!(y.axes(), x.axes());
                done.set(done.get() + 1);
            }
        }
        Ok(())
    });
    assert!(done.get() > 0, "no mixer ran");
}

#[test]
fn memories_of_any_rule_are_built_or_refused() {
    macro_rules! builds {
        ($($rule:ident),*) => {
            [$(|config: &MemoryConfig, frozen, hidden| {
                let config = config.with_rule(<$rule>::default().with_frozen(frozen));
                build(1, |x| Memory::new(x, &config, hidden, 1e-6)).map(|(_, parameters)| parameters.elements())
            }),*]
        };
    }
    use hecate_core::Rule;
    let all: Vec<fn(&MemoryConfig, Option<u32>, usize) -> Result<usize>> = hecate_core::for_each_rule!(builds).to_vec();
    hold(
        200,
        &(0..all.len(), sizes(), any::<Option<u32>>()),
        |(rule, [heads, key, value, conv, hidden, _], frozen)| {
            let config =
                MemoryConfig { heads, key_dim: Some(key), value_dim: Some(value), conv, ..MemoryConfig::default() };
            let _ = sound(AnyRule::NAMES[rule], || all[rule](&config, frozen, hidden))?;
            Ok(())
        },
    );
}

#[test]
fn tapes_take_or_refuse_what_they_are_told() {
    let draws = (sizes(), vec(size(), 0..4), sizes());
    hold(300, &draws, |([rows, columns, axis, start, count, times], lengths, [position, ..])| {
        let mut parameters = Parameters::new();
        let [rows, columns] = [rows.clamp(1, 4), columns.clamp(1, 4)];
        let value = Tensor::zeros(&device(), [rows, columns], DType::F32).expect("a small array");
        let id = parameters.add("a", value, false);
        for tape in [Tape::recording(&parameters), Tape::inert(&parameters)] {
            let x = tape.parameter(id).expect("its own");
            if let Ok(parts) = sound("Tape::split", || tape.split(&x, axis, &lengths))? {
                prop_assert_eq!(parts.len(), lengths.len());
            }
            let _ = sound("Tape::narrow", || tape.narrow(&x, axis, start, count))?;
            let _ = sound("Tape::repeat", || tape.repeat(&x, times))?;
            let _ = sound("Tape::reshape", || tape.reshape(&x, [count, times]))?;
            let sequences = Sequences::batch(rows, 1);
            let heads = tape.reshape(&x, [rows, 1, 1, columns]).expect("the same elements");
            let _ = sound("Tape::rotary", || tape.rotary(&heads, &sequences, position, 10.0))?;
        }
        Ok(())
    });
}

#[test]
fn configurations_of_any_size_are_refused_or_made() {
    hold(200, &(mixers(), sizes()), |(mixer, [hidden, vocabulary, layers, ..])| {
        let layers = sound("LayerConfig::repeated", || hecate_models::LayerConfig { mixer }.repeated(layers.min(3)))?;
        let Ok(layers) = layers else { return Ok(()) };
        let config = Config { hidden_size: hidden, vocabulary_size: vocabulary, layers, ..Config::default() };
        if sound("Config::validate", || config.validate())?.is_ok() && hidden < 9 {
            let made = sound("LanguageModel", || hecate_models::LanguageModel::new(&device(), &config, 1))?;
            prop_assert!(made.is_ok_and(|model| model.parameters().elements() > 0));
        }
        Ok(())
    });
}
