//! Constructors that others call for a user, called by hand.

use crate::{
    device, hold,
    layers::{build, mixers},
    sizes::{size, sizes},
    sound,
};
use hecate_core::{
    DType, Device, Dims, Host, Tensor,
    families::{DeepSpec, LinearGates},
    rules::*,
};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, LanguageModel, LayerConfig, MixerConfig, Parameters, Random, Tape, Var, Vocabulary,
    generate::generate,
    layers::{
        Block, Context, GatedFusion, Hope, InitialState, Levels, Linear, Mac, Mag, Mal, Memory, Persistent,
        SlidingWindow, Tnt, mixer,
    },
    sampling::{Sampler, Sampling},
    text::{Stream, Text},
    trained::{Trained, WhichWeights, load_best_model},
};
use hecate_train::evaluate::{Budget, evaluate, evaluate_and_monitor};
use proptest::{collection::vec, prelude::*};
use std::{fs, ops::ControlFlow, time::Duration};

#[test]
fn arrays_are_taken_or_refused() {
    let types = prop::sample::select(vec![DType::F32, DType::Bf16, DType::F16, DType::U32]);
    hold(200, &(vec(size(), 0..4), types, vec(any::<f32>(), 0..7)), |(axes, dtype, values)| {
        let host = sound("Host::from_f32", || Host::from_f32(dtype, values.clone()))?;
        prop_assert_eq!((host.len(), host.dtype()), (values.len(), dtype));
        let count = hecate_core::Shape::from(axes.clone()).count();
        let here = device();
        let buffer = here.upload(host.clone()).expect("a small array");
        let made = sound("Tensor::from_buffer", || Tensor::from_buffer(&here, axes.clone(), dtype, buffer))?;
        prop_assert_eq!(made.is_ok(), count == values.len());
        let uploaded = sound("Tensor::upload", || Tensor::upload(&here, axes, host))?;
        prop_assert_eq!(uploaded.is_ok(), count == values.len());
        Ok(())
    });
}

#[test]
fn sizes_of_packed_texts_are_told() {
    hold(200, &(vec(size(), 0..5), sizes(), any::<Option<u32>>()), |(lengths, [heads, key, value, ..], frozen)| {
        let dims = sound("Dims::packed", || Dims::packed(&lengths, heads, key, value))?;
        sound("Dims", || {
            (dims.keys().count(), dims.values().count(), dims.scalars().count(), dims.matrices().count())
        })?;
        let spec = DeepSpec::new(Structure::Mlp(Default::default()), TitansMlp::default().read, frozen);
        sound("DeepSpec::weights", || spec.weights(&dims))?;
        prop_assert!(LinearGates::write(1.0).beta.is_none());
        let started = || build(1, |x| InitialState::new(x, Titans::default(), &dims).map(|_| ()));
        let _ = sound("InitialState::new", started)?;
        let started = || build(1, |x| InitialState::all(x, Titans::default(), &dims).map(|_| ()));
        let _ = sound("InitialState::all", started)?;
        Ok(())
    });
}

/// Without the one call that picks by configuration.
#[test]
fn mixers_are_built_by_hand_or_refused() {
    let draws = (mixers(), size(), any::<bool>());
    hold(200, &draws, |(config, hidden, titans)| {
        macro_rules! of_a_rule {
            (|$x:ident, $rule:ident| $made:expr) => {
                if titans {
                    let $rule = Titans::default();
                    build(1, |$x| $made.map(|_| ()))
                } else {
                    let $rule = Delta::default();
                    build(1, |$x| $made.map(|_| ()))
                }
            };
        }
        let made = |config: &MixerConfig| match config {
            MixerConfig::Memory(config) => {
                let config = config.with_rule(Titans::default());
                build(1, |x| Memory::new(x, &config, hidden, 1e-6).map(|_| ()))
            }
            MixerConfig::Attention(config) => build(1, |x| SlidingWindow::new(x, config, hidden).map(|_| ())),
            MixerConfig::Mag(config) => build(1, |x| Mag::new(x, config, hidden, 1e-6).map(|_| ())),
            MixerConfig::Mal(config) => build(1, |x| Mal::new(x, config, hidden, 1e-6).map(|_| ())),
            MixerConfig::Mac(config) => build(1, |x| Mac::new(x, config, hidden, 1e-6).map(|_| ())),
            MixerConfig::Cms(config) => of_a_rule!(|x, rule| Levels::cms(x, rule, config, hidden, 1e-6)),
            MixerConfig::Conductor(config) => of_a_rule!(|x, rule| Levels::conductor(x, rule, config, hidden, 1e-6)),
            MixerConfig::Tnt(config) => of_a_rule!(|x, rule| Tnt::new(x, rule, config, hidden, 1e-6)),
            MixerConfig::Hope(config) => build(1, |x| Hope::new(x, config, hidden, 1e-6).map(|_| ())),
        };
        sound("a mixer", || made(&config).map(drop).map_err(|error| assert!(error.to_string().len() > 10)))?.ok();
        let whole = Config { hidden_size: hidden, ..Config::default() };
        let layer = LayerConfig { mixer: config };
        let _ = sound("Block::new", || build(1, |x| Block::new(x, &whole, &layer).map(|_| ())))?;
        let _ = sound("GatedFusion::new", || build(1, |x| GatedFusion::new(x, hidden, 1e-6).map(|_| ())))?;
        Ok(())
    });
}

#[test]
fn parts_of_layers_run_or_refuse() {
    hold(200, &sizes(), |[rows, columns, inputs, outputs, batch, tokens]| {
        let of = |size: usize| size.min(4);
        let linear = build(1, |x| Linear::new(x, "a", of(inputs), of(outputs), hecate_models::Init::Normal));
        let _ = sound("Linear::new", || build(1, |x| Linear::new(x, "a", inputs, outputs, hecate_models::Init::Unit)))?;
        let x = Tensor::zeros(&device(), [of(batch), of(tokens), of(rows)], DType::F32).expect("a small array");
        let x = Var::constant(x);
        if let Ok((linear, parameters)) = linear {
            let _ = sound("Linear::forward", || linear.forward(&Tape::inert(&parameters), &x))?;
        }
        let mut parameters = Parameters::new();
        let array = Tensor::zeros(&device(), [of(rows), of(columns)], DType::F32).expect("a small array");
        let tied = Linear::tied(parameters.add("a", array, false));
        let _ = sound("Linear::tied", || tied.forward(&Tape::inert(&parameters), &x))?;
        let _ = sound("Linear::tied", || tied.forward(&Tape::<Cpu>::inert(&Parameters::new()), &x))?;
        let config = MixerConfig::Memory(hecate_models::MemoryConfig { heads: 1, ..Default::default() });
        let made =
            build(1, |build| Ok((Persistent::new(build, of(rows), of(columns))?, mixer(build, &config, 2, 1e-6)?)));
        if let Ok(((Some(rows), memory), parameters)) = made {
            let tape = Tape::inert(&parameters);
            let _ = sound("Persistent::read", || rows.read(&tape, &*memory, batch).map(|_| ()))?;
            let mut context = Context::whole(batch, tokens);
            let _ = sound("Mixer::forward", || memory.forward(&tape, &x, &mut context).map(|_| ()))?;
        }
        Ok(())
    });
}

#[test]
fn texts_are_read_on_or_refused() {
    let config = Config { vocabulary_size: 7, ..Config::uniform("delta", 1, 8, 2).expect("a configuration") };
    let model = LanguageModel::new(&device(), &config, 1).expect("a model");
    let token = || prop_oneof![12 => 0..7u32, 1 => any::<u32>()];
    let draws = (vec(token(), 0..6), vec(token(), 0..6), size(), any::<(u64, u64)>(), "\\PC{0,8}");
    hold(100, &draws, |(prompt, more, segment, (seed, stream), text)| {
        let sampler =
            Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() }).expect("a sampler");
        if let Ok(mut on) = sound("generate", || generate(&model, &prompt, sampler))? {
            let _ = sound("Generation", || on.next())?;
            let read = sound("Generation::read_on", || on.read_on(&more))?.is_ok();
            prop_assert_eq!(sound("Generation", || on.next())?.is_some(), read);
        }
        let of = Stream { bytes: prompt.len(), tokens: prompt.into() };
        let _ = sound("evaluate", || evaluate(&model, &of, segment, |_| ControlFlow::Continue(())))?;
        let monitored = || evaluate_and_monitor(&model, &of, segment, |_| ControlFlow::Continue(()));
        let _ = sound("evaluate_and_monitor", monitored)?;
        sound("Random::stream", || Random::stream(seed, stream).below(9))?.expect("a number");
        sound("Random::keyed", || Random::keyed([seed, stream, 0, u64::MAX]).within(seed..stream))?;
        let length = Duration::new(if stream % 2 == 0 { 0 } else { seed | 64 }, 0);
        let budget = sound("Budget::new", || Budget::new(Some(length)))?;
        prop_assert_eq!(budget.check().is_break(), budget.left() == Some(Duration::ZERO));
        let held = sound("Text::new", || Text::new("a text", text.clone()))?;
        prop_assert_eq!(held.whole().expect("a text"), text.clone());
        let stream = sound("Stream::encode", || Stream::encode(&Vocabulary::Bytes, &text))?.expect("bytes");
        prop_assert_eq!(stream.tokens.len(), text.len());
        Ok(())
    });
}

/// What lies in a folder need not be a run.
#[test]
fn folders_of_models_are_read_or_refused() {
    let files = vec(vec(any::<u8>(), 0..30), 4);
    hold(100, &(files, vec(any::<bool>(), 4)), |(contents, there)| {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["config.json", "model.safetensors", "best.safetensors", "tokenizer.json"];
        for ((name, content), _) in names.iter().zip(&contents).zip(&there).filter(|(_, there)| **there) {
            fs::write(folder.path().join(name), content).expect("room");
        }
        for which in [WhichWeights::Last, WhichWeights::Best] {
            let load = || Trained::load(&device(), folder.path(), which).map(|_| ());
            prop_assert!(sound("Trained::load", load)?.is_err());
        }
        prop_assert!(sound("load_best_model", || load_best_model(&device(), folder.path()).map(|_| ()))?.is_err());
        let path = folder.path().join("tokenizer.json");
        prop_assert!(sound("Vocabulary::from_file", || Vocabulary::from_file(&path).map(|_| ()))?.is_err());
        Ok(())
    });
}
