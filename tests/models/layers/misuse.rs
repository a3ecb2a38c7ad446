//! What a layer says of arrays and options that are not its own.

use super::HIDDEN;
use crate::{
    column::{Column, device, is_missing},
    configs,
};
use hecate_core::{DType, Tensor, rules::*};
use hecate_models::{
    Builder, CmsConfig, Error, Init, MemoryConfig, Parameters, Random, Result, RuleConfig, Tape, TntConfig, Var,
    layers::{Context, Levels, Linear, Memory, Mlp, RmsNorm, ShortConv, Tnt, mixer},
};

fn zeros(axes: &[usize]) -> Var<Column> {
    Var::constant(Tensor::zeros(&device(), axes, DType::F32).expect("zeros"))
}

/// What `make` built, and its parameters.
fn built<L>(make: impl FnOnce(&mut Builder<'_, Column>) -> Result<L>) -> Result<(L, Parameters<Column>)> {
    let mut parameters = Parameters::new();
    let layer = make(&mut Builder::new(&device(), &mut parameters, &mut Random::new(1), 0.1, 1))?;
    Ok((layer, parameters))
}

fn told<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    let message = result.expect_err("refused").to_string();
    words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
}

#[test]
fn errors_name_the_layer_and_its_widths() {
    if is_missing() {
        return;
    }
    let make = |build: &mut Builder<'_, Column>| {
        let norm = RmsNorm::new(build, "norm", 8, 1e-6)?;
        let conv = ShortConv::new(build, "conv", 8, 4)?;
        let mlp = Mlp::new(&mut build.within("block.mlp"), 8, 12)?;
        Ok((norm, conv, mlp, Linear::new(build, "head", 8, 5, Init::Normal)?))
    };
    let ((norm, conv, mlp, head), parameters) = built(make).expect("layers");
    let (tape, x) = (Tape::recording(&parameters), zeros(&[2, 3, 7]));
    told(norm.forward(&tape, &x), &["`norm`", "[2, 3, 7]", "rows of 8", "`weight` has shape [8]"]);
    told(conv.forward(&tape, &x, &mut Context::whole(2, 3)), &["`conv`", "rows of 8", "[8, 1, 4]"]);
    told(mlp.forward(&tape, &x), &["`block.mlp.gate_proj`", "rows of 8", "[12, 8]"]);
    told(head.forward(&tape, &zeros(&[])), &["`head`", "shape []", "[5, 8]"]);
    let error = head.forward(&tape, &x).unwrap_err();
    assert!(matches!(error, Error::Width { expected: 8, .. }), "{error}");
}

#[test]
fn mixers_refuse_what_is_not_their_call() {
    if is_missing() {
        return;
    }
    for (name, config) in configs::exact() {
        let (mixer, parameters) = built(|build| mixer(build, &config.layers[0].mixer, HIDDEN, 1e-5)).expect(name);
        for tape in [Tape::recording(&parameters), Tape::inert(&parameters)] {
            let forward = |axes: &[usize]| mixer.forward(&tape, &zeros(axes), &mut Context::whole(2, 3));
            told(forward(&[2, 3, HIDDEN - 1]), &["layer `", "_proj`: ", "rows of 8"]);
            for axes in [&[][..], &[6], &[6, HIDDEN], &[2, 3, HIDDEN, 1]] {
                told(forward(axes), &["mixer: `x` has shape", "[B,T,hidden]"]);
            }
            for axes in [[2, 4, HIDDEN], [1, 3, HIDDEN], [3, 2, HIDDEN]] {
                told(forward(&axes), &["mixer: `x` has shape"]);
            }
            forward(&[2, 3, HIDDEN]).expect(name);
        }
    }
}

#[test]
fn memories_take_one_rule_and_check_its_options() {
    if is_missing() {
        return;
    }
    fn memory<R: hecate_models::layers::GatedRule>(config: MemoryConfig<R>) -> Result<()> {
        built(|build| Memory::new(build, &config, HIDDEN, 1e-6)).map(|_| ())
    }
    let base = || MemoryConfig { rule: Titans::default(), heads: 2, ..MemoryConfig::default() };
    let delta = |frozen| MemoryConfig { heads: 2, ..MemoryConfig::of(Delta { frozen, ..Delta::default() }) };
    memory(MemoryConfig { momentum: 0.5, ..base() }).expect("titans bounds its momentum");
    memory(MemoryConfig { step: 1.5, decay: false, ..delta(None) }).expect("a long step");
    told(memory(MemoryConfig { momentum: 0.5, ..delta(None) }), &["`momentum`", "0.5"]);
    told(memory(MemoryConfig { step: 1.5, ..base() }), &["`step`", "1.5"]);
    told(memory(MemoryConfig { step: 7.0, ..delta(None) }), &["`step`", "7"]);
    told(memory(MemoryConfig { heads: 3, ..base() }), &["`heads` is 3", "hidden_size = 8"]);
    told(memory(MemoryConfig { writes_per_token: 0, ..base() }), &["`writes_per_token` is 0"]);
    told(memory(MemoryConfig { writes_per_token: 65, ..base() }), &["`writes_per_token` is 65", "64"]);
    let groups = delta(Some(4));
    told(memory(MemoryConfig { writes_per_token: 2, ..groups }), &["`writes_per_token` is 2", "groups of 4", "frozen"]);
    told(memory(MemoryConfig { key_dim: Some(0), ..base() }), &["`key_dim` is 0"]);
    told(memory(MemoryConfig { key_dim: Some(usize::MAX), ..base() }), &["`key_dim`"]);
    told(memory(MemoryConfig { conv: usize::MAX, ..base() }), &["`conv`"]);
    told(memory(delta(Some(0))), &["frozen"]);
    let frozen = Titans { frozen: Some(4), ..Titans::default() };
    memory(MemoryConfig { mean: true, ..base().with_rule(frozen) }).expect("a mean over groups");
    let alone = Titans { frozen: Some(1), ..Titans::default() };
    for rule in [alone, Titans::default()] {
        told(memory(MemoryConfig { mean: true, ..base().with_rule(rule) }), &["`mean` is true", "titans", "groups"]);
    }
    let clipped = TitansMlp { clip: Some(-2.0), ..TitansMlp::default() };
    told(memory(base().with_rule(clipped)), &["`rule`", "titans_mlp", "`clip`", "-2", "over 0"]);
    let wide = built(|build| Memory::new(build, &base(), usize::MAX, 1e-6));
    told(wide, &["`hidden`"]);
}

#[test]
fn mixers_of_one_rule_refuse_a_configuration_of_another() {
    if is_missing() {
        return;
    }
    let memory = MemoryConfig { rule: RuleConfig::Delta(Delta::default()), heads: 2, ..MemoryConfig::default() };
    let (cms, tnt) =
        (CmsConfig { memory: memory.clone(), ..CmsConfig::default() }, TntConfig { memory, ..TntConfig::default() });
    told(built(|build| Levels::cms(build, Titans::default(), &cms, HIDDEN, 1e-6)), &["`memory.rule`", "Titans"]);
    told(built(|build| Tnt::new(build, Titans::default(), &tnt, HIDDEN, 1e-6)), &["`memory.rule`", "Titans"]);
    built(|build| Tnt::new(build, Delta::default(), &tnt, HIDDEN, 1e-6)).expect("the same rule");
    // A text is cut at tokens, not between their writes.
    let memory = MemoryConfig { writes_per_token: 2, ..tnt.memory };
    let (twice, cut) = (TntConfig { memory: memory.clone(), ..tnt }, CmsConfig { memory, ..cms });
    let one = ["`memory.writes_per_token` is 2", "a memory alone"];
    told(built(|build| Tnt::new(build, Delta::default(), &twice, HIDDEN, 1e-6)), &one);
    told(built(|build| Levels::cms(build, Delta::default(), &cut, HIDDEN, 1e-6)), &one);
}
