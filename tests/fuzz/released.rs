//! What models that others released are made of, with sizes that need not make sense. `tests/released` damages their files.

use crate::{
    device, hold,
    layers::{build, mixers},
    sizes::{size, sizes},
    sound,
};
use hecate_core::{DType, Tensor, rules::*};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, LanguageModel, MixerConfig, Opened, Result, Tape, Var,
    generate::{Session, Speculation, next_of_all},
    layers::{
        Block, Branches, Context, FullAttention, FullAttentionConfig, HeadNorm, Memory, MemoryForm, Mixer, Mlp,
        NormPlace, RmsNorm, Rotary, SideBySide, SidePart,
    },
    sampling::{Sampler, Sampling},
};
use proptest::{collection::vec, prelude::*};
use std::fs;

/// Numbers of a configuration: some make sense.
fn number() -> impl Strategy<Value = f32> {
    prop::sample::select(vec![1e-6, 1.0, 1e4, 0.0, -1.0, f32::NAN, f32::INFINITY])
}

#[test]
fn attention_is_built_and_run_or_refused() {
    let draws = (sizes(), number(), number(), 0..3usize, any::<bool>());
    hold(300, &draws, |([hidden, heads, kv_heads, width, channels, tokens], base, epsilon, norm, gate)| {
        let rotary = (channels % 3 > 0).then_some(Rotary { base, channels });
        let norm = [HeadNorm::Nothing, HeadNorm::Each(epsilon), HeadNorm::Together(epsilon)][norm];
        let scale = (channels % 2 == 0).then_some(epsilon);
        let config = FullAttentionConfig { hidden, heads, kv_heads, width, rotary, norm, gate, scale };
        let built = sound("FullAttention::new", || build(1, |x| FullAttention::new(x, config)))?;
        let Ok((attention, parameters)) = built else { return Ok(()) };
        let x = Tensor::zeros(&device(), [1, tokens.min(4), hidden], DType::F32).expect("a small array");
        let (tape, x) = (Tape::inert(&parameters), Var::constant(x));
        let mut cache = attention.cache(&device(), &parameters, 1).expect("a cache");
        let _ = sound("FullAttention::forward", || -> Result<()> {
            for call in 0..2 {
                let sequences = Context::<Cpu>::whole(1, tokens.min(4)).sequences;
                let mut context = Context::at(sequences, call * tokens.min(4), Some(&mut cache));
                attention.forward(&tape, &x, &mut context)?;
            }
            Ok(())
        })?;
        Ok(())
    });
}

#[test]
fn memories_of_any_form_are_built_or_refused() {
    let draws = (mixers(), sizes(), number(), number(), any::<bool>());
    hold(200, &draws, |(config, [hidden, width, ..], norm_epsilon, query_scale, biased)| {
        let retention_bound = (hidden % 2 == 0).then_some(-norm_epsilon);
        let form = MemoryForm { norm_epsilon, query_scale, biased, retention_bound, ..MemoryForm::default() };
        if let MixerConfig::Memory(config) = config {
            let config = config.with_rule(Kda::default());
            let made = sound("Memory::in_form", || {
                build(1, |x| Memory::in_form(x, &config, (hidden, 1e-6), form).map(|_| ()))
            })?;
            assert!(
                made.is_err() || (norm_epsilon >= 0.0 && query_scale > 0.0 && retention_bound.is_none_or(|x| x < 0.0))
            );
        }
        let of = |size: usize| size.min(4);
        let block = || {
            build(1, |x| {
                let norms =
                    [RmsNorm::one_plus(x, "a", of(width), norm_epsilon)?, RmsNorm::new(x, "b", of(hidden), 1e-6)?];
                let config = FullAttentionConfig {
                    hidden: of(hidden),
                    heads: 1,
                    kv_heads: 1,
                    width: 2,
                    rotary: None,
                    norm: HeadNorm::Nothing,
                    gate: false,
                    scale: None,
                };
                let (attention, mlp) = (FullAttention::new(x, config)?, Mlp::new(x, of(hidden), of(width))?);
                let [first, second] = norms;
                let part = |factor| SidePart { mixer: Box::new(attention), inward: factor, outward: query_scale };
                let both = SideBySide::new(part(norm_epsilon), vec![part(1.0)]);
                let branches = Branches { mixer: (first, Box::new(both)), mlp: Some((second, mlp)) };
                Ok(Block::of(x, NormPlace::After, branches))
            })
        };
        let Ok((block, parameters)) = sound("Block::of", block)? else { return Ok(()) };
        let x = Tensor::zeros(&device(), [1, 2, of(hidden)], DType::F32).expect("a small array");
        let forward =
            || block.forward(&Tape::inert(&parameters), &Var::constant(x), &mut Context::whole(1, 2)).map(|_| ());
        let _ = sound("Block::forward", forward)?;
        Ok(())
    });
}

/// Folders of a configuration alone: sizes are refused, or the weights are missing.
#[test]
fn folders_without_weights_are_refused() {
    let family = prop::sample::select(vec![
        "llama",
        "delta_net",
        "gated_deltanet",
        "olmo_hybrid",
        "qwen3_5",
        "granitemoehybrid",
        "falcon_h1",
        "gpt2",
        "",
    ]);
    hold(100, &(family, sizes(), "\\PC{0,40}"), |(family, [hidden, layers, heads, kv_heads, width, words], text)| {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "num_hidden_layers": {layers}, "vocab_size": {words},
                "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {width}}}"#
        );
        for content in [config, text] {
            fs::write(folder.path().join("config.json"), content).expect("room");
            let opened = sound("Opened::open", || Opened::open(&device(), folder.path()).map(|_| ()))?;
            prop_assert!(opened.is_err_and(|error| error.to_string().len() > 10));
        }
        Ok(())
    });
}

/// What sessions are fed and what their files hold.
#[test]
fn sessions_go_on_or_refuse() {
    let config = Config { vocabulary_size: 7, ..Config::uniform("delta", 1, 8, 2).expect("a configuration") };
    let [model, other] = [1, 2].map(|seed| LanguageModel::new(&device(), &config, seed).expect("a model"));
    let sampler = || Sampler::new(Sampling::default()).expect("a sampler");
    let token = || prop_oneof![12 => 0..7u32, 1 => any::<u32>()];
    let draws = (vec(token(), 0..6), vec(token(), 0..6), any::<(usize, u8)>(), size());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.safetensors");
    hold(100, &draws, |(first, second, (at, byte), cut)| {
        let mut session = sound("Session::new", || Session::new(&model, sampler()))?.expect("a session");
        let mut company = session.fork();
        let _ = sound("Session::feed", || session.feed(&model, &first))?;
        let _ = sound("Session::feed", || company.feed(&model, &second))?;
        for _ in 0..2 {
            let drawn = sound("next_of_all", || next_of_all(&model, &mut [&mut session, &mut company]))?;
            prop_assert_eq!(drawn.len(), 2);
        }
        session.save(&model, &path).expect("a file");
        prop_assert!(Session::restore(&model, &path, sampler()).is_ok());
        prop_assert!(Session::restore(&other, &path, sampler()).is_err());
        let mut content = fs::read(&path).expect("a file");
        let at = at % content.len();
        content[at] ^= byte.max(1);
        if at.is_multiple_of(3) {
            content.truncate(cut.min(content.len() - 1));
        }
        fs::write(&path, content).expect("room");
        let damaged = sound("Session::restore", || Session::restore(&model, &path, sampler()).map(|_| ()))?;
        prop_assert!(damaged.is_err_and(|error| error.to_string().len() > 10));
        Ok(())
    });
}

/// A draft of any length ahead is refused, or writes what the session alone does; tokens that there are not change nothing.
#[test]
fn drafts() {
    let config = |layers| Config::uniform("titans", layers, 8, 1).expect("sizes");
    let model = LanguageModel::new(&device(), &config(2), 1).expect("a model");
    let narrow = Config { vocabulary_size: 7, ..config(1) };
    let drafts = [config(1), narrow].map(|config| LanguageModel::new(&device(), &config, 2).expect("a model"));
    let sampler = || Sampler::new(Sampling::default()).expect("a sampler");
    let token = || prop_oneof![12 => 0..7u32, 1 => any::<u32>()];
    hold(100, &(vec(token(), 0..6), any::<bool>(), prop_oneof![1..9usize, size()]), |(tokens, narrow, ahead)| {
        let session = || Session::new(&model, sampler()).expect("a session");
        let draft = &drafts[usize::from(narrow)];
        let begun = sound("Speculation::new", || Speculation::new(&model, session(), draft, ahead))?;
        // A draft must have all tokens that are drawn, and 64 at a time are the most.
        prop_assert_eq!(begun.is_ok(), !narrow && (1..=64).contains(&ahead));
        let Ok(mut drafted) = begun else { return Ok(()) };
        let mut alone = session();
        let read = sound("Speculation::feed", || drafted.feed(&tokens))?;
        prop_assert_eq!(read.is_ok(), alone.feed(&model, &tokens).is_ok());
        for _ in 0..4 {
            let found = sound("Speculation::next_token", || drafted.next_token())?;
            prop_assert_eq!(found.ok(), alone.next(&model).ok());
        }
        Ok(())
    });
}
